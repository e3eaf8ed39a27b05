// SPDX-License-Identifier: Apache-2.0
#include "cuda/device.h"

#include <algorithm>
#include <array>
#include <mutex>

#include "cuda/launch.cuh"

namespace normact::cuda {
namespace {

constexpr int kMaxDevices = 64;

struct Entry {
  std::once_flag once;
  DeviceInfo info{};
  Status status;
};

__global__ void empty_kernel() {}

/// Clusters of each size that run at once with one block a multiprocessor; 0 where the size cannot be launched.
void query_clusters(DeviceInfo* info) {
  const auto* kernel = reinterpret_cast<const void*>(empty_kernel);
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, info->shared_memory_block);
  cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  for (int log = 0; log < static_cast<int>(std::size(info->active_clusters)); ++log) {
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = 1u << log;
    attribute.val.clusterDim.y = 1;
    attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(1u << log);
    config.blockDim = dim3(512);
    config.dynamicSmemBytes = static_cast<size_t>(info->shared_memory_block);
    config.attrs = &attribute;
    config.numAttrs = 1;
    int clusters = 0;
    if (cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) != cudaSuccess) clusters = 0;
    info->active_clusters[log] = clusters;
  }
  cudaGetLastError();  // a size that the device refuses is an answer, not an error
}

cudaError_t query(int device, DeviceInfo* info) {
  int major = 0, minor = 0, shared = 0;
  cudaError_t error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (error != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  if (error != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(&info->multiprocessors, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(&info->l2_bytes, cudaDevAttrL2CacheSize, device);
  if (error != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (error != cudaSuccess) return error;
  info->compute_capability = 10 * major + minor;
  // Kernels do what they were compiled for: those for an older architecture run here, but without what is new since.
  cudaFuncAttributes attributes = {};
  error = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(empty_kernel));
  if (error != cudaSuccess) return error;
  if (attributes.ptxVersion > 0) info->compute_capability = std::min(info->compute_capability, attributes.ptxVersion);
  info->shared_memory_block = shared - kStaticSharedReserve;
  if (info->compute_capability >= 90) query_clusters(info);
  return cudaSuccess;
}

}  // namespace

Status device_info(int device, const DeviceInfo** info) {
  static std::array<Entry, kMaxDevices> entries;
  if (device < 0 || device >= kMaxDevices) {
    return {NORMACT_INVALID_ARGUMENT,
            "device_id is " + std::to_string(device) + ", expected 0.." + std::to_string(kMaxDevices - 1)};
  }
  Entry& entry = entries[static_cast<size_t>(device)];
  std::call_once(entry.once, [&] {
    DeviceGuard guard;  // what kernels can do is asked of the current device
    const auto ask = [&]() -> Status {
      NORMACT_TRY(guard.enter(device));
      return check(query(device, &entry.info), "asking for the device's properties");
    };
    static_cast<void>(entry.status = ask());
  });
  NORMACT_TRY(entry.status);
  *info = &entry.info;
  return {};
}

Status DeviceGuard::enter(int device) {
  int current = -1;
  NORMACT_TRY(check(cudaGetDevice(&current), "cudaGetDevice"));
  if (current == device) return {};
  NORMACT_TRY(check(cudaSetDevice(device), "cudaSetDevice"));
  previous_ = current;
  return {};
}

DeviceGuard::~DeviceGuard() {
  if (previous_ >= 0) cudaSetDevice(previous_);
}

#define NORMACT_TEXT_OF(number) #number
#define NORMACT_TEXT(number) NORMACT_TEXT_OF(number)
const char* toolkit_version() { return NORMACT_TEXT(__CUDACC_VER_MAJOR__) "." NORMACT_TEXT(__CUDACC_VER_MINOR__); }
#undef NORMACT_TEXT
#undef NORMACT_TEXT_OF

const char* architectures() { return NORMACT_CUDA_ARCHITECTURES; }

}  // namespace normact::cuda
