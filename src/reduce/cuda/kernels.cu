// SPDX-License-Identifier: Apache-2.0
#include "reduce/cuda/sum_threads.h"

// Compiled by NVRTC (tools/cubins.py). The list of kernels is also that of kernels.cc.
#define PRESUM_SUM_KERNEL(name, ...)                                            \
  extern "C" __global__ void __launch_bounds__(presum::reduce::cuda::kThreads)  \
      presum_##name(const __grid_constant__ presum::reduce::cuda::Sum sum) {    \
    using namespace presum::reduce::cuda;                                       \
    using presum::Dtype;                                                        \
    const std::uint64_t i = std::uint64_t{blockIdx.x} * kThreads + threadIdx.x; \
    if (i < sum.count) __VA_ARGS__(sum, i);                                     \
  }
#include "reduce/cuda/kernel_list.h"
