// SPDX-License-Identifier: Apache-2.0
// What the launches of batch, group and instance norm have in common: their shapes, their workspace, and the choice of
// an activation.
#pragma once

#include <initializer_list>

#include "cuda/channel_chunks.cuh"
#include "cuda/channel_finish.cuh"
#include "cuda/channel_launchers.h"
#include "cuda/launch.cuh"

namespace normact::cuda {

inline LaunchShape channel_shape(int64_t blocks) {
  return {dim3(static_cast<unsigned>(blocks)), dim3(kChannelThreads)};
}

/// What a launch has in the caller's workspace.
struct ChannelWorkspace {
  char* data;
  const ChannelPlan& plan;

  ChannelWorkspace(const Launch& launch, const ChannelPlan& of)
      : data(static_cast<char*>(launch.workspace.data)), plan(of) {}
  void* entries() const { return data; }
  void* finals() const { return data + plan.finals; }
  void* counters() const { return data + plan.counters; }
  void* chunk_entries() const { return data + plan.chunk_entries; }

  Status clear_counters(const Launch& launch) const {
    if (plan.counter_bytes == 0) return {};
    const auto count = static_cast<unsigned>(plan.counter_bytes / sizeof(unsigned));
    return launch_kernel<channel_counters_kernel>("channel counters kernel launch",
                                                  channel_shape((count + kChannelThreads - 1) / kChannelThreads),
                                                  launch, static_cast<unsigned*>(counters()), count);
  }
};

/// Blocks that wait for blocks that come later run together with these.
inline LaunchShape channel_shape(const ChannelPlan& plan) {
  LaunchShape shape = channel_shape(plan.blocks);
  shape.shared_bytes = plan.scratch_bytes + plan.parameter_bytes + plan.bits_bytes + plan.kept_bytes;
  shape.together = plan.waits_together();
  return shape;
}

/// A warp a channel, after the kernel before it.
inline LaunchShape finish_shape(int64_t channels) {
  LaunchShape shape = channel_shape(finish_blocks(channels));
  shape.after_previous = true;
  return shape;
}

/// Few entries in the place of those of many batches, of which each column's are the first of `step`.
template <class A, class Entry>
Status launch_chunks(const Entry* entries, int64_t columns, int64_t step, const ChannelPlan& plan,
                     const Launch& launch) {
  const ChannelChunks<Entry> chunks{entries, plan.batches, columns, step, plan.batches_a_chunk};
  return launch_kernel<channel_chunks_kernel<A, Entry>>(
      "chunks kernel launch", channel_shape(plan.chunks * chunks.blocks).chained(), launch, chunks,
      static_cast<NumberPair<A>*>(ChannelWorkspace(launch, plan).chunk_entries()));
}

/// The shape of a second pass with the blocks that add up gradients.
template <class T>
LaunchShape with_gradients(LaunchShape shape, const ChannelGradients<T>& gradients) {
  shape.grid.x += gradients.blocks;
  return shape;
}

/// The problem as it is planned: by columns, or rows of one place a sample, which are as far apart as samples.
template <class Problem>
void set_geometry(const ChannelPlan& plan, Problem* p, std::initializer_list<ChannelView*> views) {
  if (plan.access == ChannelAccess::columns) p->geometry = columns_of(p->geometry);
  if (!goes_by_rows(plan.access) || p->geometry.places > 1 || p->set != ChannelSet::channel) return;
  for (ChannelView* view : views) {
    view->channel_stride = 1;
    view->place_stride[0] = view->sample_stride;
  }
}

/// run(act), which is a value, with the instance for this activation.
template <class T, class Run>
Status with_act(normact_activation_kind kind, Run run) {
  if (kind == NORMACT_ACTIVATION_IDENTITY) return run(Identity<Math<T>>{});
  if (kind == NORMACT_ACTIVATION_RELU) return run(Relu<Math<T>>{});
  if (kind == NORMACT_ACTIVATION_SILU) return run(Silu<Math<T>>{});
  return run(OtherActivation{});
}

}  // namespace normact::cuda
