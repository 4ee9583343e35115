// SPDX-License-Identifier: Apache-2.0
// Which samples all workers together drew in one pass over the data.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "checks/data/data_coverage.h"
#include "presum/step_record.h"

namespace presum::checks {

// Of the first pass that it sees, or of the last one. By index: at most 2^22 draws of one data set;
// beyond, and where indices are missing or there are several data sets, nothing is known.
class PassDraws {
 public:
  enum class Which : std::uint8_t { kFirst, kLast };
  explicit PassDraws(Which which) : which_(which) {}

  // REQUIRES: ascending steps.
  void see(const StepRecord& record);
  // Every draw of it, from its first batch on where it is the last pass.
  bool known() const { return known_ && !draws_.empty(); }
  // Another pass has begun on every worker, and on each a loader has come to this one's end.
  bool ended() const { return known() && ended_.size() == batch_.size(); }
  // Some worker broke it off.
  bool broken_off() const { return broken_off_; }
  // No pass was seen before it.
  bool is_first() const { return passes_ <= 1; }
  // The batch after the worker's last; 0 where it had none.
  std::uint64_t next_batch(std::uint32_t replica) const {
    const auto at = batch_.find(replica);
    return at == batch_.end() ? 0 : at->second;
  }
  void forget() {
    known_ = false;
    draws_ = {};
  }
  std::uint64_t pass() const { return pass_.value_or(0); }
  std::uint64_t length() const { return length_; }
  // What the data set holds, as a hash; 0 where that is not known.
  std::uint64_t contents() const { return contents_; }
  // What a batch of each worker accounts for.
  std::uint64_t slack() const { return 2 * rows_at_once_; }
  // What was drawn at steps below this one.
  SampleSet before(std::uint64_t step) const;

 private:
  void see(const WorkerRecord& worker, std::uint64_t step);

  Which which_;
  std::optional<std::uint64_t> pass_;
  bool known_ = true;
  bool broken_off_ = false;
  std::uint64_t passes_ = 0;
  std::set<std::uint32_t> ended_;  // replicas
  std::uint64_t length_ = 0;
  std::uint64_t data_ = 0;
  std::uint64_t contents_ = 0;
  std::uint64_t rows_at_once_ = 0;  // of all workers, in a step
  std::size_t count_ = 0;
  std::map<std::uint32_t, std::uint64_t> batch_;  // by replica: the one after its last
  std::vector<std::pair<std::uint64_t, std::vector<std::uint64_t>>> draws_;  // by step
};

}  // namespace presum::checks
