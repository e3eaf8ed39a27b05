// SPDX-License-Identifier: Apache-2.0
// Every activation's value and slope, in its only place: a struct per kind, over a math policy M (math/functions.h).
//
//   Act::at(x, scalars)                  value and slope; who uses one of them pays for one
//   Act::slope_from_output(y, scalars)   the slope at the x whose value is y, where kSlopeFromOutput
//
// Slopes where there is no derivative are PyTorch's. Infinity gives the limits, NaN gives NaN, except for the slopes
// of the piecewise linear kinds, which are what their comparisons with NaN make them.
#pragma once

#include "math/activation_piecewise.h"
#include "math/activation_smooth.h"
