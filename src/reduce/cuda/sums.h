// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "device/kernel.h"
#include "presum/dtype.h"
#include "presum/reduce.h"
#include "presum/status.h"

// The sums of presum/reduce.h over buffers in the memory of a CUDA device: one launch each, and the
// bits of the host, whatever the order of threads. Arguments and errors as there, but for these:
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

// Integers have 32 or 64 bits.
Status exponents(const Queue& queue, const DeviceLeaves& leaves, Dtype dtype, std::size_t count,
                 std::uint8_t* exponents);
Status encode(const Queue& queue, const DeviceLeaves& leaves, Dtype dtype, std::size_t count,
              const std::uint8_t* exponents, std::size_t total_leaves, int bits, void* out);
Status decode(const Queue& queue, const void* sums, const std::uint8_t* exponents,
              std::size_t count, std::size_t total_leaves, std::uint32_t divisor, int bits,
              Dtype dtype, void* out);
Status fixed(const Queue& queue, const DeviceLeaves& leaves, Dtype dtype, std::size_t count,
             std::uint32_t divisor, int bits, void* out);

Status binned_add(const Queue& queue, const Binned& sum, std::size_t count,
                  const DeviceLeaves& leaves, Dtype dtype);
Status binned_raise(const Queue& queue, const Binned& sum, std::size_t count,
                    const std::uint8_t* top);
Status binned_merge(const Queue& queue, const Binned& into, const Binned& from, std::size_t count);
Status binned_decode(const Queue& queue, const Binned& sum, std::size_t count,
                     std::uint32_t divisor, Dtype dtype, void* out);

// All kernels, as src/reduce/cuda/kernels.cu has them.
std::span<const device::Kernel> kernels();

}  // namespace presum::reduce::cuda
