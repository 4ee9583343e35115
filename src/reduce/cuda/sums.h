// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/kernel.h"
#include "presum/dtype.h"
#include "presum/reduce.h"
#include "presum/status.h"

// presum::reduce::exact over buffers in the memory of a CUDA device: one launch, and the
// bits of the host, whatever the order of threads. Arguments and errors as there, but:
// buffers are aligned to an element and are device memory, work is queued on `stream` (a CUstream)
// of the current device, and nothing waits. No memory is allocated.
namespace presum::reduce::cuda {

inline constexpr std::size_t kNearLeaves = 192;

// Where launches go.
struct Queue {
  device::Launcher& launcher;
  void* stream;
};

// Device addresses of leaves. From kNearLeaves + 1 on, `uploaded` is the list's own copy on the
// device.
struct DeviceLeaves {
  Leaves addresses;
  const void* const* uploaded = nullptr;
};

Status exact(const Queue& queue, const DeviceLeaves& leaves, Dtype dtype, std::size_t count,
             std::uint32_t divisor, void* out);

}  // namespace presum::reduce::cuda
