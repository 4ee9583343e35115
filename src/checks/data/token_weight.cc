// SPDX-License-Identifier: Apache-2.0
// **token-weight.** What one target token weighs in an update: the gradient that arrives at the
// loss function, by the number of its targets, times 1/W for W ranks, times a factor that the
// program applies to the reduced gradient before it clips. A warning: (1) five updates
// in a row, the loss was divided, to one part in a thousand, by one of these counts: of the targets
// of all ranks and once more by W, where the loss has no other terms; of the last or first
// micro-batch, of the first rank, of the update before, of this one and a neighbor. It must vary,
// and not be a right count times a constant. (2) In the last update of a pass over the data, each
// of fewer micro-batches weighs 1/k, as before for k micro-batches; elsewhere, and if the pass is
// unknown, information. (3) Five updates in a row, what one rank's targets weigh is the same
// multiple of the others', together, each and by sample; information if its loss is computed in
// another way. Information after 20 updates: targets of one update weigh differently (at least 1.2
// times, and at least 2% of the update moves to other targets); or the weights add up to the number
// of micro-batches, or that times W. C++ programs report weights in a rank's mean loss; there, only
// differences within an update are known.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checks/data/token_targets.h"
#include "checks/engine/mean.h"
#include "checks/engine/rules.h"
#include "checks/engine/text.h"
#include "detect/e_values.h"

namespace presum::checks {
namespace {

constexpr std::uint64_t kSteps = 20;       // before information
constexpr double kRatio = 1.2;             // of two tokens' weights
constexpr double kMoved = 0.02;            // of the update
constexpr std::uint64_t kFullWindows = 3;  // before a smaller one
constexpr std::uint64_t kSureOfRank = 5;   // steps in a row
constexpr double kApart = 0.02;            // of a rank's weight: less is rounding in 16 bits
constexpr double kNearOne = 0.01;          // of a total that is left out
constexpr double kSame = 0.01;             // of a ratio, from step to step
constexpr const char* kNoFactor =
    "The program changes every reduced gradient, by no single factor, before it is used.";
constexpr const char* kNoLossFunction = "No backward pass was seen whose loss function is known.";

// (1)
struct DividedByOthers {
  std::string tokens_of;
  double total = kNaN;  // NaN: one, on average

  std::uint64_t key() const { return 1; }
  static constexpr std::tuple kFields{field("tokens_of", &DividedByOthers::tokens_of),
                                      field("total", &DividedByOthers::total)};
};

std::string sentence(const DividedByOthers& seen, const Who& who) {
  std::string divided = fmt::format("{} divided the loss or the gradient by the targets of {}",
                                    who.words(), seen.tokens_of);
  if (std::isnan(seen.total)) return divided;
  return fmt::format("{}: the weights of an update's targets add up to {} instead of one", divided,
                     number(seen.total));
}

// (2)
struct SmallerWindow {
  std::uint64_t micro_batches = 0;
  std::uint64_t divided_by = 0;

  double total() const {
    return static_cast<double>(micro_batches) / static_cast<double>(divided_by);
  }
  std::string total_text() const { return number(total()); }
  std::uint64_t key() const { return 2; }
  static constexpr std::tuple kFields{field("micro_batches", &SmallerWindow::micro_batches),
                                      field("divided_by", &SmallerWindow::divided_by),
                                      field("total", &SmallerWindow::total_text)};
};

std::string sentence(const SmallerWindow& seen, const Who& who) {
  return fmt::format(
      "{} divided the losses of an update of {} micro-batch{} by {}: they add up to {} of their "
      "mean",
      who.words(), seen.micro_batches, seen.micro_batches == 1 ? "" : "es", seen.divided_by,
      number(seen.total()));
}

// (3)
struct OtherWeight {
  bool together = false;  // the ratio is that of all the rank's targets, not of each
  double weight_ratio = 1;
  std::optional<std::uint32_t> of_rank;  // only with two ranks
  std::optional<std::uint32_t> beside_rank;

  std::uint64_t key() const { return 3; }
  static constexpr std::tuple kFields{
      field("together", &OtherWeight::together), field("weight_ratio", &OtherWeight::weight_ratio),
      field("of_rank", &OtherWeight::of_rank), field("beside_rank", &OtherWeight::beside_rank)};
};

std::string sentence(const OtherWeight& seen, const Who& who) {
  const auto of = seen.of_rank ? fmt::format("Rank {}", *seen.of_rank) : who.words();
  const auto beside = seen.of_rank ? fmt::format("rank {}'s", *seen.beside_rank) : "the others'";
  return fmt::format("{}: {} {} times as much as {} in the loss", of,
                     seen.together ? "its targets together weigh" : "a target weighs",
                     number(seen.weight_ratio), beside);
}

struct UnequalWeights {
  double weight_ratio = kNaN;  // geometric mean over steps of the largest by the smallest
  double token_share = kNaN;   // of tokens above the mean weight of their step
  double update_share = kNaN;  // of their weights

