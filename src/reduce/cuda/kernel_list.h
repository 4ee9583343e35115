// SPDX-License-Identifier: Apache-2.0
//
// Every kernel of kernels.cu, as PRESUM_SUM_KERNEL(name, function of sum_threads.h).
// NOLINTBEGIN(llvm-header-guard): included twice, on purpose
PRESUM_SUM_KERNEL(exact_f32, exact<Dtype::kF32>)
PRESUM_SUM_KERNEL(exact_f64, exact<Dtype::kF64>)
PRESUM_SUM_KERNEL(exact_bf16, exact<Dtype::kBF16>)
PRESUM_SUM_KERNEL(exact_f16, exact<Dtype::kF16>)
// NOLINTEND(llvm-header-guard)
