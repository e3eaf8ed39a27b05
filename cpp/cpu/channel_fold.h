// SPDX-License-Identifier: Apache-2.0
// Kernels by rows of few channels (images of some colours, channels last): such a row fills no vector. Rows that
// are one array in memory are taken some at a time, as rows of so many times the channels; what these leave of a
// channel is put together behind.
#pragma once

#include "cpu/channel_rows.h"

namespace normact::cpu::NORMACT_ISA {

constexpr int64_t kFewChannels = 32;     // rows of as many and more are not folded
constexpr int64_t kFoldedRows = 16;      // that are one row: so many are whole vectors, whatever the channels
constexpr int64_t kMinFolds = 8;         // for less, what each channel costs besides its rows is not worth it
constexpr int64_t kFoldedChannels = 64;  // of wider rows; narrower ones are of more rows, if there are many
constexpr int64_t kManyFolds = 32;
constexpr int64_t kMaxFolded = kFewChannels * kFoldedRows;

/// Rows of a call as fewer wider ones, and what is left. They are a tensor of their own to the kernels, which may take
/// it for one that is in the cache. One row at a time: `rows` is empty.
class Fold {
 public:
  NORMACT_SIMD Fold(const ChannelGeometry& geometry, Range all, Range channels)
      : from_(&geometry), begin_(all.begin), rows_{0, 0}, rest_(all) {
    const int64_t count = all.end - all.begin;
    if (geometry.channels >= kFewChannels || channels.end - channels.begin != geometry.channels) return;
    if (count < kMinFolds * kFoldedRows || geometry.place_ndim != 1) return;
    times_ = kFoldedRows;
    while (times_ * geometry.channels < kFoldedChannels && count >= kManyFolds * times_) times_ *= 2;
    rows_.end = count / times_;
    rest_.begin += rows_.end * times_;
    geometry_ = {1, times_ * geometry.channels, 1, rows_.end, 1, 1, {rows_.end}};
  }

  NORMACT_SIMD bool empty() const { return rows_.end == 0; }
  NORMACT_SIMD Range rows() const { return rows_; }
  NORMACT_SIMD Range channels() const { return {0, geometry_.channels}; }
  NORMACT_SIMD const ChannelGeometry& geometry() const { return geometry_; }
  NORMACT_SIMD int64_t times() const { return times_; }
  /// Of the rows as they were.
  NORMACT_SIMD Range rest() const { return rest_; }

  /// Whether the rows of a tensor, which may be absent, are one array.
  NORMACT_SIMD bool takes(const ChannelView& view) const {
    const int64_t channels = from_->channels, places = from_->places;
    const bool whole = from_->samples == 1 || view.sample_stride == places * channels;
    const bool one_sample = begin_ / places == (rest_.end - 1) / places;
    return !view.data || (view.place_stride[0] == channels && (whole || one_sample));
  }
  template <class T>
  NORMACT_SIMD ChannelView folded(const ChannelView& view) const {
    return {ChannelRows<T>(*from_, view)[begin_], view.dtype, 0, 1, {geometry_.channels}};
  }

 private:
  const ChannelGeometry* from_;
  int64_t begin_;
  Range rows_, rest_;
  int64_t times_ = 1;
  ChannelGeometry geometry_;
};

/// The factors of each channel once for each row.
template <class N>
class FoldedFactors {
 public:
  NORMACT_SIMD FoldedFactors(const ChannelFactors& of, const Fold& fold, int64_t first_row, int64_t channels)
      : factors_(of) {
    int64_t used = 0;
    const auto repeat = [&](void*& array) {
      if (!array) return;
      const N* const from = static_cast<const N*>(array) - of.first;
      N* const to = arrays_[used++];
      for (int64_t i = 0; i < fold.times(); ++i) {
        for (int64_t c = 0; c < channels; ++c) to[i * channels + c] = from[c];
      }
      array = to;
    };
    factors_.first = 0;
    repeat(factors_.mean), repeat(factors_.rstd), repeat(factors_.scale);
    repeat(factors_.bias), repeat(factors_.c1), repeat(factors_.c2);
    N* const kept = static_cast<N*>(of.kept.dh);
    factors_.kept = {kept ? kept + (first_row - of.kept.row) * channels : nullptr, 0};
  }
  NORMACT_SIMD const ChannelFactors& get() const { return factors_; }

