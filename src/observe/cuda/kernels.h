// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/kernel.h"
#include "presum/dtype.h"

// The kernels of kernels.cu.
namespace presum::observe::cuda {

// Its argument is a Batch; `in_shared` is that one's in_shared().
const device::Kernel& pass_kernel(Dtype dtype, bool in_shared);
// Its argument is a Rows.
const device::Kernel& rows_kernel();
// Its argument is a Step.
const device::Kernel& finish_kernel();

}  // namespace presum::observe::cuda
