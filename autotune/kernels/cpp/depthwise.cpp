// Depthwise convolution, one filter per output channel: y = act(conv(x, W) + bias + residual).
//
// Algorithm: direct convolution with the filter unrolled and a block of outputs in registers, so that an input that is loaded
// once serves every output of the block under whose filter it lies (as in Zhang, Lo and Lu, "High Performance Depthwise and
// Pointwise Convolutions on Mobile Devices", AAAI 2020). There is too little arithmetic for anything but the loads to matter.
//
// NCHW: vectors along an output row, BLOCK_H rows at once, from the image where it is: no padded copy. Rows in the padding are
// read from a line of zeros. Vectors that reach across the left or right border read whatever lies there and mask it. With a
// stride of 2, each pair of loads is sorted into even and odd columns. Only planes at the very ends of the tensor, where a
// vector would leave it, are copied first. Weights are [k][tap] and held as vectors.
//
// channels_last: vectors along channels, BLOCK_H x BLOCK_W pixels at once, inputs reached through a table of pointers to pixels,
// of which those in the padding point to zeros. Weights are [tap][c].
//
// A last, partial block or vector is moved back to overlap the one before it, so the inner loops have no tails.
//
// Work is cut along planes (NCHW) or row blocks (channels_last) into tasks that threads take from a counter.
//
// Compile-time: those of tile.hpp, CHANNELS_LAST (0: NCHW), FILTER_H/_W, STRIDE_H/_W, DILATION_H/_W, BLOCK_H, BLOCK_W (1 for NCHW).

#include "copy.hpp"

// Mirrored by kernels/depthwise.py, field by field.
struct Plan {
  ParallelFn parallel;   // GOMP_parallel, or null: everything on the calling thread
  const real *weights;   // [k][tap] (NCHW) or [tap][c]
  const real *bias;      // k values, or null
  i64 n, c, h, w, k;     // k is a multiple of c; equal to it in channels_last
  i64 out_h, out_w, top, left;
  i64 threads, tasks;
};

namespace {

constexpr i64 TAPS = FILTER_H * FILTER_W;
constexpr i64 IN_ROWS = (BLOCK_H - 1) * STRIDE_H + (FILTER_H - 1) * DILATION_H + 1;
constexpr i64 IN_COLUMNS = (BLOCK_W - 1) * STRIDE_W + (FILTER_W - 1) * DILATION_W + 1;

struct Operands {
  const real *x, *residual;  // residual: laid out like y, or null
  real *y;
};

thread_local Scratch plane_scratch, zero_scratch, mask_scratch;

// The tap under which input `i` of a block lies for output `b` of it, or -1.
constexpr i64 tap_of(i64 i, i64 b, i64 stride, i64 dilation, i64 taps) {
  const i64 offset = i - b * stride;
  return offset >= 0 && offset % dilation == 0 && offset / dilation < taps ? offset / dilation : -1;
}

// ---- NCHW -------------------------------------------------------------------------------------------------

typedef std::conditional_t<sizeof(real) == 4, std::int32_t, std::int64_t> integer;
typedef integer mask __attribute__((vector_size(LANES * sizeof(real)), aligned(sizeof(real))));

constexpr i64 REACH = (FILTER_W - 1) * DILATION_W + STRIDE_W * LANES;  // columns that one vector of outputs reads from
constexpr i64 MARGIN = 64 / sizeof(real);

i64 chunks_of(const Plan &p) { return ceil_div(p.out_w, LANES); }
i64 column_of(const Plan &p, i64 chunk) { return max(0, min(chunk * LANES, p.out_w - LANES)); }

// What all planes of a task share: zeros in place of rows outside the image, and a mask per chunk of a row and column of taps.
struct Borders {
  const real *zeros;
  const integer *masks;  // [chunk][FILTER_W][LANES], all ones inside the image
  i64 first, last;       // chunks within these bounds need no mask

