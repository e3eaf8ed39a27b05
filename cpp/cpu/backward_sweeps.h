// SPDX-License-Identifier: Apache-2.0
// The two sweeps of a backward over some columns of its rows.
#pragma once

#include "cpu/row_kernels.h"
#include "cpu/row_views.h"
#include "cpu/simd_element.h"
#include "cpu/simd_stream.h"
#include "cpu/simd_sums.h"
#include "math/normalize.h"

namespace normact::cpu::NORMACT_ISA {

/// Which parameter gradients a sweep sums; dbias comes only together with dweight.
enum class Gradients { none, weight, both };

// Rows of tensors that come from memory ask early for what the rows to come will touch: the sweeps alternate between
// reading and writing, which the processor's own prefetch follows too late. Of 1, 2, 4 and 8 KiB ahead, layer norm of
// 16384x256 fp32 takes 1206, 1129, 948 and 934 us, 4096x768 with a residual 1126, 1072, 1018 and 1346 (AMD EPYC).
constexpr int64_t kPrefetchBytes = 4096;

template <class T>
NORMACT_SIMD void prefetch(const T* now) {
  __builtin_prefetch(reinterpret_cast<const char*>(now) + kPrefetchBytes);
}

/// One vector of columns of kRows rows: adds to the accumulators of each row and to the parameter sums, whose loads and
/// stores the rows share. dy and xhat are multiplied first: both are near their own size, whatever that of x.
template <class T, int kRows, Gradients kGradients, bool kFar, class D, class Lanes>
NORMACT_SIMD void sum_vector(const GradientRow<T, D> (&rows)[kRows], const Accumulator<T>* weight,
                             Accumulator<T>* dweight, Accumulator<T>* dbias, int64_t j, Lanes lanes,
                             Vec<T> (&g_sum)[kRows], Vec<T> (&g_xhat_sum)[kRows]) {
  using V = Vec<T>;
  const V w = load(weight + j, lanes);
  V dw = {}, db = {};
  if constexpr (kGradients != Gradients::none) dw = load(dweight + j, lanes);
  if constexpr (kGradients == Gradients::both) db = load(dbias + j, lanes);
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    if constexpr (kFar) {
      prefetch(rows[r].dy + j);
      prefetch(rows[r].x + j);
    }
    const V dy = loaded_once(load(rows[r].dy + j, lanes));
    const V xhat = normalized(load(rows[r].x + j, lanes), broadcast(rows[r].mean), broadcast(rows[r].rstd));
    const V product = dy * keep(xhat, lanes);
    g_sum[r] = multiply_add(dy, w, g_sum[r]);
    g_xhat_sum[r] = multiply_add(product, w, g_xhat_sum[r]);
    dw += product;
    db += dy;
  }
  if constexpr (kGradients != Gradients::none) store(dweight + j, dw, lanes);
  if constexpr (kGradients == Gradients::both) store(dbias + j, db, lanes);
}

/// The first sweep over some columns; adds to the sums of each row. Blocks are short enough for fp32 and added up in
/// double, chunk by chunk, as where threads share a row. A row's sums do not depend on its companions.
template <class T, int kRows, Gradients kGradients, bool kFar, class D>
NORMACT_SIMD void sum_columns(const GradientRow<T, D> (&rows)[kRows], const Accumulator<T>* weight,
                              Accumulator<T>* dweight, Accumulator<T>* dbias, int64_t cols, RowSums (&sums)[kRows]) {
  using V = Vec<T>;
  constexpr int64_t kStep = kLanes<T>;
  constexpr int64_t kBlock = 32 * kStep;
  static_assert(kChunk % kBlock == 0);
  double total[2 * kRows] = {};
  const auto add_chunk = [&]() __attribute__((always_inline)) {
#pragma GCC unroll 2
    for (int r = 0; r < kRows; ++r) {
      sums[r].g += total[2 * r];
      sums[r].g_xhat += total[2 * r + 1];
    }
  };
  for (int64_t begin = 0; begin < cols; begin += kBlock) {
    if (begin > 0 && begin % kChunk == 0) [[unlikely]] {
      add_chunk();
      for (double& value : total) value = 0;
    }
    const int64_t end = begin + kBlock < cols ? begin + kBlock : cols;
    V g[kRows] = {}, g_xhat[kRows] = {};
    int64_t j = begin;
    for (; j + kStep <= end; j += kStep) {
      sum_vector<T, kRows, kGradients, kFar>(rows, weight, dweight, dbias, j, All{}, g, g_xhat);
    }
    if (j < end) {
      const First rest{int(end - j)};
      sum_vector<T, kRows, kGradients, kFar>(rows, weight, dweight, dbias, j, rest, g, g_xhat);
    }
    V both[2 * kRows];
    for (int r = 0; r < kRows; ++r) {
      both[2 * r] = g[r];
      both[2 * r + 1] = g_xhat[r];
    }
    add_sums(total, both);
  }
  add_chunk();
}

/// c1 of the formula, and c2 * rstd, which goes with x - mean as c2 does with xhat; from the sums over all of a row.
/// What does not need these is multiplied first: nothing of the row can go on before c1 and c2 are there.
template <class T>
struct InputFactors {
  using N = Accumulator<T>;
  InputFactors() = default;
  template <class X>
  NORMACT_SIMD InputFactors(const Backward<T, X>& b, double rstd, RowSums total)
      : c1(b.kind == NormKind::layer ? N(total.g * (rstd * b.share)) : 0),
        c2(N(total.g_xhat * (rstd * b.share) * rstd)) {}
  N c1, c2;
};

/// Where the second sweep writes: dx, and of mixed problems daddend or null. T, X: as in Backward.
template <class T, class X>
struct InputGradient {
  X* dx;
  T* daddend;
};

