// Direct convolution from padded rows: y = act(conv(x, W) + bias + residual), NCHW.
//
// Algorithm: the loops of the definition, blocked for registers and caches (Zhang, Franchetti and Low, "High Performance
// Zero-Memory Overhead Direct Convolutions", ICML 2018), with no patches: where implicit GEMM copies an input once per tap of the
// filter, every tap here is read as a run of the row it lies in.
//
//   for a block of BLOCK output rows of one image and group     its input rows, all channels, padded, to scratch, L2
//     for a tile of MR output channels                          its weights, depth x MR, stay in L1
//       for the block's rows, NR pixels at a time               MR x NR  stays in registers
//         for (channel, r, s)                                   NV loads at a known offset, MR broadcasts
//
// A row of scratch holds its columns sorted by their remainder modulo the stride, so that a tap is a contiguous run for any stride.
// Weights are packed once: [group][tile][depth][MR], depth = (c, r, s), zero-padded; so are the offsets of the taps.
// Work is cut along images, groups and row blocks into tasks that threads take from a counter.
//
// Compile-time: those of tile.hpp. Everything else is in Plan.

#include "copy.hpp"

// Mirrored by kernels/direct.py, field by field.
struct Plan {
  ParallelFn parallel;  // GOMP_parallel, or null: everything on the calling thread
  const real *packed;   // weights
  const real *bias;     // k values, or null
  const i64 *offsets;   // of each tap, in elements of scratch
  i64 n, c, h, w, k, r, s;
  i64 out_h, out_w, stride_h, stride_w, dilation_h, dilation_w, top, left, groups;
  i64 block;  // output rows
  i64 threads, tasks;

  i64 group_c() const { return c / groups; }
  i64 group_k() const { return k / groups; }
  i64 depth() const { return group_c() * r * s; }
  i64 tiles() const { return ceil_div(group_k(), MR); }
  // Scratch: [channel][height][stride_w][phase]; a phase is a row's columns of one remainder, with room for a whole last tile.
  i64 height() const { return (block - 1) * stride_h + (r - 1) * dilation_h + 1; }
  i64 phase() const { return ceil_div(out_w, NR) * NR + (s - 1) * dilation_w / stride_w; }
  i64 pitch() const { return phase() * stride_w; }
};

