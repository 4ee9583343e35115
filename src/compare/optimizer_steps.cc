// SPDX-License-Identifier: Apache-2.0
#include "compare/optimizer_steps.h"

namespace presum::compare {
namespace {

std::map<std::uint32_t, std::int64_t> ahead_of(const StepPair& pair) {
  std::map<std::uint32_t, std::int64_t> out;
  for (const auto& [a, b] : pair.workers) {
    if (a->optimizer_step == 0 || b->optimizer_step == 0) continue;  // no optimiser is known
    const std::uint64_t lag_a = pair.a.step - a->optimizer_step;
    const std::uint64_t lag_b = pair.b.step - b->optimizer_step;
    out[a->rank] = static_cast<std::int64_t>(lag_b - lag_a);
  }
  return out;
}

}  // namespace

void OptimizerSteps::add(const StepPair& pair, const Segments& segments) {
  auto ahead = ahead_of(pair);
  if (segments_ != segments) ahead_.clear();
  segments_ = segments;
  for (const auto& [rank, now] : ahead) {
    const auto before = ahead_.find(rank);
    if (before == ahead_.end() || before->second == now) continue;
    if (first_ && *first_ != pair.step) continue;
    first_ = pair.step;
    (now > before->second ? fewer_in_b_ : fewer_in_a_).push_back(rank);
  }
  ahead_ = std::move(ahead);
}

void OptimizerSteps::remark(ModelComparison& model) const {
  if (!fewer_in_a_.empty())
    model.remarks.emplace_back(FewerUpdates{Side::kA, *first_, fewer_in_a_});
  if (!fewer_in_b_.empty())
    model.remarks.emplace_back(FewerUpdates{Side::kB, *first_, fewer_in_b_});
}

}  // namespace presum::compare
