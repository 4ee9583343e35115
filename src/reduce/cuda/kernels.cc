// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "device/host_grid.h"
#include "device/kernel.h"
#include "reduce/cuda/sum_threads.h"
#include "reduce/cuda/sums.h"

namespace presum::reduce::cuda {
namespace {

using device::each;
using device::Kernel;
using device::Order;

template <void (*kThread)(const Sum&, std::uint64_t)>
void run(const void* argument, std::uint32_t blocks, Order order) {
  const Sum& sum = *static_cast<const Sum*>(argument);
  each(blocks, order, [&](std::uint32_t block) {
    each(kThreads, order, [&](std::uint32_t thread) {
      const std::uint64_t i = std::uint64_t{block} * kThreads + thread;
      if (i < sum.count) kThread(sum, i);
    });
  });
}

#define PRESUM_SUM_KERNEL(name, ...) {"reduce", "presum_" #name, kThreads, run<__VA_ARGS__>},
constexpr Kernel kKernels[] = {
#include "reduce/cuda/kernel_list.h"
};
#undef PRESUM_SUM_KERNEL

}  // namespace

std::span<const Kernel> kernels() { return kKernels; }

}  // namespace presum::reduce::cuda
