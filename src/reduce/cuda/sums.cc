// SPDX-License-Identifier: Apache-2.0
#include "reduce/cuda/sums.h"

#include <algorithm>

#include "base/try.h"
#include "device/host_grid.h"
#include "reduce/checks.h"
#include "reduce/cuda/sum_threads.h"

namespace presum::reduce::cuda {
namespace {

static_assert(kNear == kNearLeaves);

// The grid of kernels.cu on the host.
template <Dtype kDtype>
void run(const void* argument, std::uint32_t blocks, device::Order order) {
  const Sum& sum = *static_cast<const Sum*>(argument);
  device::each(blocks, order, [&](std::uint32_t block) {
    device::each(kThreads, order, [&](std::uint32_t thread) {
      const std::uint64_t i = std::uint64_t{block} * kThreads + thread;
      if (i < sum.count) exact<kDtype>(sum, i);
    });
  });
}

constexpr device::Kernel kKernels[] = {
    // indexed by Dtype
    {"reduce", "presum_exact_f32", kThreads, run<Dtype::kF32>},
    {"reduce", "presum_exact_f64", kThreads, run<Dtype::kF64>},
    {"reduce", "presum_exact_bf16", kThreads, run<Dtype::kBF16>},
    {"reduce", "presum_exact_f16", kThreads, run<Dtype::kF16>},
};

Sum sum_of(const DeviceLeaves& leaves, std::size_t count, std::uint32_t divisor, void* out) {
  Sum sum{};
  sum.leaves.count = static_cast<std::uint32_t>(leaves.addresses.size());
  if (leaves.addresses.size() <= kNear) {
    std::copy(leaves.addresses.begin(), leaves.addresses.end(), sum.leaves.near);
  } else {
    sum.leaves.far = leaves.uploaded;
  }
  sum.count = count;
  sum.divisor = divisor;
  sum.out = out;
  return sum;
}

}  // namespace

Status exact(const Queue& queue, const DeviceLeaves& leaves, Dtype dtype, std::size_t count,
             std::uint32_t divisor, void* out) {
  PRESUM_TRY(check(leaves.addresses.size(), kLeavesMax, divisor, dtype));
  if (leaves.addresses.size() > kNear && leaves.uploaded == nullptr) {
    return refuse("leaves are too many for a launch's argument; upload their list");
  }
  if (count == 0) return {};
  const std::uint64_t blocks = (count + kThreads - 1) / kThreads;
  if (blocks > 0x7FFFFFFF) return refuse("too many elements for one launch");
  const Sum sum = sum_of(leaves, count, divisor, out);
  const std::uint64_t bytes = count * element_bytes(dtype);
  return queue.launcher.start({kKernels[static_cast<std::size_t>(dtype)],
                               &sum,
                               static_cast<std::uint32_t>(blocks),
                               0,
                               {leaves.addresses.size() * bytes, bytes}},
                              queue.stream);
}

}  // namespace presum::reduce::cuda
