// SPDX-License-Identifier: Apache-2.0
#include "compare/timeline.h"

#include <algorithm>

#include "base/try.h"

namespace presum::compare {
namespace {

// The values that identify a step.
struct StepIdentity {
  std::vector<std::uint64_t> gradients;  // by replica
  std::vector<std::uint64_t> batches;    // by replica; empty if one is unknown
  std::vector<StateHash> states;

  explicit StepIdentity(const StepRecord& step) {
    for (const WorkerRecord& w : step.workers) {
      gradients.push_back(w.fingerprint);
      const std::uint64_t* batch = w.fingerprint_of(FingerprintKind::kBatch);
      if (batch != nullptr && w.samples.rows > 0) batches.push_back(*batch);
    }
    if (batches.size() < step.workers.size()) batches.clear();
    if (step.workers.empty()) return;
    states = step.workers.front().states;
  }

  bool any_gradient() const {
    return std::ranges::any_of(gradients, [](std::uint64_t value) { return value != 0; });
  }
};

// Whether any hash of the same parameters or buffers differs.
bool states_contradict(const StepIdentity& a, const StepIdentity& b) {
  return std::ranges::any_of(a.states, [&](const StateHash& s) {
    return std::ranges::any_of(b.states, [&](const StateHash& o) {
      return o.group == s.group && o.kind_and_shard() == s.kind_and_shard() && o.value != s.value;
    });
  });
}

// The last steps of the timeline so far that resemble the first step of a segment.
struct SimilarSteps {
  std::optional<std::uint64_t> same_gradients;
  std::optional<std::uint64_t> same_batches;
  std::uint64_t times = 0;   // how many steps have the same batches; epochs may repeat their order
  bool same_start = false;   // step 0 has the same samples and the same parameters
  bool contradicts = false;  // the parameters at step `same_batches` differ
  std::uint64_t last = 0;    // the last step of the timeline
  std::uint64_t spacing = 1;
};

Result<SimilarSteps> find_similar_steps(const RunLog& log, const std::vector<SegmentSpan>& spans,
                                        std::uint32_t model_index, std::uint32_t dp_group,
                                        const StepIdentity& first) {
  SimilarSteps out;
  TimelineReader walk(log, spans, model_index, dp_group);
  while (true) {
    PRESUM_ASSIGN(const auto at, walk.next());
    if (at.record == nullptr) return out;
    const StepIdentity mark(*at.record);
    const bool batches = !mark.batches.empty() && mark.batches == first.batches;
    if (first.any_gradient() && mark.gradients == first.gradients) out.same_gradients = at.step;
    if (batches) {
      out.same_batches = at.step;
      ++out.times;
      out.contradicts = states_contradict(mark, first);
      if (at.step == 0) out.same_start = !mark.states.empty() && !out.contradicts;
    }
    out.spacing = at.step > out.last ? at.step - out.last : 1;
    out.last = at.step;
  }
}

// If the samples are those of an earlier step but the parameters differ, the data started over and
// the training did not.
SegmentSpan place_segment(std::uint32_t segment, const SimilarSteps& similar) {
  const auto at = [&](std::uint64_t step, Alignment alignment) {
    return SegmentSpan{.segment = segment, .offset = step, .begin = step, .alignment = alignment};
  };
  const auto again = [&](std::uint64_t step) {
    return at(step, step == 0 ? Alignment::kRestart : Alignment::kReplays);
  };
  if (similar.same_gradients) return again(*similar.same_gradients);
  if (similar.same_start) return again(0);
  if (similar.times == 1 && !similar.contradicts) return again(*similar.same_batches);
  return at(similar.last + similar.spacing, Alignment::kAssumed);
}

}  // namespace

Result<std::vector<SegmentSpan>> timeline(const RunLog& log, std::uint32_t model_index,
                                          std::uint32_t dp_group,
                                          const std::vector<std::uint32_t>& segments) {
  std::vector<SegmentSpan> spans;
  for (const std::uint32_t segment : segments) {
    PRESUM_ASSIGN(auto cursor, log.cursor({segment, model_index, dp_group}));
    PRESUM_ASSIGN(const auto first, cursor.next());
    if (first == nullptr) continue;
    if (spans.empty()) {
      spans.push_back({.segment = segment});
      continue;
    }
    PRESUM_ASSIGN(const auto similar,
                  find_similar_steps(log, spans, model_index, dp_group, StepIdentity(*first)));
    SegmentSpan next = place_segment(segment, similar);
    // The number of the segment's first step.
    const std::uint64_t skipped = std::min(next.offset, first->step);
    next.offset -= skipped;
    std::erase_if(spans, [&](const SegmentSpan& p) { return p.begin >= next.begin; });
    if (!spans.empty()) spans.back().end = std::min(spans.back().end, next.begin);
    spans.push_back(next);
  }
  return spans;
}

Result<TimelineReader::Step> TimelineReader::next() {
  while (at_ < spans_.size()) {
    const SegmentSpan& span = spans_[at_];
    if (!cursor_) {
      PRESUM_ASSIGN(auto opened,
                    log_.cursor({span.segment, model_index_, dp_group_}, span.begin - span.offset));
      cursor_.emplace(std::move(opened));
    }
    PRESUM_ASSIGN(const auto record, cursor_->next());
    if (record != nullptr && record->step + span.offset < span.end) {
      return Step{record, &span, record->step + span.offset};
    }
    cursor_.reset();
    ++at_;
  }
  return Step{};
}

}  // namespace presum::compare
