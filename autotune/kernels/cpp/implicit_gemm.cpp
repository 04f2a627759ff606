// Convolution as a matrix product whose image patches exist only block by block: y = act(conv(x, W) + bias + residual).
//
// Algorithm: implicit GEMM (Chetlur et al., "cuDNN: Efficient Primitives for Deep Learning", 2014) in the loop nest of Goto
// and van de Geijn (ACM TOMS 34(3), 2008). With d = c/groups * r * s products per output and pixels of one result in a row,
//
//   NCHW           C[k x pixels] = W[k x d] . X[d x pixels]     per image and group; pixels are contiguous
//   channels_last  C[pixels x k] = X[pixels x d] . W^T[d x k]   per group, pixels of all images; channels are contiguous
//
//   for a block of NC pixels                    patches KC x NC  packed into the thread's scratch, L2
//     for pc in d by KC
//       for a panel of NR columns                        KC x NR  stays in L1
//         for a tile of MR rows                          MR x NR  stays in registers
//
// Weights are packed once: tiles of MR rows [group][tile][d][MR] with d = (c, r, s) for NCHW, panels of NR columns
// [group][panel][d][NR] with d = (r, s, c) for channels_last, zero-padded. Patches are packed as [panel][KC][NR] or
// [tile][MR][KC]. For NCHW, the rows of the image under a block are first copied, one channel at a time, to a small buffer with
// their zero padding and with columns sorted by their remainder modulo the stride: there every tap of the filter is a
// contiguous run. For channels_last, a tap is a run of channels. Pixels are numbered through rows, so a tile may straddle them.
//
// IN_PLACE (1x1 filters, stride 1, no padding): the image already is the matrix and is read where it is; only a last, partial
// tile is copied.
//
// Work is cut along pixels or along output channels into tasks that threads take from a counter.
//
// Compile-time: those of tile.hpp, CHANNELS_LAST (0: NCHW), IN_PLACE. Everything else is in Plan.

#include "copy.hpp"

enum Split { SPLIT_PIXELS, SPLIT_CHANNELS };

// Mirrored by kernels/implicit_gemm.py, field by field.
struct Plan {
  ParallelFn parallel;  // GOMP_parallel, or null: everything on the calling thread
  const real *packed;   // weights
  const real *bias;     // k values, or null
  i64 n, c, h, w, k, r, s;
  i64 out_h, out_w, stride_h, stride_w, dilation_h, dilation_w, top, left, groups;
  i64 kc, nc;  // of d and pixels; any positive values
  i64 threads, tasks, split;

  i64 group_c() const { return c / groups; }
  i64 group_k() const { return k / groups; }
  i64 taps() const { return r * s; }
  i64 depth() const { return group_c() * taps(); }
  i64 pixels() const { return out_h * out_w; }
};

namespace {

struct Operands {
  const real *x, *residual;  // residual: laid out like y, or null
  real *y;
};

thread_local Scratch patch_scratch, row_scratch, run_scratch;

constexpr i64 STEP = CHANNELS_LAST ? MR : NR;          // pixels per tile
constexpr i64 CHANNEL_STEP = CHANNELS_LAST ? NR : MR;  // output channels per tile

i64 channel_tiles(const Plan &p) { return ceil_div(p.group_k(), CHANNEL_STEP); }
i64 block_pixels(const Plan &p) { return max(1, p.nc / STEP) * STEP; }
const real *at(const real *base, i64 offset) { return base ? base + offset : nullptr; }

// ---- NCHW -------------------------------------------------------------------------------------------------

// The remainders modulo `stride` at which some tap lies, as bits; all of them for strides beyond a word.
std::uint64_t remainders(i64 stride, i64 taps, i64 dilation) {
  std::uint64_t found = 0;
  for (i64 t = 0; t < taps; ++t) found |= 1ull << t * dilation % stride % 64;
  return stride > 64 ? ~0ull : found;
}

// Rows of one channel under output rows [first, first + count), padded; columns of equal remainder modulo stride_w adjacent.
struct Rows {
  i64 first, count, height, phase, pitch;
  std::uint64_t rows_read, phases_read;

