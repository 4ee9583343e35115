// SPDX-License-Identifier: Apache-2.0
#include "checks/engine/wording.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "checks/engine/diagnoser.h"
#include "checks/engine/signal_log.h"
#include "checks/engine/text.h"

namespace presum::checks {
namespace {

using Texts = std::vector<std::string>;
using Entry = Finding::Evidence::value_type;

constexpr double kSmallest = 0.05;    // an effect that is worth a word, in deviations
constexpr double kLargest = 100;      // above, the number says nothing more
constexpr double kNearInteger = 0.3;  // over the integer: 0.15 for 2, 0.03 for 10

// What one alarm left in the evidence: a row of entries that begins with its statistic.
struct Shown {
  std::string statistic;
  std::string ranks;  // empty: the finding's
  std::string layer;
  std::string of_rank;  // of two workers, the one whose values these are
  std::string others = "the others'";
  double effect = 0;
  double ratio = kNaN;
  bool event = false;
};

struct Phrase {
  std::string_view name;
  std::string_view text;  // of evidence with the value put in
};

double as_number(const Finding::Value& value) {
  if (const auto* real = std::get_if<double>(&value)) return *real;
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return static_cast<double>(*whole);
  return kNaN;
}

std::string as_text(const Finding::Value& value) {
  if (const auto* real = std::get_if<double>(&value)) return number(*real);
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return fmt::format("{}", *whole);
  return std::get<std::string>(value);
}

// Takes an entry of a statistic; false where it is none.
bool take(const std::string& name, const Finding::Value& value, std::vector<Shown>& shown) {
  if (name.ends_with("statistic")) {
    shown.push_back({.statistic = as_text(value)});
    return true;
  }
  if (shown.empty()) return name.ends_with("effect_sd");
  Shown& last = shown.back();
  if (name.ends_with("effect_sd")) {
    last.effect = as_number(value);
  } else if (name.ends_with("tokens_ratio")) {
    return false;
  } else if (name.ends_with("ratio")) {
    last.ratio = as_number(value);
  } else if (name == "group" || name.ends_with("_group")) {
    last.layer = as_text(value);
  } else if (name == "of_rank" || name.ends_with("_of_rank")) {
    last.of_rank = as_text(value);
  } else if (name == "beside_rank" || name.ends_with("_beside_rank")) {
    last.others = fmt::format("rank {}'s", as_text(value));
  } else if (name.ends_with("_ranks")) {
    last.ranks = as_text(value);
  } else if (name == "z" || name.ends_with("_z")) {
    last.effect = as_number(value);
    last.event = true;
  } else {
    return name.ends_with("log10_evidence");
  }
  return true;
}

std::string_view words_of(std::string_view statistic) {
  constexpr std::array<Phrase, 6> kWords{{
      {"norm", "gradient norm"},
      {"direction", "cosine with the other gradients"},
      {"peak", "largest element for its norm"},
      {"residual", "gradient norm for its loss"},
      {"tokens", "target tokens"},
      {"micro_batch_loss", "scatter of micro-batch losses"},
  }};
  const auto* const found = std::ranges::find(kWords, statistic, &Phrase::name);
  return found == kWords.end() ? statistic : found->text;
}

std::string spreads(double effect) {
  const double size = std::abs(effect);
  return size > kLargest ? fmt::format("over {}", kLargest) : number(size);
}

std::string phrase(const Shown& s) {
  std::string out(words_of(s.statistic));
  const bool of_layer = s.statistic == "group_norm" && !s.layer.empty();
  if (s.statistic == "group_norm") out = of_layer ? "gradient norm in " + s.layer : "gradient norm";
  if (!s.of_rank.empty()) out += fmt::format(" of rank {}", s.of_rank);
  if (!s.layer.empty() && !of_layer) out += fmt::format(" (most in {})", s.layer);
  const char* side = s.effect >= 0 ? "above" : "below";
  if (s.event) {
    out += fmt::format(" {} spreads {} everything seen before", spreads(s.effect), side);
  } else if (std::isfinite(s.ratio)) {
    out += fmt::format(" {} times {}", number(s.ratio), s.others);
    if (std::abs(s.effect) >= kSmallest) {
      out += fmt::format(" ({} spreads {})", spreads(s.effect), side);
    }
  } else if (std::abs(s.effect) >= kSmallest) {
    out += fmt::format(" {} spreads {} {}", spreads(s.effect), side, s.others);
  } else {
    return "";
  }
  if (s.ranks.empty()) return out;
  const bool one = s.ranks.find_first_of("-,") == std::string::npos;
  return fmt::format("{} ({} {})", out, one ? "rank" : "ranks", s.ranks);
}

constexpr std::array<Phrase, 73> kPhrases{{
    {"nonfinite_elements", "elements not finite: {}"},
    {"steps_missing", "steps without them: {}"},
    {"unreduced_steps", "optimiser steps without a reduction: {}"},
    {"workers_with_own_gradient", "workers that stepped on their own gradient: {}"},
    {"distinct_reduced_gradients", "different reduced gradients: {}"},
    {"ranks_around_wrapper", "forward passes around the wrapper on ranks {}"},
    {"workers_with_nonfinite_result", "workers whose result is not finite: {}"},
    {"factor", "{} times the mean gradient"},
    {"groups_of_ranks", "ranks that read alike: {}"},
    {"distinct_gradients", "different gradients in the step: {}"},
    {"samples_doubled", "samples drawn again: {}"},
    {"samples_drawn", "drawn in all: {}"},
    {"clipped_to", "clipped to: {}"},
    {"differ_from_parameters", "{}"},
    {"samples_left_out", "samples left out: {}"},
    {"of_samples", "samples in all: {}"},
    {"passes", "passes so: {}"},
    {"from_index", "from index {} on"},
    {"samples_never_drawn", "samples that none of them drew: {}"},
    {"by_rank", "by rank: {}"},
    {"indices_in_conflict", "draws of an index that gave other rows: {}"},
    {"batches_repeated", "batches in the order of the pass before: {}"},
    {"steps_frozen", "steps in which it repeated: {}"},
    {"steps_without_change", "optimiser steps without a change: {}"},
    {"learning_rate", "learning rate: {}"},
    {"clip_norm", "norm that was used: {}"},
    {"others_clip_norm", "another rank's: {}"},
    {"true_norm", "norm of the gradient: {}"},
    {"micro_batches_lost", "micro-batches lost: {}"},
    {"micro_batches", "micro-batches in all: {}"},
    {"factor_between_passes", "factor: {}"},
    {"groups_unchanged", "layers unchanged: {}"},
    {"watched_by_some", "not watched by all: {}"},
    {"layers_standing", "standing still: {}"},
    {"share_unchanged", "share unchanged: {}"},
    {"gradients_different", "gradients that differ: {}"},
    {"steps_with_the_same_input", "steps with the same input: {}"},
    {"of_steps", "steps in all: {}"},
    {"ranks_per_place", "ranks to a place of the sampler: {}"},
    {"layers", "names of the layers: {}"},
    {"layers_of", "of {} layers"},
    {"means_of", "what came out is a mean of the parts of ranks {}"},
    {"weight", "its weight over the others': {}"},
    {"distance_from_mean", "distance from the mean: {} of its size"},
    {"groups", "parts that differ: {}"},
    {"distinct_copies", "different copies: {}"},
    {"percent_apart", "{} % of their norm away from them"},
    {"as_saved_after", "they are those saved after {}"},
    {"settings_changed", "{}"},
    {"samples_again", "samples drawn again: {}"},
    {"samples_never", "samples never drawn: {}"},
    {"copies_alike", "ranks with the same copy: {}"},
    {"tokens_ratio", "{} times the others' target tokens"},
    {"tokens_cv", "token counts vary by {} of their mean"},
    {"loss_gap", "the two means of the loss are {} apart"},
    {"elements_wrong", "elements wrong: {}"},
    {"rows_distinct", "different rows: {}"},
    {"equal_until_step", "equal when they were hashed before, at step {}"},
    {"share_not_zero", "share of elements that are not zero: {}"},
    {"share_not_zero_at_start", "{} at the run's start"},
    {"batches_apart", "batches more than the others': {}"},
    {"times_the_others", "own time {} times the others'"},
    {"others_own_ms", "theirs: {} ms"},
    {"share_on_processor", "share of its own time that its thread was on a processor: {}"},
    {"processor_times_the_others", "its thread's time on a processor {} times the others'"},
    {"queued_longer_ms", "longer than the others in the queue for a processor: {} ms a step"},
    {"longer_by_tokens_ms", "of that by its tokens: {} ms"},
    {"correlation", "correlation of time and tokens: {}"},
    {"tokens_spread", "token counts vary by {} of their mean"},
    {"period_steps", "steps from one to the next: {}"},
    {"times_as_long", "{} times as long"},
    {"host", "host: {}"},
    {"seconds", "for {} s"},
}};

// Of a finding that is this one's effect: numbers of a check whose words are not these. JSON has
// them.
bool of_effect(const Finding& finding, std::string_view name) {
  const auto is_of = [&](const std::string& check) {
    std::string prefix = check + "_";
    std::ranges::replace(prefix, '-', '_');
    return name.starts_with(prefix);
  };
  return is_of(finding.check) || std::ranges::any_of(finding.also, is_of);
}

// Says nothing beside the title, or nothing at all.
bool empty_of_news(std::string_view name, const Finding::Value& value) {
  constexpr std::string_view kSilent[] = {"phase",
                                          "longer_ms",
                                          "others_wait_ms",
                                          "step_ms",
                                          "data_ms",
                                          "waiting_ms",
                                          "longer_s",
                                          "own_ms",
                                          "own_ms_then",
                                          "differ",
                                          "workers_not_finite",
                                          "workers_zero",
                                          "data_pass",
                                          "how",
                                          "data_changed",
                                          "groups_different",
                                          "workers_expected",
                                          "elements",
                                          "audited_by_rank",
                                          "factor_error",
                                          "reduced_norm",
                                          "mean_norm",
                                          "rows"};
  if (std::ranges::find(kSilent, name) != std::end(kSilent)) return true;
  if (name == "rows_equal_share" && as_number(value) == 1) return true;
  if (name == "distinct_reduced_gradients" && as_number(value) == 1) return true;
  return std::holds_alternative<double>(value) && std::isnan(as_number(value));
}

std::string plain_phrase(std::string_view name, const Finding::Value& value) {
  const auto known = std::ranges::find(kPhrases, name, &Phrase::name);
  if (known != kPhrases.end()) return fmt::format(fmt::runtime(known->text), as_text(value));
  std::string out(name);
  std::ranges::replace(out, '_', ' ');
  return fmt::format("{}: {}", out, as_text(value));
}

std::string began(const Finding& finding, const Finding::Value& alarm) {
  const double step = as_number(alarm);
  const Check check = find_check(finding.check);
  const bool of_alarm = check != nullptr && (is_statistic(check) || check == &kTokenImbalance);
  if (!of_alarm || !(step > static_cast<double>(finding.first_step))) return "";
  return fmt::format("began at step {}, certain at {}", finding.first_step, as_text(alarm));
}

struct Said {
  Texts phrases;
  std::vector<Shown> shown;
};

Said said(const Finding& finding) {
  Said out;
  Texts others;
  std::string since;
  for (const auto& [name, value] : finding.evidence) {
    if (name == "alarm_step") {
      since = began(finding, value);
    } else if (!take(name, value, out.shown) && !empty_of_news(name, value) &&
               !of_effect(finding, name)) {
      others.push_back(plain_phrase(name, value));
    }
  }
  for (const Shown& s : out.shown) {
    std::string text = phrase(s);
    if (!text.empty()) out.phrases.push_back(std::move(text));
  }
  out.phrases.insert(out.phrases.end(), others.begin(), others.end());
  if (!since.empty()) out.phrases.push_back(since);
  return out;
}

// k >= 2 where the ratio is that whole number, or its inverse; else 0.
int whole_factor(double ratio) {
  if (!(ratio > 0) || !std::isfinite(ratio)) return 0;
  const double factor = std::max(ratio, 1 / ratio);
  const double nearest = std::round(factor);
  return nearest >= 2 && nearest <= 64 && std::abs(factor / nearest - 1) <= kNearInteger / nearest
             ? static_cast<int>(nearest)
             : 0;
}

const Shown* of(const std::vector<Shown>& shown, std::string_view statistic) {
  const auto found = std::ranges::find_if(
      shown, [&](const Shown& s) { return s.ranks.empty() && s.statistic == statistic; });
  return found == shown.end() ? nullptr : &*found;
}

// Of two workers nobody knows which is at fault.
void suspect_either(const Shown* loss, const Shown* norm, Texts& out) {
  const int factor = norm == nullptr ? 0 : whole_factor(norm->ratio);
  if (factor > 0) {
    out.push_back(fmt::format(
        "on one of them, a loss that is divided by {} once more or not divided", factor));
  }
  if (norm != nullptr && (norm->ratio < 0.5 || norm->ratio > 2)) {
    out.emplace_back("on one of them, a gradient that is clipped before the reduction");
  }
  if (loss != nullptr) {
    out.emplace_back(
        "other labels or inputs on one of them (mixed up, another normalisation, tokeniser or "
        "mask), or a loss that is reduced otherwise");
  }
}

void suspect_norm(const Shown& norm, Texts& out) {
  const int factor = whole_factor(norm.ratio);
  if (factor > 0 && norm.ratio > 1) {
    out.push_back(fmt::format("a loss that is not divided by {}, as it is on the others", factor));
  } else if (factor > 0) {
    out.push_back(fmt::format("a loss that is divided by {} once more", factor));
  }
  if (norm.ratio < 0.5) out.emplace_back("a gradient that is clipped before the reduction");
}

void suspect_outlier(const Finding& finding, const std::vector<Shown>& shown, Texts& out) {
  const Shown* loss = of(shown, "loss");
  const Shown* norm = of(shown, "norm");
  if (finding.title.find("persistently differed") != std::string::npos) {
    return suspect_either(loss, norm, out);
  }
  const Shown* direction = of(shown, "direction");
  const Shown* peak = of(shown, "peak");
  const bool turned = direction != nullptr && direction->effect < 0;  // a scale does not turn it
  const bool loses = loss != nullptr && loss->effect > 0;
  if (norm != nullptr && std::isfinite(norm->ratio) && !turned) suspect_norm(*norm, out);
  if (turned && !loses) {
    out.emplace_back("a gradient whose sign is turned, or that is of another step or other data");
  }
  if (loses) {
    out.emplace_back(
        "other labels or inputs (mixed up, another normalisation, tokeniser or mask), or a loss "
        "that is reduced otherwise");
  } else if (loss != nullptr) {
    out.emplace_back("easier or repeated data, or a regularisation that is switched off");
  }
  if (turned && loses) out.emplace_back("labels that do not belong to their inputs");
  if (direction != nullptr && !turned) {
    out.emplace_back("a larger batch, or samples that others read too");
  }
  if (peak != nullptr && peak->effect > 0) out.emplace_back("single elements that were damaged");
  if (peak != nullptr && peak->effect < 0) out.emplace_back("noise that is added to the gradient");
  if (of(shown, "group_norm") != nullptr) {
    out.emplace_back("a layer that is frozen, scaled or dropped on these ranks alone");
  }
}

// NaN where it is not in the evidence.
double number_of(const Finding& finding, std::string_view name) {
  const auto found = std::ranges::find(finding.evidence, name, &Entry::first);
  return found == finding.evidence.end() ? kNaN : as_number(found->second);
}

std::string suspects(const Finding& finding, const std::vector<Shown>& shown) {
  Texts out;
  if (std::ranges::find(finding.evidence, "tokens_ratio", &Entry::first) !=
      finding.evidence.end()) {
    out.emplace_back("prompts or padding that are not masked as on the others, or other lengths");
  }
  const Check check = find_check(finding.check);
  const auto layers = number_of(finding, "groups_different");
  if (check == &kParameterDesync && layers == 1 && finding.ranks.size() == 1) {
    out.emplace_back("a write to that layer on this rank alone, or memory that changed by itself");
  }
  if (check == &kRankOutlier) suspect_outlier(finding, shown, out);
  if (check == &kPairTooSimilar || check == &kTooConsistent) {
    out.emplace_back("the same samples, or one seed for noise and augmentation");
  }
  return fmt::format("{}", fmt::join(out, "; "));
}

std::string since(const Finding& finding) {
  if (finding.first_step == finding.last_step)
    return fmt::format(", at step {}", finding.last_step);
  const double equal = number_of(finding, kEqualUntil);
  const auto first = static_cast<double>(finding.first_step);
  if (equal + 1 < first) {
    return fmt::format(", since a step from {} to {}, last seen at {}", equal + 1,
                       finding.first_step, finding.last_step);
  }
  return fmt::format(", since step {}, last seen at {}", finding.first_step, finding.last_step);
}

std::string blame_of(const Finding& finding) {
  const auto rank =
      finding.ranks.size() == 1 ? fmt::format(" --rank {}", finding.ranks.front()) : "";
  return fmt::format("; presum blame RUN --step {}{}", finding.first_step, rank);
}

}  // namespace

Wording wording(const Finding& finding) {
  const Said found = said(finding);
  Wording out;
  const Check check = find_check(finding.check);
  out.sentence = finding.title;
  if (check == nullptr || !check->dates_itself) out.sentence += since(finding);
  if (!finding.elsewhere.empty()) {
    out.sentence += fmt::format(", in {} models", finding.elsewhere.size() + 1);
  }
  out.evidence = fmt::format("{}", fmt::join(found.phrases, "; "));
  if (check != nullptr) out.more = "presum explain " + finding.check;
  if (check != nullptr && check->of_a_step) out.more += blame_of(finding);
  if (finding.severity == Severity::kInfo) return out;
  out.suspects = suspects(finding, found.shown);
  if (check != nullptr) out.consequence = check->consequence;
  return out;
}

}  // namespace presum::checks
