// SPDX-License-Identifier: Apache-2.0
#include "checks/data/token_targets.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace presum::checks {
namespace {

constexpr double kRounding = 1e-3;       // of a weight
constexpr double kVaries = 0.02;         // of a count: the least range over a step
constexpr std::uint64_t kSureSteps = 5;  // in a row

// One micro-batch, with all that its divisor may come from.
struct Asked {
  const StepTargets& before;
  const StepTargets& step;
  const StepTargets& after;
  std::size_t rank;   // index
  std::size_t micro;  // index

  const RankTargets& own() const { return step.ranks[rank]; }
  double ranks() const { return static_cast<double>(step.ranks.size()); }
};

using Count = double (*)(const Asked&);  // NaN if it does not exist

struct Kind {
  const char* tokens_of;
  Count count;
};

double of_rank(const StepTargets& step, std::size_t rank) {
  return rank < step.ranks.size() ? step.ranks[rank].count : kNaN;
}

double of_micro(const Asked& asked, std::size_t micro) {
  return asked.own().micro.size() > 1 ? asked.own().micro[micro].count : kNaN;
}

// The counts of a mean: of its micro-batch or of the rank's step; over all ranks.
constexpr std::array<Count, 2> kOfRank{
    [](const Asked& a) { return a.own().micro[a.micro].count; },
    [](const Asked& a) { return a.own().count; },
};
constexpr Count kOfAll = [](const Asked& a) { return a.step.count() / a.ranks(); };

constexpr std::size_t kOfUpdate = 0;  // of kWrong: the update's own targets
constexpr std::array kWrong{
    Kind{"all ranks, and the reduction divides by the number of ranks once more",
         [](const Asked& a) { return a.ranks() > 1 ? a.step.count() : kNaN; }},
    Kind{"the last micro-batch",
         [](const Asked& a) { return of_micro(a, a.own().micro.size() - 1); }},
    Kind{"the first micro-batch", [](const Asked& a) { return of_micro(a, 0); }},
    Kind{"the first rank", [](const Asked& a) { return of_rank(a.step, 0); }},
    Kind{"the update before", [](const Asked& a) { return of_rank(a.before, a.rank); }},
    Kind{"all ranks in the update before",
         [](const Asked& a) { return a.before.known() ? a.before.count() / a.ranks() : kNaN; }},
    Kind{"this update and the next",
         [](const Asked& a) { return a.own().count + of_rank(a.after, a.rank); }},
    Kind{"this update and the one before",
         [](const Asked& a) { return a.own().count + of_rank(a.before, a.rank); }},
};

struct Neighbors {
  const StepTargets& before;
  const StepTargets& step;
  const StepTargets& after;

  // How many times smaller every micro-batch's weight is than that of a loss divided by the count;
  // NaN if not the same number of times.
  double times(Count count) const {
    double first = kNaN;
    for (std::size_t r = 0; r < step.ranks.size(); ++r) {
      for (std::size_t m = 0; m < step.ranks[r].micro.size(); ++m) {
        const double one = 1 / (step.ranks[r].micro[m].weight * count({before, step, after, r, m}));
        if (std::isnan(first)) first = one;
        if (!same_weight(one, first)) return kNaN;
      }
    }
    return first;
  }
  bool fits(Count count) const { return same_weight(times(count), 1); }
};

bool varies(const StepTargets& step) {
  double least = INFINITY;
  double most = 0;
  for (const RankTargets& rank : step.ranks) {
    for (const auto& micro : rank.micro) {
      least = std::min(least, micro.count);
      most = std::max(most, micro.count);
    }
  }
  return most - least > kVaries * most;
}

// Whether every loss is divided by a right count, or all by the same multiple of one.
bool is_right(const Neighbors& step) {
  const auto is_times = [&](Count count) { return !std::isnan(step.times(count)); };
  return step.fits(kOfAll) || std::ranges::any_of(kOfRank, is_times);
}

// An index of kWrong, or its size.
std::size_t wrong_of(const Neighbors& step) {
  if (is_right(step)) return kWrong.size();
  const auto is_it = [&](Count count) { return step.fits(count); };
  return static_cast<std::size_t>(std::ranges::find_if(kWrong, is_it, &Kind::count) -
                                  kWrong.begin());
}

struct Wrong {
  std::size_t kind = kWrong.size();
  StepTargets step;  // with these weights
};

// Of the loss, unless the factor makes it right; else with the factor.
Wrong wrong_with_factor(const Neighbors& step) {
  const double factor = step.step.factor;
  const bool known = step.step.known() && !step.step.relative && !std::isnan(factor);
  if (!known || !varies(step.step)) return {};
  StepTargets scaled = step.step.with_factor();
  const Neighbors later{step.before, scaled, step.after};
  if (factor != 1 && is_right(later)) return {};
  if (const std::size_t own = wrong_of(step); own < kWrong.size()) return {own, step.step};
  const std::size_t kind = wrong_of(later);
  return {kind, std::move(scaled)};
}

// Empty if a micro-batch's weight is unknown. `penalty`: the record may have no targets.
std::optional<RankTargets> targets_of(const WorkerRecord& worker, bool relative, bool penalty) {
  RankTargets out{.rank = worker.rank,
                  .micro_batches = worker.micro.size(),
                  .rows = static_cast<double>(worker.samples.rows)};
  for (const MicroBatch& m : worker.micro) {
    const auto targets = static_cast<double>(relative ? m.tokens : m.targets);
    if (targets == 0) continue;
    const double weight = relative ? m.weight / worker.weight / targets : m.token_weight;
    if (!std::isfinite(weight)) return {};
    out.micro.push_back({targets, weight});
    out.count += targets;
    out.sum += targets * weight;
  }
  if (out.micro.empty() ? !penalty : out.sum <= 0) return {};
  return out;
}

StepTargets targets_of(const StepContext& context) {
  StepTargets out{.step = context.record.step, .relative = context.roster.sees_no_program()};
  if (context.workers() == 0) return out;
  for (const WorkerRecord& worker : context.record.workers) {
    auto found = targets_of(worker, out.relative, context.late.adds_no_data(worker));
    if (!found || !context.complete()) return {};
    out.ranks.push_back(std::move(*found));
  }
  const std::uint64_t* pass =
      context.record.workers.front().fingerprint_of(FingerprintKind::kDataPass);
  if (pass != nullptr) out.data_pass = *pass;
  return out;
}

void append(StepTargets& update, const StepTargets& step) {
  for (std::size_t r = 0; r < step.ranks.size(); ++r) {
    const RankTargets& from = step.ranks[r];
    RankTargets& to = update.ranks[r];
    to.micro.insert(to.micro.end(), from.micro.begin(), from.micro.end());
    to.micro_batches += from.micro_batches;
    to.count += from.count;
    to.rows += from.rows;
    to.sum += from.sum;
  }
  update.step = step.step;
  update.data_pass = step.data_pass;
}

bool same_on_all(const StepRecord& record, double (*weight_of)(const WorkerRecord&)) {
  return std::ranges::all_of(record.workers, [&](const WorkerRecord& w) {
    return same_weight(weight_of(w), weight_of(record.workers.front()));
  });
}

// What all ranks multiply the reduced gradient by; 1 if no rank reports it, NaN if it is unknown or
// differs between ranks.
double later_factor(const StepContext& context) {
  const auto& workers = context.record.workers;
  const auto unreported = [](const WorkerRecord& w) {
    return w.fingerprint_of(FingerprintKind::kGradFactor) == nullptr;
  };
  const bool by_hand = context.roster.fact("mode") == "manual";  // measured before the reduction
  if (by_hand || std::ranges::all_of(workers, unreported)) return 1;
  const double first = real_of(workers.front(), FingerprintKind::kGradFactor);
  const bool same = std::ranges::all_of(workers, [&](const WorkerRecord& w) {
    return same_weight(real_of(w, FingerprintKind::kGradFactor), first);
  });
  return same ? first : kNaN;
}

}  // namespace

