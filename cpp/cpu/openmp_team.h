// SPDX-License-Identifier: Apache-2.0
// The threads of an OpenMP runtime that is in the process already, PyTorch's above all. Between its parallel regions
// such threads spin for milliseconds, and would share the processors with ours: two threads of our own then take as
// long as one. The library neither links nor loads such a runtime.
#pragma once

namespace normact::cpu {

/// body(context, lane) with lanes 0 .. lanes-1, each at most once, on the runtime's threads; lane 0 on the caller. A
/// lane that the runtime has no thread for is left out: others do its tasks. False, and nothing done,
/// - if there is no runtime with threads beside the caller and `own_threads` of ours,
/// - if it would use fewer (torch.set_num_threads(1)), or is at work already,
/// - on any thread but the process's first: a runtime starts a whole team of further threads for each of the others,
/// - in a forked child, where a runtime's threads are gone.
bool run_on_openmp_team(int lanes, int own_threads, void (*body)(void* context, int lane), void* context) noexcept;

}  // namespace normact::cpu
