// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "audit/inference.h"

namespace presum::audit {
namespace {

// Share of the elements that rounding in the hypothesis's format can explain.
constexpr double kIdentified = 0.999;
constexpr double kMostAtLeast = 0.5;    // of all telling elements
constexpr double kByChance = 0.1;       // of damaged elements: share that rounding could explain
constexpr double kNearByChance = 0.25;  // the same for 8 bits and the values of many ranks
constexpr double kFits = 0.001;
constexpr std::uint64_t kTellingLeast = 24;
// Number of elements by which an order must lead to be named: a wrong order reproduces about half
// of the elements that depend on it.
constexpr std::uint64_t kOrderLeast = 12;
constexpr int kFewBits = 16;  // a sum with this many significant bits is often reproduced by chance

// The narrowest format to which a scheme rounds. A sum in fp32 of values that were cast to 16 bits
// has the precision of the cast.
Accumulation format_of(const Hypothesis& h, Dtype dtype) {
  const bool cast = significand_bits(h.scheme.wire) < significand_bits(dtype);
  return accumulation_of(cast ? h.scheme.wire : h.scheme.accumulation);
}

using Tied = std::vector<Hypothesis>;

// The narrowest and the widest format among the hypotheses that reproduce as much as the best.
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

// Returns whether every order without rotations gives the same result.
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
  const auto fewest = std::ranges::min_element(beyond, {}, &Beyond::value_type::second);
  return fewest == beyond.end() ? 0 : fewest->second;
}

bool is_unrelated(const Evidence& e) {
  return e.telling >= kTellingLeast && 2 * e.sample.far > e.telling;
}

// Returns the rank whose own values equal the telling elements of the result.
std::optional<std::uint32_t> copied_from(const Evidence& e) {
  const std::uint64_t untelling = e.examined - e.telling;
  const auto most = std::ranges::max_element(e.own);
  if (e.telling < kTellingLeast || most == e.own.end() || *most < untelling) return std::nullopt;
  if (static_cast<double>(*most - untelling) < kIdentified * static_cast<double>(e.telling)) {
    return std::nullopt;
  }
  return static_cast<std::uint32_t>(most - e.own.begin());
}

// Returns the widest format that explains nearly all that any format explains. Damaged elements are
// sometimes near the sum by chance, and give no evidence about formats.
Accumulation by_bounds(const Evidence& e) {
  if (e.telling < kTellingLeast || 2 * e.sample.far > e.telling) return Accumulation::kUnknown;
  const auto far = static_cast<double>(e.sample.far);
  const double sums = static_cast<double>(e.telling) - far;
  for (const auto& [format, count] : e.sample.beyond) {
    if (static_cast<double>(count) - far <= kFits * sums + kNearByChance * far) return format;
  }
  return Accumulation::kUnknown;
}

// Elements further off than rounding explains are not sums, and are no evidence against an order.
// With few bits, where sums are reproduced by chance, only elements that no format explains are
// excluded; otherwise a wide format would excuse the roundings of a narrow one.
bool identifies(const Hypothesis& h, const Evidence& e, Dtype dtype) {
  const bool by_chance = significand_bits(h.scheme.wire) <= kFewBits;
  const std::uint64_t off =
      by_chance ? fewest_of(e.sample.beyond) : beyond_of(e.sample.beyond, format_of(h, dtype));
  const std::uint64_t lost = std::min(off, e.telling);
  const std::uint64_t untelling = e.examined - e.telling;
  const auto reproduced = static_cast<double>(h.reproduced) - static_cast<double>(untelling);
  return h.examined == e.examined && e.examined > 0 &&
         (e.telling == 0 || e.telling >= kTellingLeast) &&
         reproduced + kByChance * static_cast<double>(lost) >=
             kIdentified * static_cast<double>(e.telling - lost) &&
         reproduced >= kMostAtLeast * static_cast<double>(e.telling);
}

// Hypotheses that were tried on all elements come first: the share of a dropped one refers to other
// elements.
void sort_best_first(std::vector<Hypothesis>& hypotheses) {
  std::ranges::stable_sort(hypotheses, [](const Hypothesis& a, const Hypothesis& b) {
    return a.examined != b.examined ? a.examined > b.examined : a.reproduced > b.reproduced;
  });
}

// Elements beyond the bound of the format. Elements that the hypothesis reproduces bit for bit are
// never wrong.
std::uint64_t wrong_of(const Hypothesis& h, Accumulation format, const Evidence& e) {
  const std::uint64_t beyond = beyond_of(e.all.beyond, format);
  return h.examined == e.elements ? std::min(beyond, e.elements - h.reproduced) : beyond;
}

void explain_without_hypothesis(Inferred& out, const Evidence& e, Dtype dtype) {
  out.copy_of = copied_from(e);
  out.unrelated = out.copy_of || is_unrelated(e);
  out.wrong = fewest_of(e.all.beyond);
  if (out.copy_of) {
    out.wrong = beyond_of(e.all.beyond, accumulation_of(dtype));
  } else if (out.unrelated) {
    out.wrong = e.all.far;
  } else {
    out.accumulation = by_bounds(e);
  }
}

}  // namespace

Inferred conclude(std::vector<Hypothesis> hypotheses, const Evidence& evidence,
                  std::uint32_t workers, Dtype dtype) {
  sort_best_first(hypotheses);
  Inferred out{.hypotheses = std::move(hypotheses), .beyond = evidence.all.beyond};
  const Hypothesis& best = out.hypotheses.front();
  if (!identifies(best, evidence, dtype)) {
    explain_without_hypothesis(out, evidence, dtype);
    return out;
  }
  Tied tied;
  std::ranges::copy_if(out.hypotheses, std::back_inserter(tied), [&](const Hypothesis& h) {
    return h.examined == best.examined && h.reproduced == best.reproduced;
  });
  const auto [narrow, wide] = formats(tied, dtype);
  out.accumulation = narrow == wide ? narrow : Accumulation::kUnknown;
  Tied near;
  std::ranges::copy_if(out.hypotheses, std::back_inserter(near), [&](const Hypothesis& h) {
    return h.examined == best.examined && h.reproduced + kOrderLeast > best.reproduced;
  });
  out.order = order_is_open(near, workers) ? SumOrder::kAny : best.order;
  out.division = best.division;
  out.wrong = wrong_of(best, narrow, evidence);
  return out;
}

}  // namespace presum::audit
