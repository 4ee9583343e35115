// SPDX-License-Identifier: Apache-2.0
#include "compare/remarks.h"

namespace presum::compare {
namespace {

using State = StageResult::State;
using Why = UncomparedStage::Why;

// Why a stage cannot be compared although both runs recorded it.
Why why_not_comparable(Stage stage, const UncomparedSteps& uncompared) {
  switch (stage) {
    case Stage::kData:
      return uncompared.same_salt ? Why::kRowsNotKept : Why::kSalts;
    case Stage::kParameters:
      return Why::kOtherParameters;
    case Stage::kFinal:
      return Why::kOtherEnds;
    case Stage::kGradient:
      return uncompared.skipping > 0 ? Why::kNotRead : Why::kNoCommonWorker;
    default:
      return Why::kNoCommonWorker;
  }
}

void list_stage(Stage stage, const UncomparedSteps& uncompared, ModelComparison& model) {
  const auto& states = uncompared.states[static_cast<std::size_t>(stage)];
  for (const auto& [state, why] :
       {std::pair(State::kNotInA, Why::kNotInA), std::pair(State::kNotInB, Why::kNotInB),
        std::pair(State::kNotInEither, Why::kNotInEither),
        std::pair(State::kNotComparable, why_not_comparable(stage, uncompared)),
        std::pair(State::kOtherWorkerCounts, Why::kOtherWorkerCounts)}) {
    const auto steps = states[static_cast<std::size_t>(state)];
    if (steps > 0) model.not_compared.emplace_back(UncomparedStage{stage, steps, why});
  }
}

void list_steps(Side run, const RecordedSteps& side, ModelComparison& model) {
  const std::uint64_t alone = side.steps - model.common_steps;
  if (alone > 0) model.not_compared.emplace_back(StepsOfOneRun{run, alone});
}

std::map<std::uint32_t, std::int64_t> ahead_of(const StepPair& pair) {
  std::map<std::uint32_t, std::int64_t> out;
  for (const auto& [a, b] : pair.workers) {
    if (a->optimizer_step == 0 || b->optimizer_step == 0) continue;  // no optimizer is known
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

void list_not_compared(const UncomparedSteps& uncompared, ModelComparison& model) {
  for (std::size_t s = 0; s < kStages; ++s) list_stage(static_cast<Stage>(s), uncompared, model);
  using Part = UncomparedPart::Part;
  for (const auto& [part, steps] : {UncomparedPart{Part::kSampleContents, uncompared.positions},
                                    UncomparedPart{Part::kUnreadGradients, uncompared.skipping},
                                    UncomparedPart{Part::kMissingRanks, uncompared.lacking}}) {
    if (steps > 0) model.not_compared.emplace_back(UncomparedPart{part, steps});
  }
  list_steps(Side::kA, model.a, model);
  list_steps(Side::kB, model.b, model);
}

void remark_unseeded(const FingerprintKinds& unseeded, ModelComparison& model) {
  if (unseeded.empty()) return;
  model.remarks.emplace_back(UnseededGenerators{{unseeded.begin(), unseeded.end()}});
}

void remark_random_generators(const std::optional<std::uint64_t>& equal_after,
                              ModelComparison& model) {
  const auto& random = model.at(Stage::kRandom).first;
  if (!random) return;
  const auto& kinds = std::get<OtherSettings>(random->what).kinds;
  if (!model.first) {
    model.remarks.emplace_back(IdleGenerators{kinds, random->step, std::nullopt});
  } else if (equal_after && model.differs_earlier(Stage::kRandom, model.first)) {
    model.remarks.emplace_back(IdleGenerators{kinds, random->step, equal_after});
  }
}

void remark_unclosed(Side run, std::span<const SegmentInfo> segments, ModelComparison& model) {
  bool said = false;
  for (const SegmentInfo& s : segments) {
    if (s.incomplete.empty()) continue;
    model.remarks.emplace_back(IncompleteRecord{run, s});
    said = true;
  }
  if (said || segments.empty() || segments.back().closed) return;
  model.remarks.emplace_back(UnclosedRun{run});
}

void remark_restarts(Side run, const std::vector<SegmentSpan>& spans, ModelComparison& model) {
  for (const SegmentSpan& p : spans) {
    if (p.alignment == Alignment::kFirst) continue;
    model.remarks.emplace_back(Restart{run, p.segment, p.begin, p.alignment});
  }
}

}  // namespace presum::compare
