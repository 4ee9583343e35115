// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "device/kernel.h"

namespace presum::device {

// Calls function(0) to function(count - 1), or in reverse order.
template <class Function>
void each(std::uint32_t count, Order order, Function function) {
  for (std::uint32_t i = 0; i < count; ++i) {
    function(order == Order::kForward ? i : count - 1 - i);
  }
}

// Runs each launch immediately on the host and records it. Not thread-safe.
class HostGrid final : public Launcher {
 public:
  struct Launched {
    const Kernel* kernel;
    std::uint32_t blocks;
    Traffic traffic;
  };

  explicit HostGrid(Order order = Order::kForward) : order_(order) {}

  Status start(const Launch& launch, void* /*stream*/) override {
    launched_.push_back({&launch.kernel, launch.blocks, launch.traffic});
    launch.kernel.on_host(launch.argument, launch.blocks, order_);
    return {};
  }

  const std::vector<Launched>& launched() const { return launched_; }

 private:
  Order order_;
  std::vector<Launched> launched_;
};

}  // namespace presum::device
