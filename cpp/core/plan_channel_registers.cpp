// SPDX-License-Identifier: Apache-2.0
// Plans whose sets are so small that a few threads hold one in their registers (ChannelOrder::registers), for group and
// instance norm. A block has the sets of neighbouring groups, so that it reads what lies together, and of many samples,
// so that few entries are left of the sums of each channel.
#include "core/plan_channel_division.h"

namespace normact {
namespace {

constexpr int64_t kThreads = 2048;   // a multiprocessor: two or three rounds of what it has room for
constexpr int64_t kMostTerms = 128;  // of a thread's sums: fp32 bears some hundred

/// Accesses of a thread, at most: sets of few elements have few threads side by side, which read what lies together.
int accesses_of(int64_t elements, int width) {
  if (width > 1) return width == kRegisterElements || elements <= 16 * width ? 1 : kRegisterElements / width;
  return elements <= 4 ? 1 : elements <= 64 ? 4 : kRegisterElements;
}

}  // namespace

bool plan_registers(const ChannelRequest& r, const DeviceInfo& device, ChannelPlan* to) {
  const ChannelGeometry& g = r.geometry;
  if (r.set != ChannelSet::group || r.passes != ChannelPasses::both || !r.even || r.beside) return false;
  if (g.places > kMostRegisterThreads * kRegisterElements) return false;
  const int64_t elements = g.places * group_channels(r);
  RegisterDivision d{};
  d.width = r.set_packs ? kPackBytes / size_of(r.dtype) : 1;
  d.accesses = accesses_of(elements, d.width);
  const int64_t lanes = power_of_two_from(ceil_div(elements, d.accesses * d.width));
  if (lanes > kMostRegisterThreads) return false;
  d.lanes = static_cast<int>(lanes);
  d.place_major = r.place_major;
  const int64_t threads = std::max<int64_t>(kChannelThreads, lanes), teams = threads / lanes;
  d.tiles = ceil_div(g.groups, teams);
  d.tile = static_cast<int>(ceil_div(g.groups, d.tiles));
  d.lines = static_cast<int>(teams / d.tile);
  const int64_t samples = d.lines * (kRegisterElements / (d.accesses * d.width)), turns = ceil_div(g.samples, samples);
  const int64_t wanted = ceil_div(multiprocessors_of(r, device) * kThreads / threads, d.tiles);
  const int64_t a_part = std::min(ceil_div(turns, wanted), std::max<int64_t>(1, kMostTerms * d.lines / samples));
  d.samples_a_part = a_part * samples;
  const int64_t parts = ceil_div(g.samples, d.samples_a_part);
  if (parts * d.tiles > kMaxBlocks) return false;
  ChannelPlan& plan = *to;
  plan = {};
  plan.access = r.access;
  plan.order = ChannelOrder::registers;
  plan.registers = d;
  plan.batches = parts;  // of samples, each of which leaves an entry a channel
  plan.parts = 1;
  plan.groups = g.groups;
  plan.units = elements;
  plan.blocks = parts * d.tiles;
  plan.threads = static_cast<int>(threads);
  const int64_t pairs = r.channel_sums ? threads * d.accesses * d.width : r.averages ? threads : 0;
  plan.scratch_bytes = static_cast<int>(pairs * 2 * accumulator_bytes(r.dtype));
  if (plan.scratch_bytes > device.shared_memory_block) return false;
  const int64_t entries = r.channel_sums || r.averages ? parts * g.channels : 0;
  plan.finals = plan.counters = plan.workspace_bytes =
      static_cast<size_t>(round_up(entries * 2 * accumulator_bytes(r.dtype), 256));
  return true;
}

}  // namespace normact
