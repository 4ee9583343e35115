// SPDX-License-Identifier: Apache-2.0
#include "judge/audits.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <utility>

namespace presum::judge {
namespace {

using Audits = std::span<const AuditedStep>;

const ModelKey& part_of(const AuditedStep& a) { return a.key.model; }

// The names that audits have for a field, the most frequent first.
template <class Of>
std::string names(Audits audits, Of of) {
  std::vector<std::pair<std::string, std::size_t>> counts;
  for (const AuditedStep& a : audits) {
    const std::string name = to_string(std::invoke(of, a.audit));
    const auto known = std::ranges::find(counts, name, &decltype(counts)::value_type::first);
    if (known == counts.end()) {
      counts.emplace_back(name, 1);
    } else {
      ++known->second;
    }
  }
  if (counts.size() == 1) return counts.front().first;
  std::ranges::stable_sort(counts, std::greater(), &decltype(counts)::value_type::second);
  std::vector<std::string> out;
  out.reserve(counts.size());
  for (const auto& [name, times] : counts) out.push_back(fmt::format("{} ({})", name, times));
  return fmt::format("{}", fmt::join(out, ", "));
}

using Ulps = std::optional<UlpPercentiles>;

Ulps larger(const Ulps& a, const Ulps& b) {
  if (!a || !b) return a ? a : b;
  return UlpPercentiles{std::max(a->p50, b->p50), std::max(a->p90, b->p90),
                        std::max(a->p99, b->p99), std::max(a->max, b->max)};
}

AuditSummary summary_of(Audits audits) {
  const StepKey& key = audits.front().key;
  AuditSummary out{.model = key.model};
  out.first_step = key.step;
  out.last_step = audits.back().key.step;
  out.audits = audits.size();
  out.relative_l2 = std::nan("");
  std::set<std::uint64_t> steps;
  for (const AuditedStep& a : audits) {
    steps.insert(a.key.step);
    out.elements += a.audit.elements;
    out.differing += a.audit.differing;
    out.wrong += a.audit.wrong;
    out.relative_l2 = std::fmax(out.relative_l2, a.audit.relative_l2);
    out.ulps = larger(out.ulps, a.audit.ulps);
    out.repeated += a.audit.repeat != Repeat::kNotTried;
    out.repeats_differing += a.audit.repeat == Repeat::kDifferent;
  }
  out.steps = steps.size();
  out.gradient = names(audits, &AuditRecord::gradient);
  out.accumulation = names(audits, &AuditRecord::accumulation);
  out.order = names(audits, &AuditRecord::order);
  out.division = names(audits, &AuditRecord::division);
  return out;
}

}  // namespace

std::vector<AuditSummary> summarize(Audits audits) {
  std::vector<AuditSummary> out;
  while (!audits.empty()) {
    const auto end = std::ranges::find_if(
        audits, [&](const AuditedStep& a) { return part_of(a) != part_of(audits.front()); });
    const auto part = audits.first(static_cast<std::size_t>(end - audits.begin()));
    out.push_back(summary_of(part));
    audits = audits.subspan(part.size());
  }
  return out;
}

}  // namespace presum::judge
