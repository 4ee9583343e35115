// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <span>

#include "compare/wording.h"
#include "presum/audit.h"
#include "presum/fingerprint.h"

namespace presum::compare {
namespace {

std::string kind_name(std::uint32_t kind) {
  if (kind == kMicroBatches) return "micro_batches";
  const FingerprintInfo* info = find_fingerprint_kind(kind);
  return info != nullptr ? std::string(info->name) : fmt::format("fingerprint {}", kind);
}

// "1.25 in A, 1.5 in B (relative 0.2)". If the numbers are equal only in the digits shown, the text
// says so.
std::string numbers_text(double a, double b) {
  const double size = std::max(std::abs(a), std::abs(b));
  const double relative = std::abs(a - b) / size;
  if (a == b || (std::isnan(a) && std::isnan(b))) return fmt::format("{:.6g} in both", a);
  if (!std::isfinite(relative)) return fmt::format("{:.6g} in A, {:.6g} in B", a, b);
  return fmt::format("{:.6g} in A, {:.6g} in B (relative {:.1g})", a, b, relative);
}

// "head, layers.3, layers.2 and 9 more".
std::string names_text(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 3;
  const std::size_t shown = std::min(names.size(), kShown);
  auto out = fmt::format("{}", fmt::join(std::span(names).first(shown), ", "));
  if (names.size() > shown) out += fmt::format(" and {} more", names.size() - shown);
  return out;
}

// "micro-batches 1, 3 of 4".
std::string micro_batches_text(const std::vector<std::size_t>& at, std::size_t of) {
  return fmt::format("micro-batch{} {} of {}", at.size() == 1 ? "" : "es", fmt::join(at, ", "), of);
}

// ---- what differs

struct WhatWords {
  const Difference& difference;

