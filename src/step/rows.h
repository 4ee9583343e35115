// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace presum::step {

// The first rows of one tensor of a batch, by their hashes.
struct TensorRows {
  std::uint32_t place = 0;  // of the tensor in the batch
  std::vector<std::uint64_t> hashes;
};

// Where a row of a forward pass came from.
struct RowOrigin {
  std::uint64_t batch = 0;
  std::uint32_t place = 0;
  std::uint32_t row = 0;
  bool trains = false;
  auto operator<=>(const RowOrigin&) const = default;  // NOLINT(modernize-use-nullptr)
};

// A forward pass, as far as it decides which batches it may have been given.
struct ForwardMoment {
  std::uint64_t offered = 0;  // the newest batch by then
  bool trains = false;        // the model's mode
};

// Which of the batches that loaders handed out a forward pass was given, by hashes of rows. Samples
// that are also evaluated on are told apart by the mode in which the model was when they were
// handed out. Memory: kRowsMax rows, or kBatchesMin batches. Not synchronised.
class RowMatcher {
 public:
  static constexpr std::size_t kRowsMax = 8192;
  static constexpr std::size_t kBatchesMin = 8;

  // Batches have ascending numbers. Returns the oldest that is still known.
  std::uint64_t offer(std::uint64_t batch, std::span<const TensorRows> tensors, bool trains);
  // The latest row of that hash among those offered by then, in the same mode if there is one. It,
  // and older ones, which were not used, are forgotten.
  std::optional<RowOrigin> take(std::uint64_t hash, const ForwardMoment& moment);

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