  explicit Borders(const Plan &p) {
    const i64 width = p.left + p.out_w * STRIDE_W + REACH, chunks = chunks_of(p);
    real *line = zero_scratch.get(width);
    std::memset(line, 0, width * sizeof(real));
    zeros = line;
    integer *all = reinterpret_cast<integer *>(mask_scratch.get(chunks * FILTER_W * LANES));
    masks = all;
    first = chunks;
    last = 0;
    for (i64 chunk = 0; chunk < chunks; ++chunk) {
      bool whole = true;
      for (i64 s = 0; s < FILTER_W; ++s)
        for (i64 l = 0; l < LANES; ++l) {
          const i64 column = (column_of(p, chunk) + l) * STRIDE_W + s * DILATION_W - p.left;
          const bool inside = column >= 0 && column < p.w;
          *all++ = inside ? -1 : 0;
          whole = whole && (inside || column_of(p, chunk) + l >= p.out_w);
        }
      if (whole) {
        first = min(first, chunk);
        last = chunk + 1;
      }
    }
  }
};

// Inputs of column `s` of the taps, for a vector of outputs whose first input column is row[0].
inline vec inputs_of(const real *row, int s) {
  const i64 u = s * DILATION_W;
  if constexpr (STRIDE_W == 1) {
    return *(const vec *)(row + u);
  } else if constexpr (STRIDE_W == 2) {
    return every_second(row + u / 2 * 2, u % 2);
  } else {
    vec v;
    EACH(l, LANES) v[l] = row[u + l * STRIDE_W];
    return v;
  }
}

// A vector of outputs at y[at]; `left` values of the plane remain from there.
inline void finish(vec v, const Operands &op, i64 at, i64 left) {
  if (left >= LANES) {
    if (op.residual) v += *(const vec *)(op.residual + at);
    *(vec *)(op.y + at) = activate(v);
    return;
  }
  real line[LANES] = {};
  if (op.residual) copy_rest(op.residual + at, left, line);
  *(vec *)line = activate(v + *(const vec *)line);
  copy_rest(line, left, op.y + at);
}

// BLOCK_H vectors of outputs.
template <bool MASKED>
inline __attribute__((always_inline)) void block_rows(const real *const *rows, i64 offset, const integer *masks,
                                                      const vec *weights, vec *acc) {
  EACH(i, IN_ROWS) EACH(s, FILTER_W) {
    vec v = inputs_of(rows[i] + offset, s);
    if constexpr (MASKED) v = (vec)((mask)v & *(const mask *)(masks + s * LANES));
    EACH(b, BLOCK_H) {
      const i64 r = tap_of(i, b, STRIDE_H, DILATION_H, FILTER_H);
      if (r >= 0) acc[b] += v * weights[r * FILTER_W + s];
    }
  }
}

// The plane, or a copy with room around it where a vector would read past the ends of the tensor.
const real *readable(const Plan &p, const Operands &op, i64 plane) {
  const i64 size = p.h * p.w, below = (p.h - 1) * p.w - p.left + column_of(p, chunks_of(p) - 1) * STRIDE_W + REACH;
  if (plane * size >= p.left && plane * size + below <= p.n * p.c * size) return op.x + plane * size;
  const i64 before = ceil_div(p.left, MARGIN) * MARGIN;
  real *copy = plane_scratch.get(before + max(size, below));
  std::memset(copy, 0, (before + max(size, below)) * sizeof(real));
  std::memcpy(copy + before, op.x + plane * size, size * sizeof(real));
  return copy + before;
}

[[maybe_unused]] void one_plane(const Plan &p, const Operands &op, i64 plane, const Borders &borders) {
  const i64 k = plane % p.k, outputs = p.out_h * p.out_w, start = plane * outputs;
  const real *x = readable(p, op, plane / p.k * p.c + k / (p.k / p.c));
  vec weights[TAPS];
  EACH(t, TAPS) weights[t] = vec{} + p.weights[k * TAPS + t];
  const vec bias = vec{} + (p.bias ? p.bias[k] : 0);
  for (i64 block = 0; block < p.out_h; block += BLOCK_H) {
    const i64 y = min(block, p.out_h - BLOCK_H);
    const real *rows[IN_ROWS];
    EACH(i, IN_ROWS) {
      const i64 iy = y * STRIDE_H + i - p.top;
      rows[i] = iy >= 0 && iy < p.h ? x + iy * p.w - p.left : borders.zeros;
    }
    for (i64 chunk = 0; chunk < chunks_of(p); ++chunk) {
      const i64 column = column_of(p, chunk);
      vec acc[BLOCK_H];
      EACH(b, BLOCK_H) acc[b] = bias;
      if (chunk >= borders.first && chunk < borders.last)
        block_rows<false>(rows, column * STRIDE_W, nullptr, weights, acc);
      else
        block_rows<true>(rows, column * STRIDE_W, borders.masks + chunk * FILTER_W * LANES, weights, acc);
      EACH(b, BLOCK_H) {
        const i64 at = (y + b) * p.out_w + column;
        finish(acc[b], op, start + at, outputs - at);  // what overruns a narrow row is overwritten by the next
      }
    }
  }
}

// ---- channels_last ----------------------------------------------------------------------------------------

// Channels [c, c + LANES) of a block whose first output pixel is `first`; `inputs` are the pixels under it.
inline void block_channels(const Plan &p, const Operands &op, const real *const *inputs, const real *bias, i64 first, i64 c) {
  vec weights[TAPS], acc[BLOCK_H][BLOCK_W];
  EACH(t, TAPS) weights[t] = *(const vec *)(p.weights + t * p.c + c);
  EACH(b, BLOCK_H) EACH(a, BLOCK_W) acc[b][a] = *(const vec *)(bias + c);
  EACH(i, IN_ROWS) EACH(j, IN_COLUMNS) {
    const vec v = *(const vec *)(inputs[i * IN_COLUMNS + j] + c);
    EACH(b, BLOCK_H) EACH(a, BLOCK_W) {
      const i64 r = tap_of(i, b, STRIDE_H, DILATION_H, FILTER_H), s = tap_of(j, a, STRIDE_W, DILATION_W, FILTER_W);
      if (r >= 0 && s >= 0) acc[b][a] += v * weights[r * FILTER_W + s];
    }
  }
  EACH(b, BLOCK_H) EACH(a, BLOCK_W) {
    const i64 at = (first + b * p.out_w + a) * p.c + c;
    vec v = acc[b][a];
    if (op.residual) v += *(const vec *)(op.residual + at);
    *(vec *)(op.y + at) = activate(v);
  }
}

[[maybe_unused]] void row_block(const Plan &p, const Operands &op, i64 image, i64 y, const real *zeros) {
  const real *x = op.x + image * p.h * p.w * p.c, *bias = p.bias ? p.bias : zeros;
  for (i64 block = 0; block < p.out_w; block += BLOCK_W) {
    const i64 column = min(block, p.out_w - BLOCK_W), first = (image * p.out_h + y) * p.out_w + column;
    const real *inputs[IN_ROWS * IN_COLUMNS];
    for (i64 i = 0; i < IN_ROWS; ++i)
      for (i64 j = 0; j < IN_COLUMNS; ++j) {
        const i64 iy = y * STRIDE_H + i - p.top, ix = column * STRIDE_W + j - p.left;
        const bool inside = iy >= 0 && iy < p.h && ix >= 0 && ix < p.w;
        inputs[i * IN_COLUMNS + j] = inside ? x + (iy * p.w + ix) * p.c : zeros;
      }
    for (i64 c = 0; c < p.c; c += LANES) block_channels(p, op, inputs, bias, first, min(c, p.c - LANES));
  }
}

void run(const Plan &p, const Operands &op) {
  const i64 blocks = ceil_div(p.out_h, BLOCK_H), units = CHANNELS_LAST ? p.n * blocks : p.n * p.k;
  const i64 tasks = min(p.tasks, units);
  parallel(p.parallel, p.threads, tasks, [&](i64 t) {
    const Range mine = share(units, t, tasks);
    if constexpr (CHANNELS_LAST) {
      real *zeros = zero_scratch.get(p.c);
      std::memset(zeros, 0, p.c * sizeof(real));
      for (i64 u = mine.begin; u < mine.end; ++u)
        row_block(p, op, u / blocks, min(u % blocks * BLOCK_H, p.out_h - BLOCK_H), zeros);
    } else {
      const Borders borders(p);
      for (i64 u = mine.begin; u < mine.end; ++u) one_plane(p, op, u, borders);
    }
  });
}

}  // namespace

extern "C" {

// Elements of scratch that one thread uses at most.
i64 scratch_size(const Plan *p) {
  if (CHANNELS_LAST) return p->c;
  const i64 reach = p->left + p->out_w * STRIDE_W + REACH;
  return reach + chunks_of(*p) * FILTER_W * LANES + MARGIN + reach + (p->h + 1) * p->w;
}

// y = act(conv(x, W) + bias + residual), all in the compiled layout. out_h >= BLOCK_H, out_w >= BLOCK_W; in channels_last,
// c >= LANES.
// Returns 0, or 1 when out of memory.
int convolve(const Plan *p, const real *x, const real *residual, real *y) try {
  if (p->n > 0) run(*p, {x, residual, y});
  return 0;
} catch (const std::bad_alloc &) {
  return 1;
}

}  // extern "C"
