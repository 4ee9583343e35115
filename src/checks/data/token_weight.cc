// SPDX-License-Identifier: Apache-2.0
// **token-weight.** What one target token weighs in an update: the gradient that arrives at the
// loss function, by the number of its targets, times 1/W for W ranks. A warning: (1) the loss was
// divided by a count that varies with the data and is not that of the tokens that it was summed
// over, in five steps in a row, to one part in a thousand; (2) every micro-batch of three windows
// or more weighs 1/k for k micro-batches, and so does each of a window that has fewer; (3) for five
// steps in a row, the tokens of one rank weigh the same multiple of the others', by their sum and
// each. Information: after 20 steps, tokens of one step weigh differently (at least 1.2 times, and
// at least 2% of the update moves to other tokens); or all of them add up to the number of
// micro-batches, of ranks, their product or 1 over one of them. C++ programs report weights in
// a rank's mean loss; there, only differences within a step are known.

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
constexpr double kSame = 0.01;             // of a ratio, from step to step
constexpr const char* kNoLossFunction = "No backward pass was seen whose loss function is known.";

// (1)
struct DividedByOthers {
  std::string tokens_of;
  double total = kNaN;

  std::uint64_t key() const { return 1; }
  static constexpr std::tuple kFields{field("tokens_of", &DividedByOthers::tokens_of),
                                      field("total", &DividedByOthers::total)};
};

std::string sentence(const DividedByOthers& seen, const Who& who) {
  return fmt::format(
      "{} divided the loss by the targets of {}: the weights of a step's targets add up to {} "
      "instead of one",
      who.words(), seen.tokens_of, number(seen.total));
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
      "{} divided the losses of a window of {} micro-batch{} by {}: its gradient is {} of the mean",
      who.words(), seen.micro_batches, seen.micro_batches == 1 ? "" : "es", seen.divided_by,
      number(seen.total()));
}

// (3)
struct OtherWeight {
  double weight_ratio = 1;
  std::optional<std::uint32_t> of_rank;  // only with two ranks
  std::optional<std::uint32_t> beside_rank;

  std::uint64_t key() const { return 3; }
  static constexpr std::tuple kFields{field("weight_ratio", &OtherWeight::weight_ratio),
                                      field("of_rank", &OtherWeight::of_rank),
                                      field("beside_rank", &OtherWeight::beside_rank)};
};

