// Winograd convolution F(m x m, 3x3), m = OUT: y = act(conv(x, w) + bias + residual), stride 1, constant w.
//
// Algorithm: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (CVPR 2016). An image is cut into overlapping
// tiles of ALPHA x ALPHA pixels, ALPHA = m + 2, whose results are the m x m pixels that do not overlap:
//
//   U = G g G^T per filter, at load time         V = B^T d B per tile and input channel
//   M[xi] = V[xi] . U[xi]  for each of the ALPHA^2 positions xi: a product [tiles x c] . [c x k]
//   y = A^T M A per tile and output channel                (A, B and G: winograd_transforms.hpp)
//
// Blocking: tiles are numbered through all images. For a block of tiles, sized to keep V in L2,
//
//   for cb in c by LANES        V of the block: channels in the lanes
//   for p in k by NR
//     for xi in ALPHA^2         U panel c x NR: L1 or L2; streams from L3 once per block
//       for g in tiles by MR    M tile MR x NR in registers: MR broadcasts of V, NV vectors of U per step of c
//     output transform of the panel's M, still in L1 or L2, with bias, residual and activation
//
// so the number of tiles fixes neither the lanes nor the panels, and small images lose nothing. Layouts:
//
//   U  [panel][xi][c][NR], zero-padded along k        M  [xi][tile of the block][NR]
//   V  [xi][group of MR tiles][c / LANES][MR][LANES]: the broadcasts of a step have constant distances, one cache line per row
//
// Planes of V and M are an odd number of vectors apart, so that those of one tile meet in no cache set. NCHW images pass through
// strips [pixel][LANES], transposed in registers; channels_last images are read and written in place.
//
// Threads take blocks of tiles (SPLIT_TILES) or, where tiles are few, parts of the panels of a block (SPLIT_CHANNELS), each with a V
// of its own: what one core has written costs another more to fetch than to compute again. Either way one parallel region.
//
// Compile-time, besides those of tile.hpp: OUT (m), CHANNELS_LAST (layout of image, result and residual).

#include "copy.hpp"
#include "parallel_near.hpp"
#include "tile.hpp"
#include "winograd_transforms.hpp"

namespace {

constexpr i64 BAND_TILES = 32;  // whole rows of about so many tiles share a strip
enum Split { SPLIT_TILES, SPLIT_CHANNELS };

}  // namespace

// Mirrored by kernels/winograd.py, field by field.
struct Plan {
  ParallelFn parallel;  // GOMP_parallel, or null: everything on the calling thread
  const real *filters;  // U
  const real *bias;     // k values, or null
  i64 n, c, h, w, k, out_h, out_w;
  i64 top, left;  // padding; that below and to the right follows from the sizes
  i64 block;      // tiles whose V is kept at a time
  i64 threads, tasks, split;
};

namespace {

// ---- geometry --------------------------------------------------------------------------------------------

struct Call {
  const Plan &plan;
  const real *x, *residual;
  real *y;
  i64 tiles_h, tiles_w, tiles, channel_blocks, panels, band_rows;

