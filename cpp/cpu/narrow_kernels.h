// SPDX-License-Identifier: Apache-2.0
// Rows that fit into a few vectors: each is read once and stays in registers from its statistics to its output, and the
// parameters and their gradients stay there from row to row.
#pragma once

#include "cpu/row_views.h"
#include "cpu/simd_element.h"
#include "math/normalize.h"

namespace normact::cpu::NORMACT_ISA {

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kNarrowVectors = 4;  // of 32 registers
#else
constexpr int kNarrowVectors = 2;  // of 16
#endif

/// body(v, first column, lanes) for each of the kVectors vectors of a row.
template <class T, int kVectors, class Body>
NORMACT_SIMD void for_each_vector(int64_t cols, Body body) {
  constexpr int kLast = kVectors - 1;
#pragma GCC unroll 4
  for (int v = 0; v < kLast; ++v) body(v, v * kLanes<T>, All{});
  body(kLast, kLast * kLanes<T>, First{int(cols - kLast * kLanes<T>)});
}

/// run.operator()<kVectors>() with the number of vectors that cols columns take.
template <class T, class Run>
NORMACT_SIMD void with_vectors(int64_t cols, Run run) {
  if (cols <= kLanes<T>) return run.template operator()<1>();
  if (cols <= 2 * kLanes<T>) return run.template operator()<2>();
  if constexpr (kNarrowVectors > 2) {
    if (cols <= 3 * kLanes<T>) return run.template operator()<3>();
    run.template operator()<4>();
  }
}

/// The row s of one vector, which does not wait for its sum to be stored.
template <class T, class X>
NORMACT_SIMD Vec<T> narrow_row(const Forward<T, X>& f, int64_t row, First lanes) {
  const Vec<T> x = load(f.x.read(row), lanes);
  if constexpr (std::is_same_v<T, X>) {
    if (!f.residual) return x;
  }
  const Vec<T> s = rounded<T>(x + load(f.residual.read(row), lanes));
  store(f.sum.target(row), s, lanes);
  f.sum.write(row);
  return s;
}

/// Forward rows of at most one vector. (With more, the companions of forward_group hide more latency than this saves.)
template <class T, class X>
NORMACT_SIMD void forward_narrow(const Forward<T, X>& f, Range rows) {
  using N = Accumulator<T>;
  using V = Vec<T>;
  const First lanes{int(f.cols)};
  const V weight = f.weight ? load(f.weight, lanes) : broadcast(N(1));
  const V bias = f.bias ? load(f.bias, lanes) : broadcast(N(-0.0));  // adding -0 changes no number
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const V s = narrow_row(f, row, lanes);
    const N shift = f.kind == NormKind::layer ? N(sum(s) * f.share) : 0;
    const V d = keep(s - broadcast(shift), lanes);
    const double deviations = f.kind == NormKind::layer ? sum(d) : 0;
    const Statistics statistics = finish(f, row, corrected(shift, deviations, sum(d * d), f.cols, f.share));
    const V xhat = normalized(s, broadcast(N(statistics.mean)), broadcast(N(statistics.rstd)));
    store(f.y.target(row), affine(xhat, weight, bias, kFused), lanes);
    f.y.write(row);
  }
}

template <class T, int kVectors, class X>
NORMACT_SIMD void backward_narrow_of(const Backward<T, X>& b, Range rows) {
  using N = Accumulator<T>;
  using V = Vec<T>;
  V weight[kVectors], dweight[kVectors] = {}, dbias[kVectors] = {}, g[kVectors], xhat[kVectors];
  for_each_vector<T, kVectors>(
      b.cols, [&](int v, int j, auto lanes) __attribute__((always_inline)) { weight[v] = load(b.weight + j, lanes); });
  for (int64_t index = rows.begin; index < rows.end; ++index) {
    const GradientRow<T, X> row = fetch_row(b, index);
    const V mean = broadcast(row.mean), rstd = broadcast(row.rstd);
    V g_sum = {}, g_xhat_sum = {};
    for_each_vector<T, kVectors>(b.cols, [&](int v, int j, auto lanes) __attribute__((always_inline)) {
      const V dy = load(row.dy + j, lanes);
      xhat[v] = keep(normalized(load(row.x + j, lanes), mean, rstd), lanes);
      g[v] = dy * weight[v];
      g_sum += g[v];
      g_xhat_sum = multiply_add(g[v], xhat[v], g_xhat_sum);
      dweight[v] = multiply_add(dy, xhat[v], dweight[v]);
      dbias[v] += dy;
    });
    const V c1 = broadcast(b.kind == NormKind::layer ? row.rstd * N(sum(g_sum) * b.share) : 0);
    const V c2 = broadcast(row.rstd * N(sum(g_xhat_sum) * b.share));
    X* const dx = b.dx.target(index);
    T* const daddend = b.daddend ? b.daddend.target(index) : nullptr;
    const T* const dresidual = b.dresidual ? b.dresidual.read(index) : nullptr;
    for_each_vector<T, kVectors>(b.cols, [&](int v, int j, auto lanes) __attribute__((always_inline)) {
      V value = input_gradient(g[v], xhat[v], rstd, c1, c2, kFused);
      if (dresidual) value += load(dresidual + j, lanes);
      store(dx + j, value, lanes);
      if constexpr (!std::is_same_v<T, X>) {
        if (daddend) store(daddend + j, value, lanes);
      }
    });
    b.dx.write(index);
    if (daddend) b.daddend.write(index);
  }
  for_each_vector<T, kVectors>(b.cols, [&](int v, int j, auto lanes) __attribute__((always_inline)) {
    if (b.dweight) store(b.dweight + j, load(b.dweight + j, lanes) + dweight[v], lanes);
    if (b.dbias) store(b.dbias + j, load(b.dbias + j, lanes) + dbias[v], lanes);
  });
}

template <class T, class X>
NORMACT_SIMD void backward_narrow(const Backward<T, X>& b, Range rows) {
  with_vectors<T>(b.cols,
                  [&]<int kVectors>() __attribute__((always_inline)) { backward_narrow_of<T, kVectors>(b, rows); });
}

}  // namespace normact::cpu::NORMACT_ISA
