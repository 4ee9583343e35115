// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "audit/inference.h"

namespace presum::audit {
namespace {

// Of the elements that rounding in the hypothesis's format explains at all.
constexpr double kIdentified = 0.999;
constexpr double kMostAtLeast = 0.5;  // of all elements
constexpr double kByChance = 0.1;     // of damaged elements: those that rounding could explain
constexpr double kFits = 0.001;

// The narrowest format that a scheme rounds to. A sum in fp32 of values that were cast to 16 bits
// has lost what the cast took.
Accumulation format_of(const Hypothesis& h, Dtype dtype) {
  const bool cast = significand_bits(h.scheme.wire) < significand_bits(dtype);
  return accumulation_of(cast ? h.scheme.wire : h.scheme.accumulation);
}

using Tied = std::vector<Hypothesis>;

// Of the hypotheses that reproduce as much as the best, the narrowest and the widest format.
std::pair<Accumulation, Accumulation> formats(const Tied& tied, Dtype dtype) {
  auto narrow = format_of(tied.front(), dtype);
  auto wide = narrow;
  for (const Hypothesis& h : tied) {
    const Accumulation format = format_of(h, dtype);
    if (significand_bits(format) < significand_bits(narrow)) narrow = format;
    if (significand_bits(format) > significand_bits(wide)) wide = format;
  }
  return {narrow, wide};
}

bool has(const Tied& tied, SumOrder order) {
  return std::ranges::any_of(tied, [&](const Hypothesis& h) { return h.order == order; });
}

// Whether every order that has no rotations gives the same.
bool order_is_open(const Tied& tied, std::uint32_t workers) {
  return workers <= 2 || (has(tied, SumOrder::kSequential) && has(tied, SumOrder::kTree) &&
                          has(tied, SumOrder::kHalving));
}

std::uint64_t beyond_of(const Inferred& inferred, Accumulation format) {
  for (const auto& [known, count] : inferred.beyond) {
    if (known == format) return count;
  }
  return inferred.beyond.empty() ? 0 : inferred.beyond.back().second;
}

// The widest format that explains nearly all of what any format explains.
Accumulation by_bounds(const Inferred& inferred, std::uint64_t elements) {
  if (inferred.beyond.empty() || elements == 0) return Accumulation::kUnknown;
  std::uint64_t fewest = inferred.beyond.front().second;
  for (const auto& [format, count] : inferred.beyond) fewest = std::min(fewest, count);
  for (const auto& [format, count] : inferred.beyond) {
    const auto more = static_cast<double>(count - fewest);
    if (more <= kFits * static_cast<double>(elements - fewest)) return format;
  }
  return Accumulation::kUnknown;
}

// Elements that are further off than the format explains are no sums, and speak against no order.
bool identifies(const Hypothesis& h, const Inferred& inferred, std::uint64_t elements,
                Dtype dtype) {
  const std::uint64_t lost = std::min(beyond_of(inferred, format_of(h, dtype)), elements);
  const auto reproduced = static_cast<double>(h.reproduced);
  return h.examined == elements && elements > 0 &&
         reproduced + kByChance * static_cast<double>(lost) >=
             kIdentified * static_cast<double>(elements - lost) &&
         reproduced >= kMostAtLeast * static_cast<double>(elements);
}

}  // namespace

Inferred conclude(std::vector<Hypothesis> hypotheses,
                  std::vector<std::pair<Accumulation, std::uint64_t>> beyond,
                  std::uint64_t elements, std::uint32_t workers, Dtype dtype) {
  std::ranges::stable_sort(
      hypotheses, [](const Hypothesis& a, const Hypothesis& b) { return a.share() > b.share(); });
  Inferred out{.hypotheses = std::move(hypotheses), .beyond = std::move(beyond)};
  const Hypothesis& best = out.hypotheses.front();
  if (!identifies(best, out, elements, dtype)) {
    out.accumulation = by_bounds(out, elements);
    out.wrong = beyond_of(out, out.accumulation);
    return out;
  }
  Tied tied;
  std::ranges::copy_if(out.hypotheses, std::back_inserter(tied), [&](const Hypothesis& h) {
    return h.examined == elements && h.reproduced == best.reproduced;
  });
  const auto [narrow, wide] = formats(tied, dtype);
  out.accumulation = narrow == wide ? narrow : Accumulation::kUnknown;
  out.order = order_is_open(tied, workers) ? SumOrder::kAny : best.order;
  out.division = best.division;
  out.wrong = beyond_of(out, narrow);
  return out;
}

}  // namespace presum::audit