  Call(const Plan &p, const real *x, const real *residual, real *y) : plan(p), x(x), residual(residual), y(y) {
    tiles_h = ceil_div(p.out_h, OUT), tiles_w = ceil_div(p.out_w, OUT), tiles = p.n * tiles_h * tiles_w;
    channel_blocks = ceil_div(p.c, LANES), panels = ceil_div(p.k, NR);
    band_rows = min(tiles_h, max(1, BAND_TILES / tiles_w));
  }
  // Elements of the strips, input's and output's in turn.
  i64 strip() const {
    const i64 in = CHANNELS_LAST && plan.c % LANES == 0 ? 0 : (band_rows * OUT + 2) * plan.w;
    const i64 out = CHANNELS_LAST ? 0 : band_rows * OUT * plan.out_w + LANES;
    return max(in, out) * LANES;
  }
};

// A rectangle of an image's tiles: part of one row of tiles, or whole rows.
struct Band {
  i64 image, row0, row1, col0, col1;
};

// Calls f(band, tiles before it) for the bands that make up a range of tiles.
template <class F>
inline void each_band(const Call &call, Range tiles, const F &f) {
  for (i64 t = tiles.begin; t < tiles.end;) {
    const i64 left = tiles.end - t, col = t % call.tiles_w, row = t / call.tiles_w % call.tiles_h;
    Band band = {t / call.tiles_w / call.tiles_h, row, row + 1, col, min(call.tiles_w, col + left)};
    if (col == 0 && left >= call.tiles_w) band.row1 = min(call.tiles_h, row + min(call.band_rows, left / call.tiles_w));
    f(band, t - tiles.begin);
    t += (band.row1 - band.row0) * (band.col1 - band.col0);
  }
}

// Some rows and columns [y0, y1) x [x0, x1) of LANES channels of an image, with the distances between rows and pixels.
struct Pixels {
  const real *data;
  i64 row, pixel, y0, y1, x0, x1;
};

// ---- input -----------------------------------------------------------------------------------------------

struct Span {
  const real *begin, *end;
};

// [pixel][LANES] of `channels` planes (NCHW), or of pixels `plane` apart (channels_last), of an image within `all`.
void gather(const Span &all, const real *from, i64 plane, i64 channels, i64 pixels, real *to) {
  if constexpr (CHANNELS_LAST) {
    for (i64 p = 0; p < pixels; ++p) *(avec *)(to + p * LANES) = load_some(from + p * plane, channels);
    return;
  }
  const i64 last = (channels - 1) * plane;  // lanes beyond it are not used: they repeat it
  avec r[LANES];
  for (i64 done = 0; done < pixels && pixels >= LANES; done += LANES) {
    const i64 p = min(done, pixels - LANES);  // the last step overlaps the one before it
    EACH(i, LANES) r[i] = load(from + min(i * plane, last) + p);
    transpose(r);
    EACH(i, LANES) *(avec *)(to + (p + i) * LANES) = r[i];
  }
  if (pixels > 0 && pixels < LANES) {
    i64 before = from + last + LANES > all.end ? LANES - pixels : 0;  // whole vectors hold more than the run
    if (from - before >= all.begin) {
      EACH(i, LANES) r[i] = load(from + min(i * plane, last) - before);
    } else {
      before = 0;
      for (i64 i = 0; i < LANES; ++i) r[i] = load_some(from + min(i * plane, last), pixels);
    }
    transpose(r);
    for (i64 i = 0; i < pixels; ++i) *(avec *)(to + i * LANES) = r[before + i];
  }
}

// What a band of tiles needs of the channels of block `cb`: in place where it can be read there, else copied to `strip`.
Pixels band_pixels(const Call &call, const Band &band, i64 cb, real *strip) {
  const Plan &plan = call.plan;
  const i64 c0 = cb * LANES, channels = min(LANES, plan.c - c0);
  Pixels p;
  p.y0 = max(0, band.row0 * OUT - plan.top), p.y1 = max(p.y0, min(plan.h, band.row1 * OUT + 2 - plan.top));
  p.x0 = max(0, band.col0 * OUT - plan.left), p.x1 = max(p.x0, min(plan.w, band.col1 * OUT + 2 - plan.left));
  const i64 step = CHANNELS_LAST ? plan.c : 1, plane = CHANNELS_LAST ? plan.c : plan.h * plan.w;
  const real *image = call.x + band.image * plan.c * plan.h * plan.w + c0 * (CHANNELS_LAST ? 1 : plan.h * plan.w);
  const real *first = image + (p.y0 * plan.w + p.x0) * step;
  if (CHANNELS_LAST && channels == LANES) {
    p.data = first, p.row = plan.w * plan.c, p.pixel = plan.c;
    return p;
  }
  const Span all = {call.x, call.x + plan.n * plan.c * plan.h * plan.w};
  const i64 width = p.x1 - p.x0, rows = p.y1 - p.y0;
  p.data = strip, p.row = width * LANES, p.pixel = LANES;
  if (width == plan.w) {
    gather(all, first, plane, channels, rows * width, strip);
  } else {
    for (i64 i = 0; i < rows; ++i) gather(all, first + i * plan.w * step, plane, channels, width, strip + i * p.row);
  }
  return p;
}

// B^T d B of the tile whose first pixel is (y, x), to planes of V.
inline void transform_tile(const Pixels &p, i64 y, i64 x, real *v, i64 v_plane) {
  const real *from = p.data + (y - p.y0) * p.row + (x - p.x0) * p.pixel;
  i64 row = p.row, pixel = p.pixel;
  avec padded[XI];
  if (y < p.y0 || x < p.x0 || y + ALPHA > p.y1 || x + ALPHA > p.x1) {
    for (i64 i = 0; i < ALPHA; ++i)
      for (i64 j = 0; j < ALPHA; ++j) {
        const bool valid = y + i >= p.y0 && y + i < p.y1 && x + j >= p.x0 && x + j < p.x1;
        padded[i * ALPHA + j] = valid ? load(from + i * row + j * pixel) : avec{};
      }
    from = (const real *)padded, row = ALPHA * LANES, pixel = LANES;
  }
  avec half[ALPHA][ALPHA];
  for (i64 j = 0; j < ALPHA; ++j) {
    avec d[ALPHA], t[ALPHA];
    EACH(i, ALPHA) d[i] = load(from + i * row + j * pixel);
    input_transform(d, t);
    EACH(i, ALPHA) half[i][j] = t[i];
  }
  for (i64 i = 0; i < ALPHA; ++i) {
    avec t[ALPHA];
    input_transform(half[i], t);
    EACH(j, ALPHA) *(avec *)(v + (i * ALPHA + j) * v_plane) = t[j];
  }
}

// V of a block of tiles for the channels of block `cb`.
void transform_input(const Call &call, Range tiles, i64 cb, real *v, i64 v_plane, real *strip) {
  each_band(call, tiles, [&](const Band &band, i64 tile) {
    const Pixels pixels = band_pixels(call, band, cb, strip);
    for (i64 row = band.row0; row < band.row1; ++row)
      for (i64 col = band.col0; col < band.col1; ++col, ++tile) {
        real *to = v + ((tile / MR * call.channel_blocks + cb) * MR + tile % MR) * LANES;
        transform_tile(pixels, row * OUT - call.plan.top, col * OUT - call.plan.left, to, v_plane);
      }
  });
}

// ---- product ---------------------------------------------------------------------------------------------

// M tile [MR][NR] = V group [c / LANES][MR][LANES] . U panel [c][NR].
void multiply(i64 c, const real *v, const real *u, real *m) {
  avec acc[MR][NV] = {};
  const auto step = [&](const real *vs, const real *us) __attribute__((always_inline)) {
    avec line[NV];
    if constexpr (PREFETCH > 0)
      for (i64 byte = 0; byte < NR * (i64)sizeof(real); byte += 64) __builtin_prefetch((const char *)(us + PREFETCH * NR) + byte);
    EACH(j, NV) line[j] = load(us + j * LANES);
    EACH(i, MR) {
      const real value = vs[i * LANES];
      EACH(j, NV) acc[i][j] += value * line[j];
    }
  };
  for (; c >= LANES; c -= LANES, v += MR * LANES)
    for (i64 p = 0; p < LANES; p += UNROLL, u += UNROLL * NR) EACH(i, UNROLL) step(v + p + i, u + i * NR);
  for (i64 p = 0; p < c; ++p, u += NR) step(v + p, u);
  EACH(i, MR) EACH(j, NV) *(avec *)(m + i * NR + j * LANES) = acc[i][j];
}

// ---- output ----------------------------------------------------------------------------------------------

// One vector of finished results, or `count` values of it.
__attribute__((noinline)) void store_some(real *to, avec v, const real *residual, i64 count) {
  if (residual) v += load_some(residual, count);
  v = activate(v);
  copy_rest((const real *)&v, count, to);
}

inline void store(real *to, avec v, const real *residual, i64 count) {
  if (count < LANES) return store_some(to, v, residual, count);
  *(vec *)to = activate(residual ? v + load(residual) : v);
}

// A strip [pixel][LANES] to planes of y, the pixels from `offset` on, finished with bias, residual and activation.
[[maybe_unused]] void scatter(const Call &call, const real *strip, i64 pixels, i64 k0, i64 channels, i64 offset, i64 plane) {
  for (i64 done = 0; done < pixels; done += LANES) {
    const i64 count = min(pixels, LANES), p = min(done, pixels - count);  // the last step overlaps the one before it
    avec r[LANES];
    EACH(i, LANES) r[i] = load(strip + (p + i) * LANES);
    transpose(r);
    for (i64 i = 0; i < channels; ++i) {
      const i64 at = offset + i * plane + p;
      const avec v = call.plan.bias ? r[i] + call.plan.bias[k0 + i] : r[i];
      store(call.y + at, v, call.residual ? call.residual + at : nullptr, count);
    }
  }
}

// A^T M A of a band for the LANES output channels from k0 on.
void transform_output(const Call &call, const Band &band, i64 k0, const real *m, i64 m_plane, real *strip) {
  const Plan &plan = call.plan;
  const i64 channels = min(LANES, plan.k - k0);
  const i64 y0 = band.row0 * OUT, y1 = min(plan.out_h, band.row1 * OUT);
  const i64 x0 = band.col0 * OUT, x1 = min(plan.out_w, band.col1 * OUT), width = x1 - x0;
  const avec bias = CHANNELS_LAST && plan.bias ? load_some(plan.bias + k0, channels) : avec{};
  const auto tile = [&](i64 y, i64 x, const real *from) __attribute__((always_inline)) {
    avec half[ALPHA][OUT];
    for (i64 i = 0; i < ALPHA; ++i) {
      avec line[ALPHA];
      EACH(j, ALPHA) line[j] = load(from + (i * ALPHA + j) * m_plane);
      output_transform(line, half[i]);
    }
    for (i64 j = 0; j < min(OUT, x1 - x); ++j) {
      avec line[ALPHA], result[OUT];
      EACH(i, ALPHA) line[i] = half[i][j];
      output_transform(line, result);
      for (i64 i = 0; i < min(OUT, y1 - y); ++i) {
        if constexpr (CHANNELS_LAST) {
          const i64 at = ((band.image * plan.out_h + y + i) * plan.out_w + x + j) * plan.k + k0;
          store(call.y + at, result[i] + bias, call.residual ? call.residual + at : nullptr, channels);
        } else {
          *(avec *)(strip + ((y + i - y0) * width + x + j - x0) * LANES) = result[i];
        }
      }
    }
  };
  for (i64 row = band.row0; row < band.row1; ++row)
    for (i64 col = band.col0; col < band.col1; ++col, m += NR) tile(row * OUT, col * OUT, m);
  if constexpr (!CHANNELS_LAST) {
    const i64 plane = plan.out_h * plan.out_w, offset = (band.image * plan.k + k0) * plane + y0 * plan.out_w + x0;
    if (width == plan.out_w) {
      scatter(call, strip, (y1 - y0) * width, k0, channels, offset, plane);
    } else {
      for (i64 i = 0; i < y1 - y0; ++i)
        scatter(call, strip + i * width * LANES, width, k0, channels, offset + i * plan.out_w, plane);
    }
  }
}

// ---- blocks and threads ----------------------------------------------------------------------------------

struct Planes {
  i64 v, m;  // elements from one xi to the next
};

Planes planes(const Call &call, i64 groups) {
  return {(groups * MR * call.channel_blocks | 1) * LANES, (groups * MR * NV | 1) * LANES};
}

// All of y for the tiles of a block and one panel of output channels.
void run_panel(const Call &call, Range tiles, i64 panel, const real *v, const Planes &step, real *m, real *strip) {
  const i64 c = call.plan.c, groups = ceil_div(tiles.end - tiles.begin, MR);
  const real *u = call.plan.filters + panel * XI * c * NR;
  for (i64 xi = 0; xi < XI; ++xi, u += c * NR)
    for (i64 g = 0; g < groups; ++g)
      multiply(c, v + xi * step.v + g * call.channel_blocks * MR * LANES, u, m + xi * step.m + g * MR * NR);
  each_band(call, tiles, [&](const Band &band, i64 before) {
    for (i64 k0 = panel * NR, j = 0; j < NR && k0 + j < call.plan.k; j += LANES)
      transform_output(call, band, k0 + j, m + before * NR + j, step.m, strip);
  });
}

// Blocks are whole groups of MR tiles, of equal size but for one group; a split of tiles makes as many for each thread.
struct Blocks {
  i64 groups, count, largest;