  Rows(const Plan &p, i64 q0, i64 q1) {
    first = q0 / p.out_w;
    count = (q1 - 1) / p.out_w + 1 - first;
    height = (count - 1) * p.stride_h + (p.r - 1) * p.dilation_h + 1;
    phase = ceil_div((p.out_w - 1) * p.stride_w + (p.s - 1) * p.dilation_w + 1, p.stride_w);
    pitch = phase * p.stride_w;
    rows_read = remainders(p.stride_h, p.r, p.dilation_h);
    phases_read = remainders(p.stride_w, p.s, p.dilation_w);
  }
  i64 size() const { return height * pitch + LANES; }  // runs are read in whole vectors
  i64 tap(const Plan &p, i64 r, i64 s) const {
    const i64 column = s * p.dilation_w;
    return r * p.dilation_h * pitch + column % p.stride_w * phase + column / p.stride_w;
  }
};

// The part of a buffer that lies inside the image; the rest was zeroed once for all channels. `limit`: the end of the tensor.
void fill_rows(const Plan &p, const Rows &rows, const real *plane, const real *limit, real *buffer) {
  const i64 above = rows.first * p.stride_h - p.top, last = min(rows.height, p.h - above);
  for (i64 residue = 0; residue < p.stride_h; ++residue) {
    if (!(rows.rows_read >> residue % 64 & 1)) continue;
    const i64 skipped = ceil_div(max(0, -above - residue), p.stride_h);
    for (i64 y = skipped * p.stride_h + residue; y < last; y += p.stride_h) {
      const real *from = plane + (above + y) * p.w;
      real *to = buffer + y * rows.pitch;
      if (p.stride_w == 1) {
        if (p.left < rows.pitch) copy_line(from, min(p.w, rows.pitch - p.left), to + p.left);
        continue;
      }
      for (i64 phase = 0; phase < p.stride_w; ++phase) {
        if (!(rows.phases_read >> phase % 64 & 1)) continue;
        const i64 begin = p.left <= phase ? 0 : ceil_div(p.left - phase, p.stride_w);
        const i64 column = begin * p.stride_w + phase - p.left;
        const i64 count = min(rows.phase - begin, ceil_div(p.w - column, p.stride_w));
        if (p.stride_w == 2)
          gather_pairs(from + column, count, limit, to + phase * rows.phase + begin);
        else
          gather_line(from + column, count, p.stride_w, to + phase * rows.phase + begin);
      }
    }
  }
}

struct Run {
  i64 from, to, length;
  bool exact;  // the last of its line: a whole vector would reach into the next line
};

inline void copy_run(const real *from, const Run &run, real *to) {
  i64 i = 0;
  for (; i + LANES <= run.length; i += LANES) *(vec *)(to + i) = *(const vec *)(from + i);
  if (i == run.length) return;
  if (run.exact)
    copy_rest(from + i, run.length - i, to + i);
  else
    *(vec *)(to + i) = *(const vec *)(from + i);
}

// Patches of pixels [q0, q1) and channels [c0, c1) of one image and group -> [panel][(c, r, s)][NR]. Columns past q1 hold anything:
// what is computed from them is not stored. `limit`: the end of the tensor.
void pack_pixels(const Plan &p, const real *x, const real *limit, i64 q0, i64 q1, i64 c0, i64 c1, real *out) {
  const i64 kc = (c1 - c0) * p.taps(), plane = p.h * p.w;
  if (p.taps() == 1 && p.stride_h * p.stride_w == 1 && p.pixels() == plane) {
    for (i64 q = q0; q < q1; q += NR)
      for (i64 c = c0; c < c1; ++c, out += NR) {
        const real *from = x + c * plane + q;
        if (q + NR <= q1) {
          EACH(j, NV) *(vec *)(out + j * LANES) = *(const vec *)(from + j * LANES);
        } else {
          std::memcpy(out, from, (q1 - q) * sizeof(real));
        }
      }
    return;
  }
  const Rows rows(p, q0, q1);
  const i64 most = ceil_div(q1 - q0, NR) + rows.count;
  Run *runs = reinterpret_cast<Run *>(run_scratch.get(ceil_div(most * sizeof(Run), sizeof(real))));
  i64 count = 0;
  for (i64 q = q0; q < q1;) {
    const i64 line = q / p.out_w, column = q % p.out_w, at = (q - q0) % NR;
    const i64 length = min(min(p.out_w - column, NR - at), q1 - q);
    const bool exact = at + ceil_div(length, LANES) * LANES > NR;
    runs[count++] = {(line - rows.first) * p.stride_h * rows.pitch + column, (q - q0) / NR * kc * NR + at, length, exact};
    q += length;
  }
  real *buffer = row_scratch.get(rows.size());
  std::memset(buffer, 0, rows.size() * sizeof(real));
  for (i64 c = c0; c < c1; ++c) {
    fill_rows(p, rows, x + c * plane, limit, buffer);
    for (i64 r = 0; r < p.r; ++r)
      for (i64 s = 0; s < p.s; ++s, out += NR) {
        const real *from = buffer + rows.tap(p, r, s);
        for (i64 i = 0; i < count; ++i) copy_run(from + runs[i].from, runs[i], out + runs[i].to);
      }
  }
}

__attribute__((noinline)) void product_nchw(i64 kc, const real *a, const real *b, i64 b_row, real *c, i64 c_row, const Tile &t) {
  tile_product(kc, a, 1, MR, b, IN_PLACE ? b_row : NR, c, c_row, t);
}

// Output channels of `tiles` and pixels [q0, q1) of one image and group.
[[maybe_unused]] void block_nchw(const Plan &p, const Operands &op, i64 image, i64 group, Range tiles, i64 q0, i64 q1) {
  const i64 pixels = p.pixels(), plane = p.h * p.w, taps = p.taps(), depth = p.depth();
  const real *x = op.x + (image * p.c + group * p.group_c()) * plane;
  const i64 result = (image * p.k + group * p.group_k()) * pixels;
  const real *weights = p.packed + group * channel_tiles(p) * depth * MR;
  const i64 channels = max(1, p.kc / taps);
  for (i64 c0 = 0; c0 < p.group_c(); c0 += channels) {
    const i64 c1 = min(p.group_c(), c0 + channels), kc = (c1 - c0) * taps;
    const i64 copied = IN_PLACE ? q0 + (q1 - q0) / NR * NR : q0;  // pixels from here on are packed
    real *patches = nullptr;
    if (copied < q1) {
      patches = patch_scratch.get(ceil_div(q1 - copied, NR) * NR * kc);
      pack_pixels(p, x, op.x + p.n * p.c * plane, copied, q1, c0, c1, patches);
    }
    for (i64 q = q0; q < q1; q += NR) {
      const bool there = q < copied;
      const real *b = there ? x + c0 * plane + q : patches + (q - copied) * kc;
      for (i64 t = tiles.begin; t < tiles.end; ++t) {
        const i64 k0 = t * MR, from = result + k0 * pixels + q;
        const Tile tile = {min(MR, p.group_k() - k0),
                           min(NR, q1 - q),
                           c0 == 0,
                           c1 == p.group_c(),
                           nullptr,
                           at(p.bias, group * p.group_k() + k0),
                           at(op.residual, from)};
        product_nchw(kc, weights + (t * depth + c0 * taps) * MR, b, there ? plane : NR, op.y + from, pixels, tile);
      }
    }
  }
}

// ---- channels_last ----------------------------------------------------------------------------------------

// Both write whole vectors: what they overrun is written next.
inline void put_zeros(i64 count, real *to) {
  for (i64 i = 0; i < count; i += LANES) *(vec *)(to + i) = vec{};
}
inline void put(const real *from, i64 count, const real *limit, real *to) {
  if (from + count + LANES > limit) {
    std::memcpy(to, from, count * sizeof(real));
    return;
  }
  for (i64 i = 0; i < count; i += LANES) *(vec *)(to + i) = *(const vec *)(from + i);
}

// Patches of pixels [q0, q1), numbered through all images, and products [p0, p0 + kc) in order (r, s, c) -> [pixel][kc], one vector
// more than that. Where a filter's row is one run in the image, (s, c) is copied at once. Pixels up to a whole tile are zeroed.
void pack_patches(const Plan &p, const real *x, i64 group, i64 q0, i64 q1, i64 p0, i64 kc, real *out) {
  const i64 cg = p.group_c();
  const bool whole_rows = p.groups == 1 && p.dilation_w == 1;
  const i64 run = whole_rows ? p.s * cg : cg, runs_per_row = whole_rows ? 1 : p.s;
  const i64 r0 = p0 / run / runs_per_row, s0 = p0 / run % runs_per_row, begin0 = p0 % run;
  const real *limit = x + p.n * p.h * p.w * p.c;
  i64 image = q0 / p.pixels(), line = q0 % p.pixels() / p.out_w, column = q0 % p.out_w;
  for (i64 q = q0; q < q1; ++q, out += kc) {
    i64 r = r0, s = s0, begin = begin0;
    for (i64 e = 0; e < kc;) {
      const i64 end = min(run, begin + kc - e), y = line * p.stride_h - p.top + r * p.dilation_h;
      const i64 left = column * p.stride_w - p.left + s * p.dilation_w;
      i64 low = end, high = end;  // the valid part, in elements of the run
      if (y >= 0 && y < p.h) {
        if (whole_rows) {
          low = min(max(begin, -left * cg), end);
          high = max(low, min(end, (p.w - left) * cg));
        } else if (left >= 0 && left < p.w) {
          low = begin;
        }
      }
      real *to = out + e - begin;
      put_zeros(low - begin, to + begin);
      if (low < high) put(x + ((image * p.h + y) * p.w + left) * p.c + group * cg + low, high - low, limit, to + low);
      put_zeros(end - high, to + high);
      e += end - begin;
      begin = 0;
      if (++s == runs_per_row) {
        s = 0;
        ++r;
      }
    }
    if (++column == p.out_w) {
      column = 0;
      if (++line == p.out_h) {
        line = 0;
        ++image;
      }
    }
  }
  std::memset(out, 0, (ceil_div(q1 - q0, MR) * MR - (q1 - q0)) * kc * sizeof(real));
}

__attribute__((noinline)) void product_last(i64 kc, const real *a, i64 a_row, const real *b, real *c, i64 c_row, const Tile &t) {
  tile_product(kc, a, a_row, 1, b, NR, c, c_row, t);
}

// Output channels of `panels` and pixels [q0, q1), numbered through all images, of one group.
[[maybe_unused]] void block_last(const Plan &p, const Operands &op, i64 group, Range panels, i64 q0, i64 q1) {
  const i64 depth = p.depth(), cg = p.group_c(), kg = p.group_k();
  const real *weights = p.packed + group * channel_tiles(p) * depth * NR;
  for (i64 p0 = 0; p0 < depth; p0 += p.kc) {
    const i64 kc = min(p.kc, depth - p0);
    const i64 copied = IN_PLACE ? q0 + (q1 - q0) / MR * MR : q0;
    real *patches = nullptr;
    if (copied < q1) {
      patches = patch_scratch.get(ceil_div(q1 - copied, MR) * MR * kc + LANES);
      pack_patches(p, op.x, group, copied, q1, p0, kc, patches);
    }
    for (i64 j = panels.begin; j < panels.end; ++j) {
      const i64 k0 = j * NR;
      const real *b = weights + (j * depth + p0) * NR;
      for (i64 q = q0; q < q1; q += MR) {
        const i64 from = q * p.k + group * kg + k0;
        const Tile tile = {min(MR, q1 - q),        min(NR, kg - k0),
                           p0 == 0,                p0 + kc == depth,
                           at(p.bias, group * kg + k0), nullptr,
                           at(op.residual, from)};
        const bool there = q < copied;
        const real *a = there ? op.x + q * p.c + group * cg + p0 : patches + (q - copied) * kc;
        product_last(kc, a, there ? p.c : kc, b, op.y + from, p.k, tile);
      }
    }
  }
}

// ---- tasks ------------------------------------------------------------------------------------------------

// Tiles [begin, end) of pixels, of one image and group (NCHW) or of all images of one group, in blocks.
void pixel_tiles(const Plan &p, const Operands &op, i64 image, i64 group, Range channels, Range tiles, i64 pixels) {
  const i64 last = min(pixels, tiles.end * STEP);
  for (i64 q = tiles.begin * STEP; q < last; q += block_pixels(p)) {
    const i64 end = min(last, q + block_pixels(p));
    if constexpr (CHANNELS_LAST)
      block_last(p, op, group, channels, q, end);
    else
      block_nchw(p, op, image, group, channels, q, end);
  }
}

// Cuts units [range) of planes that hold `per_plane` units each at the planes' borders.
template <class Body>
void each_plane(Range range, i64 per_plane, const Body &body) {
  for (i64 u = range.begin; u < range.end;) {
    const i64 plane = u / per_plane, end = min(range.end, (plane + 1) * per_plane);
    body(plane, Range{u - plane * per_plane, end - plane * per_plane});
    u = end;
  }
}

void run(const Plan &p, const Operands &op) {
  const i64 images = CHANNELS_LAST ? 1 : p.n, pixels = CHANNELS_LAST ? p.n * p.pixels() : p.pixels();
  const i64 tiles = ceil_div(pixels, STEP), channels = channel_tiles(p);
  if (p.split == SPLIT_PIXELS) {
    const i64 total = images * p.groups * tiles, tasks = min(p.tasks, total);
    parallel(p.parallel, p.threads, tasks, [&](i64 t) {
      each_plane(share(total, t, tasks), tiles, [&](i64 plane, Range part) {
        pixel_tiles(p, op, plane / p.groups, plane % p.groups, {0, channels}, part, pixels);
      });
    });
  } else {
    const i64 total = p.groups * channels, tasks = min(p.tasks, total);
    parallel(p.parallel, p.threads, tasks, [&](i64 t) {
      each_plane(share(total, t, tasks), channels, [&](i64 group, Range part) {
        for (i64 image = 0; image < images; ++image) pixel_tiles(p, op, image, group, part, {0, tiles}, pixels);
      });
    });
  }
}

}  // namespace

