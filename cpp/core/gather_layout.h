// SPDX-License-Identifier: Apache-2.0
// How gathered rows (cuda/row_gather.cuh) are divided: what planner and kernels must agree on.
#pragma once

namespace normact {

/// Units (packs, or single elements) of a row that a thread holds at most, and threads that a block, and so a
/// multiprocessor, has registers for. kept: backward, whether a row stays in registers over its sums; else it is read
/// again where it came in.
struct GatherLayout {
  int units;
  int threads;
  bool kept;
};

constexpr int kGatherFewUnits = 8;        // of a thread, while a row has not all lanes of a warp
constexpr int kGatherForwardBlock = 128;  // threads of a block, forward, whose rows have lanes of a warp
constexpr int kGatherGroups = 15;         // rows, backward, of several warps each: barriers of a block but its own
constexpr int kGatherStages = 2;          // rows of packs that are under way, backward

constexpr GatherLayout gather_forward_layout(int unit_size) {
  return unit_size == 1 ? GatherLayout{16, 640, true} : GatherLayout{4, 1024, true};
}

/// element_size: in bytes. wide: for rows that are too long otherwise; no units: there is no such kernel.
constexpr GatherLayout gather_backward_layout(int element_size, int unit_size, bool activated, bool wide) {
  if (unit_size == 1) return wide ? GatherLayout{16, 512, true} : GatherLayout{8, 768, true};
  if (!wide) return {16 / unit_size, 512, true};
  return element_size == 2 && !activated ? GatherLayout{4, 512, false} : GatherLayout{0, 0, false};
}

}  // namespace normact