  explicit Blocks(const Call &call) {
    const i64 shares = call.plan.split == SPLIT_TILES ? call.plan.threads : 1;
    groups = ceil_div(call.tiles, MR);
    count = min(groups, ceil_div(ceil_div(groups, max(1, call.plan.block / MR)), shares) * shares);
    largest = ceil_div(groups, max(1, count));
  }
  Range tiles(const Call &call, i64 i) const {
    const Range g = share(groups, i, count);
    return {g.begin * MR, min(call.tiles, g.end * MR)};
  }
};

thread_local Scratch scratch;
thread_local i64 transformed = -1;  // what V in this thread's scratch is of: a serial number of calls and blocks

i64 parts_of(const Call &call) { return call.plan.split == SPLIT_TILES ? 1 : min(call.panels, call.plan.tasks); }

i64 scratch_elements(const Call &call, i64 groups) {
  const Planes step = planes(call, groups);
  return XI * (step.v + step.m) + call.strip();
}

void run(const Call &call) {
  static i64 serials = 0;
  const Blocks blocks(call);
  const Planes step = planes(call, blocks.largest);
  const i64 size = scratch_elements(call, blocks.largest), parts = parts_of(call);
  const i64 serial = __atomic_fetch_add(&serials, blocks.count, __ATOMIC_RELAXED);
  parallel_near(call.plan.parallel, call.plan.threads, blocks.count * parts, [&](i64 task) {
    const i64 block = task / parts;
    const Range tiles = blocks.tiles(call, block), panels = share(call.panels, task % parts, parts);
    real *v = scratch.get(size), *m = v + XI * step.v, *strip = m + XI * step.m;
    if (transformed != serial + block) {
      for (i64 cb = 0; cb < call.channel_blocks; ++cb) transform_input(call, tiles, cb, v, step.v, strip);
      transformed = serial + block;
    }
    for (i64 p = panels.begin; p < panels.end; ++p) run_panel(call, tiles, p, v, step, m, strip);
  });
}

}  // namespace

