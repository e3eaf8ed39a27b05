// SPDX-License-Identifier: Apache-2.0
// Backward row norms of tiles: see row_tiles.h. A sweep over x and dy for the sums of the rows and the parameter
// gradients, which leaves xhat and g = dy * weight in two arrays; then one over these for dx.
#pragma once

#include "cpu/backward_sweeps.h"
#include "cpu/narrow_kernels.h"
#include "cpu/row_affine.h"
#include "cpu/tile_views.h"
#include "math/normalize.h"

namespace normact::cpu::NORMACT_ISA {

/// T, X: as in Backward.
template <class T, class X>
struct TileBackward {
  using N = Accumulator<T>;
  using V = Vec<T>;

  NORMACT_SIMD TileBackward(const BackwardWork& work, ParameterSums sums, void* scratch)
      : b(work, {0, work.problem->geometry.cols}, sums, scratch),
        tiles(work.tiles),
        by_row(work.by_row),
        xhat(static_cast<N*>(scratch)),
        g(array(1)),
        dy(*work.problem, work.problem->dy, tiles, array(2)),
        dx(*work.problem, work.problem->dx, tiles, array(2)),
        x(*work.problem, work.problem->x, tiles, array(3)),
        dresidual(*work.problem, work.problem->dresidual, tiles, array(4)),
        daddend(*work.problem, work.problem->daddend, tiles, array(3)),
        dweight(array(tiles.turned ? 5 : 2)),
        dbias(dweight + b.cols * kLanes<T>) {}

  NORMACT_SIMD N* array(int64_t i) const {
    return xhat + i * align_up(b.cols * tiles.rows * int64_t{sizeof(N)}) / int64_t{sizeof(N)};
  }
  NORMACT_SIMD int64_t column(int64_t c) const { return c * tiles.rows; }

  Backward<T, X> b;
  RowTiles tiles;
  RowParameters by_row;
  N *xhat, *g;  // the tile, columns of tiles.rows rows; behind it, if it is turned, arrays for inputs and then outputs
  TileColumns<X> dy, dx;
  TileColumns<T> x, dresidual, daddend;
  N *dweight, *dbias;  // sums over the tile's rows, a vector a column
};

/// What a row needs to know of itself, for all rows of a tile.
template <class N>
struct TileRows {
  alignas(64) N mean[kMaxTileRows], rstd[kMaxTileRows];
};

/// Some columns of a tile: where they are, their parameters, and where the gradients of these are summed, for all rows
/// or by row. D: the type of dy, or its accumulator for gradients that came through an activation.
template <class T, class D>
struct TilePart {
  using N = Accumulator<T>;
  int64_t first, columns;
  T* x[kTilePart];
  const D* dy[kTilePart];
  const N* weight[kTilePart];
  N *dweight[kTilePart], *dbias[kTilePart];
};

/// The first sweep over kVectors vectors of rows from row j of the tile on, and some columns.
template <int kVectors, bool kByRow, class T, class X, class D, class Lanes>
NORMACT_SIMD void sum_rows(const TileBackward<T, X>& t, const TileRows<Accumulator<T>>& rows,
                           const TilePart<T, D>& part, int64_t j, Lanes lanes, Accumulator<T>* g_part,
                           Accumulator<T>* g_xhat_part) {
  using V = Vec<T>;
  constexpr int64_t kStep = kLanes<T>;
  constexpr int kSums = kByRow ? kVectors : 1;  // vectors of sums of a column
  V mean[kVectors], rstd[kVectors], g_sum[kVectors] = {}, g_xhat_sum[kVectors] = {};
  for (int v = 0; v < kVectors; ++v) {
    mean[v] = load(rows.mean + j + v * kStep, lanes);
    rstd[v] = load(rows.rstd + j + v * kStep, lanes);
  }
  for (int64_t c = 0; c < part.columns; ++c) {
    const int64_t at = t.column(part.first + c) + j;
    const TileParameter<kByRow, Accumulator<T>> weight = {part.weight[c]};
    Accumulator<T>* const dw_place = part.dweight[c] + (kByRow ? j : 0);
    Accumulator<T>* const db_place = part.dbias[c] + (kByRow ? j : 0);
    V dw[kSums], db[kSums];
    for (int v = 0; v < kSums; ++v) dw[v] = load(dw_place + v * kStep, All{});
    for (int v = 0; v < kSums; ++v) db[v] = load(db_place + v * kStep, All{});
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const int sum = kByRow ? v : 0;
      const V gradient = load(part.dy[c] + j + v * kStep, lanes);
      const V xhat = normalized(load(part.x[c] + j + v * kStep, lanes), mean[v], rstd[v]);
      const V g = gradient * weight.at(j + v * kStep, lanes, 1);
      g_sum[v] += g;
      g_xhat_sum[v] = multiply_add(g, xhat, g_xhat_sum[v]);
      dw[sum] = multiply_add(gradient, xhat, dw[sum]);
      db[sum] += gradient;
      store(t.xhat + at + v * kStep, xhat, lanes);
      store(t.g + at + v * kStep, g, lanes);
    }
    for (int v = 0; v < kSums; ++v) store(dw_place + v * kStep, dw[v], All{});
    for (int v = 0; v < kSums; ++v) store(db_place + v * kStep, db[v], All{});
  }
  for (int v = 0; v < kVectors; ++v) {
    store(g_part + j + v * kStep, g_sum[v], lanes);
    store(g_xhat_part + j + v * kStep, g_xhat_sum[v], lanes);
  }
}

