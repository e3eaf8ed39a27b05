// SPDX-License-Identifier: Apache-2.0
#include "cpu/small_sets.h"

#include <algorithm>
#include <initializer_list>
#include <span>

#include "core/merge_dims.h"
#include "cpu/backend.h"
#include "cpu/channel_common.h"
#include "cpu/row_tiles.h"

namespace normact::cpu {
namespace {

constexpr int64_t kTinySet = 16;   // elements
constexpr int64_t kSmallSet = 32;  // the same where a sample has few groups, between which nothing can be shared
constexpr int64_t kFewGroups = 8;
// Where neither planes nor rows are arrays worth a loop of their own, the general way moves element by element, too.
constexpr int64_t kStridedSet = 256;
constexpr int64_t kStridedRow = 1024;   // the same of one place
constexpr int64_t kStridedPlaces = 64;  // that are few
constexpr int64_t kNarrowRow = 8;       // channels of a place that are few
constexpr int64_t kWideRow = 32;        // channels of a place that are enough for vectors
constexpr int64_t kStripGroups = 256;   // of a sample, that are rows of one problem
constexpr int64_t kMinStripTiles = 8;   // of a block, beside which its tables are small
constexpr size_t kMaxParts = 5;

/// A tensor of x's shape, or with a channel stride of 0 a statistic, as an operand of rows.
struct Part {
  Operand* operand;
  char* data;  // of the first group
  DType dtype;
  int64_t sample_stride, group_stride, channel_stride;
  const int64_t* place_stride;  // null: of a statistic
};

/// Whether the sets are arrays in memory, or the planes of their channels are.
bool has_arrays(const ChannelGeometry& g, const ChannelView& view) {
  if (g.places == 1) return view.channel_stride == 1;
  return g.place_ndim == 1 && view.place_stride[0] == 1;
}

/// Elements of a small set. views: all that there are of x's shape.
int64_t small_set(const ChannelGeometry& g, std::initializer_list<const ChannelView*> views) {
  const bool arrays =
      std::all_of(views.begin(), views.end(), [&](const ChannelView* view) { return has_arrays(g, *view); });
  const bool wide_rows = g.channels >= kNarrowRow && goes_by_rows(g, views);
  if (arrays || wide_rows || g.places > kStridedPlaces) return g.groups <= kFewGroups ? kSmallSet : kTinySet;
  return g.places == 1 ? kStridedRow : kStridedSet;
}

/// views: as there.
bool has_small_sets(const ChannelProblem& p, std::initializer_list<const ChannelView*> views) {
  const ChannelGeometry& g = p.geometry;
  if (p.set != ChannelSet::group || has_no_elements(g) || g.place_ndim >= kMaxDims) return false;
  if (g.places > 1 && g.channels >= kWideRow && goes_by_rows(g, views)) return false;
  return g.channels / g.groups * g.places <= small_set(g, views);
}

/// Merges the dimensions of more than one index, so many of each part's strides.
void merge_space(std::span<const int64_t> shape, std::span<const MergedStrides> strides, int64_t single, int* ndim,
                 int64_t* merged_shape) {
  int dims[1 + kMaxDims], alone = -1;
  size_t count = 0;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] != 1) dims[count++] = int(d);
  }
  *ndim = merge_dims({dims, count}, shape.data(), strides, &alone, merged_shape);
  if (count > 0) return;
  *ndim = 1;
  merged_shape[0] = 1;
  for (const MergedStrides& of : strides) of.merged[0] = single;
}

/// Some groups of all samples as rows, in this order.
void set_rows(const ChannelProblem& p, Range groups, std::initializer_list<Part> parts, RowProblem* rows) {
  const ChannelGeometry& g = p.geometry;
  const int64_t each = g.channels / g.groups, count = groups.end - groups.begin;
  int64_t row_stride[kMaxParts][2], col_stride[kMaxParts][1 + kMaxDims];
  MergedStrides of_rows[kMaxParts], of_cols[kMaxParts];
  size_t i = 0;
  for (const Part& part : parts) {
    *part.operand = {
        part.data ? part.data + groups.begin * part.group_stride * size_of(part.dtype) : nullptr, part.dtype, {}, {}};
    row_stride[i][0] = part.sample_stride;
    row_stride[i][1] = part.group_stride;
    col_stride[i][0] = part.channel_stride;
    for (int d = 0; d < g.place_ndim; ++d) col_stride[i][1 + d] = part.place_stride ? part.place_stride[d] : 0;
    of_rows[i] = {row_stride[i], part.operand->row_stride};
    of_cols[i] = {col_stride[i], part.operand->col_stride};
    ++i;
  }
  const int64_t row_shape[] = {g.samples, count};
  int64_t col_shape[1 + kMaxDims] = {each};
  std::copy(g.place_shape, g.place_shape + g.place_ndim, col_shape + 1);
  RowGeometry& geometry = rows->geometry;
  merge_space(row_shape, {of_rows, i}, 0, &geometry.row_ndim, geometry.row_shape);
  merge_space({col_shape, size_t(1 + g.place_ndim)}, {of_cols, i}, 1, &geometry.col_ndim, geometry.col_shape);
  geometry.rows = g.samples * count;
  geometry.cols = each * g.places;
  rows->kind = NormKind::layer;
  rows->dtype = rows->io_dtype = p.dtype;
  rows->eps = p.eps;
  rows->activation = p.activation;
}

