// SPDX-License-Identifier: Apache-2.0
#include "checks/data/last_pass.h"

#include <algorithm>
#include <utility>

#include "checks/engine/sampling.h"
#include "checks/engine/split.h"

namespace presum::checks {
namespace {

constexpr std::size_t kDraws = std::size_t{1} << 22;
constexpr std::uint64_t kLength = std::uint64_t{1} << 27;

}  // namespace

void LastPass::see(const StepRecord& record) {
  const std::size_t before = count_;
  for (const WorkerRecord& worker : record.workers) see(worker, record.step);
  if (count_ > before) rows_at_once_ = std::max<std::uint64_t>(rows_at_once_, count_ - before);
  if (record.workers.size() < record.workers_expected) forget();
}

void LastPass::see(const WorkerRecord& worker, std::uint64_t step) {
  using enum FingerprintKind;
  if (!reads_passes(worker) || value_of(worker, kDataLength) > kLength) return forget();
  const std::uint64_t number = value_of(worker, kDataPass);
  if (!number_ || number > *number_) {
    const std::uint64_t passes = passes_;
    *this = LastPass();
    passes_ = passes + 1;
    number_ = number;
    length_ = value_of(worker, kDataLength);
    data_ = share_of_data(worker);
    contents_ = value_of(worker, kDataContents);
  }
  if (number != *number_) return;
  const std::uint64_t end = value_of(worker, kDataBatch) + 1;
  const std::uint64_t first = end - std::min<std::uint64_t>(end, worker.micro_batches);
  const bool gap = std::exchange(batch_[worker.replica], end) != first;
  const bool indexed = !worker.indices.empty() && worker.indices.size() < kIndicesMax &&
                       worker.indices.size() >= worker.samples.rows &&
                       std::ranges::max(worker.indices) < length_;
  known_ = known_ && !gap && indexed && share_of_data(worker) == data_ &&
           count_ + worker.indices.size() <= kDraws;
  if (!known_) return forget();
  count_ += worker.indices.size();
  draws_.emplace_back(step, worker.indices);
}

void LastPass::forget() {
  known_ = false;
  draws_ = {};
}

SampleSet LastPass::before(std::uint64_t step) const {
  SampleSet out(length_);
  for (const auto& [at, indices] : draws_) {
    if (at >= step) continue;
    for (const std::uint64_t index : indices) out.insert(index);
  }
  return out;
}

}  // namespace presum::checks
