// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "audit/inference.h"

namespace presum::audit {
namespace {

// Of the elements that rounding in the hypothesis's format explains at all.
constexpr double kIdentified = 0.999;
constexpr double kMostAtLeast = 0.5;  // of all elements that tell something
constexpr double kByChance = 0.1;     // of damaged elements: those that rounding could explain
constexpr double kFits = 0.001;
constexpr std::uint64_t kTellingLeast = 24;
constexpr int kFewBits = 16;  // a sum of so many significant bits is often hit by chance

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

std::uint64_t beyond_of(const Beyond& beyond, Accumulation format) {
  for (const auto& [known, count] : beyond) {
    if (known == format) return count;
  }
  return beyond.empty() ? 0 : beyond.back().second;
}

std::uint64_t fewest_of(const Beyond& beyond) {
  std::uint64_t fewest = beyond.empty() ? 0 : beyond.front().second;
  for (const auto& [format, count] : beyond) fewest = std::min(fewest, count);
  return fewest;
}

// The widest format that explains nearly all of what any format explains.
Accumulation by_bounds(const Evidence& e) {
  if (e.telling < kTellingLeast) return Accumulation::kUnknown;
  const std::uint64_t fewest = fewest_of(e.beyond);
  const double telling = static_cast<double>(e.telling) * static_cast<double>(e.elements) /
                         static_cast<double>(e.examined);
  const double sums = std::max(0.0, telling - static_cast<double>(fewest));
  for (const auto& [format, count] : e.beyond) {
    if (static_cast<double>(count - fewest) <= kFits * sums) return format;
  }
  return Accumulation::kUnknown;
}

// Elements that are further off than rounding explains are no sums, and speak against no order.
// Where sums are hit by chance, only what no format explains is no sum: else a wide format forgave
// itself what the hops of a narrow one did.
bool identifies(const Hypothesis& h, const Evidence& e, Dtype dtype) {
  const bool by_chance = significand_bits(h.scheme.wire) <= kFewBits;
  const std::uint64_t off =
      by_chance ? fewest_of(e.examined_beyond) : beyond_of(e.examined_beyond, format_of(h, dtype));
  const std::uint64_t lost = std::min(off, e.telling);
  const std::uint64_t untelling = e.examined - e.telling;
  const auto reproduced = static_cast<double>(h.reproduced) - static_cast<double>(untelling);
  return h.examined == e.examined && e.examined > 0 &&
         (e.telling == 0 || e.telling >= kTellingLeast) &&
         reproduced + kByChance * static_cast<double>(lost) >=
             kIdentified * static_cast<double>(e.telling - lost) &&
         reproduced >= kMostAtLeast * static_cast<double>(e.telling);
}

// Those that were tried on all come first: the share of a dropped one is of other elements.
void sort_best_first(std::vector<Hypothesis>& hypotheses) {
  std::ranges::stable_sort(hypotheses, [](const Hypothesis& a, const Hypothesis& b) {
    return a.examined != b.examined ? a.examined > b.examined : a.reproduced > b.reproduced;
  });
}

// Elements beyond the format's bound. What the hypothesis gives bit for bit is never wrong.
std::uint64_t wrong_of(const Hypothesis& h, Accumulation format, const Evidence& e) {
  const std::uint64_t beyond = beyond_of(e.beyond, format);
  return h.examined == e.elements ? std::min(beyond, e.elements - h.reproduced) : beyond;
}

}  // namespace

Inferred conclude(std::vector<Hypothesis> hypotheses, const Evidence& evidence,
                  std::uint32_t workers, Dtype dtype) {
  sort_best_first(hypotheses);
  Inferred out{.hypotheses = std::move(hypotheses), .beyond = evidence.beyond};
  const Hypothesis& best = out.hypotheses.front();
  if (!identifies(best, evidence, dtype)) {
    out.accumulation = by_bounds(evidence);
    out.wrong = fewest_of(evidence.beyond);
    return out;
  }
  Tied tied;
  std::ranges::copy_if(out.hypotheses, std::back_inserter(tied), [&](const Hypothesis& h) {
    return h.examined == best.examined && h.reproduced == best.reproduced;
  });
  const auto [narrow, wide] = formats(tied, dtype);
  out.accumulation = narrow == wide ? narrow : Accumulation::kUnknown;
  out.order = order_is_open(tied, workers) ? SumOrder::kAny : best.order;
  out.division = best.division;
  out.wrong = wrong_of(best, narrow, evidence);
  return out;
}

}  // namespace presum::audit