Part part(const ChannelGeometry& g, Operand* operand, const ChannelView& view) {
  const int64_t each = g.channels / g.groups;
  return {operand,
          static_cast<char*>(view.data),
          view.dtype,
          view.sample_stride,
          each * view.channel_stride,
          view.channel_stride,
          view.place_stride};
}
Part part(DType dtype, Operand* operand, const ChannelStatistic& statistic) {
  return {operand,
          static_cast<char*>(statistic.data),
          accumulator_of(dtype),
          statistic.sample_stride,
          statistic.group_stride,
          0,
          nullptr};
}

/// One call. N: the accumulator. Strips of groups, and blocks of tiles of a strip, are functions of the shape alone.
template <class N>
class SmallSets {
 public:
  SmallSets(const ChannelProblem& p, int tensors) : p_(p), g_(p.geometry), each_(g_.channels / g_.groups) {
    strips_ = ceil_div(g_.groups, kStripGroups);
    strip_groups_ = ceil_div(g_.groups, strips_);
    const RowTiles tiles = tiles_of(strip_groups_);
    block_tiles_ = std::clamp(ceil_div(tiles.count, kMaxBlocks), kMinStripTiles, kMaxBlockTiles);
    blocks_ = ceil_div(tiles.count, block_tiles_);
    table_ = align_up(each_ * (strip_groups_ + tiles.rows) * int64_t{sizeof(N)}) / int64_t{sizeof(N)};
    threads_ = threads_for(tensors * elements_of(g_) * size_of(p.dtype), num_threads());
  }

  int64_t blocks() const { return blocks_; }

  /// Parameters, arrays over the channels, and scratch; `partials`: accumulators that a call wants beside.
  Status prepare(const ChannelVector& weight, const ChannelVector& bias, int arrays, int64_t partials) {
    NORMACT_TRY(find_row_kernels(p_.dtype, &kernels_));
    NORMACT_TRY(find_array_activation(p_.dtype, p_.activation, &activation_, &activated_));
    RowProblem rows = {};
    rows.geometry.cols = each_ * g_.places;
    rows.dtype = p_.dtype;
    Layout layout, lane;
    for (int i = 0; i < kTables; ++i) lane.reserve(table_ * int64_t{sizeof(N)});
    scratch_at_ = lane.reserve(tile_scratch(rows, tiles_of(strip_groups_), arrays));
    lane_bytes_ = lane.size();
    const int64_t vector = g_.channels * int64_t{sizeof(N)};
    const int64_t weight_at = layout.reserve(vector), bias_at = layout.reserve(vector);
    const int64_t partials_at = layout.reserve(partials * int64_t{sizeof(N)});
    const int64_t lanes_at = layout.reserve(threads_ * lane_bytes_);
    char* const memory = thread_buffer(layout.size());
    if (!memory) return out_of_memory(layout.size());
    weight_ = reinterpret_cast<N*>(memory + weight_at);
    bias_ = reinterpret_cast<N*>(memory + bias_at);
    partials_ = reinterpret_cast<N*>(memory + partials_at);
    lanes_ = memory + lanes_at;
    load_vector(*kernels_, weight, g_.channels, N(1), weight_);
    load_vector(*kernels_, bias, g_.channels, N(-0.0), bias_);
    return {};
  }

  N* partials() const { return partials_; }
  const RowKernels& kernels() const { return *kernels_; }
  const ArrayActivation* activation() const { return activated_; }

  /// A block of a strip.
  struct Block {
    Range groups;
    int64_t index;
    RowTiles tiles;
    Range range;  // of tiles; may be empty
    RowParameters by_row;
    N *weight, *bias, *dweight, *dbias;  // tables
    void* scratch;
  };

  /// body(block) for all blocks.
  template <class Body>
  void for_blocks(const Body& body) const {
    parallel_for(threads_, strips_ * blocks_, [&](int64_t unit, int lane) {
      const int64_t first = unit / blocks_ * strip_groups_, index = unit % blocks_;
      const int64_t count = std::min(strip_groups_, g_.groups - first);
      const RowTiles tiles = tiles_of(count);
      const Range range = {std::min(tiles.count, index * block_tiles_),
                           std::min(tiles.count, (index + 1) * block_tiles_)};
      char* const memory = lanes_ + lane * lane_bytes_;
      N* const tables = reinterpret_cast<N*>(memory);
      const Block block = {{first, first + count},
                           index,
                           tiles,
                           range,
                           {count, g_.places, count + tiles.rows},
                           tables,
                           tables + table_,
                           tables + 2 * table_,
                           tables + 3 * table_,
                           memory + scratch_at_};
      fill_table(block, weight_, block.weight);
      fill_table(block, bias_, block.bias);
      body(block);
    });
  }

