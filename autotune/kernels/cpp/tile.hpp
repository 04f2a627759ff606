// What the project's CPU kernels share: vectors, activations, the register tile, scratch memory, and the parallel loop.
//
// Register tile: C[MR x NR] += A[MR x kc] . B[kc x NR], the microkernel of Goto and van de Geijn (ACM TOMS 34(3), 2008): MR
// broadcasts of A and NV vector loads of B per step of k, MR * NV accumulators that never leave the registers.
// Threads are those of the OpenMP pool that the framework already runs, reached through GOMP_parallel's address.
//
// Compile-time: REAL (float|double), LANES (vector width), MR, NV (NR = NV * LANES), UNROLL (of k), PREFETCH (k-steps
// ahead in B, 0 = none), ACT.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

using real = REAL;
using i64 = std::int64_t;
typedef real vec __attribute__((vector_size(LANES * sizeof(real)), aligned(sizeof(real))));
typedef real avec __attribute__((vector_size(LANES * sizeof(real))));

constexpr i64 NR = NV * LANES;
enum Activation { NONE, RELU, GELU, GELU_TANH, SILU, RELU6, HARDSWISH };

using ParallelFn = void (*)(void (*)(void *), void *, unsigned, unsigned);

#define EACH(i, n) _Pragma("GCC unroll 32") for (int i = 0; i < (n); ++i)

namespace {

constexpr i64 min(i64 a, i64 b) { return a < b ? a : b; }
constexpr i64 max(i64 a, i64 b) { return a > b ? a : b; }
constexpr i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }

// ---- activations ------------------------------------------------------------------------------------------

constexpr bool HAS_ACT = ACT != NONE;
constexpr bool CHEAP_ACT = ACT == NONE || ACT == RELU || ACT == RELU6 || ACT == HARDSWISH;

// exp by range reduction to |r| <= ln2/2 and a degree-6 polynomial (Cephes expf coefficients), error < 2 ulp. NaN stays NaN.
template <class F>
inline F exp_lanes(F x) {
  if constexpr (sizeof(real) == 4) {
    typedef std::int32_t ints __attribute__((vector_size(sizeof(F))));
    const F lo = F{} - 87.0f, hi = F{} + 88.0f, given = x;
    x = x < lo ? lo : (x > hi ? hi : x);
    F shifted = x * 1.44269504088896341f + 12582912.0f;  // 1.5 * 2^23: rounds to nearest in the low bits
    ints n = (ints)shifted - (ints)(F{} + 12582912.0f);
    F rounded = shifted - 12582912.0f;
    F r = x - rounded * 0.693359375f + rounded * 2.12194440e-4f;
    F p = F{} + 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    F y = p * (F)((n + 127) << 23);
    return given > hi ? F{} + __builtin_inff() : y;
  } else {
    for (unsigned l = 0; l < sizeof(F) / sizeof(real); ++l) x[l] = __builtin_exp(x[l]);
    return x;
  }
}

// erf by Abramowitz and Stegun 7.1.26 (|error| <= 1.5e-7) in f32, by the C library in f64.
template <class F>
inline F erf_lanes(F x) {
  if constexpr (sizeof(real) == 4) {
    F a = x < 0.0f ? -x : x;
    F t = 1.0f / (0.3275911f * a + 1.0f);
    F p = F{} + 1.061405429f;
    p = p * t - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    F y = 1.0f - p * t * exp_lanes(-a * a);
    return x < 0.0f ? -y : y;
  } else {
    for (unsigned l = 0; l < sizeof(F) / sizeof(real); ++l) x[l] = __builtin_erf(x[l]);
    return x;
  }
}

template <class F>
inline F clamped(F x, real low, real high) {
  const F lo = F{} + low, hi = F{} + high;
  return x < lo ? lo : (x > hi ? hi : x);  // comparisons with NaN are false: NaN stays
}

template <class F>
inline F activate(F x) {
  if constexpr (ACT == RELU) return x < 0 ? F{} : x;
  if constexpr (ACT == RELU6) return clamped(x, 0, 6);
  if constexpr (ACT == HARDSWISH) return x * clamped(x + (real)3, 0, 6) * (real)(1.0 / 6);
  if constexpr (ACT == GELU) return x * (real)0.5 * ((real)1 + erf_lanes(x * (real)0.70710678118654752));
  if constexpr (ACT == GELU_TANH) {  // (1 + tanh u) / 2 = 1 / (1 + exp(-2u))
    F u = x * ((real)0.79788456080286536 + (real)0.035677408136300125 * x * x);
    return x / ((real)1 + exp_lanes(u * (real)-2));
  }
  if constexpr (ACT == SILU) return x / ((real)1 + exp_lanes(-x));
  return x;
}

inline real activate_one(real x) {
  avec v = {};
  v[0] = x;
  return activate(v)[0];
}

// ---- register tile ----------------------------------------------------------------------------------------

struct Tile {
  i64 rows, cols;        // valid part of MR x NR
  bool first, last;      // of the blocks along k: start from zero; finish with bias, residual and activation
  const real *col_bias;  // one per column, or null
  const real *row_bias;  // one per row, or null
  const real *residual;  // added before the activation, laid out like C, or null
};

