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
        tiles(row_tiles(work.problem->geometry)),
        dy(*work.problem, work.problem->dy),
        dx(*work.problem, work.problem->dx),
        x(*work.problem, work.problem->x),
        dresidual(*work.problem, work.problem->dresidual),
        daddend(*work.problem, work.problem->daddend),
        xhat(static_cast<N*>(scratch)),
        g(xhat + align_up(b.cols * tiles.rows * int64_t(sizeof(N))) / int64_t(sizeof(N))),
        dweight(g + (g - xhat)),
        dbias(dweight + b.cols * kLanes<T>) {}

  NORMACT_SIMD int64_t column(int64_t c) const { return c * tiles.rows; }

  Backward<T, X> b;
  RowTiles tiles;
  TileColumns<X> dy, dx;
  TileColumns<T> x, dresidual, daddend;
  N *xhat, *g;         // the tile, columns of tiles.rows rows
  N *dweight, *dbias;  // sums over the tile's rows, a vector a column
};

/// What a row needs to know of itself, for all rows of a tile.
template <class N>
struct TileRows {
  alignas(64) N mean[kMaxTileRows], rstd[kMaxTileRows];
};

/// The first sweep over kVectors vectors of rows from row j of the tile on, and some columns. D: the type of dy, or its
/// accumulator for gradients that came through an activation.
template <int kVectors, class T, class X, class D, class Lanes>
NORMACT_SIMD void sum_rows(const TileBackward<T, X>& t, const TileRows<Accumulator<T>>& rows, T* const* x,
                           const D* const* dy, int64_t first, int64_t columns, int64_t j, Lanes lanes,
                           Accumulator<T>* g_part, Accumulator<T>* g_xhat_part) {
  using V = Vec<T>;
  constexpr int64_t kStep = kLanes<T>;
  V mean[kVectors], rstd[kVectors], g_sum[kVectors] = {}, g_xhat_sum[kVectors] = {};
  for (int v = 0; v < kVectors; ++v) {
    mean[v] = load(rows.mean + j + v * kStep, lanes);
    rstd[v] = load(rows.rstd + j + v * kStep, lanes);
  }
  for (int64_t c = 0; c < columns; ++c) {
    const int64_t at = t.column(first + c) + j;
    Accumulator<T>* const dw_place = t.dweight + (first + c) * kStep;
    Accumulator<T>* const db_place = t.dbias + (first + c) * kStep;
    const V w = broadcast(t.b.weight[first + c]);
    V dw = load(dw_place, All{}), db = load(db_place, All{});
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const V gradient = load(dy[c] + j + v * kStep, lanes);
      const V xhat = normalized(load(x[c] + j + v * kStep, lanes), mean[v], rstd[v]);
      const V g = gradient * w;
      g_sum[v] += g;
      g_xhat_sum[v] = multiply_add(g, xhat, g_xhat_sum[v]);
      dw = multiply_add(gradient, xhat, dw);
      db += gradient;
      store(t.xhat + at + v * kStep, xhat, lanes);
      store(t.g + at + v * kStep, g, lanes);
    }
    store(dw_place, dw, All{});
    store(db_place, db, All{});
  }
  for (int v = 0; v < kVectors; ++v) {
    store(g_part + j + v * kStep, g_sum[v], lanes);
    store(g_xhat_part + j + v * kStep, g_xhat_sum[v], lanes);
  }
}

/// The first sweep over some columns of a tile.
template <class T, class X, class D>
NORMACT_SIMD void sum_part(const TileBackward<T, X>& t, const Tile& tile, const TileRows<Accumulator<T>>& rows,
                           T* const* x, const D* const* dy, int64_t first, int64_t columns, Accumulator<T>* g_part,
                           Accumulator<T>* g_xhat_part) {
  constexpr int64_t kStep = kLanes<T>;
  int64_t j = 0;
  for (; j + kNarrowVectors * kStep <= tile.count; j += kNarrowVectors * kStep) {
    sum_rows<kNarrowVectors>(t, rows, x, dy, first, columns, j, All{}, g_part, g_xhat_part);
  }
  for (; j + kStep <= tile.count; j += kStep) {
    sum_rows<1>(t, rows, x, dy, first, columns, j, All{}, g_part, g_xhat_part);
  }
  if (j < tile.count) {
    sum_rows<1>(t, rows, x, dy, first, columns, j, First{int(tile.count - j)}, g_part, g_xhat_part);
  }
}

