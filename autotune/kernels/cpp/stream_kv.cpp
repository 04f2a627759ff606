// Attention of few queries over many keys and values, as in decoding: y = softmax(q . K^T / sqrt(d)) . V per head.
//
// Algorithm: the time goes into reading K and V, so each is read once, for all query heads of its group (grouped-query attention:
// Ainslie et al., EMNLP 2023) and all positions of the queries at once: those are the `rows`. Keys come in blocks; the softmax is
// online (Milakov and Gimelshein, 2018): a running maximum m and sum l per row, and the result so far is scaled when the maximum grows.
// With SPLITS > 1 several tasks share one head's keys, and the last to finish joins their (m, l, result), as in Flash-Decoding (Dao et
// al., 2023).
//
// Scores: a tile of TILE rows by LANES / TILE keys holds one vector of partial sums along d each; a tree of pairwise sums turns these
// LANES vectors into one with the LANES scores. Probabilities times values: rows of V as vectors, one broadcast per row and key,
// accumulators in registers over the block.
//
// Compile-time: those of elements.hpp, HEAD_DIM (a multiple of LANES), TILE (rows at once: 1, 2, 4 … LANES), BLOCK (keys, a multiple of
// LANES), PREFETCH (keys ahead, 0: none). The queries are scaled by 1/sqrt(d) once.

#include <cmath>
#include <type_traits>

#include "elements.hpp"
#include "parallel_near.hpp"

// Mirrored by kernels/stream_kv.py, field by field.
struct Plan {
  ParallelFn parallel;  // GOMP_parallel, or null: everything on the calling thread
  i64 kv_heads, group;  // query heads per key and value head
  i64 threads, splits, causal;
};

// Of one call; strides in elements.
struct Call {
  i64 batch, q_len, kv_len;
  i64 q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row;
};

