// SPDX-License-Identifier: Apache-2.0
#include "checks/gradient/deviation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "checks/engine/text.h"

namespace presum::checks {
namespace {

using detect::Statistic;

constexpr double kSmallest = 0.05;      // smallest effect worth reporting, in standard deviations
constexpr double kSmallestRatio = 0.1;  // of its log: smallest ratio of norms worth reporting
constexpr double kLargest = 100;        // a larger number adds no information

struct Words {
  Statistic statistic;
  const char* name;  // in evidence
  const char* of;    // in a sentence
};

constexpr Words kStatisticWords[] = {
    {Statistic::kLoss, "loss", "loss"},
    {Statistic::kNorm, "norm", "gradient norm"},
    {Statistic::kDirection, "direction", "cosine with the other ranks' gradients"},
    {Statistic::kPeak, "peak", "largest gradient element relative to the norm"},
    {Statistic::kResidual, "residual", "gradient norm for its loss"},
    {Statistic::kTokens, "tokens", "token count"},
    {Statistic::kGroupNorm, "group_norm", "gradient norm in one layer"},
    {Statistic::kPair, "direction", "gradient direction"},
    {Statistic::kMicroBatch, "micro_batch_loss", "spread of micro-batch losses"},
    {Statistic::kOwnTime, "time", "own time"},
    {Statistic::kQueuedTime, "time", "own time"},
};

static_assert(std::size(kStatisticWords) == static_cast<std::size_t>(Statistic::kQueuedTime) + 1);

const Words& words_of(Statistic statistic) {
  return *std::ranges::find(kStatisticWords, statistic, &Words::statistic);
}

std::string deviations(double effect) {
  const double size = std::abs(effect);
  return size > kLargest ? fmt::format("over {} standard deviations", kLargest)
                         : fmt::format("{} standard deviations", number(size));
}

const char* side_of(const Deviation& seen) { return seen.effect_sd < 0 ? "below" : "above"; }

// How far, starting with ": "; empty if unknown or too small to report.
std::string how_far(const Deviation& seen) {
  const bool far = std::abs(seen.effect_sd) >= kSmallest;
  const auto sd = deviations(seen.effect_sd);
  if (!std::isfinite(seen.ratio) && seen.of_rank && far) {
    return fmt::format(": rank {}'s is {} {} rank {}'s", *seen.of_rank, sd, side_of(seen),
                       *seen.beside_rank);
  }
  if (!std::isfinite(seen.ratio)) return far ? ": " + sd : "";
  const std::string brackets = far ? fmt::format(" ({})", sd) : "";
  if (!seen.of_rank) return fmt::format(": {} times theirs{}", number(seen.ratio), brackets);
  return fmt::format(": rank {}'s is {} times rank {}'s{}", *seen.of_rank, number(seen.ratio),
                     *seen.beside_rank, brackets);
}

// A residual has no ratio; the norm that it is computed from has one.
std::string own_norm(const Deviation& seen, const Who& who) {
  const double far = std::abs(std::log(seen.norm_ratio));
  const bool known = far > std::max(kSmallestRatio, 2 * seen.norm_ratio_error);
  if (seen.of != Statistic::kResidual || who.ranks.size() != 1 || !known) return "";
  return fmt::format("; its norm is {} times theirs", number(seen.norm_ratio));
}

std::string outlier_sentence(const Deviation& seen, const Who& who) {
  const bool in_layer = seen.of == Statistic::kGroupNorm && !seen.layer.empty();
  const std::string of = in_layer ? "gradient norm in layer " + seen.layer : words_of(seen.of).of;
  const std::string most =
      in_layer || seen.layer.empty() ? "" : "; the gradient differs most in " + seen.layer;
  if (seen.of_rank) {
    return fmt::format("{} persistently differed in their {}{}{}", who.words(), of, how_far(seen),
                       most);
  }
  return fmt::format("{} had a {} persistently {} than the other ranks'{}{}{}", who.words(), of,
                     seen.high ? "higher" : "lower", how_far(seen), own_norm(seen, who), most);
}

// ---- suspects

using Texts = std::vector<std::string>;
using Signals = std::span<const Signal* const>;

// With two ranks, either may be at fault.
void suspect_scale(const Deviation& norm, Texts& out) {
  for (std::size_t i = 0; i < norm.scales.size(); ++i) {
    if (!norm.of_rank) {
      out.push_back("a loss that is " + norm.scales[i]);
    } else if (i < norm.scales_beside.size()) {
      out.push_back(fmt::format("rank {}'s loss is {}, or rank {}'s is {}", *norm.of_rank,
                                norm.scales[i], *norm.beside_rank, norm.scales_beside[i]));
    }
  }
  if (norm.is_clipped()) {
    out.emplace_back(
        "a gradient that is clipped before the reduction: its norm is always the same");
  }
}

void suspect_loss(const Deviation& seen, Texts& out) {
  out.push_back(fmt::format(
      "{}other inputs or labels (mixed up, masked, normalized or tokenized differently), or a loss "
      "that is computed differently",
      seen.of_rank ? "on one of them, " : ""));
}

void suspect_damage(const Deviation* norm, const Deviation* peak, Texts& out) {
  if (peak == nullptr) return;
  if (peak->effect_sd > 0) out.emplace_back("single elements that were damaged");
  if (peak->effect_sd < 0 && norm != nullptr && norm->effect_sd > 0) {
    out.emplace_back("noise that is added to the gradient");
  }
}

// What the finding's own ranks show.
const Deviation* of(Signals signals, Statistic statistic) {
  for (const Signal* signal : signals) {
    const auto* seen = signal->evidence.as<Deviation>();
    if (seen == nullptr || signal->ranks != signals.front()->ranks) continue;
    if (seen->of == statistic && !seen->of_static_data) return seen;
  }
  return nullptr;
}

}  // namespace

std::string Deviation::statistic() const { return words_of(of).name; }

std::string Deviation::kind_name() const {
  constexpr const char* kNames[] = {"outlier",        "pair more alike",  "pair less alike",
                                    "too consistent", "too inconsistent", "event"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string sentence(const Deviation& seen, const Who& who) {
  using enum detect::Alarm::Kind;
  if (seen.of_static_data) {
    const bool alike = seen.kind == kPairSimilar || seen.kind == kTooConsistent;
    return fmt::format("{} {}, as expected where each rank reuses its own samples", who.words(),
                       alike ? "were permanently alike" : "differed permanently");
  }
  switch (seen.kind) {
    case kPairSimilar:
      return who.words() + " had gradients more alike than chance allows";
    case kPairOpposed:
      return who.words() + " had gradients less alike than chance allows";
    case kTooConsistent:
      return who.words() + " differed less than their micro-batches allow";
    case kTooInconsistent:
      return who.words() + " had micro-batches more alike than chance allows";
    case kEvent:
      return fmt::format("{} had a {} farther {} the other ranks' than any before: {}", who.words(),
                         words_of(seen.of).of, side_of(seen), deviations(seen.effect_sd));
    case kOutlier:
      break;
  }
  return outlier_sentence(seen, who);
}

std::string outlier_suspects(Signals signals) {
  Texts out;
  const Deviation* loss = of(signals, Statistic::kLoss);
  const Deviation* norm = of(signals, Statistic::kNorm);
  const Deviation* direction = of(signals, Statistic::kDirection);
  const Deviation* group = of(signals, Statistic::kGroupNorm);
  if (norm != nullptr || loss != nullptr) suspect_scale(norm != nullptr ? *norm : *loss, out);
  if (loss != nullptr) suspect_loss(*loss, out);
  if (loss == nullptr) suspect_damage(norm, of(signals, Statistic::kPeak), out);
  if (direction != nullptr && direction->is_turned()) {
    out.emplace_back("a gradient whose sign is turned");
  }
  if (group != nullptr && group->layer_alone) {
    out.push_back(fmt::format("{}{} alone is scaled, dropped or fed differently",
                              group->of_rank ? "on one of them, " : "", group->layer));
  }
  return fmt::format("{}", fmt::join(out, "; "));
}

}  // namespace presum::checks