std::string sentence(const OtherWeight& seen, const Who& who) {
  const auto of = seen.of_rank ? fmt::format("Rank {}", *seen.of_rank) : who.words();
  const auto beside =
      seen.of_rank ? fmt::format("one of rank {}", *seen.beside_rank) : "the others'";
  return fmt::format("{}: a target weighs {} times as much as {} in the loss", of,
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
  return fmt::format("{}: the weights of a step's targets add up to {}, {}, instead of one",
                     who.words(), number(seen.total), seen.equals);
}

// ---- what each sentence rests on

class SmallerWindows {
 public:
  // A window with fewer micro-batches than those before, and the same weight of each.
  std::optional<SmallerWindow> see(const StepTargets& step) {
    const std::size_t size = step.ranks.front().micro.size();
    const auto weighs = [&](std::size_t count) {
      return std::ranges::all_of(step.ranks, [&](const RankTargets& rank) {
        return rank.micro.size() == size && std::ranges::all_of(rank.micro, [&](const auto& m) {
                 return same_weight(m.sum() * static_cast<double>(count), 1);
               });
      });
    };
    if (weighs(size)) {
      full_ = size == usual_ ? full_ + 1 : 1;
      usual_ = size;
      return {};
    }
    if (full_ >= kFullWindows && size < usual_ && weighs(usual_)) return {{size, usual_}};
    full_ = 0;
    return {};
  }

 private:
  std::size_t usual_ = 0;   // micro-batches
  std::uint64_t full_ = 0;  // windows in a row with that many
};

// Ranks whose value is the same multiple of the others', step after step.
class ApartRanks {
 public:
  struct Found {
    Ranks ranks;  // with two ranks, both
    double ratio = 1;
  };

  // Whether all ranks agree.
  bool see(const std::vector<RankTargets>& ranks, double (*value_of)(const RankTargets&)) {
    std::vector<double> values(ranks.size());
    std::ranges::transform(ranks, values.begin(), value_of);
    std::vector<double> sorted = values;
    const double middle = ranks.size() == 2 ? values.back() : detect::median(sorted);
    Found now;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const double ratio = values[i] / middle;
      if (std::abs(ratio - 1) <= kApart) continue;
      const bool other = !now.ranks.empty() && std::abs(ratio / now.ratio - 1) > kSame;
      now.ratio = other ? kNaN : ratio;
      insert(now.ranks, ranks[i].rank);
    }
    const bool minority = 2 * now.ranks.size() < ranks.size() || ranks.size() == 2;
    if (!minority) now.ratio = kNaN;
    const bool goes_on =
        now.ranks == found_.ranks && std::abs(now.ratio / found_.ratio - 1) <= kSame;
    lasted_ = now.ranks.empty() || std::isnan(now.ratio) ? 0 : goes_on ? lasted_ + 1 : 1;
    found_ = now;
    return now.ranks.empty();
  }
  bool is_sure() const { return lasted_ >= kSureOfRank; }
  void end() { lasted_ = 0; }
  const Found& found() const { return found_; }

 private:
  Found found_;
  std::uint64_t lasted_ = 0;
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

// A number of the program that the weights of a step's tokens add up to, in every step.
class Totals {
 public:
  void see(const StepTargets& step) {
    const auto size = static_cast<double>(step.ranks.front().micro.size());
    const auto ranks = static_cast<double>(step.ranks.size());
    const std::array<double, kKnown.size()> known{size, ranks, size * ranks, 1 / size, 1 / ranks};
    total_ = step.total();
    for (std::size_t i = 0; i < known.size(); ++i) {
      held_[i] = held_[i] && known[i] != 1 && same_weight(total_, known[i]);
    }
  }

  // None before the first step.
  std::optional<OtherTotal> found() const {
    if (std::isnan(total_)) return {};
    for (std::size_t i = 0; i < kKnown.size(); ++i) {
      if (held_[i]) return {{kKnown[i], total_}};
    }
    return {};
  }

 private:
  static constexpr std::array kKnown{"the number of micro-batches", "the number of ranks",
                                     "the number of micro-batches times that of ranks",
                                     "1 over the number of micro-batches",
                                     "1 over the number of ranks"};

  std::array<bool, kKnown.size()> held_{true, true, true, true, true};
  double total_ = kNaN;
};

class TokenWeight final : public Rule {
 public:
  void update(const StepContext& context, SignalLog& log) override {
    auto step = updates_.see(context);
    if (!step) return;
    if (!step->known()) return unknown(context, log);
    look(context, *step, log);
    if (!step->relative) {
      compare_ranks(context, *step, log);
      divided(context, std::move(*step), log);
    }
    if (++steps_ < kSteps) return log.waits(&kTokenWeight, "Fewer than 20 steps so far.");
    log.checked(&kTokenWeight);
    inform(context, log);
  }

 private:
  void unknown(const StepContext& context, SignalLog& log) {
    const std::string hidden = context.roster.fact("loss_hidden_by");
    if (hidden.empty()) return log.waits(&kTokenWeight, kNoLossFunction);
    if (hidden_.empty()) {  // the log keeps a view of it
      hidden_ = fmt::format("The loss is computed inside {}.", shortened(hidden, 64));
    }
    log.cannot(&kTokenWeight, hidden_);
  }

  void look(const StepContext& context, const StepTargets& step, SignalLog& log) {
    inequality_.see(step);
    if (step.relative) return;
    if (averages(context)) totals_.see(step);
    if (const auto found = windows_.see(step)) {
      log.add(sighting(&kTokenWeight, context, of_all(context.record), 0.95, *found), kAllSteps);
    }
  }

  // Whether the reduction is known to divide by the number of ranks.
  static bool averages(const StepContext& context) {
    return context.roster.fact("mode") != "manual" &&
           context.roster.fact("communication_hook").empty();
  }

  void compare_ranks(const StepContext& context, const StepTargets& step, SignalLog& log) {
    if (context.alone()) return;
    const bool sums_agree = sums_.see(step.ranks, [](const RankTargets& r) { return r.sum; });
    const bool weights_agree =
        weights_.see(step.ranks, [](const RankTargets& r) { return r.weight(); });
    if (sums_agree || weights_agree) {
      sums_.end();
      weights_.end();
      return;
    }
    const ApartRanks& sure = sums_.is_sure() ? sums_ : weights_;
    if (!sure.is_sure()) return;
    OtherWeight seen{.weight_ratio = sure.found().ratio};
    Blame blame{sure.found().ranks, false};
    if (context.workers() == 2) {
      blame = of_all(context.record);
      seen.of_rank = step.ranks.front().rank;
      seen.beside_rank = step.ranks.back().rank;
    }
    Signal signal = sighting(&kTokenWeight, context, std::move(blame), 0.95, seen);
    signal.first_step = step.step - std::min(step.step, kSureOfRank - 1);
    log.add(std::move(signal), kAllSteps);
  }

  void divided(const StepContext& context, StepTargets step, SignalLog& log) {
    const auto found = divisors_.see(std::move(step));
    if (!found || !averages(context)) return;
    log.add(sighting(&kTokenWeight, context, of_all(context.record), 0.95,
                     DividedByOthers{found->tokens_of, found->total}),
            kAllSteps);
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
    add(totals_.found());
  }

  Updates updates_;
  std::uint64_t steps_ = 0;
  std::string hidden_;
  Inequality inequality_;
  Totals totals_;
  SmallerWindows windows_;
  ApartRanks sums_, weights_;
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
        "after 5 steps; a window with fewer micro-batches at once; as information after 20 steps",
    .consequence =
        "The gradient is not that of the mean over tokens: some tokens count more, or all of them "
        "more or less than the learning rate was chosen for.",
    .cannot_see =
        "A loss inside a compiled function or a custom autograd Function (report it: "
        "`monitor.token_weight`); factors that are applied to the gradient.",
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
