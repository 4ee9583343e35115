// SPDX-License-Identifier: Apache-2.0
#include "aggregate/left.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <tuple>
#include <utility>
#include <vector>

#include "base/try.h"
#include "packet/packet.h"
#include "presum/run_log.h"

namespace presum::aggregate {
namespace {

constexpr std::uint64_t kStepsBack = 4000;
constexpr std::size_t kRates = 4;
constexpr std::size_t kBytes = std::size_t{1} << 26;  // of moments, of all models

using Key = std::pair<std::uint32_t, std::uint32_t>;

Key key_of(const ModelKey& model) { return {model.module, model.shard}; }

std::size_t size_of(const MomentRecord& moment) {
  return sizeof(MomentRecord) +
         moment.groups.size() * (sizeof(MomentGroup) + packet::kLayerSketch * sizeof(float));
}

// Of what all workers of a model tell at once.
auto place_of(const MomentRecord& moment) {
  return std::tuple(moment.model.segment, moment.step, moment.number, moment.kind,
                    key_of(moment.model));
}

// Whether the segment itself went on from something.
bool went_on(const diagnose::Left& left, std::uint32_t segment) {
  const auto begun = left.begun.find(segment);
  return begun == left.begun.end() || !(begun->second == 0);
}

std::uint64_t pass_of(const StepRecord& step) {
  if (step.workers.empty()) return 0;
  const auto* pass = step.workers.front().fingerprint_of(FingerprintKind::kDataPass);
  return pass == nullptr ? 0 : *pass;
}

void keep_rate(const StepRecord& step, std::vector<double>& rates) {
  if (step.workers.empty()) return;
  const auto* bits = step.workers.front().fingerprint_of(FingerprintKind::kLearningRate);
  if (bits == nullptr) return;
  rates.push_back(std::bit_cast<double>(*bits));
  if (rates.size() > kRates) rates.erase(rates.begin());
}

// Of the pass that was under way where something was saved last.
Status read_draws(const RunLog& log, diagnose::Left& left) {
  const MomentRecord& last = left.saved.back();
  PRESUM_ASSIGN(auto steps, log.cursor(last.model, last.step - std::min(last.step, kStepsBack)));
  while (true) {
    PRESUM_ASSIGN(const StepRecord* step, steps.next());
    if (step == nullptr || step->step > last.step) break;
    if (step->step == last.step && pass_of(*step) <= left.draws.pass()) break;  // not the next one
    left.draws.see(*step);
    if (step->step < last.step) keep_rate(*step, left.rates);
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
  PRESUM_ASSIGN(const auto modules, log->modules());
  for (const ModuleInfo& module : modules) {
    out[key_of(module.model)].workers = module.workers_expected;
  }
  PRESUM_ASSIGN(auto moments, log->moments());
  std::ranges::stable_sort(moments, std::greater(), place_of);
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < moments.size();) {  // the last ones, if not all
    std::size_t end = i;
    std::size_t more = 0;
    while (end < moments.size() && place_of(moments[end]) == place_of(moments[i])) {
      more += size_of(moments[end++]);
    }
    const bool saved = moments[i].kind == Moment::Kind::kSaved;
    if (saved) bytes += more;
    for (; i < end; ++i) {
      diagnose::Left& left = out[key_of(moments[i].model)];
      if (!saved) left.begun[moments[i].model.segment] = moments[i].optimizer_steps;
      if (saved && bytes <= kBytes) left.saved.push_back(std::move(moments[i]));
      left.left_out = left.left_out || (saved && bytes > kBytes);
    }
  }
  for (auto& [key, left] : out) {
    std::ranges::reverse(left.saved);
    if (!left.saved.empty()) PRESUM_TRY(read_draws(*log, left));
  }
  return out;
}

}  // namespace presum::aggregate