double StepTargets::count() const {
  double sum = 0;
  for (const RankTargets& rank : ranks) sum += rank.count;
  return sum;
}

double StepTargets::total() const {
  double sum = 0;
  for (const RankTargets& rank : ranks) sum += rank.sum;
  return sum / static_cast<double>(ranks.size());
}

StepTargets StepTargets::with_factor() const {
  StepTargets out = *this;
  for (RankTargets& rank : out.ranks) {
    for (RankTargets::Micro& micro : rank.micro) micro.weight *= factor;
    rank.sum *= factor;
  }
  return out;
}

std::optional<StepTargets> Updates::see(const StepContext& context) {
  StepTargets step = targets_of(context);
  // FSDP2 does not report that a gradient is kept.
  const bool knows_optimizer = !context.roster.fact("optimizer").empty();
  const bool goes_on = std::ranges::any_of(context.record.workers, [&](const WorkerRecord& w) {
    return w.use == StepUse::kKept || (w.use == StepUse::kUnknown && knows_optimizer);
  });
  const std::string every = context.roster.fact("every");
  lost_ = lost_ || !step.known() || (goes_on && every != "1") ||
          (open_.known() && open_.ranks.size() != step.ranks.size());
  if (lost_ || !open_.known()) {
    open_ = std::move(step);
  } else {
    append(open_, step);
  }
  if (goes_on) return {};
  StepTargets out = std::exchange(open_, {});
  out.factor = later_factor(context);
  const bool empty = std::ranges::any_of(out.ranks, [](const auto& r) { return r.micro.empty(); });
  return std::exchange(lost_, false) || empty ? StepTargets{} : std::move(out);
}

bool weighs_targets_alike(const StepRecord& record) {
  return same_on_all(record, [](const WorkerRecord& w) { return w.token_weight; });
}

bool weighs_samples_alike(const StepRecord& record) {
  return same_on_all(record,
                     [](const WorkerRecord& w) { return w.weight / double(w.samples.rows); });
}

bool same_weight(double a, double b) { return std::abs(a - b) <= kRounding * std::abs(b); }

std::optional<OtherDivisor> Divisors::see(StepTargets now) {
  const auto [kind, found] = wrong_with_factor({before_, middle_, now});
  if (kind != kind_) {
    streak_.end();
    kind_ = kind;
  }
  std::optional<OtherDivisor> out;
  if (kind < kWrong.size()) {
    const double divisor = 1 / found.ranks.front().micro.front().weight;
    totals_ = streak_.length == 0 ? found.total() : totals_ + found.total();
    least_ = streak_.length == 0 ? divisor : std::min(least_, divisor);
    most_ = streak_.length == 0 ? divisor : std::max(most_, divisor);
    const bool is_sure = streak_.see(true, middle_.step) >= kSureSteps;
    if (is_sure && most_ - least_ > kVaries * most_) {
      out = {kWrong[kind].tokens_of, kind == kOfUpdate,
             totals_ / static_cast<double>(streak_.length), streak_.first_step, middle_.step};
    }
  }
  before_ = std::exchange(middle_, std::move(now));
  return out;
}

}  // namespace presum::checks
