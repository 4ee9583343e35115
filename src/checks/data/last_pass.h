// SPDX-License-Identifier: Apache-2.0
// Which samples all ranks together drew in the last pass over the data that a run was in.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "checks/engine/passes.h"
#include "presum/step_record.h"

namespace presum::checks {

// By index: at most 2^22 draws of one dataset. Nothing is known beyond that, without indices, or
// with several datasets.
class LastPass {
 public:
  // REQUIRES: ascending steps.
  void see(const StepRecord& record);
  void forget();
  // Every draw of the pass is known, from its first batch on.
  bool known() const { return known_ && !draws_.empty(); }
  // No pass was seen before it.
  bool is_first() const { return passes_ <= 1; }
  std::uint64_t number() const { return number_.value_or(0); }
  std::uint64_t length() const { return length_; }
  // A hash of the dataset's contents; 0 if unknown.
  std::uint64_t contents() const { return contents_; }
  // The largest number of rows that all ranks together drew in one step.
  std::uint64_t rows_at_once() const { return rows_at_once_; }
  // What was drawn at steps below this one.
  SampleSet before(std::uint64_t step) const;

 private:
  void see(const WorkerRecord& worker, std::uint64_t step);

  std::optional<std::uint64_t> number_;
  bool known_ = true;
  std::uint64_t passes_ = 0;
  std::uint64_t length_ = 0;
  std::uint64_t data_ = 0;
  std::uint64_t contents_ = 0;
  std::uint64_t rows_at_once_ = 0;
  std::size_t count_ = 0;
  std::map<std::uint32_t, std::uint64_t> batch_;  // by replica: the number after its last batch
  std::vector<std::pair<std::uint64_t, std::vector<std::uint64_t>>> draws_;  // by step
};

}  // namespace presum::checks
