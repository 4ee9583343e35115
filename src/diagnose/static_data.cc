// SPDX-License-Identifier: Apache-2.0
#include "diagnose/static_data.h"

namespace presum::diagnose {
namespace {

constexpr std::size_t kRows = 65536;

}  // namespace

void StaticData::see(const StepContext& context) {
  if (lost_) return;
  bool own_again = true;
  for (const WorkerRecord& w : context.record.workers) {
    own_again = own_again && !w.samples.hashes.empty();
    for (const std::uint64_t row : w.samples.hashes) {
      const auto [at, fresh] = reader_.try_emplace(row, w.replica);
      own_again = own_again && !fresh && at->second == w.replica;
    }
  }
  quiet_ = own_again ? quiet_ + 1 : 0;
  lost_ = reader_.size() > kRows;
  if (lost_) reader_.clear();
}

}  // namespace presum::diagnose
