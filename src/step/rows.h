// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

namespace presum::step {

// Where a row of a forward pass came from.
struct RowOrigin {
  std::uint64_t batch = 0;
  std::uint32_t place = 0;
  std::uint32_t row = 0;
  bool trains = false;
  auto operator<=>(const RowOrigin&) const = default;  // NOLINT(modernize-use-nullptr)
};

// Which of the batches that loaders handed out a forward pass was given, by hashes of rows. Samples
// that are also evaluated on are told apart by the mode in which the model was when they were
// handed out. Memory: kRowsMax rows, or kBatchesMin batches. Not synchronized.
class RowMatcher {
 public:
  static constexpr std::size_t kRowsMax = 8192;
  static constexpr std::size_t kBatchesMin = 8;

  // Of the first rows of each tensor their hashes, by its place in the batch; `trains`: the model's
  // mode. Batches have ascending numbers. Returns the oldest that is still known.
  std::uint64_t offer(std::uint64_t batch,
                      const std::map<std::uint32_t, std::vector<std::uint64_t>>& tensors,
                      bool trains);
  // The latest row of that hash among those of batches up to `offered`, in the same mode if there
  // is one. It, and older ones, which were not used, are forgotten.
  std::optional<RowOrigin> take(std::uint64_t hash, std::uint64_t offered, bool trains);

 private:
  struct Batch {
    std::uint64_t number;
    std::vector<std::uint64_t> hashes;
  };
  void drop(const Batch& batch);

  std::unordered_map<std::uint64_t, std::vector<RowOrigin>> rows_;  // by hash, in their order
  std::deque<Batch> batches_;
  std::size_t row_count_ = 0;
};

}  // namespace presum::step