  /// sums[channel] = the sum of the table's entries of that channel.
  void add_up(const Block& block, const N* table, N* sums) const {
    const int64_t count = block.groups.end - block.groups.begin;
    for (int64_t c = 0; c < each_; ++c) {
      for (int64_t group = 0; group < count; ++group) {
        const N* const entries = table + c * block.by_row.stride;
        double total[4] = {};  // chains of additions beside each other
        for (int64_t i = group, k = 0; i < block.by_row.stride; i += count, ++k) total[k % 4] += double(entries[i]);
        sums[(block.groups.begin + group) * each_ + c] = N((total[0] + total[1]) + (total[2] + total[3]));
      }
    }
  }

 private:
  static constexpr int kTables = 4;

  RowTiles tiles_of(int64_t groups) const {
    const RowGeometry geometry{g_.samples * groups, each_ * g_.places, 1, 1, {}, {}};
    return row_tiles(geometry, true);
  }
  void fill_table(const Block& block, const N* vector, N* table) const {
    const int64_t count = block.groups.end - block.groups.begin;
    for (int64_t c = 0; c < each_; ++c) {
      N* const entries = table + c * block.by_row.stride;
      for (int64_t i = 0; i < count; ++i) entries[i] = vector[(block.groups.begin + i) * each_ + c];
      for (int64_t i = count; i < block.by_row.stride; ++i) entries[i] = entries[i - count];
    }
  }

  const ChannelProblem& p_;
  const ChannelGeometry& g_;
  int64_t each_;
  int64_t strips_, strip_groups_, blocks_, block_tiles_;
  int64_t table_;
  int threads_;
  const RowKernels* kernels_ = nullptr;
  ArrayActivation activation_;
  const ArrayActivation* activated_ = nullptr;
  N *weight_ = nullptr, *bias_ = nullptr, *partials_ = nullptr;
  char* lanes_ = nullptr;
  int64_t lane_bytes_ = 0, scratch_at_ = 0;
};

template <class N>
Status forward(const ChannelForward& p) {
  SmallSets<N> sets(p, 2);
  NORMACT_TRY(sets.prepare(p.weight, p.bias, 1, 0));
  sets.for_blocks([&](const auto& block) {
    RowForward rows = {};
    set_rows(p, block.groups,
             {part(p.geometry, &rows.x, p.x), part(p.geometry, &rows.y, p.y), part(p.dtype, &rows.mean, p.mean),
              part(p.dtype, &rows.rstd, p.rstd)},
             &rows);
    const ForwardWork work = {&rows, block.weight, block.bias,  0,           sets.activation(),
                              false, false,        block.tiles, block.by_row};
    sets.kernels().forward_tiles(work, block.range, block.scratch);
  });
  return {};
}

template <class N>
Status backward(const ChannelBackward& p) {
  SmallSets<N> sets(p, 3);
  const int64_t arrays = sets.blocks() * p.geometry.channels;
  NORMACT_TRY(sets.prepare(p.weight, p.bias, 2, 2 * arrays));
  N *const dweight = sets.partials(), *const dbias = dweight + arrays;
  sets.for_blocks([&](const auto& block) {
    RowBackward rows = {};
    set_rows(p, block.groups,
             {part(p.geometry, &rows.dy, p.dy), part(p.geometry, &rows.x, p.x), part(p.geometry, &rows.dx, p.dx),
              part(p.dtype, &rows.mean, p.mean), part(p.dtype, &rows.rstd, p.rstd)},
             &rows);
    const int64_t entries = block.by_row.stride * p.geometry.channels / p.geometry.groups;
    std::fill(block.dweight, block.dweight + entries, N(0));
    std::fill(block.dbias, block.dbias + entries, N(0));
    const BackwardWork work = {&rows, block.weight, block.bias, sets.activation(), false, block.tiles, block.by_row};
    sets.kernels().backward_tiles(work, block.range, {block.dweight, block.dbias}, block.scratch);
    sets.add_up(block, block.dweight, dweight + block.index * p.geometry.channels);
    sets.add_up(block, block.dbias, dbias + block.index * p.geometry.channels);
  });
  store_sums(sets.kernels(), p.dweight, p.geometry.channels, dweight, sets.blocks());
  store_sums(sets.kernels(), p.dbias, p.geometry.channels, dbias, sets.blocks());
  return {};
}

}  // namespace

bool has_small_sets(const ChannelForward& p) {
  return !p.mask && !p.running.mean.data && !p.addend.data && has_small_sets(p, {&p.x, &p.y});
}

bool has_small_sets(const ChannelBackward& p) {
  const bool more = p.mask || p.addend.data || p.y.data || p.daddend.data;
  return !more && !p.frozen && has_small_sets(p, {&p.dy, &p.x, &p.dx});
}

Status small_sets_forward(const ChannelForward& problem) {
  return problem.dtype == DType::f64 ? forward<double>(problem) : forward<float>(problem);
}

Status small_sets_backward(const ChannelBackward& problem) {
  return problem.dtype == DType::f64 ? backward<double>(problem) : backward<float>(problem);
}

}  // namespace normact::cpu