inline void store_partial(const real *acc, real *c, i64 c_row, const Tile &t) {
  for (i64 i = 0; i < t.rows; ++i) {
    real *to = c + i * c_row;
    real line[NR];
    std::memcpy(line, acc + i * NR, sizeof line);
    if (!t.first)
      for (i64 j = 0; j < t.cols; ++j) line[j] += to[j];
    if (t.last) {
      if (t.col_bias)
        for (i64 j = 0; j < t.cols; ++j) line[j] += t.col_bias[j];
      if (t.row_bias)
        for (i64 j = 0; j < t.cols; ++j) line[j] += t.row_bias[i];
      if (t.residual)
        for (i64 j = 0; j < t.cols; ++j) line[j] += t.residual[i * c_row + j];
      if constexpr (HAS_ACT)
        for (i64 j = 0; j < NR; j += LANES) *(vec *)(line + j) = activate(*(vec *)(line + j));
    }
    std::memcpy(to, line, t.cols * sizeof(real));
  }
}

// C tile += A tile . B panel over kc steps. Element (i, p) of A is a[i * a_row + p * a_col]; row p of B begins at b + p * b_row.
// The strides are constants where both operands are packed; the compiler folds them after inlining.
inline __attribute__((always_inline)) void tile_product(i64 kc, const real *a, i64 a_row, i64 a_col, const real *b, i64 b_row, real *c,
                                                        i64 c_row, const Tile &t) {
  vec acc[MR][NV] = {};
  const auto step = [&](const real *ak, const real *bk) __attribute__((always_inline)) {
    vec line[NV];
    EACH(j, NV) line[j] = *(const vec *)(bk + j * LANES);
    EACH(i, MR) {
      const real value = ak[i * a_row];
      EACH(j, NV) acc[i][j] += value * line[j];
    }
  };
  i64 p = 0;
  for (; p + UNROLL <= kc; p += UNROLL) {
    EACH(u, UNROLL) {
      if constexpr (PREFETCH > 0)
        for (i64 byte = 0; byte < NR * (i64)sizeof(real); byte += 64)
          __builtin_prefetch((const char *)(b + (u + PREFETCH) * b_row) + byte);
      step(a + u * a_col, b + u * b_row);
    }
    a += UNROLL * a_col;
    b += UNROLL * b_row;
  }
  for (; p < kc; ++p) {
    step(a, b);
    a += a_col;
    b += b_row;
  }
  if (t.rows == MR && t.cols == NR && (CHEAP_ACT || !t.last)) {
    EACH(i, MR) {
      real *to = c + i * c_row;
      EACH(j, NV) {
        vec v = acc[i][j];
        if (!t.first) v += *(vec *)(to + j * LANES);
        if (t.last) {
          if (t.col_bias) v += *(const vec *)(t.col_bias + j * LANES);
          if (t.row_bias) v += t.row_bias[i];
          if (t.residual) v += *(const vec *)(t.residual + i * c_row + j * LANES);
          if constexpr (CHEAP_ACT) v = activate(v);
        }
        *(vec *)(to + j * LANES) = v;
      }
    }
  } else {
    real spill[MR * NR];
    EACH(i, MR) EACH(j, NV) *(vec *)(spill + i * NR + j * LANES) = acc[i][j];
    store_partial(spill, c, c_row, t);
  }
}

// ---- memory and threads -----------------------------------------------------------------------------------

// Scratch that grows and stays with its thread: no allocation in the steady state, and calls from several threads do not meet.
struct Scratch {
  real *data = nullptr;
  i64 capacity = 0;
  real *get(i64 count) {
    if (count > capacity) {
      std::free(data);
      capacity = 0;
      data = static_cast<real *>(std::aligned_alloc(64, (count * sizeof(real) + 63) / 64 * 64));
      if (!data) throw std::bad_alloc();
      capacity = count;
    }
    return data;
  }
  ~Scratch() { std::free(data); }
};

struct Range {
  i64 begin, end;
};

inline Range share(i64 total, i64 part, i64 parts) { return {total * part / parts, total * (part + 1) / parts}; }

// Runs body(0 .. tasks-1), each once, on up to `threads` threads of the pool (on this one when `pool` is null). Threads take tasks
// from a counter, so one that loses its core does not hold up the rest. Throws std::bad_alloc when a task did.
template <class Body>
void parallel(ParallelFn pool, i64 threads, i64 tasks, const Body &body) {
  threads = min(threads, tasks);
  if (threads <= 1 || !pool) {
    for (i64 t = 0; t < tasks; ++t) body(t);
    return;
  }
  struct Region {
    const Body *body;
    i64 tasks;
    i64 next;
    bool failed;  // an exception must not cross the pool's frames
  } region{&body, tasks, 0, false};
  pool(
      [](void *data) {
        auto &r = *static_cast<Region *>(data);
        try {
          for (i64 t; (t = __atomic_fetch_add(&r.next, 1, __ATOMIC_RELAXED)) < r.tasks;) (*r.body)(t);
        } catch (...) {
          __atomic_store_n(&r.failed, true, __ATOMIC_RELAXED);
        }
      },
      &region, static_cast<unsigned>(threads), 0);
  if (region.failed) throw std::bad_alloc();
}

}  // namespace
