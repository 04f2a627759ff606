// Register-tiled matrix product: y[m,n] = act(x[m,k] . B[k,n] + bias[n]), for constant or dynamic B.
//
// Algorithm: the loop nest of Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication"
// (ACM TOMS 34(3), 2008), in the form of BLIS (Van Zee and van de Geijn, ACM TOMS 41(3), 2015):
//
//   for jc in n by NC                      B block  KC x NC  stays in the last-level cache
//     for pc in k by KC
//       for ic in m by MC                  A block  MC x KC  stays in L2
//         for jr in NC by NR               B panel  KC x NR  stays in L1
//           for ir in MC by MR             C tile   MR x NR  stays in registers
//
// B is packed in panels of NR columns ([panel][k][NR], zero-padded), which makes it one sequential stream: a
// constant weight once, at load time; a dynamic B at each call, or not at all where its rows are contiguous
// and m is small. A is read in place or packed in tiles of MR rows ([tile][k][MR]); a last, partial tile is
// copied with zero rows below, so the inner loop has no tail. For m <= MR there is a single row tile, and KC >= k
// makes it a GEMV-shaped stream over B that touches C once.
//
// Work is cut along m, n, k or the batch into tasks that threads take from a counter, so a thread that loses
// its core does not hold up the rest. Cutting k sums partial results in a second region. Threads are
// those of the OpenMP pool that the framework already runs, reached through GOMP_parallel's address: one
// pool, no second set of spinning threads.
//
// Compile-time: those of tile.hpp, PACK_A, PACK_B (0: a dynamic B is read in place). Everything else is in Plan.

#include "tile.hpp"

enum Split { SPLIT_M, SPLIT_N, SPLIT_K, SPLIT_BATCH };

// Mirrored by kernels/tiled.py, field by field.
struct Plan {
  ParallelFn parallel;  // GOMP_parallel, or null: everything on the calling thread
  const real *packed;   // constant B in panels, or null: B comes with each call
  const real *bias;     // n values, or null
  i64 n, k;
  i64 kc, mc, nc;  // multiples of 1, MR, NR
  i64 threads, tasks;
  i64 split;
};

// One product: element (i,p) of A is a[i*a_row + p*a_col], a_col = 1 unless PACK_A; likewise B, b_col = 1 unless PACK_B.
struct Operands {
  const real *a, *b;
  real *c;
  i64 a_row, a_col, b_row, b_col, c_row;
  i64 a_batch, b_batch, c_batch;
};

