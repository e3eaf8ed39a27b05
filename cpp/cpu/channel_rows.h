// SPDX-License-Identifier: Apache-2.0
// Kernels by rows: the channels of one place are contiguous in every tensor.
#pragma once

#include "cpu/channel_pieces.h"
#include "cpu/row_views.h"

namespace normact::cpu::NORMACT_ISA {

/// Whether a tensor of these elements comes from memory.
template <class T>
NORMACT_SIMD bool is_far(const ChannelGeometry& geometry) {
  return geometry.samples * geometry.places * geometry.channels * int64_t{sizeof(T)} >= kFarBytes;
}

/// Asks for a row, which is some way ahead.
template <class T>
NORMACT_SIMD void prefetch_row(const T* row, int64_t count) {
  constexpr int64_t kLine = 64 / int64_t{sizeof(T)};
  for (int64_t j = 0; j < count; j += kLine) __builtin_prefetch(row + j);
}

/// Sums of squares of the deviations of a block of rows from `shift`, and their sums unless the first pass gives these.
/// Four rows are added up before they meet a long sum, whose roundings are the large ones. The block is in the cache:
/// meanwhile as many of the `next` rows, if there are any, come in, so that memory is not idle.
template <class T>
NORMACT_SIMD void add_squares(const ChannelRows<T>& x, Range rows, Range next, int64_t first, int64_t count,
                              const Accumulator<T>* shift, Accumulator<T>* deviations, Accumulator<T>* squares) {
  using V = Vec<T>;
  const auto add = [&]<int kRows>(int64_t row) __attribute__((always_inline)) {
    const T* s[kRows];
    for (int r = 0; r < kRows; ++r) {
      s[r] = x[row + r] + first;
      const int64_t ahead = next.begin + row + r - rows.begin;
      if (ahead < next.end) prefetch_row(x[ahead] + first, count);
    }
    for_vectors<T>(count, [&](int64_t j, auto lanes) {
      const V centre = load(shift + j, lanes);
      V a = {}, b = {};
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const V d = load(s[r] + j, lanes) - centre;
        if constexpr (!kExactSums<T>) a += d;
        b = multiply_add(d, d, b);
      }
      if constexpr (!kExactSums<T>) store(deviations + j, load(deviations + j, lanes) + a, lanes);
      store(squares + j, load(squares + j, lanes) + b, lanes);
    });
  };
  int64_t row = rows.begin;
  for (; row + 4 <= rows.end; row += 4) add.template operator()<4>(row);
  for (; row < rows.end; ++row) add.template operator()<1>(row);
}

/// The sums of a block of rows; a row's pointer is looked up once.
template <class T>
NORMACT_SIMD void add_values(const ChannelRows<T>& x, Range rows, int64_t first, int64_t count, Accumulator<T>* sums) {
  int64_t row = rows.begin;
  const auto add = [&]<int kRows>() __attribute__((always_inline)) {
    const T* s[kRows];
    for (int r = 0; r < kRows; ++r) s[r] = x[row + r] + first;
    for_vectors<T>(count, [&](int64_t j, auto lanes) {
      Vec<T> a = {};
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) a += load(s[r] + j, lanes);
      store(sums + j, load(sums + j, lanes) + a, lanes);
    });
    row += kRows;
  };
  while (row + 4 <= rows.end) add.template operator()<4>();
  while (row < rows.end) add.template operator()<1>();
}

/// Makes centres of the sums of `size` rows; the sums of the deviations from them, where these are known so.
template <class T>
NORMACT_SIMD void find_centres(int64_t count, int64_t size, double share, Accumulator<T>* shift,
                               Accumulator<T>* deviations) {
  using N = Accumulator<T>;
  if constexpr (kExactSums<T>) {
    __builtin_memcpy(deviations, shift, size_t(count) * sizeof(N));
    const Vec<T> factor = broadcast(N(share));
    for_vectors<T>(
        count, [&](int64_t j, auto lanes) { store(shift + j, on_grid<T>(load(shift + j, lanes) * factor), lanes); });
    for (int64_t j = 0; j < count; ++j) deviations[j] = N(double(deviations[j]) - double(size) * double(shift[j]));
  } else {
    for (int64_t j = 0; j < count; ++j) shift[j] = N(double(shift[j]) * share);
  }
}

