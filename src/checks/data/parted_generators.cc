// SPDX-License-Identifier: Apache-2.0
#include "checks/data/parted_generators.h"

#include <utility>

namespace presum::checks {
namespace {

constexpr std::uint64_t kEqual = 3;  // records; seeds that match by chance do not last

}  // namespace

void PartedGenerators::see(const StepRecord& record) {
  constexpr std::array kKinds = {std::pair{FingerprintKind::kRngTorch, "torch"},
                                 std::pair{FingerprintKind::kRngNumpy, "NumPy"},
                                 std::pair{FingerprintKind::kRngPython, "Python"}};
  for (std::size_t i = 0; i < kKinds.size(); ++i) {
    see(record, kKinds[i].first, kKinds[i].second, states_[i]);
  }
}

void PartedGenerators::see(const StepRecord& record, FingerprintKind kind, const char* name,
                           State& state) {
  if (record.workers.size() < 2 || record.workers.size() < record.workers_expected) return;
  const Split held = split(record, kind);
  if (held.known < record.workers.size()) return;
  std::map<std::uint32_t, std::uint64_t> now;
  for (const WorkerRecord& w : record.workers) now[w.rank] = value_of(w, kind);
  if (held.differs() && state.equal >= kEqual && !first_) {
    PartedGenerator parted{.generator = name, .equal_until = state.step, .step = record.step};
    for (const auto& [rank, value] : now) {
      const auto was = state.before.find(rank);
      if (was != state.before.end() && was->second != value) parted.changed.push_back(rank);
    }
    const std::size_t changed = parted.changed.size();
    if (changed > 0 && changed < now.size()) first_ = std::move(parted);  // else all changed
  }
  state.equal = held.differs() ? 0 : state.equal + 1;
  state.step = record.step;
  state.before = std::move(now);
}

}  // namespace presum::checks