namespace {

// C tile += A tile . B panel. a_row and b_row, the strides between rows, count only for operands in place.
__attribute__((noinline)) void product(i64 kc, const real *a, i64 a_row, const real *b, i64 b_row, real *c, i64 c_row,
                                       const Tile &t) {
  const Tile tile = {t.rows, t.cols, t.first, t.last, t.col_bias, nullptr, nullptr};  // constants fold into the epilogue
  tile_product(kc, a, PACK_A ? 1 : a_row, PACK_A ? MR : 1, b, PACK_B ? NR : b_row, c, c_row, tile);
}

// ---- packing ----------------------------------------------------------------------------------------------

// rows x kc of A as tiles of MR rows, zero-padded: [tile][kc][MR] when PACK_A, else [tile][MR][kc].
void copy_a(const real *a, i64 a_row, i64 a_col, i64 rows, i64 kc, real *out) {
  const i64 row = PACK_A ? 1 : kc, col = PACK_A ? MR : 1;
  for (i64 i0 = 0; i0 < rows; i0 += MR, out += MR * kc)
    for (i64 i = 0; i < MR; ++i) {
      const real *from = a + (i0 + i) * a_row;
      const bool valid = i0 + i < rows;
      for (i64 p = 0; p < kc; ++p) out[i * row + p * col] = valid ? from[p * a_col] : 0;
    }
}

// Columns [j0, j0+NR) of B over all k, as one panel, zero-padded. Transposed B is read in blocks that fit L1.
void pack_b_panel(const real *b, i64 b_row, i64 b_col, i64 j0, i64 n, i64 k, real *out) {
  const i64 valid = min(NR, n - j0);
  const real *from = b + j0 * b_col;
  if (b_col == 1) {
    for (i64 p = 0; p < k; ++p, out += NR) {
      std::memcpy(out, from + p * b_row, valid * sizeof(real));
      for (i64 j = valid; j < NR; ++j) out[j] = 0;
    }
    return;
  }
  constexpr i64 STEP = 16;
  for (i64 p0 = 0; p0 < k; p0 += STEP) {
    const i64 p1 = min(k, p0 + STEP);
    for (i64 j = 0; j < NR; ++j)
      for (i64 p = p0; p < p1; ++p) out[p * NR + j] = j < valid ? from[p * b_row + j * b_col] : 0;
  }
}

thread_local Scratch a_scratch, b_scratch, partial_scratch, tail_scratch;

// ---- loop nest --------------------------------------------------------------------------------------------

// B as the loop nest sees it: packed panels, or rows in place (all panels but a partial last one, which is packed).
struct BSource {
  const real *packed;  // [panel][k][NR], or null
  const real *rows;    // in place
  i64 b_row;
  const real *tail;  // last partial panel, packed, when in place
};

struct Block {
  const Plan *plan;
  Operands op;
  BSource b;
  i64 m;
  Range rows, panels, depth;
  bool epilogue;
};

void run_block(const Block &w) {
  const Plan &plan = *w.plan;
  const i64 n = plan.n, k = plan.k;
  const i64 nc = max(1, plan.nc / NR);
  for (i64 jc = w.panels.begin; jc < w.panels.end; jc += nc) {
    const i64 jend = min(w.panels.end, jc + nc);
    for (i64 pc = w.depth.begin; pc < w.depth.end; pc += plan.kc) {
      const i64 kc = min(plan.kc, w.depth.end - pc);
      const bool first = pc == w.depth.begin, last = w.epilogue && pc + kc == w.depth.end;
      for (i64 ic = w.rows.begin; ic < w.rows.end; ic += plan.mc) {
        const i64 rows = min(plan.mc, w.rows.end - ic);
        const real *a = w.op.a + ic * w.op.a_row + pc * w.op.a_col;
        const i64 in_place = PACK_A ? 0 : rows / MR * MR;  // rows; the others are copied
        real *copied = nullptr;
        if (in_place < rows) {
          copied = a_scratch.get((rows - in_place + MR - 1) / MR * MR * kc);
          copy_a(a + in_place * w.op.a_row, w.op.a_row, w.op.a_col, rows - in_place, kc, copied);
        }
        for (i64 j = jc; j < jend; ++j) {
          const i64 cols = min(NR, n - j * NR);
          const real *b;
          i64 b_row = NR;
          if (w.b.packed) {
            b = w.b.packed + (j * k + pc) * NR;
          } else if (cols == NR) {
            b = w.b.rows + pc * w.b.b_row + j * NR;
            b_row = w.b.b_row;
          } else {
            b = w.b.tail + pc * NR;
          }
          const real *bias = plan.bias ? plan.bias + j * NR : nullptr;
          for (i64 i = 0; i < rows; i += MR) {
            const Tile tile = {min(MR, rows - i), cols, first, last, bias, nullptr, nullptr};
            real *c = w.op.c + (ic + i) * w.op.c_row + j * NR;
            const bool there = i < in_place;
            const real *a_tile = there ? a + i * w.op.a_row : copied + (i - in_place) * kc;
            product(kc, a_tile, there ? w.op.a_row : kc, b, b_row, c, w.op.c_row, tile);
          }
        }
      }
    }
  }
}

// ---- parallel regions -------------------------------------------------------------------------------------

template <class Body>
void parallel(const Plan &plan, i64 tasks, const Body &body) {
  parallel(plan.parallel, plan.threads, tasks, body);
}

i64 panels_of(i64 n) { return ceil_div(n, NR); }

// Sums the partial results of a split along k and finishes them.
void reduce_rows(const Plan &plan, const real *partial, i64 parts, i64 m, const Operands &op, Range rows) {
  for (i64 i = rows.begin; i < rows.end; ++i) {
    real *to = op.c + i * op.c_row;
    for (i64 j0 = 0; j0 < plan.n; j0 += NR) {
      const i64 cols = min(NR, plan.n - j0);
      real line[NR] = {};
      for (i64 s = 0; s < parts; ++s) {
        const real *from = partial + (s * m + i) * plan.n + j0;
        for (i64 j = 0; j < cols; ++j) line[j] += from[j];
      }
      if (plan.bias)
        for (i64 j = 0; j < cols; ++j) line[j] += plan.bias[j0 + j];
      if constexpr (HAS_ACT)
        for (i64 j = 0; j < NR; j += LANES) *(vec *)(line + j) = activate(*(vec *)(line + j));
      std::memcpy(to + j0, line, cols * sizeof(real));
    }
  }
}

void one_product(const Plan &plan, i64 m, const Operands &op, const BSource &b) {
  const i64 panels = panels_of(plan.n), tiles = (m + MR - 1) / MR;
  const Range all_rows = {0, m}, all_panels = {0, panels}, all_depth = {0, plan.k};
  if (plan.split == SPLIT_K && plan.k > 1) {
    const i64 parts = min(plan.tasks, plan.k);
    real *partial = partial_scratch.get(parts * m * plan.n);
    parallel(plan, parts, [&](i64 t) {
      Operands part = op;
      part.c = partial + t * m * plan.n;
      part.c_row = plan.n;
      run_block({&plan, part, b, m, all_rows, all_panels, share(plan.k, t, parts), false});
    });
    const i64 chunks = min(m, plan.threads);
    parallel(plan, chunks, [&](i64 t) { reduce_rows(plan, partial, parts, m, op, share(m, t, chunks)); });
  } else if (plan.split == SPLIT_M) {
    const i64 parts = min(plan.tasks, tiles);
    parallel(plan, parts, [&](i64 t) {
      const Range r = share(tiles, t, parts);
      run_block({&plan, op, b, m, {r.begin * MR, min(m, r.end * MR)}, all_panels, all_depth, true});
    });
  } else {
    const i64 parts = min(plan.tasks, panels);
    parallel(plan, parts, [&](i64 t) { run_block({&plan, op, b, m, all_rows, share(panels, t, parts), all_depth, true}); });
  }
}

// k == 0: the sum over nothing, plus bias, activated.
void empty_sum(const Plan &plan, i64 m, const Operands &op) {
  for (i64 i = 0; i < m; ++i)
    for (i64 j = 0; j < plan.n; ++j) op.c[i * op.c_row + j] = activate_one(plan.bias ? plan.bias[j] : 0);
}

BSource dynamic_b(const Plan &plan, const Operands &op, bool in_parallel) {
  const i64 panels = panels_of(plan.n), k = plan.k;
  if (PACK_B) {
    real *out = b_scratch.get(panels * k * NR);
    const auto pack = [&](i64 j) { pack_b_panel(op.b, op.b_row, op.b_col, j * NR, plan.n, k, out + j * k * NR); };
    if (in_parallel)
      parallel(plan, panels, pack);
    else
      for (i64 j = 0; j < panels; ++j) pack(j);
    return {out, nullptr, 0, nullptr};
  }
  real *tail = nullptr;
  if (plan.n % NR) {
    tail = tail_scratch.get(k * NR);
    pack_b_panel(op.b, op.b_row, 1, (panels - 1) * NR, plan.n, k, tail);
  }
  return {nullptr, op.b, op.b_row, tail};
}

}  // namespace