extern "C" {

// Elements of U.
i64 packed_size(i64 k, i64 c) { return ceil_div(k, NR) * XI * c * NR; }

// U of filters [k][c][3][3].
void pack_filters(const real *filters, i64 k, i64 c, real *out) {
  for (i64 j = 0; j < ceil_div(k, NR) * NR; ++j)
    for (i64 p = 0; p < c; ++p) {
      double g[9] = {}, half[ALPHA * 3], u[XI];
      if (j < k)
        for (i64 i = 0; i < 9; ++i) g[i] = filters[(j * c + p) * 9 + i];
      for (i64 i = 0; i < 3; ++i) filter_transform(g + i, 3, half + i, 3);
      for (i64 i = 0; i < ALPHA; ++i) filter_transform(half + i * 3, 1, u + i * ALPHA, 1);
      for (i64 xi = 0; xi < XI; ++xi) out[((j / NR * XI + xi) * c + p) * NR + j % NR] = static_cast<real>(u[xi]);
    }
}

// Elements of scratch that each thread of a call uses.
i64 scratch_size(const Plan *plan) {
  const Call call(*plan, nullptr, nullptr, nullptr);
  return scratch_elements(call, Blocks(call).largest);
}

// 0, or 1 when memory ran out.
int convolve(const Plan *plan, const real *x, const real *residual, real *y) {
  try {
    run(Call(*plan, x, residual, y));
    return 0;
  } catch (const std::bad_alloc &) {
    return 1;
  }
}
}
