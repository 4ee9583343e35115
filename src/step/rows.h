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

// The origin of a row in a forward pass.
struct RowOrigin {
  std::uint64_t batch = 0;
  std::uint32_t place = 0;
  std::uint32_t row = 0;
  bool trains = false;
  auto operator<=>(const RowOrigin&) const = default;  // NOLINT(modernize-use-nullptr)
};

// Finds the batches from data loaders that a forward pass received, by the hashes of their rows.
// The model's mode when a batch was handed out separates samples that are used for both training
// and evaluation. Memory: kRowsMax rows, or kBatchesMin batches. Not synchronized.
class RowMatcher {
 public:
  static constexpr std::size_t kRowsMax = 8192;
  static constexpr std::size_t kBatchesMin = 8;

  // Adds a batch: the hashes of the first rows of each tensor, by the tensor's position in the
  // batch. `trains`: the model's mode. Batch numbers must ascend. Returns the oldest batch that is
  // still known.
  std::uint64_t offer(std::uint64_t batch,
                      const std::map<std::uint32_t, std::vector<std::uint64_t>>& tensors,
                      bool trains);
  // Takes the latest row with this hash from batches up to `offered`, preferring rows of the same
  // mode. Forgets it and the older, unused rows with the same hash.
  std::optional<RowOrigin> take(std::uint64_t hash, std::uint64_t offered, bool trains);

 private:
  struct Batch {
    std::uint64_t number;
    std::vector<std::uint64_t> hashes;
  };
  void drop(const Batch& batch);

  std::unordered_map<std::uint64_t, std::vector<RowOrigin>> rows_;  // by hash, oldest first
  std::deque<Batch> batches_;
  std::size_t row_count_ = 0;
};

}  // namespace presum::step