extern "C" {

// Elements that pack_weight writes.
i64 packed_size(i64 n, i64 k) { return panels_of(n) * k * NR; }

// weight[n,k] with any strides -> panels.
void pack_weight(const real *weight, i64 w_row, i64 w_col, i64 n, i64 k, real *out) {
  for (i64 j = 0; j < panels_of(n); ++j) pack_b_panel(weight, w_col, w_row, j * NR, n, k, out + j * k * NR);
}

// y[m,n] = act(x[m,k] . W + bias) with the packed weight of the plan; y is contiguous. Returns 0, or 1 when out of memory.
int linear(const Plan *plan, const real *x, i64 x_row, real *y, i64 m) try {
  Operands op = {x, nullptr, y, x_row, 1, 0, 0, plan->n, 0, 0, 0};
  if (m == 0 || plan->n == 0) return 0;
  if (plan->k == 0)
    empty_sum(*plan, m, op);
  else
    one_product(*plan, m, op, {plan->packed, nullptr, 0, nullptr});
  return 0;
} catch (const std::bad_alloc &) {
  return 1;
}

// c[batch,m,n] = a . b, operands with any strides. Returns 0, or 1 when out of memory.
int gemm(const Plan *plan, const Operands *all, i64 m, i64 batch) try {
  const auto at = [&](i64 t) {
    Operands op = *all;
    op.a += t * op.a_batch;
    op.b += t * op.b_batch;
    op.c += t * op.c_batch;
    return op;
  };
  if (m == 0 || plan->n == 0 || batch == 0) return 0;
  if (plan->k == 0) {
    for (i64 t = 0; t < batch; ++t) empty_sum(*plan, m, at(t));
  } else if (plan->split == SPLIT_BATCH) {
    parallel(*plan, batch, [&](i64 t) {
      const Operands op = at(t);
      const BSource b = dynamic_b(*plan, op, false);
      run_block({plan, op, b, m, {0, m}, {0, panels_of(plan->n)}, {0, plan->k}, true});
    });
  } else {
    for (i64 t = 0; t < batch; ++t) {
      const Operands op = at(t);
      one_product(*plan, m, op, dynamic_b(*plan, op, true));
    }
  }
  return 0;
} catch (const std::bad_alloc &) {
  return 1;
}
}
