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

/// A backward that reads images twice. How an image is divided does not depend on how many there are; ranges of images
/// are as many as can be at work at the same time.
bool plan_twice(const RowRequest& r, const DeviceInfo& device, RowPlan* plan) {
  constexpr int kMostTurns = 256;                   // of a thread: fp32 bears sums of some hundred elements
  constexpr int64_t kBlockBytes = 64 << 10;         // of x, that a block adds up, about
  constexpr int64_t kBlocks = 3, kMostImages = 64;  // that write, of a multiprocessor; of a range
  const RowGeometry& g = r.geometry;
  const int64_t bytes = g.cols * g.row_shape[g.row_ndim - 1] * size_of(r.dtype);  // of x, in an image
  if (bytes > INT32_MAX) return false;
  const auto cols = static_cast<int>(g.cols), places = static_cast<int>(g.row_shape[g.row_ndim - 1]);
  if (places / std::gcd(places, pack_size(r)) > image_threads(false, false)) return false;
  int log = 0;
  while (log < 3 && bytes > kBlockBytes << log && device.active_clusters[log + 1] > 0) ++log;
  const ImageLayout layout = image_sums_layout(cols, places, r.dtype, 1 << log);
  const ImageLayout apply = image_apply_layout(cols, places, r.dtype, image_slices(cols, places, r.dtype));
  if (layout.bands_a_block > kMostTurns * layout.lines) return false;
  if (layout.lines > kMostLines || std::max(layout.shared_bytes, apply.shared_bytes) > device.shared_memory_block) {
    return false;
  }
  const int64_t images = g.rows / places, slices = ceil_div(apply.bands, apply.bands_a_block);
  const int64_t wanted =
      std::max({int64_t{1}, kBlocks * device.multiprocessors / slices, ceil_div(images, kMostImages)});
  plan->cluster = 1 << log;
  plan->threads = layout.threads;
  plan->threads_per_row = layout.lines;
  plan->rows_per_block = places;
  plan->shared_bytes = layout.shared_bytes;
  plan->slices = slices;
  plan->parts = ceil_div(images, ceil_div(images, std::min(images, wanted)));
  plan->blocks = images * plan->cluster;
  return plan->parts * slices <= kMaxBlocks;
}

}  // namespace

bool plan_image(const RowRequest& r, const DeviceInfo& device, Direction direction, RowPlan* plan) {
  const RowGeometry& g = r.geometry;
  if (!r.images || r.activated || r.dtype == DType::f64 || g.rows > kMaxDivisibleRows) return false;
  // Lines of whole packs are tiles' business, unless asked for.
  if (r.variant == NORMACT_ROW_AUTO && r.access == RowAccess::packed_lines) return false;
  const bool forward = direction == Direction::forward;
  const int64_t places = g.row_shape[g.row_ndim - 1], kept = (forward ? 1 : 2) * g.cols * places * size_of(r.dtype);
  const int64_t band_packs = places / std::gcd<int64_t>(places, pack_size(r));
  // A pack has elements of two lines at most.
  if (places < pack_size(r) || band_packs > image_threads(forward, false)) return false;
  // Of clusters of four and more, not as many run at once as there are multiprocessors for: clusters of two whose
  // blocks have one for themselves come before them. Backward of 64 images in bf16 (H200, us): 64x1536x7x7 by two
  // alone 22.9, by four 31.7; 64x768x14x14, too large for two, by four alone 65.8, by eight 54.1. Backward of larger
  // ones would leave eight blocks alone with each, turn after turn: 256x1024x14x14 365, read twice 225.
  struct Division {
    int log;  // of the blocks of a cluster
    bool alone;
  };
  const bool clusters = device.active_clusters[0] > 0;
  for (const Division of : {Division{0, false}, {1, false}, {1, true}, {2, false}, {3, false}, {2, true}, {3, true}}) {
    const Division by = clusters ? of : Division{0, of.alone};
    if (!forward && clusters && by.alone && by.log == 3) return plan_twice(r, device, plan);
    const int cluster = 1 << by.log;
    const int64_t room = by.alone ? device.shared_memory_block : (device.shared_memory_block - 1024) / 2;
    if ((clusters && device.active_clusters[by.log] < 1) || kept > room << by.log) continue;
    if (!by.alone && kept > kPartBytes << by.log) continue;
    const ImageLayout layout = image_layout(static_cast<int>(g.cols), static_cast<int>(places), r.dtype, cluster,
                                            image_threads(forward, by.alone), forward);
    // Every block has a part; a thread of the backward has the parameter gradients of one column.
    if (ceil_div(layout.bands, layout.bands_a_block) != cluster || layout.shared_bytes > room) continue;
    if (layout.lines > kMostLines) continue;
    if (!forward && layout.cols_a_block() > layout.threads) continue;
    plan->cluster = cluster;
    plan->threads = layout.threads;
    plan->threads_per_row = layout.lines;
    plan->rows_per_block = static_cast<int>(places);
    plan->packs_per_block = layout.bands_a_block * layout.band_packs;
    plan->shared_bytes = layout.shared_bytes;
    // All have the same number of images, as far as that goes.
    const int64_t images = g.rows / places, blocks = persistent_blocks(r, device) * (by.alone ? 1 : 2);
    plan->parts = ceil_div(images, ceil_div(images, std::max<int64_t>(1, blocks / cluster)));
    plan->blocks = plan->parts * cluster;
    return true;
  }
  return false;
}

}  // namespace normact