  std::uint64_t key() const { return 4; }
  static constexpr std::tuple kFields{field("weight_ratio", &UnequalWeights::weight_ratio),
                                      field("token_share", &UnequalWeights::token_share),
                                      field("update_share", &UnequalWeights::update_share)};
};

std::string sentence(const UnequalWeights& seen, const Who& who) {
  return fmt::format(
      "{}: a target of one micro-batch weighs up to {} times as much as one of another; {:.0f}% of "
      "the update comes from {:.0f}% of the targets",
      who.words(), number(seen.weight_ratio), 100 * seen.update_share, 100 * seen.token_share);
}

struct OtherTotal {
  std::string equals;  // what the total is
  double total = kNaN;

  std::uint64_t key() const { return 5; }
  static constexpr std::tuple kFields{field("equals", &OtherTotal::equals),
                                      field("total", &OtherTotal::total)};
};

std::string sentence(const OtherTotal& seen, const Who& who) {
  return fmt::format("{}: the weights of an update's targets add up to {}, {}, instead of one",
                     who.words(), number(seen.total), seen.equals);
}

// ---- what each sentence rests on

class SmallerWindows {
 public:
  struct Found {
    SmallerWindow window;
    std::uint64_t step = 0;
    bool ends_pass = false;  // the next update is of another pass over the data
  };

  // The update before this one, if it had fewer micro-batches than those before, and the same
  // weight of each.
  std::optional<Found> see(const StepTargets& step) {
    std::optional<Found> out = std::exchange(open_, {});
    if (out) out->ends_pass = pass_ && step.data_pass && *pass_ != *step.data_pass;
    pass_ = step.data_pass;
    const std::size_t size = step.ranks.front().micro_batches;
    const auto weighs = [&](std::size_t count) {
      return std::ranges::all_of(step.ranks, [&](const RankTargets& rank) {
        return rank.micro_batches == size && std::ranges::all_of(rank.micro, [&](const auto& m) {
                 return same_weight(m.sum() * static_cast<double>(count), 1);
               });
      });
    };
    if (weighs(size)) {
      full_ = size == usual_ ? full_ + 1 : 1;
      usual_ = size;
    } else if (full_ >= kFullWindows && size < usual_ && weighs(usual_)) {
      open_ = {{size, usual_}, step.step};
    } else {
      full_ = 0;
    }
    return out;
  }

 private:
  std::size_t usual_ = 0;   // micro-batches
  std::uint64_t full_ = 0;  // updates in a row with that many
  std::optional<Found> open_;
  std::optional<std::uint64_t> pass_;
};

// Ranks whose value is the same multiple of the others', step after step.
class ApartRanks {
 public:
  struct Found {
    Ranks ranks;  // of two, the first
    double ratio = 1;
  };

  // Whether all ranks agree.
  bool see(const StepTargets& update, double (*value_of)(const RankTargets&)) {
    const auto& ranks = update.ranks;
    std::vector<double> values(ranks.size());
    std::ranges::transform(ranks, values.begin(), value_of);
    std::vector<double> sorted = values;
    const double middle = ranks.size() == 2 ? values.back() : detect::median(sorted);
    Found now;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const double ratio = values[i] / middle;
      if (std::abs(ratio - 1) <= kApart) continue;
      const bool other = !now.ranks.empty() && !(std::abs(ratio / now.ratio - 1) <= kSame);
      now.ratio = other ? kNaN : ratio;
      insert(now.ranks, ranks[i].rank);
    }
    const bool minority = 2 * now.ranks.size() < ranks.size() || ranks.size() == 2;
    if (!minority) now.ratio = kNaN;
    const bool goes_on =
        now.ranks == found_.ranks && std::abs(now.ratio / found_.ratio - 1) <= kSame;
    if (!goes_on) streak_.end();
    streak_.see(!now.ranks.empty() && !std::isnan(now.ratio), update.step);
    found_ = now;
    return now.ranks.empty() &&
           std::ranges::none_of(values, [](double v) { return std::isnan(v); });
  }
  bool is_sure() const { return streak_.length >= kSureOfRank; }
  std::uint64_t first_step() const { return streak_.first_step; }
  void end() { streak_.end(); }
  const Found& found() const { return found_; }