template <class T>
void row_moments(const ChannelGeometry& geometry, const ChannelView& view, Range rows, Range channels, double* mean,
                 double* m2) {
  using N = Accumulator<T>;
  alignas(64) N shift[kStrip], deviations[kStrip], squares[kStrip];
  const ChannelRows<T> x(geometry, view);
  const int64_t block = block_of_rows(geometry.channels), count = channels.end - channels.begin;
  const size_t bytes = size_t(count) * sizeof(N);
  const bool asks = sizeof(T) == 2 || is_far<T>(geometry);  // in the cache, rows of 32 bits lose by it
  int64_t done = 0;
  for (int64_t begin = rows.begin; begin < rows.end; begin += block) {
    const Range part = {begin, begin + block < rows.end ? begin + block : rows.end};
    const int64_t size = part.end - part.begin;
    const double share = 1 / double(size);
    __builtin_memset(shift, 0, bytes);
    __builtin_memset(deviations, 0, bytes);
    __builtin_memset(squares, 0, bytes);
    add_values(x, part, channels.begin, count, shift);
    find_centres<T>(count, size, share, shift, deviations);
    const Range following = {part.end, asks ? rows.end : part.end};
    add_squares(x, part, following, channels.begin, count, shift, deviations, squares);
    for (int64_t j = 0; j < count; ++j) {
      const Moments<double> next = corrected(shift[j], deviations[j], squares[j], size, share);
      const Moments<double> all = done > 0 ? merge(Moments<double>{mean[j], m2[j], double(done)}, next) : next;
      mean[j] = all.mean;
      m2[j] = all.m2;
    }
    done += size;
  }
}

constexpr int64_t kRowsOfPiece = 32;  // one after the other in a piece of their channels, whose factors stay near

/// Rows that share a buffer.
NORMACT_SIMD int64_t rows_of_tile(int64_t count) { return count < kPiece ? kPiece / count : 1; }

NORMACT_SIMD Range rows_from(int64_t begin, int64_t count, Range rows) {
  return {begin, rows.end - begin < count ? rows.end : begin + count};
}

/// A forward that goes through a buffer, tile by tile.
template <class T>
class RowForward {
 public:
  using N = Accumulator<T>;

  NORMACT_SIMD RowForward(const ChannelForward& p, const ArrayActivation* activation, const ChannelFactors& factors)
      : activation_(activation),
        factors_(factors),
        x_(p.geometry, p.x),
        addend_(p.geometry, p.addend),
        y_(p.geometry, p.y) {}

  /// y of a tile of rows and `count` channels, at most kPiece elements.
  NORMACT_SIMD void tile(Range rows, int64_t from, int64_t count) {
    const RowFactors<T> f(factors_, from);
    const int64_t elements = (rows.end - rows.begin) * count;
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      const T* const with = addend_ ? addend_[row] + from : nullptr;
      affine_piece<T, Fused::none>(f, x_[row] + from, with, h_ + (row - rows.begin) * count, count);
    }
    clear_past(h_, elements);
    activation_->value(*activation_, h_, activation_count(elements));
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      T* const to = y_[row] + from;
      round_piece(streams_to(factors_, to), h_ + (row - rows.begin) * count, to, count);
    }
  }

 private:
  const ArrayActivation* activation_;
  const ChannelFactors& factors_;
  ChannelRows<T> x_, addend_, y_;
  alignas(64) N h_[kPadded];
};

/// A forward without a buffer, row by row.
template <class T, class F>
NORMACT_SIMD void direct_rows(const ChannelForward& p, const ChannelFactors& factors, const F& f, Range rows,
                              Range channels) {
  const ChannelRows<T> x(p.geometry, p.x), addend(p.geometry, p.addend), y(p.geometry, p.y);
  const bool marks = p.mask && mask_by_rows(p.geometry);  // else it is there already
  BitWriter bits(marks ? p.mask + rows.begin * p.geometry.channels / 8 : nullptr);
  const Direct direct = {p.activation.kind == NORMACT_ACTIVATION_RELU, marks ? &bits : nullptr};
  const int64_t all = channels.end - channels.begin;
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const T* const with = addend ? addend[row] + channels.begin : nullptr;
    T* const to = y[row] + channels.begin;
    direct_piece(streams_to(factors, to), direct, f, x[row] + channels.begin, with, to, all);
  }
  if (marks) bits.finish();
}

/// Whether so many rows are worth factors of their own.
template <class T>
NORMACT_SIMD bool pays_pairs(Range rows, Range channels) {
  const int64_t count = channels.end - channels.begin;
  return kEvenAndOdd<T> && count >= kPairLanes<T> && count <= PairedFactor<T>::kMost && rows.end - rows.begin >= 16;
}