/// The first sweep over some columns of a tile.
template <bool kByRow, class T, class X, class D>
NORMACT_SIMD void sum_part(const TileBackward<T, X>& t, const Tile& tile, const TileRows<Accumulator<T>>& rows,
                           const TilePart<T, D>& part, Accumulator<T>* g_part, Accumulator<T>* g_xhat_part) {
  constexpr int64_t kStep = kLanes<T>;
  int64_t j = 0;
  for (; j + kNarrowVectors * kStep <= tile.count; j += kNarrowVectors * kStep) {
    sum_rows<kNarrowVectors, kByRow>(t, rows, part, j, All{}, g_part, g_xhat_part);
  }
  for (; j + kStep <= tile.count; j += kStep) sum_rows<1, kByRow>(t, rows, part, j, All{}, g_part, g_xhat_part);
  if (j < tile.count) {
    sum_rows<1, kByRow>(t, rows, part, j, First{int(tile.count - j)}, g_part, g_xhat_part);
  }
}

/// dy * act'(h) of one column, h as in the forward.
template <bool kByRow, class T, class X>
NORMACT_SIMD void activated_column(const TileBackward<T, X>& t, const Tile& tile, const TileRows<Accumulator<T>>& rows,
                                   const T* x, const X* dy, TileParameter<kByRow, Accumulator<T>> weight,
                                   TileParameter<kByRow, Accumulator<T>> bias, Accumulator<T>* g) {
  using N = Accumulator<T>;
  alignas(64) N h[kMaxTileRows];
  clear_last_step(h, tile.count);
  for_vectors<T>(tile.count, [&](int64_t j, auto lanes) __attribute__((always_inline)) {
    const auto xhat = normalized(load(x + j, lanes), load(rows.mean + j, lanes), load(rows.rstd + j, lanes));
    store(h + j, affine(xhat, weight.at(j, lanes, 1), bias.at(j, lanes, -0.0f)), lanes);  // -0 changes no number
  });
  t.b.activation->slope(*t.b.activation, h, activation_count(tile.count));
  for_vectors<T>(tile.count, [&](int64_t j, auto lanes) __attribute__((always_inline)) {
    store(g + j, load(h + j, lanes) * load(dy + j, lanes), lanes);
  });
}

/// The first sweep.
template <bool kByRow, class T, class X>
__attribute__((noinline)) void sum_tile(const TileBackward<T, X>& t, const Tile& tile,
                                        const TileRows<Accumulator<T>>& rows, TileSums<Accumulator<T>>& g,
                                        TileSums<Accumulator<T>>& g_xhat) {
  using N = Accumulator<T>;
  const ParameterPlaces places(t.by_row, tile);
  const auto find = [&](auto& part) __attribute__((always_inline)) {
    t.x.find(tile, part.first, part.columns, part.x);
    for (int64_t c = 0; c < part.columns; ++c) {
      const int64_t column = part.first + c;
      part.weight[c] = places.find(t.b.weight, column);
      part.dweight[c] = kByRow ? places.find(t.b.dweight, column) : t.dweight + column * kLanes<T>;
      part.dbias[c] = kByRow ? places.find(t.b.dbias, column) : t.dbias + column * kLanes<T>;
    }
  };
  for_parts(t.b.cols, [&](int64_t first, int64_t columns) __attribute__((always_inline)) {
    X* dy[kTilePart];
    t.x.fetch(tile, first, columns);
    t.dy.fetch(tile, first, columns);
    t.dy.find(tile, first, columns, dy);
    if (t.b.activation) {
      TilePart<T, N> part = {first, columns, {}, {}, {}, {}, {}};
      find(part);
      for (int64_t c = 0; c < columns; ++c) {
        const TileParameter<kByRow, N> weight = {part.weight[c]}, bias = {places.find(t.b.bias, first + c)};
        N* const activated = t.g + t.column(first + c);
        activated_column(t, tile, rows, part.x[c], dy[c], weight, bias, activated);
        part.dy[c] = activated;
      }
      sum_part<kByRow>(t, tile, rows, part, g.part, g_xhat.part);
    } else {
      TilePart<T, X> part = {first, columns, {}, {}, {}, {}, {}};
      find(part);
      for (int64_t c = 0; c < columns; ++c) part.dy[c] = dy[c];
      sum_part<kByRow>(t, tile, rows, part, g.part, g_xhat.part);
    }
    g.add_part(tile.count);
    g_xhat.add_part(tile.count);
  });
}

