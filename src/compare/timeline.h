// SPDX-License-Identifier: Apache-2.0
// The steps of one model across restarts. Each segment numbers its steps from 0; here they continue
// from the step at which the training resumed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compare/compare.h"
#include "presum/run_log.h"

namespace presum::compare {

// The steps of a segment from `begin` to `end` (exclusive), counted across restarts. The segment's
// own step numbers are smaller by `offset`. Its later steps were repeated by the next segment.
struct SegmentSpan {
  std::uint32_t segment = 1;
  std::uint64_t offset = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = ~std::uint64_t{0};
  Alignment alignment = Alignment::kFirst;
};

// Ascending; empty for a model without steps. For a run with several segments, reads the run one
// more time. Errors: those of reading the run.
Result<std::vector<SegmentSpan>> timeline(const RunLog& log, std::uint32_t model_index,
                                          std::uint32_t dp_group,
                                          const std::vector<std::uint32_t>& segments);

// Iterates over the steps of a timeline. `log` and `spans` must outlive this object.
class TimelineReader {
 public:
  struct Step {
    const StepRecord* record = nullptr;  // null after the last step
    const SegmentSpan* span = nullptr;
    std::uint64_t step = 0;  // counted across restarts
  };
  TimelineReader(const RunLog& log, const std::vector<SegmentSpan>& spans,
                 std::uint32_t model_index, std::uint32_t dp_group)
      : log_(log), spans_(spans), model_index_(model_index), dp_group_(dp_group) {}
  // Returns the next step, which is valid until the next call.
  Result<Step> next();

 private:
  const RunLog& log_;
  const std::vector<SegmentSpan>& spans_;
  std::uint32_t model_index_;
  std::uint32_t dp_group_;
  std::size_t at_ = 0;
  std::optional<StepCursor> cursor_;
};

}  // namespace presum::compare
