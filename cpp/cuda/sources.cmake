# SPDX-License-Identifier: Apache-2.0
#
# The CUDA back end's sources; paths are relative to the top level, which includes this file.
set(NORMACT_CUDA_SOURCES
    cpp/cuda/device.cpp
    cpp/cuda/launch_row_norm_forward.cu
    cpp/cuda/launch_row_norm_backward.cu)