namespace {

struct Operands {
  const real *x, *residual;  // residual: laid out like y, or null
  real *y;
};

thread_local Scratch row_scratch;

// One row of the image to scratch. Columns in the padding were zeroed once and are never written.
void fill_row(const Plan &p, const real *from, const real *limit, real *to) {
  const i64 phase = p.phase();
  for (i64 remainder = 0; remainder < p.stride_w; ++remainder) {
    const i64 begin = p.left <= remainder ? 0 : ceil_div(p.left - remainder, p.stride_w);
    const i64 column = begin * p.stride_w + remainder - p.left;
    const i64 count = min(phase - begin, ceil_div(p.w - column, p.stride_w));
    real *line = to + remainder * phase + begin;
    if (count <= 0) continue;
    if (p.stride_w == 1)
      copy_line(from + column, count, line);
    else if (p.stride_w == 2)
      gather_pairs(from + column, count, limit, line);
    else
      gather_line(from + column, count, p.stride_w, line);
  }
}

// The rows under output rows [first, first + block) of one image and group.
void fill(const Plan &p, const Operands &op, i64 image, i64 group, i64 first, real *scratch) {
  const i64 plane = p.h * p.w, height = p.height(), pitch = p.pitch(), above = first * p.stride_h - p.top;
  const real *x = op.x + (image * p.c + group * p.group_c()) * plane, *limit = op.x + p.n * p.c * plane;
  for (i64 c = 0; c < p.group_c(); ++c)
    for (i64 y = 0; y < height; ++y, scratch += pitch) {
      if (above + y >= 0 && above + y < p.h)
        fill_row(p, x + c * plane + (above + y) * p.w, limit, scratch);
      else
        std::memset(scratch, 0, pitch * sizeof(real));
    }
}

// MR x NR outputs. `a`: [depth][MR].
__attribute__((noinline)) void product(i64 depth, const real *a, const real *rows, const i64 *offsets, real *c, i64 c_row,
                                       const Tile &t) {
  vec acc[MR][NV] = {};
  const auto step = [&](i64 d) __attribute__((always_inline)) {
    const real *b = rows + offsets[d], *w = a + d * MR;
    vec line[NV];
    EACH(j, NV) line[j] = *(const vec *)(b + j * LANES);
    EACH(i, MR) {
      const real value = w[i];
      EACH(j, NV) acc[i][j] += value * line[j];
    }
  };
  i64 d = 0;
  for (; d + UNROLL <= depth; d += UNROLL) EACH(u, UNROLL) step(d + u);
  for (; d < depth; ++d) step(d);
  if (t.cols == NR && t.rows == MR) {
    EACH(i, MR) {
      const real bias = t.row_bias ? t.row_bias[i] : 0;
      EACH(j, NV) {
        vec v = acc[i][j] + bias;
        if (t.residual) v += *(const vec *)(t.residual + i * c_row + j * LANES);
        *(vec *)(c + i * c_row + j * LANES) = activate(v);
      }
    }
    return;
  }
  real spill[MR * NR];
  EACH(i, MR) EACH(j, NV) *(vec *)(spill + i * NR + j * LANES) = acc[i][j];
  store_partial(spill, c, c_row, t);
}

void row_block(const Plan &p, const Operands &op, i64 image, i64 group, i64 first, real *scratch) {
  const i64 rows = min(p.block, p.out_h - first), depth = p.depth(), pixels = p.out_h * p.out_w;
  fill(p, op, image, group, first, scratch);
  for (i64 tile = 0; tile < p.tiles(); ++tile) {
    const i64 k0 = tile * MR, k = group * p.group_k() + k0;
    const real *weights = p.packed + (group * p.tiles() + tile) * depth * MR;
    for (i64 y = 0; y < rows; ++y)
      for (i64 column = 0; column < p.out_w; column += NR) {
        const i64 at = (image * p.k + k) * pixels + (first + y) * p.out_w + column;
        const Tile t = {min(MR, p.group_k() - k0),      min(NR, p.out_w - column), true, true, nullptr,
                        p.bias ? p.bias + k : nullptr, op.residual ? op.residual + at : nullptr};
        product(depth, weights, scratch + y * p.stride_h * p.pitch() + column, p.offsets, op.y + at, pixels, t);
      }
  }
}

}  // namespace

extern "C" {

i64 packed_size(const Plan *p) { return p->groups * p->tiles() * p->depth() * MR; }

// Weights [k][depth] to tiles, and the offset of each tap in scratch (depth values).
void pack_weight(const Plan *p, const real *weight, real *packed, i64 *offsets) {
  const i64 depth = p->depth();
  for (i64 group = 0; group < p->groups; ++group)
    for (i64 tile = 0; tile < p->tiles(); ++tile)
      for (i64 d = 0; d < depth; ++d)
        for (i64 i = 0; i < MR; ++i) {
          const i64 k = tile * MR + i;
          *packed++ = k < p->group_k() ? weight[(group * p->group_k() + k) * depth + d] : 0;
        }
  for (i64 c = 0; c < p->group_c(); ++c)
    for (i64 r = 0; r < p->r; ++r)
      for (i64 s = 0; s < p->s; ++s) {
        const i64 column = s * p->dilation_w;
        *offsets++ = (c * p->height() + r * p->dilation_h) * p->pitch() + column % p->stride_w * p->phase() + column / p->stride_w;
      }
}

// Elements of scratch that one thread uses.
i64 scratch_size(const Plan *p) { return p->group_c() * p->height() * p->pitch() + LANES; }

// y = act(conv(x, W) + bias + residual), NCHW. Returns 0, or 1 when out of memory.
int convolve(const Plan *p, const real *x, const real *residual, real *y) try {
  const Operands op = {x, residual, y};
  const i64 blocks = ceil_div(p->out_h, p->block), units = p->n * p->groups * blocks, tasks = min(p->tasks, units);
  parallel(p->parallel, p->threads, tasks, [&](i64 task) {
    real *scratch = row_scratch.get(scratch_size(p));
    std::memset(scratch, 0, scratch_size(p) * sizeof(real));
    const Range mine = share(units, task, tasks);
    for (i64 u = mine.begin; u < mine.end; ++u)
      row_block(*p, op, u / blocks / p->groups, u / blocks % p->groups, u % blocks * p->block, scratch);
  });
  return 0;
} catch (const std::bad_alloc &) {
  return 1;
}

}  // extern "C"
