// SPDX-License-Identifier: Apache-2.0
// Forward row norms of tiles: see row_tiles.h. Every lane does what a row by itself would do, in the order of the
// columns, so a row's bits depend on nothing but the row.
#pragma once

#include "cpu/row_views.h"
#include "cpu/tile_views.h"
#include "math/normalize.h"

namespace normact::cpu::NORMACT_ISA {

/// T, X: as in Forward.
template <class T, class X>
struct TileForward {
  using N = Accumulator<T>;

  NORMACT_SIMD TileForward(const ForwardWork& work, void* scratch)
      : f(work, {0, work.problem->geometry.cols}, scratch),
        tiles(work.tiles),
        by_row(work.by_row),
        s(static_cast<N*>(scratch)),
        x(*work.problem, work.problem->x, tiles, array(1)),
        y(*work.problem, work.problem->y, tiles, array(1)),
        residual(*work.problem, work.problem->residual, tiles, array(2)),
        sum(*work.problem, work.problem->residual_out, tiles, array(2)) {}

  NORMACT_SIMD N* array(int64_t i) const {
    return s + i * align_up(f.cols * tiles.rows * int64_t{sizeof(N)}) / int64_t{sizeof(N)};
  }
  NORMACT_SIMD N* column(int64_t c) const { return s + c * tiles.rows; }

