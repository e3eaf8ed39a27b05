// SPDX-License-Identifier: Apache-2.0
// Plans for images (cuda/row_image.cuh): rows side by side in lines that are not whole packs, in samples that are.
#include <algorithm>
#include <cstdint>
#include <numeric>

#include "core/image_layout.h"
#include "core/plan_common.h"

namespace normact {
namespace {

// What a block keeps at most where there may be more of them; smaller parts cost more beside their packs.
constexpr int64_t kPartBytes = 80 << 10;
// Bands at the same time, as what is summed of a row in each is added up one after the other: of 56, rstd was off by 8
// units in its last place.
constexpr int kMostLines = 18;
// Of which a block adds up what all have of its rows.
constexpr int kMostSlices = 256;

/// Whether images of so many columns and places may be read twice, and how they are divided then, which does not depend
/// on how many there are.
bool divide_twice(int64_t cols, int64_t places, DType dtype, bool forward, ImageLayout* layout) {
  const int64_t pack = kPackBytes / size_of(dtype);
  if (dtype == DType::f64 || cols * places * size_of(dtype) > INT32_MAX) return false;
  if (places < pack) return false;  // a pack would have elements of three lines
  // More than any division has room for; int32_t, in which a layout is computed, may not hold them either.
  if (places > pack * kMostTwiceThreads || cols > pack * kMostLines * image_turns(forward) * kMostSlices) return false;
  *layout = image_twice_layout(static_cast<int>(cols), static_cast<int>(places), dtype, forward);
  return layout->lines >= 1 && layout->lines <= kMostLines && layout->slices <= kMostSlices;
}

/// A persistent grid of as many blocks as run at once, and whole images.
bool plan_twice(const RowRequest& r, const DeviceInfo& device, bool forward, RowPlan* plan) {
  const RowGeometry& g = r.geometry;
  const int64_t places = g.row_shape[g.row_ndim - 1], images = g.rows / places;
  ImageLayout layout;
  if (!divide_twice(g.cols, places, r.dtype, forward, &layout)) return false;
  if (layout.shared_bytes > device.shared_memory_block) return false;
  const int64_t together = 2 * (layout.shared_bytes + 1024) <= device.shared_memory_block + 1024 ? 2 : 1;
  plan->threads = layout.threads;
  plan->threads_per_row = layout.lines;
  plan->rows_per_block = layout.places;
  plan->slices = layout.slices;
  plan->shared_bytes = layout.shared_bytes;
  const int64_t most = std::max<int64_t>(1, together * persistent_blocks(r, device) / layout.slices);
  plan->parts = ceil_div(images, ceil_div(images, most));
  plan->blocks = plan->parts * layout.slices;
  return true;
}

/// Of clusters of four and more, not as many run at once as there are multiprocessors for: clusters of two whose blocks
/// have one for themselves come before them. There are none of eight, of which 28 would run at once and not hide each
/// other's sums: layer norm of 64 images, by eight and read twice (H200, us), forward 768x17x17 bf16 50 and 29,
/// backward 2048x7x7 bf16 45 and 36, 1536x7x7 fp32 42 and 33, forward of 256 images 1024x14x14 bf16 152 and 94.
bool plan_kept(const RowRequest& r, const DeviceInfo& device, bool forward, RowPlan* plan) {
  const RowGeometry& g = r.geometry;
  const int64_t places = g.row_shape[g.row_ndim - 1], kept = (forward ? 1 : 2) * g.cols * places * size_of(r.dtype);
  struct Division {
    int log;  // of the blocks of a cluster
    bool alone;
  };
  const bool clusters = device.active_clusters[0] > 0;
  for (const Division of : {Division{0, false}, {1, false}, {1, true}, {2, false}}) {
    const Division by = clusters ? of : Division{0, of.alone};
    const int cluster = 1 << by.log;
    const int64_t room = by.alone ? device.shared_memory_block : (device.shared_memory_block - 1024) / 2;
    if ((clusters && device.active_clusters[by.log] < 1) || kept > room << by.log) continue;
    if (!by.alone && kept > kPartBytes << by.log) continue;
    const ImageLayout layout =
        image_layout(static_cast<int>(g.cols), static_cast<int>(places), r.dtype, cluster,
                     image_threads(forward, by.alone), forward ? ImageUse::kept_forward : ImageUse::kept_backward);
    // Every block has a part.
    if (ceil_div(layout.bands, layout.slice_bands) != cluster || layout.shared_bytes > room) continue;
    if (layout.lines < 1 || layout.lines > kMostLines) continue;
    plan->cluster = cluster;
    plan->threads = layout.threads;
    plan->threads_per_row = layout.lines;
    plan->rows_per_block = static_cast<int>(places);
    plan->packs_per_block = layout.slice_bands * layout.band_packs;
    plan->shared_bytes = layout.shared_bytes;
    // All have the same number of images, as far as that goes.
    const int64_t images = g.rows / places, blocks = persistent_blocks(r, device) * (by.alone ? 1 : 2);
    plan->parts = ceil_div(images, ceil_div(images, std::max<int64_t>(1, blocks / cluster)));
    plan->blocks = plan->parts * cluster;
    return true;
  }
  return false;
}

/// Lines of whole packs are tiles' business, unless a block has room for 32 bytes of each at most, which are parts of
/// two sectors: backward of fp32 256x1024x14x14 391 by tiles, 288 read twice (H200, us; of 16x16, whole sectors, 83 and
/// 91).
bool has_narrow_tiles(const RowRequest& r, const DeviceInfo& device, Direction direction) {
  constexpr int kSector = 32;
  const RowGeometry& g = r.geometry;
  return direction == Direction::backward && g.row_shape[g.row_ndim - 1] * size_of(r.dtype) % kSector != 0 &&
         2 * g.cols * 2 * kSector > device.shared_memory_block / 2;
}

}  // namespace

bool plan_image(const RowRequest& r, const DeviceInfo& device, Direction direction, RowPlan* plan) {
  const RowGeometry& g = r.geometry;
  if (!r.images || r.activated || r.dtype == DType::f64 || g.rows > kMaxDivisibleRows) return false;
  if (r.variant == NORMACT_ROW_AUTO && r.access == RowAccess::packed_lines && !has_narrow_tiles(r, device, direction)) {
    return false;
  }
  if (g.row_shape[g.row_ndim - 1] < pack_size(r)) return false;  // a pack has elements of two lines at most
  const bool forward = direction == Direction::forward;
  return plan_kept(r, device, forward, plan) || plan_twice(r, device, forward, plan);
}

}  // namespace normact
