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

// Larger tensors come from memory. Their short rows ask early for what the row after next will touch: the sweeps
// alternate between reading and writing, which the processor's own prefetch follows too late.
constexpr int64_t kFarBytes = 3 * 1024 * 1024;
constexpr int64_t kPrefetchBytes = 1024;

template <class T>
NORMACT_SIMD void prefetch(const T* now) {
  __builtin_prefetch(reinterpret_cast<const char*>(now) + kPrefetchBytes);
}

/// One vector of columns of kRows rows: adds to the accumulators of each row and to the parameter sums, whose loads and
/// stores the rows share.
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
    const V dy = load(rows[r].dy + j, lanes);
    const V xhat = normalized(load(rows[r].x + j, lanes), broadcast(rows[r].mean), broadcast(rows[r].rstd));
    const V g = dy * w;
    g_sum[r] += g;
    g_xhat_sum[r] = multiply_add(g, keep(xhat, lanes), g_xhat_sum[r]);
    dw = multiply_add(dy, xhat, dw);
    db += dy;
  }
  if constexpr (kGradients != Gradients::none) store(dweight + j, dw, lanes);
  if constexpr (kGradients == Gradients::both) store(dbias + j, db, lanes);
}

/// The first sweep over at most kChunk columns; adds to the sums of each row. Blocks are short enough for fp32 and
/// added up in double. A row's sums do not depend on its companions.
template <class T, int kRows, Gradients kGradients, bool kFar, class D>
NORMACT_SIMD void sum_chunk(const GradientRow<T, D> (&rows)[kRows], const Accumulator<T>* weight,
                            Accumulator<T>* dweight, Accumulator<T>* dbias, Range columns, RowSums (&sums)[kRows]) {
  using V = Vec<T>;
  constexpr int64_t kStep = kLanes<T>;
  constexpr int64_t kBlock = 32 * kStep;
  double total[2 * kRows] = {};
  for (int64_t begin = columns.begin; begin < columns.end; begin += kBlock) {
    const int64_t end = begin + kBlock < columns.end ? begin + kBlock : columns.end;
    V g[kRows] = {}, g_xhat[kRows] = {};
    int64_t j = begin;
    for (; j + kStep <= end; j += kStep) {
      sum_vector<T, kRows, kGradients, kFar>(rows, weight, dweight, dbias, j, All{}, g, g_xhat);
    }
    if (j < end) {
      sum_vector<T, kRows, kGradients, kFar>(rows, weight, dweight, dbias, j, First{int(end - j)}, g, g_xhat);
    }
    V both[2 * kRows];
    for (int r = 0; r < kRows; ++r) {
      both[2 * r] = g[r];
      both[2 * r + 1] = g_xhat[r];
    }
    add_sums(total, both);
  }
  for (int r = 0; r < kRows; ++r) {
    sums[r].g += total[2 * r];
    sums[r].g_xhat += total[2 * r + 1];
  }
}

/// The second sweep: dx of one row (dx may be any of the inputs).
template <class T, bool kResidual, bool kFar, class D>
NORMACT_SIMD void input_gradients(const GradientRow<T, D>& row, const T* dresidual, T* dx, const Accumulator<T>* weight,
                                  int64_t cols, Accumulator<T> c1_of_row, Accumulator<T> c2_of_row) {
  using V = Vec<T>;
  const V mean = broadcast(row.mean), rstd = broadcast(row.rstd);
  const V c1 = broadcast(c1_of_row), c2 = broadcast(c2_of_row);
  for_vectors<T>(cols, [&](int64_t j, auto lanes) {
    const V g = load(row.dy + j, lanes) * load(weight + j, lanes);
    const V xhat = normalized(load(row.x + j, lanes), mean, rstd);
    V value = input_gradient(g, xhat, rstd, c1, c2, kFused);
    if constexpr (kResidual) value += load(dresidual + j, lanes);
    if constexpr (kFar) prefetch(dx + j);
    store(dx + j, value, lanes);
  });
}

/// c1 and c2 of a row from the sums over all of it.
template <class T>
struct InputFactors {
  using N = Accumulator<T>;
  NORMACT_SIMD InputFactors(const Backward<T>& b, N rstd, RowSums total)
      : c1(b.kind == NormKind::layer ? rstd * N(total.g * b.share) : 0), c2(rstd * N(total.g_xhat * b.share)) {}
  N c1, c2;
};

/// The second sweep over `count` columns from `begin`, with which `row` begins; dresidual: of the whole row, or null.
template <class T, bool kFar, class D>
NORMACT_SIMD void write_gradients(const Backward<T>& b, const GradientRow<T, D>& row, const T* dresidual, T* dx,
                                  int64_t begin, int64_t count, const InputFactors<T>& c) {
  const auto sweep = [&](T* to, int64_t first, int64_t number) __attribute__((always_inline)) {
    const GradientRow<T, D> part = {row.dy + first, row.x + first, row.mean, row.rstd};
    const Accumulator<T>* const weight = b.weight + begin + first;
    if (dresidual) {
      input_gradients<T, true, kFar>(part, dresidual + begin + first, to, weight, number, c.c1, c.c2);
    } else {
      input_gradients<T, false, kFar>(part, nullptr, to, weight, number, c.c1, c.c2);
    }
  };
  if (b.streams) return stream_pieces(dx + begin, count, sweep);
  sweep(dx + begin, 0, count);
}

/// dx of a fetched row from the sums over the whole row.
template <class T, bool kFar>
NORMACT_SIMD void finish_row(const Backward<T>& b, int64_t index, const GradientRow<T>& row, RowSums total) {
  const T* const dresidual = b.dresidual ? b.dresidual.read(index) : nullptr;
  write_gradients<T, kFar>(b, row, dresidual, b.dx.target(index), 0, b.cols, InputFactors<T>(b, row.rstd, total));
  b.dx.write(index);
}

}  // namespace normact::cpu::NORMACT_ISA
