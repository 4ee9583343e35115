// SPDX-License-Identifier: Apache-2.0
// **token-imbalance.** For a rank that any check shows as different: if it has at least 1.2 times
// the others' target tokens (or at most 1/1.2), on that side in four of five steps, the finding
// names the tokens as the cause. For all ranks: the mean coefficient of variation of token counts
// is above 0.2 while weights do not follow the counts. `loss_gap` is the mean distance between the
// mean of means and the mean over tokens. Exchangeable ranks show it in no other way. If numbers of
// micro-batches, or of samples, differ between ranks in the same way in 5 records in a row, the
// finding gives them; numbers of samples are information if the program's weights follow them. If
// the numbers of samples vary, a rank's mean is compared after 20, 40, 80, ... steps. It is
// reported if it is off the others' by 5%, if its target tokens are too (where known), and if the
// difference is 5 standard errors or some rank's number is constant.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>

#include "checks/data/token_shares.h"
#include "checks/engine/rules.h"

namespace presum::checks {
namespace {

constexpr std::uint64_t kTokenSteps = 20;
constexpr double kTokenVariation = 0.2;
struct UnweightedTokens {
  double tokens_cv = kNaN;  // mean over steps of the coefficient of variation of the counts
  double loss_gap = kNaN;   // mean distance between the mean of means and the mean over tokens

  static constexpr std::tuple kFields{field("tokens_cv", &UnweightedTokens::tokens_cv),
                                      field("loss_gap", &UnweightedTokens::loss_gap)};
};

std::string sentence(const UnweightedTokens& /*seen*/, const Who& who) {
  return who.words() +
         " had token counts that differ while every rank's mean counts alike: the mean of means is "
         "not the mean over tokens";
}

std::string token_suspects(std::span<const Signal* const> signals) {
  const bool known = std::ranges::any_of(
      signals, [](const Signal* s) { return s->evidence.as<OtherTokens>() != nullptr; });
  return known ? "prompts or padding that are not masked as on the others, or other lengths" : "";
}

// The mean over all target tokens; NaN if a loss or a count is unknown.
double token_weighted_loss(const StepRecord& record) {
  double sum = 0;
  double tokens = 0;
  for (const WorkerRecord& w : record.workers) {
    if (w.tokens == 0) return kNaN;
    sum += w.loss * static_cast<double>(w.tokens);
    tokens += static_cast<double>(w.tokens);
  }
  return sum / tokens;
}

bool weights_follow_tokens(const StepRecord& record) {
  const WorkerRecord& first = record.workers.front();
  const double each = first.weight / static_cast<double>(first.tokens);
  return std::ranges::all_of(record.workers, [&](const WorkerRecord& w) {
    return std::abs(w.weight / static_cast<double>(w.tokens) - each) <= 1e-3 * each;
  });
}

class TokenImbalance final : public Rule {
 public:
  void update(const StepContext& context, SignalLog& log) override {
    watch_tokens(context, log);
    sizes_->update(context, log);
  }

 private:
  void watch_tokens(const StepContext& context, SignalLog& log) {
    const StepRecord& r = context.record;
    if (std::isnan(r.tokens_cv)) {
      return log.cannot(&kTokenImbalance, "Token counts are unknown.");
    }
    if (std::ranges::any_of(r.workers, [](const auto& w) { return w.tokens == 0; })) return;
    log.waits(&kTokenImbalance, "Fewer than 20 steps with token counts so far.");
    const bool weighted = weights_follow_tokens(r);
    cv_sum_ += weighted ? 0 : r.tokens_cv;
    const double gap = std::abs(r.loss_mean - token_weighted_loss(r));
    if (std::isfinite(gap)) {
      gap_sum_ += gap;
      ++gap_steps_;
    }
    if (++token_steps_ < kTokenSteps) return;
    log.checked(&kTokenImbalance);
    const double cv = cv_sum_ / static_cast<double>(token_steps_);
    if (!(cv > kTokenVariation) || weighted) return;
    UnweightedTokens seen{.tokens_cv = cv};
    if (gap_steps_ > 0) seen.loss_gap = gap_sum_ / static_cast<double>(gap_steps_);
    Signal signal = sighting(&kTokenImbalance, context, of_all(r), 0.8, seen);
    signal.first_step = r.step - std::min(r.step, kTokenSteps - 1);
    signal.severity = Severity::kInfo;
    log.add(std::move(signal));
  }

  std::uint64_t token_steps_ = 0;
  double cv_sum_ = 0;
  double gap_sum_ = 0;  // |mean of the ranks' losses - mean over tokens|
  std::uint64_t gap_steps_ = 0;
  std::unique_ptr<Rule> sizes_ = make_batch_sizes();
};

}  // namespace

constexpr Check kTokenImbalanceExplains[] = {&kRankOutlier, &kLossEvent, &kLossMismatch};
constinit const CheckInfo kTokenImbalance{
    .id = "token-imbalance",
    .severity = Severity::kWarning,
    .compares = "the target tokens of every rank's batch",
    .fires =
        "after 20 steps; numbers of micro-batches or samples after 5; if the counts of all ranks "
        "do not fit their weights, as information",
    .consequence = "A token in a short batch counts more than one in a long batch.",
    .cannot_see = "Batches whose target tokens are unknown.",
    .mistake =
        "loss = F.cross_entropy(logits, labels, ignore_index=-100)  # averages over a different "
        "count\nlabels = input_ids.clone()  # the prompt is not masked on this rank",
    .fix =
        "Weight each rank's loss by its target tokens: divide the summed loss by the global token "
        "count, or batch by length on all ranks in the same way.",
    .resembles = "huggingface/transformers#34242",
    .precedence = 300,
    .explains = kTokenImbalanceExplains,
    .compares_ranks = true,
    .sets_apart = true,
    .info_explains = false,
    .suspects = token_suspects,
    .make = make<TokenImbalance>,
};

}  // namespace presum::checks