  Forward<T, X> f;
  RowTiles tiles;
  RowParameters by_row;
  N* s;  // the tile, columns of tiles.rows rows; behind it, if it is turned, arrays for inputs and then outputs
  TileColumns<X> x, y;
  TileColumns<T> residual, sum;
};

/// First pass: s = x or round(x + residual), and its sums over the columns.
template <class T, class X>
NORMACT_SIMD void fetch_tile(const TileForward<T, X>& t, const Tile& tile, TileSums<Accumulator<T>>& sums) {
  using V = Vec<T>;
  const bool has_residual = bool(t.residual);
  for_parts(t.f.cols, [&](int64_t first, int64_t columns) __attribute__((always_inline)) {
    X* x[kTilePart];
    T *residual[kTilePart], *sum[kTilePart];
    t.x.fetch(tile, first, columns);
    t.residual.fetch(tile, first, columns);
    t.x.find(tile, first, columns, x);
    t.residual.find(tile, first, columns, residual);
    t.sum.find(tile, first, columns, sum);
    for_vectors<T>(tile.count, [&](int64_t j, auto lanes) __attribute__((always_inline)) {
      V total = {};
      for (int64_t c = 0; c < columns; ++c) {
        V value = load(x[c] + j, lanes);
        if (has_residual) {
          store(sum[c] + j, value + load(residual[c] + j, lanes), lanes);
          value = load(sum[c] + j, lanes);
        }
        store(t.column(first + c) + j, value, lanes);
        total += value;
      }
      store(sums.part + j, total, lanes);
    });
    t.sum.put(tile, first, columns);
    sums.add_part(tile.count);
  });
}

/// Second pass: sums of the deviations from `shift` (one a row) and of their squares.
template <class T, class X>
NORMACT_SIMD void centred_tile(const TileForward<T, X>& t, const Tile& tile, const Accumulator<T>* shift,
                               TileSums<Accumulator<T>>& deviations, TileSums<Accumulator<T>>& squares) {
  using V = Vec<T>;
  for_parts(t.f.cols, [&](int64_t first, int64_t columns) __attribute__((always_inline)) {
    for_vectors<T>(tile.count, [&](int64_t j, auto lanes) __attribute__((always_inline)) {
      const V centre = load(shift + j, lanes);
      V deviation = {}, square = {};
      for (int64_t c = 0; c < columns; ++c) {
        const V d = load(t.column(first + c) + j, lanes) - centre;
        deviation += d;
        square = multiply_add(d, d, square);
      }
      store(deviations.part + j, deviation, lanes);
      store(squares.part + j, square, lanes);
    });
    deviations.add_part(tile.count);
    squares.add_part(tile.count);
  });
}

/// mean and rstd of every row of the tile.
template <class T, class X>
NORMACT_SIMD void tile_statistics(const TileForward<T, X>& t, const Tile& tile, Accumulator<T>* mean,
                                  Accumulator<T>* rstd) {
  using N = Accumulator<T>;
  TileSums<N> sums(tile.count), squares(tile.count), deviations(tile.count);
  fetch_tile(t, tile, sums);
  const double share = t.f.share;
  const bool layer = t.f.kind == NormKind::layer;
  const int64_t rows = whole_groups(tile.count);
  for (int64_t r = 0; r < rows; ++r) mean[r] = layer ? N(sums.total[r] * share) : N(0);
  centred_tile(t, tile, mean, deviations, squares);
  for (int64_t first = 0; first < rows; first += kRowGroup) {
    RowMoments<kRowGroup> moments;
    for (int r = 0; r < kRowGroup; ++r) {
      const double deviation = layer ? deviations.total[first + r] : 0;
      const Moments<double> of_row = corrected(mean[first + r], deviation, squares.total[first + r], t.f.cols, share);
      moments.mean[r] = of_row.mean;
      moments.m2[r] = of_row.m2;
    }
    N means[kRowGroup], rstds[kRowGroup];
    round_statistics(moments, double(t.f.cols), t.f.eps, means, rstds);
    for (int r = 0; r < kRowGroup; ++r) {
      mean[first + r] = means[r];
      rstd[first + r] = rstds[r];
    }
  }
  t.f.mean.write(tile.first, tile.count, mean);
  t.f.rstd.write(tile.first, tile.count, rstd);
}

/// h = affine(normalized(s)) of a column. Out: the type of y, or its accumulator for values that are not rounded.
template <class T, bool kByRow, class Out>
NORMACT_SIMD void normalize_column(const Accumulator<T>* s, Out* h, int64_t rows, const Accumulator<T>* mean,
                                   const Accumulator<T>* rstd, TileParameter<kByRow, Accumulator<T>> weight,
                                   TileParameter<kByRow, Accumulator<T>> bias) {
  for_vectors<T>(rows, [&](int64_t j, auto lanes) __attribute__((always_inline)) {
    const auto xhat = normalized(load(s + j, lanes), load(mean + j, lanes), load(rstd + j, lanes));
    store(h + j, affine(xhat, weight.at(j, lanes, 1), bias.at(j, lanes, -0.0f)), lanes);  // -0 changes no number
  });
}

/// y of a tile from its statistics.
template <bool kByRow, class T, class X>
__attribute__((noinline)) void apply_tile(const TileForward<T, X>& t, const Tile& tile, const Accumulator<T>* mean,
                                          const Accumulator<T>* rstd) {
  using N = Accumulator<T>;
  using Parameter = TileParameter<kByRow, N>;
  alignas(64) N h[kMaxTileRows];
  clear_last_step(h, tile.count);
  const ParameterPlaces places(t.by_row, tile);
  for_parts(t.f.cols, [&](int64_t first, int64_t columns) __attribute__((always_inline)) {
    X* y[kTilePart];
    t.y.find(tile, first, columns, y);
    for (int64_t c = 0; c < columns; ++c) {
      const N* const s = t.column(first + c);
      const Parameter weight = {places.find(t.f.weight, first + c)}, bias = {places.find(t.f.bias, first + c)};
      if (!t.f.activation) {
        normalize_column<T>(s, y[c], tile.count, mean, rstd, weight, bias);
        continue;
      }
      normalize_column<T>(s, h, tile.count, mean, rstd, weight, bias);
      t.f.activation->value(*t.f.activation, h, activation_count(tile.count));
      for_vectors<T>(tile.count, [&](int64_t j, auto lanes)
                                     __attribute__((always_inline)) { store(y[c] + j, load(h + j, lanes), lanes); });
    }
    t.y.put(tile, first, columns);
  });
}

template <class T, class X>
__attribute__((noinline)) void forward_tile(const TileForward<T, X>& t, const Tile& tile) {
  alignas(64) Accumulator<T> mean[kMaxTileRows], rstd[kMaxTileRows];
  tile_statistics(t, tile, mean, rstd);
  t.by_row.sets > 0 ? apply_tile<true>(t, tile, mean, rstd) : apply_tile<false>(t, tile, mean, rstd);
}

template <class T, class X>
void forward_tiles(const ForwardWork& work, Range tiles, void* scratch) {
  const TileForward<T, X> t(work, scratch);
  for (int64_t index = tiles.begin; index < tiles.end; ++index) forward_tile(t, tile_at(t.tiles, index));
}

}  // namespace normact::cpu::NORMACT_ISA