template <class T>
__attribute__((noinline)) void paired_rows(const ChannelForward& p, const ChannelFactors& factors, Range rows,
                                           Range channels) {
  direct_rows<T>(p, factors, PairedFactors<T>(factors, channels.begin, channels.end - channels.begin), rows, channels);
}

template <class T>
void row_forward(const ChannelForward& p, const ArrayActivation* activation, const ChannelFactors& factors, Range rows,
                 Range channels) {
  if (is_buffered(p)) {
    RowForward<T> forward(p, activation, factors);
    const int64_t all = channels.end - channels.begin;
    Range part;
    for (int64_t begin = rows.begin; begin < rows.end; begin = part.end) {
      part = rows_from(begin, rows_of_tile(all), rows);
      for (int64_t from = channels.begin; from < channels.end; from += kPiece) {
        forward.tile(part, from, channels.end - from < kPiece ? channels.end - from : kPiece);
      }
    }
  } else if (pays_pairs<T>(rows, channels)) {
    if constexpr (kEvenAndOdd<T>) paired_rows<T>(p, factors, rows, channels);
  } else {
    direct_rows<T>(p, factors, RowFactors<T>(factors, channels.begin), rows, channels);
  }
  if (factors.streams) stream_fence();
}

/// How many rows ahead a backward asks for its rows. In the cache it never does; nor in 16 bits, where it costs up to a
/// fifth, unless slopes are computed, which holds up the loads.
template <class T>
NORMACT_SIMD int64_t rows_ahead(const ChannelGeometry& geometry, SlopeSource source) {
  constexpr int64_t kAskedBytes = 4096;
  const int64_t row_bytes = geometry.channels * int64_t{sizeof(T)};
  const bool asks = is_far<T>(geometry) && (sizeof(T) > 2 || computes_slopes(source));
  if (!asks) return geometry.samples * geometry.places;
  return row_bytes < kAskedBytes ? kAskedBytes / row_bytes : 1;
}

/// What a backward reads, tile by tile.
template <class T>
class RowGradients {
 public:
  using N = Accumulator<T>;

  NORMACT_SIMD RowGradients(const ChannelBackward& p, const ArrayActivation* activation, const ChannelFactors& factors,
                            Pass pass)
      : p_(p),
        activation_(activation),
        source_(slope_source(p)),
        kept_(factors.kept),
        finds_(kept_.dh && pass == Pass::gradients),
        leaves_(factors.leaves && pass == Pass::sums),
        streams_(factors.streams),
        rows_(p.geometry.samples * p.geometry.places),
        ahead_(rows_ahead<T>(p.geometry, source_)),
        dy_(p.geometry, p.dy),
        x_(p.geometry, p.x),
        addend_(p.geometry, p.addend),
        y_(p.geometry, p.y),
        daddend_(p.geometry, p.daddend) {}

  NORMACT_SIMD bool plain() const { return source_ == SlopeSource::one; }

  /// use(row, dh, x) for every row of a tile of rows and `count` channels, at most kPiece elements.
  template <class Use>
  NORMACT_SIMD void visit(const ChannelFactors& factors, Range rows, int64_t from, int64_t count, Use use) {
    if (plain()) {
      for (int64_t row = rows.begin; row < rows.end; ++row) {
        ask(row, from, count);
        use(row, dy_[row] + from, x_[row] + from);
      }
      return;
    }
    const RowFactors<T> f(factors, from);
    if (computes_slopes(source_) && !finds_) find_slopes(f, rows, from, count);
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      N* const g = g_ + (row - rows.begin) * count;
      N* const dh = kept_.dh ? static_cast<N*>(kept_.dh) + (row - kept_.row) * p_.geometry.channels + from : g;
      const T *const dy = dy_[row] + from, *const x = x_[row] + from;
      ask(row, from, count);
      if (source_ == SlopeSource::bits) {
        bits_piece(p_.mask, row * p_.geometry.channels + from, dy, dh, count);
      } else if (source_ == SlopeSource::relu_again) {
        relu_piece(f, x, addend_ ? addend_[row] + from : nullptr, dy, dh, count);
      } else if (!finds_) {
        multiply_piece(dy, g, dh, count);
      }
      use(row, static_cast<const N*>(dh), x);
      if (!leaves_) continue;
      T* const to = daddend_[row] + from;
      round_piece(streams_ && elements_to_vector(to) == 0, dh, to, count);
    }
  }

 private:
  NORMACT_SIMD void ask(int64_t row, int64_t from, int64_t count) const {
    if (row + ahead_ >= rows_) return;
    prefetch_row(dy_[row + ahead_] + from, count);
    prefetch_row(x_[row + ahead_] + from, count);
  }
  /// g_ of a tile, where that takes a loop over the rows together.
  NORMACT_SIMD void find_slopes(const RowFactors<T>& f, Range rows, int64_t from, int64_t count) {
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      N* const g = g_ + (row - rows.begin) * count;
      if (source_ == SlopeSource::output) {
        const T* const y = y_[row] + from;
        for_vectors<T>(count, [&](int64_t j, auto lanes) { store(g + j, load(y + j, lanes), lanes); });
      } else {
        affine_piece<T, Fused::none>(f, x_[row] + from, addend_ ? addend_[row] + from : nullptr, g, count);
      }
    }
    clear_past(g_, (rows.end - rows.begin) * count);
    const int64_t all = activation_count((rows.end - rows.begin) * count);
    if (source_ == SlopeSource::output) return activation_->slope_from_output(*activation_, g_, all);
    activation_->slope(*activation_, g_, all);
  }

  const ChannelBackward& p_;
  const ArrayActivation* activation_;
  SlopeSource source_;
  KeptSlopes kept_;
  bool finds_;   // dh there
  bool leaves_;  // ChannelFactors::leaves
  bool streams_;
  int64_t rows_, ahead_;
  ChannelRows<T> dy_, x_, addend_, y_, daddend_;
  alignas(64) N g_[kPadded];
};

