// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/kernel.h"
#include "presum/dtype.h"
#include "presum/reduce.h"
#include "presum/status.h"

// presum::reduce::exact over buffers in CUDA device memory: one launch, with the same bits as on
// the host, for any order of threads. Arguments and errors are those of presum::reduce::exact, with
// these differences: buffers are device memory, aligned to an element; the work is queued on
// `stream` (a CUstream) of the current device; nothing waits. Allocates no memory.
namespace presum::reduce::cuda {

inline constexpr std::size_t kNearLeaves = 192;

// The launcher and stream for launches.
struct Queue {
  device::Launcher& launcher;
  void* stream;
};

// Device addresses of leaves. For more than kNearLeaves leaves, `uploaded` is a copy of the list on
// the device.
struct DeviceLeaves {
  Leaves addresses;
  const void* const* uploaded = nullptr;
};

Status exact(const Queue& queue, const DeviceLeaves& leaves, Dtype dtype, std::size_t count,
             std::uint32_t divisor, void* out);

}  // namespace presum::reduce::cuda