/// The second sweep.
template <class T, class X>
NORMACT_SIMD void input_gradients_of_tile(const TileBackward<T, X>& t, const Tile& tile, const Accumulator<T>* rstd,
                                          const Accumulator<T>* c1, const Accumulator<T>* c2) {
  const bool residual = bool(t.dresidual);
  for_parts(t.b.cols, [&](int64_t first, int64_t columns) __attribute__((always_inline)) {
    X* dx[kTilePart];
    T *dresidual[kTilePart], *daddend[kTilePart];
    t.dresidual.fetch(tile, first, columns);
    t.dx.find(tile, first, columns, dx);
    t.dresidual.find(tile, first, columns, dresidual);
    t.daddend.find(tile, first, columns, daddend);
    for (int64_t c = 0; c < columns; ++c) {
      const int64_t at = t.column(first + c);
      for_vectors<T>(tile.count, [&](int64_t j, auto lanes) __attribute__((always_inline)) {
        auto value = input_gradient(load(t.g + at + j, lanes), load(t.xhat + at + j, lanes), load(rstd + j, lanes),
                                    load(c1 + j, lanes), load(c2 + j, lanes));
        if (residual) value += load(dresidual[c] + j, lanes);
        store(dx[c] + j, value, lanes);
        if constexpr (!std::is_same_v<T, X>) {
          if (daddend[c]) store(daddend[c] + j, value, lanes);
        }
      });
    }
    t.dx.put(tile, first, columns);
    t.daddend.put(tile, first, columns);
  });
}

template <class T, class X>
__attribute__((noinline)) void backward_tile(const TileBackward<T, X>& t, const Tile& tile) {
  using N = Accumulator<T>;
  TileRows<N> rows;
  t.b.mean.read(tile.first, tile.count, rows.mean);
  t.b.rstd.read(tile.first, tile.count, rows.rstd);
  for (int64_t i = 0; i < t.b.cols * kLanes<T>; ++i) t.dweight[i] = t.dbias[i] = 0;
  TileSums<N> g(tile.count), g_xhat(tile.count);
  const bool by_row = t.by_row.sets > 0;
  by_row ? sum_tile<true>(t, tile, rows, g, g_xhat) : sum_tile<false>(t, tile, rows, g, g_xhat);
  alignas(64) N c1[kMaxTileRows], c2[kMaxTileRows];
  const double share = t.b.share;
  const bool layer = t.b.kind == NormKind::layer;
  for (int64_t r = 0; r < tile.count; ++r) {
    const double factor = double(rows.rstd[r]) * share;
    c1[r] = layer ? N(g.total[r] * factor) : 0;
    c2[r] = N(g_xhat.total[r] * factor);
  }
  input_gradients_of_tile(t, tile, rows.rstd, c1, c2);
  for (int64_t c = 0; c < t.b.cols && !by_row; ++c) {
    if (t.b.dweight) t.b.dweight[c] += sum(load(t.dweight + c * kLanes<T>, All{}));
    if (t.b.dbias) t.b.dbias[c] += sum(load(t.dbias + c * kLanes<T>, All{}));
  }
}

/// Adds to the sums.
template <class T, class X>
void backward_tiles(const BackwardWork& work, Range tiles, ParameterSums sums, void* scratch) {
  const TileBackward<T, X> t(work, sums, scratch);
  for (int64_t index = tiles.begin; index < tiles.end; ++index) backward_tile(t, tile_at(t.tiles, index));
}

}  // namespace normact::cpu::NORMACT_ISA
