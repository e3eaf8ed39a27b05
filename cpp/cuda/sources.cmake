# SPDX-License-Identifier: Apache-2.0
#
# The CUDA back end's sources; paths are relative to the top level, which includes this file.
set(NORMACT_CUDA_SOURCES cpp/cuda/backend.cpp cpp/cuda/channel.cpp cpp/cuda/device.cu
    cpp/cuda/layout_copy.cu)
foreach(dtype f64 f32 f16 bf16)
  list(APPEND NORMACT_CUDA_SOURCES cpp/cuda/row_forward_${dtype}.cu cpp/cuda/row_backward_${dtype}.cu
       cpp/cuda/pointwise_${dtype}.cu cpp/cuda/channel_${dtype}.cu)
endforeach()
foreach(dtype f16 bf16)
  list(APPEND NORMACT_CUDA_SOURCES cpp/cuda/row_forward_mixed_${dtype}.cu cpp/cuda/row_backward_mixed_${dtype}.cu)
endforeach()
