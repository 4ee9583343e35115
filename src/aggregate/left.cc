// SPDX-License-Identifier: Apache-2.0
#include "aggregate/left.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "base/try.h"
#include "packet/packet.h"
#include "presum/run_log.h"

namespace presum::aggregate {
namespace {

constexpr std::uint64_t kStepsBack = 4000;
constexpr std::size_t kBytes = std::size_t{1} << 26;  // of moments, of all models

using Key = std::pair<std::uint32_t, std::uint32_t>;

Key key_of(const ModelKey& model) { return {model.module, model.shard}; }

std::size_t size_of(const MomentRecord& moment) {
  return sizeof(MomentRecord) +
         moment.groups.size() * (sizeof(MomentGroup) + packet::kLayerSketch * sizeof(float));
}

// Whether the segment itself went on from something.
bool went_on(const diagnose::Left& left, std::uint32_t segment) {
  const auto begun = left.begun.find(segment);
  return begun == left.begun.end() || !(begun->second == 0);
}

// Of the pass that was under way where something was saved last.
Status read_draws(const RunLog& log, diagnose::Left& left) {
  const MomentRecord& last = left.saved.back();
  PRESUM_ASSIGN(auto steps, log.cursor(last.model, last.step - std::min(last.step, kStepsBack)));
  while (true) {
    PRESUM_ASSIGN(const StepRecord* step, steps.next());
    if (step == nullptr || step->step > last.step) break;  // at `last` the next pass may begin
    left.draws.see(*step);
  }
  // Its first pass may have been begun by the segment before.
  if (left.draws.is_first() && last.model.segment > 1 && went_on(left, last.model.segment)) {
    left.draws.forget();
  }
  return {};
}

}  // namespace

Result<LeftModels> read_left(const std::filesystem::path& run) {
  LeftModels out;
  auto log = RunLog::open(run);
  if (!log && log.error().code == ErrorCode::kNotFound) return out;
  if (!log) return log.error();
  PRESUM_ASSIGN(auto moments, log->moments());
  std::ranges::stable_sort(moments, std::greater(), [](const MomentRecord& one) {
    return std::pair(one.model.segment, one.step);
  });
  std::size_t bytes = 0;
  for (MomentRecord& moment : moments) {  // the last ones, if not all
    diagnose::Left& left = out[key_of(moment.model)];
    if (moment.kind == Moment::Kind::kBegun)
      left.begun[moment.model.segment] = moment.optimizer_steps;
    bytes += size_of(moment);
    if (moment.kind == Moment::Kind::kSaved && bytes <= kBytes) {
      left.saved.push_back(std::move(moment));
    }
  }
  PRESUM_ASSIGN(const auto modules, log->modules());
  for (const ModuleInfo& module : modules) {
    const auto left = out.find(key_of(module.model));
    if (left != out.end()) left->second.workers = module.workers_expected;
  }
  std::erase_if(out, [](const auto& entry) { return entry.second.saved.empty(); });
  for (auto& [key, left] : out) {
    std::ranges::reverse(left.saved);
    PRESUM_TRY(read_draws(*log, left));
  }
  return out;
}

}  // namespace presum::aggregate
