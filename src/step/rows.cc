// SPDX-License-Identifier: Apache-2.0
#include "step/rows.h"

#include <algorithm>
#include <utility>

namespace presum::step {

std::uint64_t RowMatcher::offer(std::uint64_t batch,
                                const std::map<std::uint32_t, std::vector<std::uint64_t>>& tensors,
                                bool trains) {
  Batch kept{batch, {}};
  for (const auto& [place, hashes] : tensors) {
    for (std::uint32_t row = 0; row < hashes.size(); ++row) {
      rows_[hashes[row]].push_back({batch, place, row, trains});
      kept.hashes.push_back(hashes[row]);
    }
  }
  row_count_ += kept.hashes.size();
  batches_.push_back(std::move(kept));
  while (row_count_ > kRowsMax && batches_.size() > kBatchesMin) {
    drop(batches_.front());
    batches_.pop_front();
  }
  return batches_.front().number;
}

void RowMatcher::drop(const Batch& batch) {
  row_count_ -= batch.hashes.size();
  for (const std::uint64_t hash : batch.hashes) {
    const auto at = rows_.find(hash);
    if (at == rows_.end()) continue;
    std::erase_if(at->second, [&](const RowOrigin& row) { return row.batch == batch.number; });
    if (at->second.empty()) rows_.erase(at);
  }
}

std::optional<RowOrigin> RowMatcher::take(std::uint64_t hash, std::uint64_t offered, bool trains) {
  const auto at = rows_.find(hash);
  if (at == rows_.end()) return std::nullopt;
  std::vector<RowOrigin>& rows = at->second;
  std::optional<RowOrigin> taken;
  for (const RowOrigin& row : rows) {
    if (row.batch > offered) continue;
    const bool worse = taken && taken->trains == trains && row.trains != trains;
    if (!worse) taken = row;
  }
  if (!taken) return std::nullopt;
  std::erase_if(rows, [&](const RowOrigin& r) { return r.batch < taken->batch || r == *taken; });
  if (rows.empty()) rows_.erase(at);
  return taken;
}

}  // namespace presum::step
