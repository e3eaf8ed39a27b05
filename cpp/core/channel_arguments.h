// SPDX-License-Identifier: Apache-2.0
// Turns the tensors of a batch, group or instance norm's call into views: all checks that involve more than one tensor,
// and the merging of the places' dimensions. A reader declares its arguments in a table.
#pragma once

#include <cstdint>
#include <span>
#include <variant>

#include "core/channel.h"
#include "core/tensor_argument.h"

namespace normact {

/// Where an argument's view goes, by role: element; parameter, running, count; statistic; table; bits, counter (the
/// data alone). Null: the tensor is checked, and then plays no part.
using ChannelTarget = std::variant<ChannelView*, ChannelVector*, ChannelStatistic*, ChannelTable*, void**>;

/// One row of a reader's table.
struct ChannelArgument : TensorArgument {
  ChannelTarget target;
  int64_t rows = 0;  // of a table
};

/// What a reader knows of the axes of x: which axis has the channels, and how many groups they are in.
struct ChannelAxes {
  ChannelSet set;
  int32_t axis;
  int64_t groups;  // ChannelSet::group
};

/// Fills the problem's geometry, set, dtype and all views, and tells the device. The first argument is x and is
/// present. The problem may turn out empty (no samples, channels or places).
Status read_channel_arguments(std::span<const ChannelArgument> arguments, const ChannelAxes& axes, Purpose purpose,
                              ChannelProblem* problem, Device* device);

/// The same for a merge, whose first argument is the moments: (parts, 3, channels).
Status read_merge_arguments(std::span<const ChannelArgument> arguments, Purpose purpose, ChannelMerge* problem,
                            Device* device);

}  // namespace normact