 private:
  Found found_;
  Streak streak_;
};

// How differently the tokens of one step weigh, over all steps.
class Inequality {
 public:
  void see(const StepTargets& step) {
    const double mean = step.total() * static_cast<double>(step.ranks.size()) / step.count();
    double least = INFINITY;
    double most = 0;
    double heavy = 0;
    double heavy_sum = 0;
    for (const RankTargets& rank : step.ranks) {
      for (const auto& micro : rank.micro) {
        least = std::min(least, micro.weight);
        most = std::max(most, micro.weight);
        if (micro.weight <= mean) continue;
        heavy += micro.count;
        heavy_sum += micro.sum();
      }
    }
    log_ratio_.add(std::log(most / least));
    token_share_.add(heavy / step.count());
    update_share_.add(heavy_sum / mean / step.count());
  }

  std::optional<UnequalWeights> found() const {
    const double ratio = std::exp(log_ratio_.value());
    const double moved = update_share_.value() - token_share_.value();
    if (!(ratio >= kRatio && moved >= kMoved)) return {};
    return {{ratio, token_share_.value(), update_share_.value()}};
  }

 private:
  Mean log_ratio_, token_share_, update_share_;
};

// A number of the program that the weights of an update's targets add up to, in every update.
class Totals {
 public:
  void see(const StepTargets& step) {
    const auto size = static_cast<double>(step.ranks.front().micro_batches);
    const std::array<double, kKnown.size()> known{size,
                                                  size * static_cast<double>(step.ranks.size())};
    const double total = step.total();
    for (std::size_t i = 0; i < known.size(); ++i) {
      held_[i] = held_[i] && same_weight(total, known[i]);
    }
    if (size > 1) total_ = total;
  }

  std::optional<OtherTotal> found() const {
    for (std::size_t i = 0; i < kKnown.size() && !std::isnan(total_); ++i) {
      if (held_[i]) return {{kKnown[i], total_}};
    }
    return {};
  }

 private:
  static constexpr std::array kKnown{"the number of micro-batches",
                                     "the number of micro-batches times that of ranks"};

  std::array<bool, kKnown.size()> held_{true, true};
  double total_ = kNaN;  // of the last update with several micro-batches
};

class TokenWeight final : public Rule {
 public:
  void update(const StepContext& context, SignalLog& log) override {
    auto step = updates_.see(context);
    if (!step) return;
    if (!step->known()) return unknown(context, log);
    judged_ = judged_ || !std::isnan(step->factor);
    look(context, *step, log);
    if (!step->relative) {
      compare_ranks(context, *step, log);
      divided(context, std::move(*step), log);
    }
    ++steps_;
    if (!judged_) {
      log.cannot(&kTokenWeight, kNoFactor);
    } else if (steps_ < kSteps) {
      log.waits(&kTokenWeight, "Fewer than 20 updates so far.");
    } else {
      log.checked(&kTokenWeight);
    }
    if (steps_ >= kSteps) inform(context, log);
  }

 private:
  void unknown(const StepContext& context, SignalLog& log) {
    divisors_.see({});  // ends what lasts for several updates in a row
    sums_.end();
    weights_.end();
    const std::string hidden = context.roster.fact("loss_hidden_by");
    if (hidden.empty()) return log.waits(&kTokenWeight, kNoLossFunction);
    if (hidden_.empty()) {  // the log keeps a view of it
      hidden_ =
          fmt::format("The loss is computed inside {}: report its weights (monitor.token_weight).",
                      shortened(hidden, 64));
    }
    log.cannot(&kTokenWeight, hidden_);
  }

  void look(const StepContext& context, const StepTargets& step, SignalLog& log) {
    inequality_.see(step);
    if (step.relative) return;
    const StepTargets later = step.with_factor();
    if (adds_up(context) && !std::isnan(step.factor)) totals_.see(later);
    const auto found = windows_.see(later);
    if (!found) return;
    Signal signal =
        sighting(&kTokenWeight, found->step, of_all(context.record), 0.95, found->window);
    if (!found->ends_pass) signal.severity = Severity::kInfo;
    log.add(std::move(signal), kAllSteps);
  }

  // Whether these weights are all of the loss's, and the reduction is known to divide by the number
  // of ranks.
  static bool adds_up(const StepContext& context) {
    const Roster& known = context.roster;
    return known.fact("mode") != "manual" && known.fact("loss_terms").empty() &&
           known.fact("communication_hook").empty() && known.fact("gradient_divide_factor").empty();
  }

