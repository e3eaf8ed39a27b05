// SPDX-License-Identifier: Apache-2.0
// Group and instance norm of sets of few elements (the nodes of a graph, the points of a cloud): a set by itself costs
// more than its elements. Such sets are rows of few columns (row_tiles.h), whose parameters change from row to row.
#pragma once

#include "core/channel.h"
#include "core/status.h"

namespace normact::cpu {

/// Whether the problem is one of these. It does not depend on how many samples there are.
bool has_small_sets(const ChannelForward& problem);
bool has_small_sets(const ChannelBackward& problem);

Status small_sets_forward(const ChannelForward& problem);
Status small_sets_backward(const ChannelBackward& problem);

}  // namespace normact::cpu
