// SPDX-License-Identifier: Apache-2.0
// What is asked of a device once and remembered, and the guard that makes it current for a call.
#pragma once

#include "core/plan.h"
#include "core/status.h"

namespace normact::cuda {

/// The facts that plans need; read from the driver at the first use of the device, then a pointer lookup.
Status device_info(int device, const DeviceInfo** info);

/// Makes a device current and restores the previous one at the end of its scope.
class DeviceGuard {
 public:
  DeviceGuard() = default;
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  ~DeviceGuard();
  Status enter(int device);

 private:
  int previous_ = -1;  // -1: nothing to restore
};

}  // namespace normact::cuda
