// SPDX-License-Identifier: Apache-2.0
// data-coverage.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "checks/engine/step_context.h"

namespace presum::checks {

// Whether a sampler (its description, and its own length: 0 where that is not known) deals every
// sample, as torch's own and Accelerate's around them do.
bool deals_all(std::string_view sampler, std::uint64_t own, std::uint64_t length);

// A bit for each sample of a data set.
class SampleSet {
 public:
  explicit SampleSet(std::uint64_t length) : words_((length + 63) / 64) {}

  void insert(std::uint64_t index) { words_[index / 64] |= std::uint64_t{1} << (index % 64); }
  void unite(const SampleSet& other);  // REQUIRES: of the same length
  std::uint64_t count() const;
  std::uint64_t end() const;  // the largest index plus one; 0 where it is empty

 private:
  std::vector<std::uint64_t> words_;
};

}  // namespace presum::checks
