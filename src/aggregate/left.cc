// SPDX-License-Identifier: Apache-2.0
#include "aggregate/left.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/try.h"
#include "presum/run_log.h"

namespace presum::aggregate {
namespace {

constexpr std::uint64_t kStepsBack = 20000;

std::uint32_t workers_of(const diagnose::Left& left) {
  const MomentRecord& last = left.saved.back();
  return static_cast<std::uint32_t>(std::ranges::count_if(left.saved, [&](const MomentRecord& one) {
    return one.model == last.model && one.step == last.step;
  }));
}

// Of the pass that was under way where something was saved last.
Status read_draws(const RunLog& log, diagnose::Left& left) {
  const MomentRecord& last = left.saved.back();
  PRESUM_ASSIGN(auto steps, log.cursor(last.model, last.step - std::min(last.step, kStepsBack)));
  while (true) {
    PRESUM_ASSIGN(const StepRecord* step, steps.next());
    if (step == nullptr || step->step >= last.step) return {};
    left.draws.see(*step);
  }
}

}  // namespace

Result<LeftModels> read_left(const std::filesystem::path& run) {
  LeftModels out;
  auto log = RunLog::open(run);
  if (!log && log.error().code == ErrorCode::kNotFound) return out;
  if (!log) return log.error();
  PRESUM_ASSIGN(auto moments, log->moments());
  for (MomentRecord& moment : moments) {
    if (moment.kind != Moment::Kind::kSaved) continue;
    out[{moment.model.module, moment.model.shard}].saved.push_back(std::move(moment));
  }
  for (auto& [key, left] : out) {
    std::ranges::stable_sort(left.saved, {}, [](const MomentRecord& one) {
      return std::pair(one.model.segment, one.step);
    });
    left.workers = workers_of(left);
    PRESUM_TRY(read_draws(*log, left));
  }
  return out;
}

}  // namespace presum::aggregate