namespace {

constexpr i64 D = HEAD_DIM, VECTORS = D / LANES, KEYS = LANES / TILE;
constexpr real MINUS_INFINITY = -__builtin_inf();
static_assert(D % LANES == 0 && LANES % TILE == 0 && BLOCK % LANES == 0);

// Vectors of a row of V that TILE rows accumulate at once: about half of the registers.
constexpr i64 chunk_of(i64 most) {
  i64 found = 1;
  for (i64 c = 1; c <= VECTORS; ++c)
    if (VECTORS % c == 0 && c * TILE <= most) found = c;
  return found;
}
constexpr i64 CHUNK = chunk_of(LANES * sizeof(real) == 64 ? 16 : 8);

// [a0 + a1, a2 + a3 ..., b0 + b1, ...]
inline vec pair_sums(vec a, vec b) {
#ifdef __clang__
  vec v;
  EACH(l, LANES / 2) {
    v[l] = a[2 * l] + a[2 * l + 1];
    v[LANES / 2 + l] = b[2 * l] + b[2 * l + 1];
  }
  return v;
#else
  typedef std::conditional_t<sizeof(real) == 4, std::int32_t, std::int64_t> integer;
  typedef integer indices __attribute__((vector_size(LANES * sizeof(real))));
  indices even, odd;
  EACH(l, LANES) {
    even[l] = 2 * l;
    odd[l] = 2 * l + 1;
  }
  return __builtin_shuffle((avec)a, (avec)b, even) + __builtin_shuffle((avec)a, (avec)b, odd);
#endif
}

// N vectors to N / LANES of their sums, in order.
template <i64 N>
inline __attribute__((always_inline)) void fold(vec *v) {
  if constexpr (N > 1) {
    EACH(i, N / 2) v[i] = pair_sums(v[2 * i], v[2 * i + 1]);
    fold<N / 2>(v);
  }
}

inline real exp_one(real x) {
  if (x == 0) return 1;
  avec v = {};
  v[0] = x;
  return exp_lanes(v)[0];
}

// s[TILE][BLOCK] = q[TILE][D] . K^T for `count` keys; rounded up to KEYS, the last key repeated.
inline void score(const real *q, const elem *k, i64 k_row, i64 count, real *s) {
  for (i64 j = 0; j < count; j += KEYS) {
    vec acc[LANES] = {};
    const elem *key[KEYS];
    EACH(t, KEYS) {
      key[t] = k + min(j + t, count - 1) * k_row;
      if constexpr (PREFETCH > 0) prefetch_row<D>(k + (j + t + PREFETCH) * k_row);
    }
    _Pragma("GCC unroll 4") for (i64 d = 0; d < D; d += LANES) {
      vec line[KEYS];
      EACH(t, KEYS) line[t] = load(key[t] + d);
      EACH(r, TILE) {
        const vec row = *(const vec *)(q + r * D + d);
        EACH(t, KEYS) acc[r * KEYS + t] += row * line[t];
      }
    }
    fold<LANES>(acc);
    real line[LANES];
    *(vec *)line = acc[0];
    EACH(r, TILE) std::memcpy(s + r * BLOCK + j, line + r * KEYS, KEYS * sizeof(real));
  }
}

// Scores of one row to probabilities over exp(m), of which `seen` count and the rest up to `count` become 0. Returns by how much what
// was summed so far is to be scaled.
inline real soften(real *s, i64 seen, i64 count, real &m, real &l) {
  const i64 whole = ceil_div(count, LANES) * LANES;
  if (seen <= 0) {
    std::memset(s, 0, whole * sizeof(real));
    return 1;
  }
  for (i64 j = seen; j < whole; ++j) s[j] = MINUS_INFINITY;
  vec most = *(const vec *)s;
  for (i64 j = LANES; j < whole; j += LANES) {
    const vec v = *(const vec *)(s + j);
    most = v > most ? v : most;
  }
  real top = m;
  EACH(i, LANES) top = most[i] > top ? most[i] : top;
  const real scale = exp_one(m - top);
  vec sum = {};
  for (i64 j = 0; j < whole; j += LANES) {
    const vec p = exp_lanes(*(const vec *)(s + j) - top);
    *(vec *)(s + j) = p;
    if (j + LANES <= seen) sum += p;
  }
  real total = 0;
  for (i64 j = seen / LANES * LANES; j < seen; ++j) total += s[j];
  for (i64 j = seen; j < whole; ++j) s[j] = 0;
  EACH(i, LANES) total += sum[i];
  l = l * scale + total;
  m = top;
  return scale;
}

// o[TILE][D] = o * scale + p . V
inline void weigh(const real *p, const elem *v, i64 v_row, i64 count, const real *scale, real *o) {
  for (i64 c = 0; c < VECTORS; c += CHUNK) {
    vec acc[TILE][CHUNK];
    EACH(r, TILE) EACH(i, CHUNK) acc[r][i] = *(const vec *)(o + r * D + (c + i) * LANES) * scale[r];
    for (i64 j = 0; j < count; ++j) {
      const elem *row = v + j * v_row + c * LANES;
      if constexpr (PREFETCH > 0)
        if (c == 0) prefetch_row<D>(row + PREFETCH * v_row);
      vec line[CHUNK];
      EACH(i, CHUNK) line[i] = load(row + i * LANES);
      EACH(r, TILE) {
        const real share = p[r * BLOCK + j];
        EACH(i, CHUNK) acc[r][i] += share * line[i];
      }
    }
    EACH(r, TILE) EACH(i, CHUNK) *(vec *)(o + r * D + (c + i) * LANES) = acc[r][i];
  }
}

thread_local Scratch task_scratch, shared_scratch;

// What a task found for its rows: the result so far, not yet divided by l.
struct Part {
  real *o, *m, *l;
  Part(real *at, i64 rows) : o(at), m(at + rows * D), l(m + rows) {}
  static i64 size(i64 rows) { return ceil_div(rows * (D + 2), LANES) * LANES; }
};

struct Job {
  const Plan &p;
  const Call &c;
  const elem *q, *k, *v;
  elem *y;
  i64 rows;     // of queries that share a key head, rounded up to TILE
  real *parts;  // [unit][split], or null
  i64 *done;    // [unit]

  void run(i64 task) const {
    const i64 unit = task / p.splits, split = task % p.splits;
    const i64 b = unit / p.kv_heads, h = unit % p.kv_heads;
    real *const own = task_scratch.get(rows * D + TILE * BLOCK + Part::size(rows));
    real *const s = own + rows * D;
    const Part part(parts ? parts + task * Part::size(rows) : s + TILE * BLOCK, rows);
    take_queries(own, b, h);
    std::memset(part.o, 0, rows * D * sizeof(real));
    for (i64 r = 0; r < rows; ++r) {
      part.m[r] = MINUS_INFINITY;
      part.l[r] = 0;
    }
    const Range blocks = share(ceil_div(c.kv_len, BLOCK), split, p.splits);
    for (i64 j = blocks.begin * BLOCK; j < min(blocks.end * BLOCK, c.kv_len); j += BLOCK)
      for (i64 r = 0; r < rows; r += TILE) {
        const i64 count = min(min(BLOCK, c.kv_len - j), seen_by(min(r + TILE, p.group * c.q_len) - 1) - j);
        if (count <= 0) continue;
        score(own + r * D, k + b * c.k_batch + h * c.k_head + j * c.k_row, c.k_row, count, s);
        real scale[TILE];
        for (i64 i = 0; i < TILE; ++i)
          scale[i] = soften(s + i * BLOCK, min(count, seen_by(r + i) - j), count, part.m[r + i], part.l[r + i]);
        weigh(s, v + b * c.v_batch + h * c.v_head + j * c.v_row, c.v_row, count, scale, part.o + r * D);
      }
    if (!parts)
      give_result(part, b, h);
    else if (__atomic_add_fetch(&done[unit], 1, __ATOMIC_ACQ_REL) == p.splits)
      join(unit, b, h);
  }

