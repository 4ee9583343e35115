// SPDX-License-Identifier: Apache-2.0
#include "reduce/cuda/sum_threads.h"

// Compiled by NVRTC (tools/cubins.py). sums.cc lists the same kernels.
#define PRESUM_SUM_KERNEL(name, dtype)                                             \
  extern "C" __global__ void __launch_bounds__(presum::reduce::cuda::kThreads)     \
      presum_exact_##name(const __grid_constant__ presum::reduce::cuda::Sum sum) { \
    using namespace presum::reduce::cuda;                                          \
    const std::uint64_t i = std::uint64_t{blockIdx.x} * kThreads + threadIdx.x;    \
    if (i < sum.count) exact<presum::Dtype::dtype>(sum, i);                        \
  }
PRESUM_SUM_KERNEL(f32, kF32)
PRESUM_SUM_KERNEL(f64, kF64)
PRESUM_SUM_KERNEL(bf16, kBF16)
PRESUM_SUM_KERNEL(f16, kF16)
