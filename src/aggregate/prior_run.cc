// SPDX-License-Identifier: Apache-2.0
#include "aggregate/prior_run.h"

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
constexpr std::size_t kBytes = std::size_t{1} << 26;  // of snapshots, over all models

using Key = std::pair<std::uint32_t, std::uint32_t>;

Key key_of(const ModelKey& model) { return {model.model_index, model.dp_group}; }

std::size_t size_of(const SnapshotRecord& snapshot) {
  return sizeof(SnapshotRecord) +
         snapshot.groups.size() * (sizeof(SnapshotGroup) + packet::kLayerSketch * sizeof(float));
}

// The key that all ranks of a model share for one snapshot.
auto place_of(const SnapshotRecord& snapshot) {
  return std::tuple(snapshot.model.segment, snapshot.step, snapshot.number, snapshot.kind,
                    key_of(snapshot.model));
}

// Returns whether the segment itself continued from parameters.
bool went_on(const checks::PriorRun& prior, std::uint32_t segment) {
  const auto begun = prior.begun.find(segment);
  return begun == prior.begun.end() || !(begun->second == 0);
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

// Reads the draws of the pass that was in progress at the last save.
Status read_draws(const RunLog& log, checks::PriorRun& prior) {
  const SnapshotRecord& last = prior.saved.back();
  PRESUM_ASSIGN(auto steps, log.cursor(last.model, last.step - std::min(last.step, kStepsBack)));
  while (true) {
    PRESUM_ASSIGN(const StepRecord* step, steps.next());
    if (step == nullptr || step->step > last.step) break;
    if (step->step == last.step && pass_of(*step) <= prior.draws.number()) break;  // the next pass
    prior.draws.see(*step);
    if (step->step < last.step) keep_rate(*step, prior.rates);
  }
  // The segment before may have started its first pass.
  if (prior.draws.is_first() && last.model.segment > 1 && went_on(prior, last.model.segment)) {
    prior.draws.forget();
  }
  return {};
}

// Adds the snapshots; if they are too many, the latest ones.
Status read_snapshots(const RunLog& log, PriorRuns& out) {
  PRESUM_ASSIGN(auto snapshots, log.snapshots());
  std::ranges::stable_sort(snapshots, std::greater(), place_of);
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < snapshots.size();) {
    std::size_t end = i;
    std::size_t more = 0;
    while (end < snapshots.size() && place_of(snapshots[end]) == place_of(snapshots[i])) {
      more += size_of(snapshots[end++]);
    }
    const bool saved = snapshots[i].kind != TrainingSnapshot::Kind::kBegun;
    if (saved) bytes += more;
    for (; i < end; ++i) {
      checks::PriorRun& prior = out.models[key_of(snapshots[i].model)].prior;
      if (!saved) prior.begun[snapshots[i].model.segment] = snapshots[i].optimizer_steps;
      if (saved && bytes <= kBytes) prior.saved.push_back(std::move(snapshots[i]));
      prior.left_out = prior.left_out || (saved && bytes > kBytes);
    }
  }
  for (auto& [key, model] : out.models) {
    std::ranges::reverse(model.prior.saved);
    if (!model.prior.saved.empty()) PRESUM_TRY(read_draws(log, model.prior));
  }
  return {};
}

// The final states of each model, from its last segment that has any.
Status read_ends(const RunLog& log, PriorRuns& out) {
  PRESUM_ASSIGN(auto states, log.final_states());
  for (FinalStateRecord& state : states) {
    auto& ended = out.models[key_of(state.model)].ended;
    if (!ended.empty() && ended.back().model != state.model) ended.clear();
    ended.push_back(std::move(state));
  }
  return {};
}

using Continuations = std::map<ModelKey, Continuation>;

// Counts the steps of the training, and of its detectors, before a step of a model.
Status add_place(const RunLog& log, const StepKey& at, const Continuations& continuations,
                 PriorModel& model) {
  const auto same = [&](const PriorPlace& place) {
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
                   const Continuations& continuations, PriorRuns& out) {
  for (const auto& [key, how] : continuations) {
    PriorModel& model = out.models[key_of(key)];
    if (how.detector_steps > 0 && how.from_segment) {
      model.lines[key.segment] = model.line_of(*how.from_segment);
    }
  }
  for (const StepCount& count : counts) {
    PriorModel& model = out.models[key_of(count.model)];
    if (model.ended.empty() || model.ended.front().model != count.model) continue;
    model.end = count.end;
    PRESUM_TRY(add_place(log, {count.model, count.end}, continuations, model));
  }
  for (auto& [key, model] : out.models) {
    for (const SnapshotRecord& one : model.prior.saved) {
      PRESUM_TRY(add_place(log, {one.model, one.step}, continuations, model));
    }
  }
  return {};
}

}  // namespace

Result<PriorRuns> read_prior_runs(const std::filesystem::path& run) {
  PriorRuns out;
  auto log = RunLog::open(run);
  if (!log && log.error().code == ErrorCode::kNotFound) return out;
  if (!log) return log.error();
  PRESUM_ASSIGN(const auto modules, log->modules());
  for (const ModelInfo& info : modules) {
    out.models[key_of(info.model)].prior.workers = info.workers_expected;
  }
  PRESUM_ASSIGN(const auto counts, log->step_counts());
  PRESUM_ASSIGN(const auto all, log->continuations());
  out.steps = judge::training_steps(counts, all);
  Continuations continuations;
  for (const Continuation& how : all) continuations.emplace(how.model, how);
  PRESUM_TRY(read_snapshots(*log, out));
  PRESUM_TRY(read_ends(*log, out));
  PRESUM_TRY(read_places(*log, counts, continuations, out));
  return out;
}

}  // namespace presum::aggregate
