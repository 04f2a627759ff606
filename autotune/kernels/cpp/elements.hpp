// Elements in memory that are narrower than those computed with: bf16 and f16 are widened as they are loaded.
//
// Compile-time: those of tile.hpp, and ELEMENT (0: real itself, 1: bf16, 2: f16; the latter two with REAL=float).
#pragma once

#include "tile.hpp"

#if ELEMENT == 2 && defined(__F16C__)
#include <immintrin.h>
#endif

namespace {

#if ELEMENT == 0
using elem = real;
inline vec load(const elem *from) { return *(const vec *)from; }
inline void store(elem *to, vec v) { *(vec *)to = v; }
inline real widen(elem e) { return e; }

#elif ELEMENT == 1
using elem = std::uint16_t;
typedef std::uint16_t narrow __attribute__((vector_size(LANES * 2), aligned(2)));
typedef std::uint32_t wide __attribute__((vector_size(LANES * 4)));
inline vec load(const elem *from) { return (vec)(__builtin_convertvector(*(const narrow *)from, wide) << 16); }
inline real widen(elem e) { return __builtin_bit_cast(float, (std::uint32_t)e << 16); }

// To nearest, ties to even; NaN stays NaN.
inline void store(elem *to, vec v) {
  const wide bits = (wide)v, rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const wide quiet = (bits >> 16) | 0x40;
  *(narrow *)to = __builtin_convertvector(v != v ? quiet : rounded, narrow);
}

#else
using elem = _Float16;
typedef elem narrow __attribute__((vector_size(LANES * 2), aligned(2)));
inline real widen(elem e) { return e; }
inline vec load(const elem *from) {
#if defined(__F16C__) && LANES == 4  // compilers widen element by element
  return (vec)_mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)from));
#elif defined(__F16C__) && LANES == 8
  return (vec)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from));
#elif defined(__AVX512F__) && LANES == 16
  return (vec)_mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256((const __m256i *)from));
#else
  return __builtin_convertvector(*(const narrow *)from, vec);
#endif
}
inline void store(elem *to, vec v) { EACH(l, LANES) to[l] = (elem)v[l]; }
#endif

// The `length` < LANES values at `from`, then zeros.
inline vec load_rest(const elem *from, i64 length) {
  elem line[LANES] = {};
  for (i64 l = 0; l < length; ++l) line[l] = from[l];
  return load(line);
}

inline void store_rest(elem *to, vec v, i64 length) {
  elem line[LANES];
  store(line, v);
  for (i64 l = 0; l < length; ++l) to[l] = line[l];
}

// Asks for every cache line of `count` elements.
template <i64 COUNT>
inline void prefetch_row(const elem *row) {
  for (i64 byte = 0; byte < COUNT * (i64)sizeof(elem); byte += 64) __builtin_prefetch((const char *)row + byte);
}

}  // namespace