 private:
  ChannelFactors factors_;
  alignas(64) N arrays_[6][kMaxFolded];
};

template <class T>
void any_row_moments(const ChannelGeometry& geometry, const ChannelView& x, Range rows, Range channels, double* mean,
                     double* m2) {
  const Fold fold(geometry, rows, channels);
  if (fold.empty() || !fold.takes(x)) return row_moments<T>(geometry, x, rows, channels, mean, m2);
  double means[kMaxFolded], squares[kMaxFolded];
  row_moments<T>(fold.geometry(), fold.folded<T>(x), fold.rows(), fold.channels(), means, squares);
  const Range rest = fold.rest();
  if (rest.begin < rest.end) row_moments<T>(geometry, x, rest, channels, mean, m2);
  const double each = double(fold.rows().end), left = double(rest.end - rest.begin);
  for (int64_t c = 0; c < geometry.channels; ++c) {
    Moments<double> all{means[c], squares[c], each};
    for (int64_t i = 1; i < fold.times(); ++i) {
      const int64_t at = i * geometry.channels + c;
      all = merge(all, Moments<double>{means[at], squares[at], each});
    }
    if (left > 0) all = merge(all, Moments<double>{mean[c], m2[c], left});
    mean[c] = all.mean;
    m2[c] = all.m2;
  }
}

template <class T>
void any_row_forward(const ChannelForward& p, const ArrayActivation* activation, const ChannelFactors& factors,
                     Range rows, Range channels) {
  const Fold fold(p.geometry, rows, channels);
  if (fold.empty() || p.mask || !fold.takes(p.x) || !fold.takes(p.addend) || !fold.takes(p.y)) {
    return row_forward<T>(p, activation, factors, rows, channels);
  }
  const FoldedFactors<Accumulator<T>> many(factors, fold, rows.begin, p.geometry.channels);
  ChannelForward q = p;
  q.geometry = fold.geometry();
  for (ChannelView* const view : {&q.x, &q.addend, &q.y}) {
    if (view->data) *view = fold.folded<T>(*view);
  }
  row_forward<T>(q, activation, many.get(), fold.rows(), fold.channels());
  if (fold.rest().begin < fold.rest().end) row_forward<T>(p, activation, factors, fold.rest(), channels);
}

/// p with wider rows; false if they cannot be.
template <class T>
NORMACT_SIMD bool fold_backward(const Fold& fold, const ChannelBackward& p, ChannelBackward* q) {
  if (fold.empty() || p.mask) return false;
  for (const ChannelView* view : {&p.dy, &p.x, &p.addend, &p.y, &p.dx, &p.daddend}) {
    if (!fold.takes(*view)) return false;
  }
  *q = p;
  q->geometry = fold.geometry();
  for (ChannelView* const view : {&q->dy, &q->x, &q->addend, &q->y, &q->dx, &q->daddend}) {
    if (view->data) *view = fold.folded<T>(*view);
  }
  return true;
}

template <class T>
void any_row_sums(const ChannelBackward& p, const ArrayActivation* activation, const ChannelFactors& factors,
                  Range rows, Range channels, double* dh_xhat, double* dh) {
  const Fold fold(p.geometry, rows, channels);
  ChannelBackward q;
  if (!fold_backward<T>(fold, p, &q)) return row_sums<T>(p, activation, factors, rows, channels, dh_xhat, dh);
  const int64_t count = p.geometry.channels;
  const FoldedFactors<Accumulator<T>> many(factors, fold, rows.begin, count);
  double first[kMaxFolded], second[kMaxFolded];
  row_sums<T>(q, activation, many.get(), fold.rows(), fold.channels(), first, second);
  row_sums<T>(p, activation, factors, fold.rest(), channels, dh_xhat, dh);  // zeros of no rows
  for (int64_t i = 0; i < fold.times(); ++i) {
    for (int64_t c = 0; c < count; ++c) {
      dh_xhat[c] += first[i * count + c];
      dh[c] += second[i * count + c];
    }
  }
}

template <class T>
void any_row_backward(const ChannelBackward& p, const ArrayActivation* activation, const ChannelFactors& factors,
                      Range rows, Range channels) {
  const Fold fold(p.geometry, rows, channels);
  ChannelBackward q;
  if (!fold_backward<T>(fold, p, &q)) return row_backward<T>(p, activation, factors, rows, channels);
  const FoldedFactors<Accumulator<T>> many(factors, fold, rows.begin, p.geometry.channels);
  row_backward<T>(q, activation, many.get(), fold.rows(), fold.channels());
  if (fold.rest().begin < fold.rest().end) row_backward<T>(p, activation, factors, fold.rest(), channels);
}

}  // namespace normact::cpu::NORMACT_ISA
