// Embedding bags: y[bag] = sum, mean or maximum of the rows of a table that the bag's indices name.
//
// Algorithm: one pass over the indices with the bag's result in registers, and rows asked for PREFETCH lookups before they are needed, as
// FBGEMM's kernels for table-batched embeddings do (Khudia et al., 2021): the rows lie anywhere, so the hardware foresees none of them.
// A row wider than CHUNK vectors is taken in pieces; its first piece asks for all of it.
//
// Every index is compared with the number of rows before it is used, and every offset with the number of indices.
//
// Bags are cut into tasks that threads take from a counter.
//
// Compile-time: those of elements.hpp, DIM, INDEX (std::int32_t or std::int64_t), MODE (0 sum, 1 mean, 2 maximum), WEIGHTED, CHUNK (vectors
// of result in registers), PREFETCH (lookups ahead, 0: none).

#include <type_traits>

#include "elements.hpp"

// Mirrored by kernels/fused_bag.py, field by field.
struct Plan {
  ParallelFn parallel;  // GOMP_parallel, or null: everything on the calling thread
  const elem *table;
  i64 rows, stride;  // of the table, in elements
  i64 threads, tasks;
};

namespace {

enum Result { OK, NO_MEMORY, BAD_INDEX, BAD_OFFSET };
enum Mode { SUM, MEAN, MAXIMUM };

constexpr i64 VECTORS = DIM / LANES, REST = DIM % LANES;

struct Operands {
  const INDEX *indices, *offsets;  // offsets: null when all bags have the same length
  const elem *weights;
  elem *y;
  i64 bags, lookups, pooling;
};

inline bool is_row(const Plan &p, INDEX i) { return (std::make_unsigned_t<i64>)(i64)i < (std::make_unsigned_t<i64>)p.rows; }

// Vectors [at, at + N) of a bag's result, and elements beyond them if REST_TOO. CHECK: the first piece, which meets each index first.
template <i64 N, bool CHECK, bool REST_TOO>
inline bool piece(const Plan &p, const Operands &op, i64 begin, i64 end, i64 at, elem *y) {
  constexpr i64 ALL = N + REST_TOO;
  vec acc[ALL > 0 ? ALL : 1] = {};
  for (i64 i = begin; i < end; ++i) {
    const INDEX index = op.indices[i];
    if constexpr (CHECK) {
      if (!is_row(p, index)) return false;
      if constexpr (PREFETCH > 0)
        if (i + PREFETCH < op.lookups) {
          const INDEX next = op.indices[i + PREFETCH];
          if (is_row(p, next)) prefetch_row<DIM>(p.table + next * p.stride);
        }
    }
    const elem *row = p.table + (i64)index * p.stride + at * LANES;
    vec v[ALL > 0 ? ALL : 1];
    EACH(n, N) v[n] = load(row + n * LANES);
    if constexpr (REST_TOO) v[N] = load_rest(row + N * LANES, REST);
    if constexpr (MODE == MAXIMUM) {
      if (i == begin)
        EACH(n, ALL) acc[n] = v[n];
      else
        EACH(n, ALL) acc[n] = v[n] > acc[n] ? v[n] : acc[n];
    } else if constexpr (WEIGHTED) {
      const real weight = widen(op.weights[i]);
      EACH(n, ALL) acc[n] += v[n] * weight;
    } else {
      EACH(n, ALL) acc[n] += v[n];
    }
  }
  if (MODE == MEAN && end > begin) {
    const real count = end - begin;
    EACH(n, ALL) acc[n] /= count;
  }
  EACH(n, N) store(y + (at + n) * LANES, acc[n]);
  if constexpr (REST_TOO) store_rest(y + (at + N) * LANES, acc[N], REST);
  return true;
}

// The pieces of a row from vector AT on.
template <i64 AT>
inline bool pieces(const Plan &p, const Operands &op, i64 begin, i64 end, elem *y) {
  constexpr i64 N = min(CHUNK, VECTORS - AT);
  constexpr bool LAST = AT + N == VECTORS;
  if (!piece<N, AT == 0, LAST && REST != 0>(p, op, begin, end, AT, y)) return false;
  if constexpr (LAST)
    return true;
  else
    return pieces<AT + N>(p, op, begin, end, y);
}

Result bags_of(const Plan &p, const Operands &op, Range bags) {
  for (i64 bag = bags.begin; bag < bags.end; ++bag) {
    i64 begin = bag * op.pooling, end = begin + op.pooling;
    if (op.offsets) {
      begin = op.offsets[bag];
      end = bag + 1 < op.bags ? (i64)op.offsets[bag + 1] : op.lookups;
      if ((bag == 0 && begin != 0) || begin < 0 || begin > end || end > op.lookups) return BAD_OFFSET;
    }
    if (!pieces<0>(p, op, begin, end, op.y + bag * DIM)) return BAD_INDEX;
  }
  return OK;
}

}  // namespace

extern "C" {

// y [bags][DIM], dense. Returns a Result; what is in y is nothing when that is not OK.
int embed(const Plan *p, const INDEX *indices, const INDEX *offsets, const elem *weights, elem *y, i64 bags, i64 lookups,
          i64 pooling) try {
  const Operands op{indices, offsets, weights, y, bags, lookups, pooling};
  const i64 tasks = min(p->tasks, bags);
  int found = OK;
  parallel(p->parallel, p->threads, tasks, [&](i64 t) {
    const Result result = bags_of(*p, op, share(bags, t, tasks));
    if (result != OK) __atomic_store_n(&found, result, __ATOMIC_RELAXED);
  });
  return found;
} catch (const std::bad_alloc &) {
  return NO_MEMORY;
}

}  // extern "C"