extern "C" {

// Elements that pack_weight writes.
i64 packed_size(const Plan *p) { return p->groups * channel_tiles(*p) * CHANNEL_STEP * p->depth(); }

// weight[k, c/groups, r, s], contiguous -> tiles or panels.
void pack_weight(const Plan *p, const real *weight, real *out) {
  const i64 taps = p->taps(), cg = p->group_c(), kg = p->group_k();
  for (i64 g = 0; g < p->groups; ++g)
    for (i64 t = 0; t < channel_tiles(*p); ++t)
      for (i64 e = 0; e < p->depth(); ++e) {
        const i64 c = CHANNELS_LAST ? e % cg : e / taps, tap = CHANNELS_LAST ? e / cg : e % taps;
        for (i64 i = 0; i < CHANNEL_STEP; ++i) {
          const i64 k = t * CHANNEL_STEP + i;
          *out++ = k < kg ? weight[((g * kg + k) * cg + c) * taps + tap] : 0;
        }
      }
}

// Elements of scratch that one thread uses at most.
i64 scratch_size(const Plan *p) {
  const i64 all = CHANNELS_LAST ? p->n * p->pixels() : p->pixels(), block = min(block_pixels(*p), ceil_div(all, STEP) * STEP);
  const i64 copied = IN_PLACE ? STEP : block, step = CHANNELS_LAST ? 1 : p->taps();
  const i64 kc = min(p->depth(), max(1, p->kc / step) * step);
  i64 elements = copied * kc + (CHANNELS_LAST ? LANES : 0);
  if (!CHANNELS_LAST && !IN_PLACE) {
    const i64 across = min(p->out_h, (block - 1) / p->out_w + 2);
    elements += Rows(*p, 0, across * p->out_w).size();
    elements += ceil_div((ceil_div(block, NR) + across) * sizeof(Run), sizeof(real));
  }
  return elements;
}

// y = act(conv(x, W) + bias + residual), all in the compiled layout. Returns 0, or 1 when out of memory.
int convolve(const Plan *p, const real *x, const real *residual, real *y) try {
  if (p->n > 0) run(*p, {x, residual, y});
  return 0;
} catch (const std::bad_alloc &) {
  return 1;
}

}  // extern "C"
