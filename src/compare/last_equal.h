// SPDX-License-Identifier: Apache-2.0
// What was equal before a difference: the steps at which parameters, losses and gradients were last
// compared and equal.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace presum::compare {

inline constexpr std::size_t kSlices = 25;  // of the parameters, one hashed at each step

// Which of a model's parameters the hashes of a step are of.
struct HashCoverage {
  bool same_tensors = false;         // in both runs
  bool whole = false;                // all of them
  std::optional<std::size_t> slice;  // else; none: not known
};

// The last step at which parameters were compared and equal.
class LastEqualHashes {
 public:
  // `layers`: those that were hashed; none where a slice is empty.
  void equal(std::uint64_t step, const HashCoverage& coverage,
             const std::vector<std::string>& layers);
  // No hash is there: the slice holds no parameters, or they were not kept.
  void empty(const HashCoverage& coverage) {
    if (coverage.slice) slices_[*coverage.slice].empty = true;
  }
  // Whether every slice, or all parameters at once, was hashed after step 0.
  bool all_after_start() const;
  // The step of the parameters of a slice, or of layers in slices that are not known. None: never.
  std::optional<std::uint64_t> of(const HashCoverage& coverage,
                                  const std::vector<std::string>& layers) const;

 private:
  struct Slice {
    std::optional<std::uint64_t> step;
    bool empty = false;  // at some step
    std::set<std::string> layers;
  };
  std::optional<std::uint64_t> of_groups_in(const std::vector<std::string>& layers) const;

  std::optional<std::uint64_t> whole_;
  std::array<Slice, kSlices> slices_;
};

// The last step at which each worker was compared and equal in one stage.
class LastEqualByRank {
 public:
  void equal(std::uint64_t step, const std::vector<std::uint32_t>& ranks) {
    for (const std::uint32_t rank : ranks) steps_[rank] = step;
    if (!ranks.empty()) last_ = step;
  }
  // The last step at which all of them were equal; of no rank: any worker. None: one never was.
  std::optional<std::uint64_t> of(const std::vector<std::uint32_t>& ranks) const {
    auto out = last_;
    for (const std::uint32_t rank : ranks) {
      const auto found = steps_.find(rank);
      if (found == steps_.end()) return std::nullopt;
      out = std::min(out, std::optional(found->second));
    }
    return out;
  }

 private:
  std::map<std::uint32_t, std::uint64_t> steps_;
  std::optional<std::uint64_t> last_;
};

}  // namespace presum::compare