template <class T>
void row_sums(const ChannelBackward& p, const ArrayActivation* activation, const ChannelFactors& factors, Range rows,
              Range channels, double* dh_xhat, double* dh_sums) {
  using N = Accumulator<T>;
  alignas(64) N a[kStrip], b[kStrip];
  RowGradients<T> gradients(p, activation, factors, Pass::sums);
  const int64_t count = channels.end - channels.begin, tile = rows_of_tile(count);
  const RowFactors<T> f(factors, channels.begin);
  for (int64_t j = 0; j < count; ++j) dh_xhat[j] = dh_sums[j] = 0;
  for (int64_t block = rows.begin; block < rows.end; block += kFlushRows) {
    const int64_t last = block + kFlushRows < rows.end ? block + kFlushRows : rows.end;
    __builtin_memset(a, 0, size_t(count) * sizeof(N));
    __builtin_memset(b, 0, size_t(count) * sizeof(N));
    for (int64_t begin = block; begin < last; begin += tile) {
      const Range part = {begin, begin + tile < last ? begin + tile : last};
      gradients.visit(factors, part, channels.begin, count, [&](int64_t, const auto* dh, const T* x) {
        for_vectors<T>(count, [&](int64_t j, auto lanes) {
          const Vec<T> d = load(dh + j, lanes);
          const Vec<T> xhat = normalized(load(x + j, lanes), f.mean(j, lanes), f.rstd(j, lanes));
          store(a + j, multiply_add(d, xhat, load(a + j, lanes)), lanes);
          store(b + j, load(b + j, lanes) + d, lanes);
        });
      });
    }
    for (int64_t j = 0; j < count; ++j) dh_xhat[j] += double(a[j]), dh_sums[j] += double(b[j]);
  }
  if (factors.leaves && factors.streams) stream_fence();
}

template <class T>
void row_backward(const ChannelBackward& p, const ArrayActivation* activation, const ChannelFactors& factors,
                  Range rows, Range channels) {
  RowGradients<T> gradients(p, activation, factors, Pass::gradients);
  const ChannelRows<T> dx(p.geometry, p.dx), daddend(p.geometry, p.daddend);
  for (int64_t first = rows.begin; first < rows.end; first += kRowsOfPiece) {
    const Range some = rows_from(first, kRowsOfPiece, rows);
    for (int64_t from = channels.begin; from < channels.end; from += kPiece) {
      const int64_t count = channels.end - from < kPiece ? channels.end - from : kPiece;
      const RowFactors<T> f(factors, from);
      Range part;
      for (int64_t begin = first; begin < some.end; begin = part.end) {
        part = rows_from(begin, rows_of_tile(count), some);
        gradients.visit(factors, part, from, count, [&](int64_t row, const auto* dh, const T* x) {
          T* const beside = daddend ? daddend[row] + from : nullptr;
          T* const to = dx[row] + from;
          gradient_piece<T>(streams_to(factors, to, beside), p.frozen, f, dh, x, to, beside, count);
        });
      }
    }
  }
  if (factors.streams) stream_fence();
}

}  // namespace normact::cpu::NORMACT_ISA
