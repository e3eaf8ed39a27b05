// SPDX-License-Identifier: Apache-2.0
// Requests of row norms, and devices to plan them for.
#pragma once

#include "check.h"
#include "core/plan.h"

namespace normact {

constexpr int kShared = 227 * 1024 - 4096;
constexpr DeviceInfo kHopper{90, 132, kShared, {132, 66, 30, 14, 7}, 60 << 20};
constexpr DeviceInfo kAmpere{80, 108, 163 * 1024 - 4096, {}, 40 << 20};
constexpr DeviceInfo kTuring{75, 40, 64 * 1024 - 4096, {}, 4 << 20};

inline RowRequest request(int64_t rows, int64_t cols, DType dtype, RowAccess access = RowAccess::packs) {
  RowRequest r{};
  r.geometry.rows = rows;
  r.geometry.cols = cols;
  r.geometry.row_ndim = r.geometry.col_ndim = 1;
  r.geometry.row_shape[0] = rows;
  r.geometry.col_shape[0] = cols;
  r.dtype = dtype;
  r.access = access;
  r.parameter_gradients = true;
  return r;
}

inline RowPlan forward(const RowRequest& r, const DeviceInfo& device = kHopper) {
  RowPlan plan{};
  CHECK(plan_row_forward(r, device, &plan).ok());
  return plan;
}

inline RowPlan backward(const RowRequest& r, const DeviceInfo& device = kHopper) {
  RowPlan plan{};
  CHECK(plan_row_backward(r, device, &plan).ok());
  return plan;
}

}  // namespace normact
