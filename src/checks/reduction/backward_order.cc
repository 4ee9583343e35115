// SPDX-License-Identifier: Apache-2.0
#include "checks/reduction/backward_order.h"

#include <algorithm>
#include <array>
#include <cstdint>

namespace presum::checks {
namespace {

// In the order of FingerprintKind::kBackwardOrder's values, from 1 on.
constexpr std::array kOrders{
    BackwardOrder{
        .name = "inside forward",
        .reduces_first = false,
        .why = "the backward pass ran inside the model's forward, where DDP does not reduce",
        .remedy =
            "Call backward() after the model's forward has returned; no_sync() does not help. "
            "Lightning with manual optimization and static_graph=True: update to 2.6, or set "
            "static_graph=False."},
    BackwardOrder{
        .name = "again after one forward",
        .reduces_first = true,
        .why = "DDP reduces only the first backward pass after a forward",
        .remedy =
            "Add the losses and call backward() once; no_sync() does not help, since the passes "
            "share a forward."},
    BackwardOrder{
        .name = "after several forwards",
        .reduces_first = true,
        .why = "DDP reduces only the first backward pass after several forwards",
        .remedy =
            "Call backward() after each forward, each pair but the last in no_sync(); or add the "
            "losses and call it once."},
    BackwardOrder{
        .name = "after autograd.grad",
        .reduces_first = false,
        .why = "torch.autograd.grad went through the model first, and with static_graph=True DDP "
               "reduces at the end of the first pass through it",
        .remedy = "Set static_graph=False; no_sync() does not help."},
};

}  // namespace

const BackwardOrder* backward_order(std::string_view name) {
  const auto* found = std::ranges::find(kOrders, name, &BackwardOrder::name);
  return found == kOrders.end() ? nullptr : found;
}

const BackwardOrder* backward_order_of(const StepContext& context, const Ranks& ranks) {
  std::uint64_t order = 0;
  for (const std::uint32_t rank : ranks) {
    const auto own = value_of(worker_of(context.record, rank), FingerprintKind::kBackwardOrder);
    if (own == 0 || own > kOrders.size() || (order != 0 && own != order)) return nullptr;
    order = own;
  }
  return order == 0 ? nullptr : &kOrders[order - 1];
}

}  // namespace presum::checks