/// The second sweep: dx of some rows (dx may be any of the inputs). dresidual: their arrays, read if kResidual.
template <class T, int kRows, bool kResidual, bool kFar, Storing kStoring, class D, class X>
NORMACT_SIMD void input_gradients(const GradientRow<T, D> (&rows)[kRows], const T* const (&dresidual)[kRows],
                                  const InputGradient<T, X> (&to)[kRows], const Accumulator<T>* weight, int64_t cols,
                                  const InputFactors<T> (&c)[kRows]) {
  using V = Vec<T>;
  V mean[kRows], rstd[kRows], c1[kRows], c2[kRows];
  for (int r = 0; r < kRows; ++r) {
    mean[r] = broadcast(rows[r].mean);
    rstd[r] = broadcast(rows[r].rstd);
    c1[r] = broadcast(c[r].c1);
    c2[r] = broadcast(c[r].c2);
  }
  for_vectors<T>(cols, [&](int64_t j, auto lanes) __attribute__((always_inline)) {
    const V w = load(weight + j, lanes);
#pragma GCC unroll 2
    for (int r = 0; r < kRows; ++r) {
      const V g = load(rows[r].dy + j, lanes) * w;
      const V deviation = load(rows[r].x + j, lanes) - mean[r];
      V value = input_gradient(g, deviation, rstd[r], c1[r], c2[r], kFused);
      if constexpr (kResidual) value += load(dresidual[r] + j, lanes);
      if constexpr (kFar && kStoring == Storing::usual) prefetch(to[r].dx + j);
      store<kStoring>(to[r].dx + j, value, lanes);
      if constexpr (!std::is_same_v<T, X>) {
        if (!to[r].daddend) continue;
        if constexpr (kFar && kStoring == Storing::usual) prefetch(to[r].daddend + j);
        store<kStoring>(to[r].daddend + j, value, lanes);
      }
    }
  });
}

/// The same of rows of which there may be a dresidual.
template <class T, int kRows, bool kFar, Storing kStoring, class D, class X>
NORMACT_SIMD void input_gradients(const GradientRow<T, D> (&rows)[kRows], const T* const (&dresidual)[kRows],
                                  const InputGradient<T, X> (&to)[kRows], const Accumulator<T>* weight, int64_t cols,
                                  const InputFactors<T> (&c)[kRows]) {
  if (dresidual[0]) {
    input_gradients<T, kRows, true, kFar, kStoring>(rows, dresidual, to, weight, cols, c);
  } else {
    input_gradients<T, kRows, false, kFar, kStoring>(rows, dresidual, to, weight, cols, c);
  }
}

/// Whether all that these rows write begins where a vector does.
template <class T, class X, int kRows>
NORMACT_SIMD bool at_vectors(const InputGradient<T, X> (&to)[kRows]) {
  bool all = true;
  for (const InputGradient<T, X>& of : to) {
    all = all && elements_to_vector(of.dx) == 0 && elements_to_vector(of.daddend) == 0;
  }
  return all;
}

/// The same of rows that go past the caches if they can do so from the registers.
template <class T, int kRows, bool kFar, class D, class X>
NORMACT_SIMD void input_gradients(bool streams, const GradientRow<T, D> (&rows)[kRows],
                                  const T* const (&dresidual)[kRows], const InputGradient<T, X> (&to)[kRows],
                                  const Accumulator<T>* weight, int64_t cols, const InputFactors<T> (&c)[kRows]) {
  if (streams && at_vectors(to)) {
    input_gradients<T, kRows, kFar, Storing::past>(rows, dresidual, to, weight, cols, c);
  } else {
    input_gradients<T, kRows, kFar, Storing::usual>(rows, dresidual, to, weight, cols, c);
  }
}

/// The second sweep over `count` columns from `begin`, with which `row` begins; dresidual: of the whole row, or null.
template <class T, bool kFar, class X, class D>
NORMACT_SIMD void write_gradients(const Backward<T, X>& b, const GradientRow<T, D>& row, const T* dresidual,
                                  const InputGradient<T, X>& to, int64_t begin, int64_t count,
                                  const InputFactors<T>& c) {
  const InputFactors<T> factors[1] = {c};
  const auto sweep = [&](bool streams, X* dx, T* daddend, int64_t first,
                         int64_t number) __attribute__((always_inline)) {
    const GradientRow<T, D> part[1] = {{row.dy + first, row.x + first, row.mean, row.rstd}};
    const T* const added[1] = {dresidual ? dresidual + begin + first : nullptr};
    const InputGradient<T, X> target[1] = {{dx, daddend}};
    input_gradients<T, 1, kFar>(streams, part, added, target, b.weight + begin + first, number, factors);
  };
  const InputGradient<T, X> whole[1] = {{to.dx + begin, to.daddend ? to.daddend + begin : nullptr}};
  if (!b.streams || at_vectors(whole)) return sweep(b.streams, whole[0].dx, whole[0].daddend, 0, count);
  if constexpr (!std::is_same_v<T, X>) {
    if (to.daddend) {  // pieces of the wider lines
      return stream_pieces(to.daddend + begin, count,
                           [&](T* piece, int64_t first, int64_t number) __attribute__((always_inline)) {
                             alignas(kLineBytes) X narrow[kStreamed<T>];
                             sweep(false, narrow, piece, first, number);
                             stream<X>(narrow, to.dx + begin + first, number);
                           });
    }
  }
  stream_pieces(to.dx + begin, count, [&](X* piece, int64_t first, int64_t number) __attribute__((always_inline)) {
    sweep(false, piece, nullptr, first, number);
  });
}

}  // namespace normact::cpu::NORMACT_ISA
