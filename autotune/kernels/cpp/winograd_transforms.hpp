// The transforms of Winograd convolution F(OUT x OUT, 3x3) along one dimension, and square transposition in registers.
//
// The matrices evaluate and interpolate polynomials (Toom and Cook) at 0, +-1 and infinity for OUT = 2, and at 0, +-2/3, +-3/2 and
// infinity for OUT = 4. The usual +-1, +-2 amplify rounding errors four times as much (see kernels/winograd.py); on the choice
// of points: Barabasz, Anderson, Soodhalter and Gregg, "Error Analysis and Improving the Accuracy of Winograd Convolution for
// Deep Neural Networks", ACM TOMS 46(4), 2020.
#pragma once

#include "copy.hpp"
#include "tile.hpp"

#include <utility>

namespace {

constexpr i64 ALPHA = OUT + 2, XI = ALPHA * ALPHA;

// ---- transforms of one dimension -----------------------------------------------------------------------

constexpr real P = 2.0 / 3, Q = 3.0 / 2;  // the points of m = 4; P * Q = 1

inline void input_transform(const avec (&d)[ALPHA], avec (&t)[ALPHA]) {
  if constexpr (OUT == 2) {
    t[0] = d[0] - d[2], t[1] = d[1] + d[2], t[2] = d[2] - d[1], t[3] = d[3] - d[1];
  } else {
    constexpr real P2 = P * P, Q2 = Q * Q, SUM = 4.0 / 9 + 9.0 / 4;
    const avec pe = d[4] - Q2 * d[2], po = P * d[3] - Q * d[1];
    const avec qe = d[4] - P2 * d[2], qo = Q * d[3] - P * d[1];
    t[0] = d[0] + d[4] - SUM * d[2];
    t[1] = pe + po, t[2] = pe - po, t[3] = qe + qo, t[4] = qe - qo;
    t[ALPHA - 1] = d[1] + d[ALPHA - 1] - SUM * d[3];
  }
}

inline void output_transform(const avec (&m)[ALPHA], avec (&y)[OUT]) {
  const avec ps = m[1] + m[2], pd = m[1] - m[2];
  if constexpr (OUT == 2) {
    y[0] = m[0] + ps, y[1] = pd + m[3];
  } else {
    constexpr real P2 = P * P, Q2 = Q * Q, P3 = P2 * P, Q3 = Q2 * Q;
    const avec qs = m[3] + m[4], qd = m[3] - m[4];
    y[0] = m[0] + ps + qs, y[1] = P * pd + Q * qd;
    y[OUT - 2] = P2 * ps + Q2 * qs, y[OUT - 1] = P3 * pd + Q3 * qd + m[ALPHA - 1];
  }
}

// G g, divided by the products of differences between the points.
inline void filter_transform(const double *g, i64 step, double *u, i64 u_step) {
  const auto at = [&](double x, double scale) { return (g[0] + x * (g[step] + x * g[2 * step])) / scale; };
  u[0] = g[0];
  if constexpr (OUT == 2) {
    u[u_step] = at(1, 2), u[2 * u_step] = at(-1, 2);
  } else {
    constexpr double p = 2.0 / 3, q = 3.0 / 2, of_p = 2 * p * p * (p * p - q * q), of_q = 2 * q * q * (q * q - p * p);
    u[u_step] = at(p, of_p), u[2 * u_step] = at(-p, of_p);
    u[3 * u_step] = at(q, of_q), u[4 * u_step] = at(-q, of_q);
  }
  u[(ALPHA - 1) * u_step] = g[2 * step];
}

// ---- transposition in registers --------------------------------------------------------------------------

#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
template <int bytes> struct Int;
template <> struct Int<4> { using type = std::int32_t; };
template <> struct Int<8> { using type = std::int64_t; };
typedef Int<sizeof(real)>::type ints __attribute__((vector_size(LANES * sizeof(real))));
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (ints){__VA_ARGS__})
#endif

// The two D x D blocks beside the diagonal of each 2D x 2D block change places.
template <int D, int... L>
inline void exchange(avec &a, avec &b, std::integer_sequence<int, L...>) {
  const avec upper = a, lower = b;
  a = SHUFFLE(upper, lower, ((L & D) ? LANES + L - D : L)...);
  b = SHUFFLE(upper, lower, ((L & D) ? LANES + L : L + D)...);
}

template <int D = 1>
inline void transpose(avec (&r)[LANES]) {
  EACH(i, LANES) if (!(i & D)) exchange<D>(r[i], r[i + D], std::make_integer_sequence<int, LANES>{});
  if constexpr (2 * D < LANES) transpose<2 * D>(r);
}

inline avec load(const real *from) { return *(const vec *)from; }

inline avec load_some(const real *from, i64 count) {
  avec v = {};
  copy_line(from, count, (real *)&v);
  return v;
}

}  // namespace
