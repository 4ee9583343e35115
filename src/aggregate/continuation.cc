// SPDX-License-Identifier: Apache-2.0
#include "aggregate/continuation.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>

#include "judge/continuations.h"

namespace presum::aggregate {
namespace {

constexpr const char* kOthers = "its parameters match no checkpoint or end that presum saw";
constexpr const char* kUnknown = "whether its parameters are any that were left is not known";

const FinalStateRecord* state_of(const PriorModel& prior, std::uint32_t replica) {
  const auto found = std::ranges::find(prior.ended, replica, &FinalStateRecord::replica);
  return found == prior.ended.end() ? nullptr : &*found;
}

// Returns whether the parameters before the first step equal those at the end of a segment; empty
// if they were not hashed, because only step 0 hashes all of them.
std::optional<bool> as_it_ended(const PriorModel& prior, const StepRecord& first) {
  std::optional<bool> out;
  if (first.step != 0) return out;
  for (const WorkerRecord& worker : first.workers) {
    const FinalStateRecord* ended = state_of(prior, worker.replica);
    if (ended == nullptr) continue;
    for (const StateHash& is : worker.states) {
      if (is.kind != StateHash::Kind::kParameters) continue;
      const auto was = std::ranges::find_if(ended->states, [&](const StateHash& s) {
        return s.group == is.group && s.kind_and_shard() == is.kind_and_shard();
      });
      if (was == ended->states.end()) continue;
      if (was->value != is.value) return false;
      out = true;
    }
  }
  return out;
}

const PriorPlace* place_at(const PriorModel& prior, std::uint32_t segment, std::uint64_t step) {
  const auto found = std::ranges::find_if(prior.places, [&](const PriorPlace& place) {
    return place.segment == segment && place.step == step;
  });
  return found == prior.places.end() ? nullptr : &*found;
}

// Returns an empty string once the detectors have the state of that training; otherwise the reason
// why not.
std::string restore(const PriorModel& prior, const PriorPlace& at, const StepRecord& first,
                    const std::optional<runlog::SavedDetector>& saved, detect::Detector& detector) {
  if (!saved) return "none were saved";
  if (prior.line_of(saved->segment) != prior.line_of(at.segment)) {
    return "those that were saved last are of another training";
  }
  detect::Detector restored{detect::Options{}};
  if (!restored.restore(saved->state)) return "what was saved of them cannot be read";
  if (std::min(at.watched, restored.steps()) == 0) return "they had seen no step";
  if (restored.workers() != first.workers_expected) {
    return fmt::format("there are {} ranks instead of {}", first.workers_expected,
                       restored.workers());
  }
  detector = std::move(restored);
  return {};
}

}  // namespace

Continuation continuation_of(const PriorModel& prior, const checks::BeganWith& began,
                             const StepRecord& first,
                             const std::optional<runlog::SavedDetector>& saved,
                             detect::Detector& detector) {
  using Parameters = checks::BeganWith::Parameters;
  Continuation out{.model = first.model};
  const PriorPlace* at =
      began.parameters == Parameters::kSaved ? place_at(prior, began.segment, began.step) : nullptr;
  const auto ended = at == nullptr ? as_it_ended(prior, first) : std::nullopt;
  if (ended == true) at = place_at(prior, prior.ended.front().model.segment, prior.end);
  if (at == nullptr) {
    out.reason = ended == false || began.parameters == Parameters::kOthers ? kOthers : kUnknown;
    return out;
  }
  out.from_segment = at->segment;
  out.from_step = at->step;
  out.steps_before = at->steps;
  out.reason = restore(prior, *at, first, saved, detector);
  if (out.reason.empty()) out.detector_steps = std::min(at->watched, detector.steps());
  return out;
}

ContinuedRun::ContinuedRun(std::uint32_t segment, std::optional<std::uint64_t> steps) {
  if (segment <= 1) return;
  const auto of = steps ? fmt::format(" of {} step{}", *steps, *steps == 1 ? "" : "s") : "";
  begins_ = fmt::format("continues a run{} as segment {}", of, segment);
}

void ContinuedRun::add(const Continuation& continuation) {
  continuations_.push_back(continuation);
  std::ranges::sort(continuations_, {}, &Continuation::model);
}

std::vector<std::string> ContinuedRun::take_notices() {
  std::vector<std::string> out;
  if (!begins_.empty()) out.push_back(begins_);
  std::ranges::move(judge::continuation_texts(continuations_), std::back_inserter(out));
  std::erase_if(out, [&](const std::string& text) { return !told_.insert(text).second; });
  return out;
}

}  // namespace presum::aggregate
