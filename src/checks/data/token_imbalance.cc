// SPDX-License-Identifier: Apache-2.0
// **token-imbalance.** For a rank that any check shows as different: if it has at least 1.2 times
// the others' target tokens (or at most 1/1.2), on that side in four of five steps, the finding
// names the tokens as the cause. What all ranks' tokens weigh is token-weight's. If numbers of
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

std::string token_suspects(std::span<const Signal* const> signals) {
  const bool known = std::ranges::any_of(
      signals, [](const Signal* s) { return s->evidence.as<OtherTokens>() != nullptr; });
  return known ? "prompts or padding that are not masked as on the others, or other lengths" : "";
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
    if (++token_steps_ < kTokenSteps) return;
    log.checked(&kTokenImbalance);
  }

  std::uint64_t token_steps_ = 0;
  std::unique_ptr<Rule> sizes_ = make_batch_sizes();
};

}  // namespace

constexpr Check kTokenImbalanceExplains[] = {&kRankOutlier, &kLossEvent, &kLossMismatch};
constinit const CheckInfo kTokenImbalance{
    .id = "token-imbalance",
    .severity = Severity::kWarning,
    .compares = "the target tokens of every rank's batch",
    .fires = "with the alarm of another check; numbers of micro-batches or samples after 5 steps",
    .consequence = "A token in a short batch counts more than one in a long batch.",
    .cannot_see = "Batches whose target tokens are unknown.",
    .mistake =
        "loss = F.cross_entropy(logits, labels, ignore_index=-100)  # averages over a different "
        "count\nlabels = input_ids.clone()  # the prompt is not masked on this rank",
    .fix =
        "Compare prompts, padding and masks of these ranks with those of the others. If the "
        "lengths differ on purpose, divide the summed loss by the global token count.",
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
