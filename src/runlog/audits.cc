// SPDX-License-Identifier: Apache-2.0
// Reading audits of the reduction, which are stored as fingerprints of their steps.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "runlog/reading.h"

namespace presum {
namespace {

using runlog::Statement;

// A row of the table `fingerprint`.
struct Change {
  StepKey key;
  std::uint32_t replica = 0;
  FingerprintValue value;
};

Change read_change(const Statement& row) {
  return {{row.small(0), row.small(1), row.small(2), row.integer(3)},
          row.small(4),
          {row.small(5), row.integer(6)}};
}

auto audit_key(const Change& c) {
  return std::tie(c.key.segment, c.key.module, c.key.shard, c.key.step, c.replica);
}

// What each worker holds, as its changes come in.
class Held {
 public:
  std::optional<AuditRecord> after(std::span<const Change> changes) {
    const Change& first = changes.front();
    auto& values = workers_[{first.key.segment, first.key.module, first.key.shard, first.replica}];
    for (const Change& c : changes) {
      const auto known = std::ranges::find(values, c.value.kind, &FingerprintValue::kind);
      if (known == values.end()) {
        values.push_back(c.value);
      } else {
        *known = c.value;
      }
    }
    return audit_of(values);
  }

 private:
  using Worker = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t>;
  std::map<Worker, std::vector<FingerprintValue>> workers_;
};

}  // namespace

Result<std::vector<AuditedStep>> RunLog::audits() const {
  std::vector<AuditedStep> out;
  const auto changes = runlog::read_all<Change>(
      state_->db,
      fmt::format("SELECT segment, module, shard, step, replica, kind, value FROM fingerprint "
                  "WHERE kind BETWEEN {} AND {} ORDER BY segment, module, shard, step, replica",
                  static_cast<int>(FingerprintKind::kAuditElements),
                  static_cast<int>(FingerprintKind::kAuditNumber)),
      read_change);
  if (!changes) return changes.error();
  Held held;
  for (std::span<const Change> rest(*changes); !rest.empty();) {
    const auto end = std::ranges::find_if(
        rest, [&](const Change& c) { return audit_key(c) != audit_key(rest.front()); });
    const auto one = rest.first(static_cast<std::size_t>(end - rest.begin()));
    if (const auto audit = held.after(one)) {
      out.push_back({one.front().key, one.front().replica, *audit});
    }
    rest = rest.subspan(one.size());
  }
  return out;
}

}  // namespace presum
