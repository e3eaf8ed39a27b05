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
        tiles(row_tiles(work.problem->geometry)),
        x(*work.problem, work.problem->x),
        y(*work.problem, work.problem->y),
        residual(*work.problem, work.problem->residual),
        sum(*work.problem, work.problem->residual_out),
        s(static_cast<N*>(scratch)) {}

  NORMACT_SIMD N* column(int64_t c) const { return s + c * tiles.rows; }

  Forward<T, X> f;
  RowTiles tiles;
  TileColumns<X> x, y;
  TileColumns<T> residual, sum;
  N* s;  // the tile, columns of tiles.rows rows
};

/// First pass: s = x or round(x + residual), and its sums over the columns.
template <class T, class X>
NORMACT_SIMD void fetch_tile(const TileForward<T, X>& t, const Tile& tile, TileSums<Accumulator<T>>& sums) {
  using V = Vec<T>;
  const bool has_residual = bool(t.residual);
  for_parts(t.f.cols, [&](int64_t first, int64_t columns) __attribute__((always_inline)) {
    X* x[kTilePart];
    T *residual[kTilePart], *sum[kTilePart];
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
  TileSums<N> sums, squares;
  fetch_tile(t, tile, sums);
  const bool layer = t.f.kind == NormKind::layer;
  for (int64_t r = 0; r < tile.count; ++r) mean[r] = layer ? N(sums.total[r] * t.f.share) : N(0);
  TileSums<N> deviations;
  centred_tile(t, tile, mean, deviations, squares);
  for (int64_t r = 0; r < tile.count; ++r) {
    const double deviation = layer ? deviations.total[r] : 0;
    const Statistics statistics =
        finish(t.f, tile.first + r, corrected(mean[r], deviation, squares.total[r], t.f.cols, t.f.share));
    mean[r] = N(statistics.mean);
    rstd[r] = N(statistics.rstd);
  }
}

/// h = affine(normalized(s)) of column c. Out: the type of y, or its accumulator for values that are not rounded.
template <class T, class X, class Out>
NORMACT_SIMD void normalize_column(const Forward<T, X>& f, const Accumulator<T>* s, Out* h, int64_t c, int64_t rows,
                                   const Accumulator<T>* mean, const Accumulator<T>* rstd) {
  using N = Accumulator<T>;
  const auto weight = broadcast(f.weight ? f.weight[c] : N(1));
  const auto bias = broadcast(f.bias ? f.bias[c] : N(-0.0));  // adding -0 changes no number
  for_vectors<T>(rows, [&](int64_t j, auto lanes) __attribute__((always_inline)) {
    store(h + j, affine(normalized(load(s + j, lanes), load(mean + j, lanes), load(rstd + j, lanes)), weight, bias),
          lanes);
  });
}

template <class T, class X>
__attribute__((noinline)) void forward_tile(const TileForward<T, X>& t, const Tile& tile) {
  using N = Accumulator<T>;
  alignas(64) N mean[kMaxTileRows], rstd[kMaxTileRows];
  alignas(64) N h[kMaxTileRows] = {};  // what is past the tile must be numbers too
  tile_statistics(t, tile, mean, rstd);
  for_parts(t.f.cols, [&](int64_t first, int64_t columns) __attribute__((always_inline)) {
    X* y[kTilePart];
    t.y.find(tile, first, columns, y);
    for (int64_t c = 0; c < columns; ++c) {
      const N* const s = t.column(first + c);
      if (!t.f.activation) {
        normalize_column(t.f, s, y[c], first + c, tile.count, mean, rstd);
        continue;
      }
      normalize_column(t.f, s, h, first + c, tile.count, mean, rstd);
      t.f.activation->value(*t.f.activation, h, activation_count(tile.count));
      for_vectors<T>(tile.count, [&](int64_t j, auto lanes)
                                     __attribute__((always_inline)) { store(y[c] + j, load(h + j, lanes), lanes); });
    }
  });
}

template <class T, class X>
void forward_tiles(const ForwardWork& work, Range tiles, void* scratch) {
  const TileForward<T, X> t(work, scratch);
  for (int64_t index = tiles.begin; index < tiles.end; ++index) forward_tile(t, tile_at(t.tiles, index));
}

}  // namespace normact::cpu::NORMACT_ISA
