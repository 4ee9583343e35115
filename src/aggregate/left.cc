// SPDX-License-Identifier: Apache-2.0
#include "aggregate/left.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "base/try.h"
#include "judge/continuations.h"
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
bool went_on(const checks::Left& left, std::uint32_t segment) {
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
Status read_draws(const RunLog& log, checks::Left& left) {
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

// Adds the moments, the last ones if not all.
Status read_moments(const RunLog& log, LeftRun& out) {
  PRESUM_ASSIGN(auto moments, log.moments());
  std::ranges::stable_sort(moments, std::greater(), place_of);
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < moments.size();) {
    std::size_t end = i;
    std::size_t more = 0;
    while (end < moments.size() && place_of(moments[end]) == place_of(moments[i])) {
      more += size_of(moments[end++]);
    }
    const bool saved = moments[i].kind == Moment::Kind::kSaved;
    if (saved) bytes += more;
    for (; i < end; ++i) {
      checks::Left& left = out.models[key_of(moments[i].model)].left;
      if (!saved) left.begun[moments[i].model.segment] = moments[i].optimizer_steps;
      if (saved && bytes <= kBytes) left.saved.push_back(std::move(moments[i]));
      left.left_out = left.left_out || (saved && bytes > kBytes);
    }
  }
  for (auto& [key, model] : out.models) {
    std::ranges::reverse(model.left.saved);
    if (!model.left.saved.empty()) PRESUM_TRY(read_draws(log, model.left));
  }
  return {};
}

// The last words of the model's last segment that has any.
Status read_ends(const RunLog& log, LeftRun& out) {
  PRESUM_ASSIGN(auto states, log.final_states());
  for (FinalStateRecord& state : states) {
    auto& ended = out.models[key_of(state.model)].ended;
    if (!ended.empty() && ended.back().model != state.model) ended.clear();
    ended.push_back(std::move(state));
  }
  return {};
}

using Continuations = std::map<ModelKey, Continuation>;

// How many steps of its training, and of its detectors, are before a step of a model.
Status add_place(const RunLog& log, const StepKey& at, const Continuations& continuations,
                 LeftModel& model) {
  const auto same = [&](const LeftPlace& place) {
    return place.segment == at.model.segment && place.step == at.step;
  };
  if (std::ranges::any_of(model.places, same)) return {};
  PRESUM_ASSIGN(const auto steps, log.steps_before(at));
  const auto how = continuations.find(at.model);
  const auto before = how == continuations.end() ? Continuation() : how->second;
  model.places.push_back({.segment = at.model.segment,
                          .step = at.step,
                          .steps = before.steps_before + steps,
                          .watched = before.detector_steps + steps});
  return {};
}

Status read_places(const RunLog& log, std::span<const StepCount> counts,
                   const Continuations& continuations, LeftRun& out) {
  for (const auto& [key, how] : continuations) {
    LeftModel& model = out.models[key_of(key)];
    if (how.detector_steps > 0 && how.from_segment) {
      model.lines[key.segment] = model.line_of(*how.from_segment);
    }
  }
  for (const StepCount& count : counts) {
    LeftModel& model = out.models[key_of(count.model)];
    if (model.ended.empty() || model.ended.front().model != count.model) continue;
    model.end = count.end;
    PRESUM_TRY(add_place(log, {count.model, count.end}, continuations, model));
  }
  for (auto& [key, model] : out.models) {
    for (const MomentRecord& one : model.left.saved) {
      PRESUM_TRY(add_place(log, {one.model, one.step}, continuations, model));
    }
  }
  return {};
}

}  // namespace

Result<LeftRun> read_left(const std::filesystem::path& run) {
  LeftRun out;
  auto log = RunLog::open(run);
  if (!log && log.error().code == ErrorCode::kNotFound) return out;
  if (!log) return log.error();
  PRESUM_ASSIGN(const auto modules, log->modules());
  for (const ModuleInfo& module : modules) {
    out.models[key_of(module.model)].left.workers = module.workers_expected;
  }
  PRESUM_ASSIGN(const auto counts, log->step_counts());
  PRESUM_ASSIGN(const auto all, log->continuations());
  out.steps = judge::training_steps(counts, all);
  Continuations continuations;
  for (const Continuation& how : all) continuations.emplace(how.model, how);
  PRESUM_TRY(read_moments(*log, out));
  PRESUM_TRY(read_ends(*log, out));
  PRESUM_TRY(read_places(*log, counts, continuations, out));
  return out;
}

}  // namespace presum::aggregate