  // Keys that a row sees. Row r is the head r % group of its group at position r / group; those that only fill a tile see the last's.
  i64 seen_by(i64 r) const {
    return p.causal ? c.kv_len - c.q_len + 1 + min(r / p.group, c.q_len - 1) : c.kv_len;
  }

  void take_queries(real *to, i64 b, i64 h) const {
    const real scale = 1 / std::sqrt((real)D);
    for (i64 r = 0; r < rows; ++r, to += D) {
      if (r >= p.group * c.q_len) {
        std::memset(to, 0, D * sizeof(real));
        continue;
      }
      const elem *from = q + b * c.q_batch + (h * p.group + r % p.group) * c.q_head + r / p.group * c.q_row;
      for (i64 d = 0; d < D; d += LANES) *(vec *)(to + d) = load(from + d) * scale;
    }
  }

  void give_result(const Part &part, i64 b, i64 h) const {
    const i64 heads = p.kv_heads * p.group;
    for (i64 r = 0; r < p.group * c.q_len; ++r) {
      elem *to = y + ((b * c.q_len + r / p.group) * heads + h * p.group + r % p.group) * D;
      const real inverse = part.l[r] == 0 ? 0 : 1 / part.l[r];
      for (i64 d = 0; d < D; d += LANES) store(to + d, *(const vec *)(part.o + r * D + d) * inverse);
    }
  }

  // Adds the parts of a unit up, in the first one.
  void join(i64 unit, i64 b, i64 h) const {
    const auto part_of = [&](i64 split) { return Part(parts + (unit * p.splits + split) * Part::size(rows), rows); };
    const Part sum = part_of(0);
    for (i64 split = 1; split < p.splits; ++split) {
      const Part other = part_of(split);
      for (i64 r = 0; r < rows; ++r) {
        if (other.l[r] == 0) continue;
        const real top = other.m[r] > sum.m[r] ? other.m[r] : sum.m[r];
        const real mine = exp_one(sum.m[r] - top), its = exp_one(other.m[r] - top);
        for (i64 d = r * D; d < (r + 1) * D; d += LANES)
          *(vec *)(sum.o + d) = *(const vec *)(sum.o + d) * mine + *(const vec *)(other.o + d) * its;
        sum.l[r] = sum.l[r] * mine + other.l[r] * its;
        sum.m[r] = top;
      }
    }
    give_result(sum, b, h);
  }
};

}  // namespace

extern "C" {

// Elements of scratch for that many rows of one head: of one thread, and of one split that is to be joined.
i64 scratch_size(i64 rows) { return rows * D + TILE * BLOCK + Part::size(rows); }
i64 part_size(i64 rows) { return Part::size(rows); }

// y [batch][q_len][heads][D], dense. Returns 0, or 1 when out of memory.
int attend(const Plan *p, const Call *c, const elem *q, const elem *k, const elem *v, elem *y) try {
  const i64 units = c->batch * p->kv_heads, rows = ceil_div(p->group * c->q_len, TILE) * TILE;
  Job job{*p, *c, q, k, v, y, rows, nullptr, nullptr};
  if (p->splits > 1) {
    const i64 all = units * p->splits * Part::size(rows), counters = units * (i64)(sizeof(i64) / sizeof(real));
    job.parts = shared_scratch.get(all + counters);
    job.done = reinterpret_cast<i64 *>(job.parts + all);
    std::memset(job.done, 0, units * sizeof(i64));
  }
  parallel_near(p->parallel, p->threads, units * p->splits, [&](i64 task) { job.run(task); });
  return 0;
} catch (const std::bad_alloc &) {
  return 1;
}

}  // extern "C"