/// dy * act'(h) of one column, h as in the forward. `g` has room for the tile's rows, up to a whole activation step.
template <class T, class X>
NORMACT_SIMD void activated_column(const TileBackward<T, X>& t, const Tile& tile, const TileRows<Accumulator<T>>& rows,
                                   const T* x, const X* dy, int64_t c, Accumulator<T>* g) {
  using N = Accumulator<T>;
  alignas(64) N h[kMaxTileRows] = {};  // what is past the tile must be numbers too
  const auto weight = broadcast(t.b.weight[c]);
  const auto bias = broadcast(t.b.bias ? t.b.bias[c] : N(-0.0));  // adding -0 changes no number
  for_vectors<T>(tile.count, [&](int64_t j, auto lanes) __attribute__((always_inline)) {
    const auto xhat = normalized(load(x + j, lanes), load(rows.mean + j, lanes), load(rows.rstd + j, lanes));
    store(h + j, affine(xhat, weight, bias), lanes);
  });
  t.b.activation->slope(*t.b.activation, h, activation_count(tile.count));
  for_vectors<T>(tile.count, [&](int64_t j, auto lanes) __attribute__((always_inline)) {
    store(g + j, load(h + j, lanes) * load(dy + j, lanes), lanes);
  });
}

/// The first sweep.
template <class T, class X>
NORMACT_SIMD void sum_tile(const TileBackward<T, X>& t, const Tile& tile, const TileRows<Accumulator<T>>& rows,
                           TileSums<Accumulator<T>>& g, TileSums<Accumulator<T>>& g_xhat) {
  using N = Accumulator<T>;
  for_parts(t.b.cols, [&](int64_t first, int64_t columns) __attribute__((always_inline)) {
    T* x[kTilePart];
    X* dy[kTilePart];
    t.x.find(tile, first, columns, x);
    t.dy.find(tile, first, columns, dy);
    if (t.b.activation) {
      const N* activated[kTilePart];
      for (int64_t c = 0; c < columns; ++c) {
        activated_column(t, tile, rows, x[c], dy[c], first + c, t.g + t.column(first + c));
        activated[c] = t.g + t.column(first + c);
      }
      sum_part<T, X, N>(t, tile, rows, x, activated, first, columns, g.part, g_xhat.part);
    } else {
      sum_part<T, X, X>(t, tile, rows, x, dy, first, columns, g.part, g_xhat.part);
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
  });
}

template <class T, class X>
__attribute__((noinline)) void backward_tile(const TileBackward<T, X>& t, const Tile& tile) {
  using N = Accumulator<T>;
  TileRows<N> rows;
  for (int64_t r = 0; r < tile.count; ++r) {
    rows.mean[r] = t.b.mean ? *t.b.mean[tile.first + r] : N(0);
    rows.rstd[r] = *t.b.rstd[tile.first + r];
  }
  for (int64_t i = 0; i < t.b.cols * kLanes<T>; ++i) t.dweight[i] = t.dbias[i] = 0;
  TileSums<N> g, g_xhat;
  sum_tile(t, tile, rows, g, g_xhat);
  alignas(64) N c1[kMaxTileRows], c2[kMaxTileRows];
  for (int64_t r = 0; r < tile.count; ++r) {
    const double factor = double(rows.rstd[r]) * t.b.share;
    c1[r] = t.b.kind == NormKind::layer ? N(g.total[r] * factor) : 0;
    c2[r] = N(g_xhat.total[r] * factor);
  }
  input_gradients_of_tile(t, tile, rows.rstd, c1, c2);
  for (int64_t c = 0; c < t.b.cols; ++c) {
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
