// Copies of short runs in whole vectors, for packing and for padded lines. Needs tile.hpp's definitions.
#pragma once

#include <type_traits>

#include "tile.hpp"

namespace {

// The `length` < 2 * N values that a whole vector would overrun, in pieces of N, N / 2 ... 1.
template <i64 N = LANES / 2>
inline void copy_rest(const real *from, i64 length, real *to) {
  if constexpr (N > 0) {
    const i64 part = length & N;
    if (part) std::memcpy(to, from, N * sizeof(real));
    copy_rest<N / 2>(from + part, length & (N - 1), to + part);
  }
}

// Exactly `length` values; shorter than memcpy's way there for lines of a few vectors.
inline void copy_line(const real *from, i64 length, real *to) {
  i64 i = 0;
  for (; i + LANES <= length; i += LANES) *(vec *)(to + i) = *(const vec *)(from + i);
  copy_rest(from + i, length - i, to + i);
}

// to[i] = from[i * stride]; STRIDE is the stride when it is known.
template <i64 STRIDE = 0>
inline void gather_line(const real *from, i64 count, i64 stride, real *to) {
  if constexpr (STRIDE > 0) stride = STRIDE;
  for (i64 i = 0; i < count; ++i) to[i] = from[i * stride];
}

// Values 0 or 1 (`odd`) of each pair at `from`.
inline vec every_second(const real *from, int odd) {
#ifdef __clang__  // finds the shuffle itself, and has no __builtin_shuffle
  vec v;
  EACH(l, LANES) v[l] = from[2 * l + odd];
  return v;
#else
  typedef std::conditional_t<sizeof(real) == 4, std::int32_t, std::int64_t> integer;
  typedef integer indices __attribute__((vector_size(LANES * sizeof(real))));
  indices order;
  EACH(l, LANES) order[l] = 2 * l + odd;
  return __builtin_shuffle(*(const vec *)from, *(const vec *)(from + LANES), order);
#endif
}

// to[i] = from[2 * i], reading nothing at `limit` or beyond.
inline void gather_pairs(const real *from, i64 count, const real *limit, real *to) {
  if (count < LANES || from + 2 * count > limit) {
    gather_line<2>(from, count, 2, to);
    return;
  }
  for (i64 i = 0; i < count; i += LANES) {
    const i64 at = min(i, count - LANES);
    *(vec *)(to + at) = every_second(from + 2 * at, 0);
  }
}

}  // namespace
