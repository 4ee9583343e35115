// SPDX-License-Identifier: Apache-2.0
#include "checks/data/pass_draws.h"

#include <algorithm>

#include "checks/data/sampler_mismatch.h"

namespace presum::checks {
namespace {

constexpr std::size_t kDraws = std::size_t{1} << 22;
constexpr std::uint64_t kLength = std::uint64_t{1} << 27;

}  // namespace

void PassDraws::see(const StepRecord& record) {
  const std::size_t before = count_;
  for (const WorkerRecord& worker : record.workers) see(worker, record.step);
  if (record.workers.size() < record.workers_expected) forget();
  if (count_ > before) rows_at_once_ = std::max<std::uint64_t>(rows_at_once_, count_ - before);
}

void PassDraws::see(const WorkerRecord& worker, std::uint64_t step) {
  using enum FingerprintKind;
  const std::uint64_t* pass = worker.fingerprint_of(kDataPass);
  const std::uint64_t* batch = worker.fingerprint_of(kDataBatch);
  const std::uint64_t* length = worker.fingerprint_of(kDataLength);
  if (pass == nullptr || batch == nullptr || length == nullptr || *length > kLength) {
    if (!ended_.contains(worker.replica)) forget();
    return;
  }
  if (pass_ && *pass > *pass_ && which_ == Which::kFirst) {
    const std::uint64_t* ended = worker.fingerprint_of(kDataEnded);
    const bool whole = ended != nullptr && *ended == *pass_ + 1;
    broken_off_ = broken_off_ || (!whole && !ended_.contains(worker.replica));
    if (whole) ended_.insert(worker.replica);
    return;
  }
  if (!pass_ || (*pass > *pass_ && which_ == Which::kLast)) {
    const std::uint64_t passes = passes_;
    *this = PassDraws(which_);
    passes_ = passes + 1;
    pass_ = *pass;
    length_ = *length;
    data_ = data_of(worker);
    contents_ = value_of(worker, kDataContents);
  }
  if (*pass != *pass_) return;
  const std::uint64_t first =
      *batch + 1 - std::min<std::uint64_t>(*batch + 1, worker.micro_batches);
  const auto [at, fresh] = batch_.try_emplace(worker.replica, first);
  const bool gap = !fresh && first != at->second;
  const bool late = fresh && which_ == Which::kLast && first > 0;
  at->second = *batch + 1;
  const bool indexed = !worker.indices.empty() && worker.indices.size() < kIndicesMax &&
                       worker.indices.size() >= worker.samples.rows &&
                       std::ranges::max(worker.indices) < length_;
  known_ = known_ && !gap && !late && indexed && data_of(worker) == data_ &&
           count_ + worker.indices.size() <= kDraws;
  if (!known_) return forget();
  count_ += worker.indices.size();
  draws_.emplace_back(step, worker.indices);
}

SampleSet PassDraws::before(std::uint64_t step) const {
  SampleSet out(length_);
  for (const auto& [at, indices] : draws_) {
    if (at >= step) continue;
    for (const std::uint64_t index : indices) out.insert(index);
  }
  return out;
}

}  // namespace presum::checks