  void compare_ranks(const StepContext& context, const StepTargets& step, SignalLog& log) {
    if (context.alone()) return;
    const bool sums_agree = sums_.see(step, [](const RankTargets& r) { return r.sum; });
    const bool weights_agree = weights_.see(step, [](const RankTargets& r) { return r.weight(); });
    const bool means_agree = means_.see(step, [](const RankTargets& r) { return r.sum / r.rows; });
    if (sums_agree || weights_agree || means_agree) {
      sums_.end();
      weights_.end();
      return;
    }
    const bool together = !weights_.is_sure();
    const ApartRanks& sure = together ? sums_ : weights_;
    if (!sure.is_sure()) return;
    OtherWeight seen{.together = together, .weight_ratio = sure.found().ratio};
    Blame blame{sure.found().ranks, false};
    if (context.workers() == 2) {
      blame = of_all(context.record);
      seen.of_rank = step.ranks.front().rank;
      seen.beside_rank = step.ranks.back().rank;
    }
    Signal signal = sighting(&kTokenWeight, context, std::move(blame), 0.95, seen);
    signal.first_step = sure.first_step();
    if (!same_losses(context)) signal.severity = Severity::kInfo;
    log.add(std::move(signal), kAllSteps);
  }

  // Whether ranks compute their losses in the same way, as far as known.
  static bool same_losses(const StepContext& context) {
    constexpr const char* kFact = "loss.functions";
    return context.roster.fact(kFact) == context.roster.fact_of_all(kFact);
  }

  void divided(const StepContext& context, StepTargets step, SignalLog& log) {
    const auto found = divisors_.see(std::move(step));
    if (!found || (found->of_update && !adds_up(context))) return;
    const bool is_one = !adds_up(context) || std::abs(found->total - 1) < kNearOne;
    DividedByOthers seen{found->tokens_of, is_one ? kNaN : found->total};
    Signal signal = sighting(&kTokenWeight, context, of_all(context.record), 0.95, std::move(seen));
    signal.first_step = found->first_step;
    signal.last_step = found->last_step;
    log.add(std::move(signal), kAllSteps);
  }

  void inform(const StepContext& context, SignalLog& log) const {
    const auto add = [&](const auto& found) {
      if (!found) return;
      Signal signal = sighting(&kTokenWeight, context, of_all(context.record), 0.9, *found);
      signal.severity = Severity::kInfo;
      signal.first_step = signal.last_step - std::min(signal.last_step, kSteps - 1);
      log.add(std::move(signal), kAllSteps);
    };
    add(inequality_.found());
    if (adds_up(context)) add(totals_.found());
  }

  Updates updates_;
  std::uint64_t steps_ = 0;
  bool judged_ = false;  // the factor on the reduced gradient was known in some update
  std::string hidden_;
  Inequality inequality_;
  Totals totals_;
  SmallerWindows windows_;
  ApartRanks sums_, weights_, means_;  // means: over the rank's samples
  Divisors divisors_;
};

}  // namespace

constexpr Check kTokenWeightExplains[] = {&kRankOutlier, &kLossEvent, &kClipNorm};
constinit const CheckInfo kTokenWeight{
    .id = "token-weight",
    .severity = Severity::kWarning,
    .compares =
        "what one target (a token, or an element of a loss without tokens) weighs in the update",
    .fires =
        "after 5 updates; a smaller last window at the next update; as information after 20 "
        "updates",
    .consequence =
        "The gradient is not that of the mean over tokens: some tokens count more, or all of them "
        "more or less than the learning rate was chosen for.",
    .cannot_see =
        "A loss inside a compiled function or a custom autograd Function (report it: "
        "`monitor.token_weight`); divisors of a loss in 16 bits, or of a gradient that the "
        "program changes by no single factor or for the first time.",
    .mistake =
        "loss = F.cross_entropy(logits, labels, reduction=\"sum\") / num_items  # of all ranks\n"
        "loss.backward()  # DDP divides by the number of ranks once more",
    .fix =
        "Sum the losses of all micro-batches, divide by the number of target tokens of all ranks "
        "and micro-batches of this update, and multiply by the number of ranks, by which the "
        "reduction divides.",
    .resembles = "huggingface/transformers#34242",
    .precedence = 285,
    .explains = kTokenWeightExplains,
    .sets_apart = true,
    .info_explains = false,
    .joins_itself = false,
    .make = make<TokenWeight>,
};

}  // namespace presum::checks
