// SPDX-License-Identifier: Apache-2.0
// Launching a kernel: attributes set once a kernel and device, cluster and programmatic launches, errors as Status.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <string>
#include <type_traits>

#include "core/plan.h"
#include "cuda/backend.h"
#include "cuda/device.h"

namespace normact::cuda {

/// Success, or CUDA_ERROR with a sentence that names the call.
inline Status check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return {};
  cudaGetLastError();  // a launch error that is not sticky must not surface in the caller's next call
  return {NORMACT_CUDA_ERROR,
          std::string(call) + " failed: " + cudaGetErrorName(error) + ", " + cudaGetErrorString(error)};
}

/// A template argument that is passed along like a value.
template <int kValue>
using Constant = std::integral_constant<int, kValue>;

constexpr int kPortableCluster = 8;  // blocks of a cluster, of which a kernel need not say that it may have more

/// How a kernel is to be launched.
struct LaunchShape {
  dim3 grid;
  dim3 block;
  int shared_bytes = 0;
  int cluster = 1;
  bool together = false;        // all blocks run at the same time, or none
  bool after_previous = false;  // may start while the previous kernel of the stream finishes (sm_90 and newer)

  /// The same for a kernel that calls start_after_previous().
  LaunchShape chained() const {
    LaunchShape shape = *this;
    shape.after_previous = true;
    return shape;
  }
};

/// Lets kKernel, which has little shared memory of its own, use all there is, and large clusters; done once a device.
template <auto kKernel>
Status prepare(const Launch& launch) {
  static std::atomic<uint64_t> prepared{0};
  const uint64_t bit = uint64_t{1} << (launch.device % 64);
  if (prepared.load(std::memory_order_acquire) & bit) return {};
  const auto* kernel = reinterpret_cast<const void*>(kKernel);
  const DeviceInfo* device = nullptr;
  NORMACT_TRY(device_info(launch.device, &device));
  NORMACT_TRY(
      check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, device->shared_memory_block),
            "cudaFuncSetAttribute(shared memory)"));
  if (device->compute_capability >= 90) {
    NORMACT_TRY(check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
                      "cudaFuncSetAttribute(cluster)"));
  }
  prepared.fetch_or(bit, std::memory_order_release);
  return {};
}

template <auto kKernel, class... Arguments>
Status launch_kernel(const char* name, const LaunchShape& shape, const Launch& launch, Arguments... arguments) {
  if (shape.shared_bytes > 0 || shape.cluster > kPortableCluster) NORMACT_TRY(prepare<kKernel>(launch));
  cudaLaunchAttribute attributes[3];
  unsigned count = 0;
  if (shape.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count].val.clusterDim.x = static_cast<unsigned>(shape.cluster);
    attributes[count].val.clusterDim.y = 1;
    attributes[count].val.clusterDim.z = 1;
    ++count;
  }
  if (shape.together) {
    attributes[count].id = cudaLaunchAttributeCooperative;
    attributes[count].val.cooperative = 1;
    ++count;
  }
  if (shape.after_previous) {
    const DeviceInfo* device = nullptr;
    NORMACT_TRY(device_info(launch.device, &device));
    if (device->compute_capability >= 90) {
      attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
      attributes[count].val.programmaticStreamSerializationAllowed = 1;
      ++count;
    }
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
  config.stream = static_cast<cudaStream_t>(launch.stream);
  config.attrs = attributes;
  config.numAttrs = count;
  return check(cudaLaunchKernelEx(&config, kKernel, arguments...), name);
}

}  // namespace normact::cuda