  std::string operator()(const OtherSettings& s) const {
    std::vector<std::string> names = s.facts;
    if (s.workers) names.emplace_back("number of ranks");
    if (!s.kinds.empty()) names.push_back(kinds_text(s.kinds));
    return fmt::format("{}", fmt::join(names, ", "));
  }
  std::string operator()(OtherThing thing) const {
    constexpr std::array kThings = {"the same samples over all ranks, distributed differently",
                                    "other tensors of the same samples (labels, targets, masks)",
                                    "positions in the dataset that samplers drew",
                                    "what one target token weighs in the loss",
                                    "loss",
                                    "reduced gradient"};
    static_assert(kThings.size() == static_cast<std::size_t>(OtherThing::kReducedGradient) + 1);
    return kThings[static_cast<std::size_t>(thing)];
  }
  std::string operator()(const OtherSamples& s) const {
    return fmt::format("samples ({} of {} over all ranks)", s.differing, s.of);
  }
  std::string operator()(const OtherStates& s) const {
    std::vector<std::string> out;
    if (!s.parameters.empty()) out.push_back("parameters of " + names_text(s.parameters));
    if (!s.buffers.empty()) {
      out.push_back("buffers or frozen parameters of " + names_text(s.buffers));
    }
    return fmt::format("{} ({} of {} {} {})", fmt::join(out, "; "), s.differing, s.compared,
                       s.compared == 1 ? "hash" : "hashes",
                       s.differing == 1 ? "differs" : "differ");
  }
  std::string operator()(const OtherGradient& g) const {
    if (g.layers == 0 || difference.layers.empty()) return "gradient";
    return fmt::format("gradient of {} of {} layers, first in the backward pass {}", g.layers, g.of,
                       difference.layers.front());
  }
};

// ---- evidence

std::string position_text(const Position& p) {
  return fmt::format("row {} is sample {} of the dataset in A, {} in B", p.row, p.a, p.b);
}

std::string rows_text(const OtherRows& r) {
  auto out = r.differing == 0 ? "the same rows in another order"
                              : fmt::format("{} of {} rows differ{}", r.differing, r.of,
                                            r.differing == 1 ? "s" : "");
  if (!r.at.empty()) out += " (" + micro_batches_text(r.at, r.micro_batches) + ")";
  if (r.first) out += "; " + position_text(*r.first);
  return out;
}

// "layers.2 only in A; the other layers are equal".
std::string layers_text(const GradientValues& g) {
  if (g.layers.empty() && (!g.only_in_a.empty() || !g.only_in_b.empty())) {
    return fmt::format("{}{}the other layers are equal",
                       g.only_in_a.empty() ? "" : names_text(g.only_in_a) + " only in A; ",
                       g.only_in_b.empty() ? "" : names_text(g.only_in_b) + " only in B; ");
  }
  if (g.compared == 0) return "layers are not recorded";
  if (g.layers.empty()) return "no norm of a layer shows it";
  if (g.layers.size() == g.compared && g.compared > 1) {
    return fmt::format("all {} layers", g.compared);
  }
  return fmt::format("{} of {} layers: {}", g.layers.size(), g.compared, names_text(g.layers));
}

std::string audit_text(const std::optional<AuditRecord>& audit) {
  if (!audit) return "not audited";
  return fmt::format("{} of {} elements not correctly rounded, {} sum, order {}, division {}",
                     audit->differing, audit->elements, to_string(audit->accumulation),
                     to_string(audit->order), to_string(audit->division));
}

// "learning_rate: 0.1 in A, 0.05 in B".
std::string values_text(const SettingValues& v) {
  const FingerprintInfo* info = find_fingerprint_kind(v.kind);
  const auto name = kind_name(v.kind);
  if (info == nullptr || !info->real) return fmt::format("{}: {} in A, {} in B", name, v.a, v.b);
  return fmt::format("{}: {} in A, {} in B", name, std::bit_cast<double>(v.a),
                     std::bit_cast<double>(v.b));
}

std::string values_text(const FactValues& v) {
  return fmt::format("{}: {} in A, {} in B", v.key, fact_text(v.a), fact_text(v.b));
}

struct DetailWords {
  std::string operator()(const SettingHash& s) const { return kind_name(s.kind); }
  std::string operator()(const SettingValues& v) const { return values_text(v); }
  std::string operator()(const FactValues& v) const { return values_text(v); }
  std::string operator()(const WorkerCounts& c) const {
    return fmt::format("ranks: {} in A, {} in B", c.a, c.b);
  }
  std::string operator()(const RowCounts& c) const {
    return fmt::format("{} rows in A, {} in B", c.a, c.b);
  }
  std::string operator()(const OtherRows& r) const { return rows_text(r); }
  std::string operator()(const Position& p) const { return position_text(p); }
  std::string operator()(const MorePositions&) const { return "more positions in one run"; }
  std::string operator()(const OtherTensors& t) const {
    return t.rows_equal ? "the rows are equal, other tensors of the batch (labels, masks) are not"
                        : "the batch differs, in rows that were not kept or in its other tensors";
  }
  std::string operator()(const DissentingWorker& w) const {
    return fmt::format("rank {} of {} differs from the other ranks of its own run", w.rank,
                       name_of(w.run));
  }
  std::string operator()(const TokenWeights& w) const {
    const auto of =
        w.micro_batch == 0 ? std::string() : fmt::format(" of micro-batch {}", w.micro_batch);
    return fmt::format("one target token{} weighs {}: in A {:.3g} times as much as in B", of,
                       numbers_text(w.a, w.b), w.a / w.b);
  }
  std::string operator()(const LossValues& v) const {
    const auto loss = "loss " + numbers_text(v.a, v.b);
    return v.micro_batches == 0 ? loss : loss + ", " + micro_batches_text(v.at, v.micro_batches);
  }
  std::string operator()(const GradientValues& g) const {
    return fmt::format("{}; norm {}", layers_text(g), numbers_text(g.norm_a, g.norm_b));
  }
  std::string operator()(const ReducedNorms& n) const {
    return "norm of the reduced gradient " + numbers_text(n.a, n.b);
  }
  std::string operator()(const LastAudits& a) const {
    return fmt::format("as last audited: {} in A; {} in B", audit_text(a.a), audit_text(a.b));
  }
};

}  // namespace

std::string what_text(const Difference& difference) {
  return std::visit(WhatWords{difference}, difference.what);
}

std::string evidence_text(const Evidence& evidence) {
  return std::visit(DetailWords{}, evidence.detail);
}

std::string kinds_text(const std::vector<std::uint32_t>& kinds) {
  std::vector<std::string> names;
  names.reserve(kinds.size());
  for (const std::uint32_t kind : kinds) names.push_back(kind_name(kind));
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string fact_text(const std::vector<std::string>& values) {
  return fmt::format("{}", fmt::join(values, " or "));
}

}  // namespace presum::compare
