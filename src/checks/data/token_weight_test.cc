// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "checks/engine/testing.h"

namespace presum::checks {
namespace {

using State = CheckRecord::State;

constexpr Severity kInfo = Severity::kInfo;

std::uint64_t count_of(std::uint32_t rank, std::size_t micro, std::uint64_t step) {
  return 20 + scramble(step * 64 + std::uint64_t{rank} * 8 + micro) % 60;
}

double of_rank(std::uint32_t rank, std::uint64_t step) {
  return double(count_of(rank, 0, step)) + double(count_of(rank, 1, step));
}

double of_all_ranks(const StepRecord& r, std::uint64_t step) {
  double sum = 0;
  for (const WorkerRecord& w : r.workers) sum += of_rank(w.rank, step);
  return sum;
}

// What a rank's loss of a micro-batch is divided by per target.
using DividedBy = std::function<double(const StepRecord&, std::uint32_t rank, std::size_t micro)>;

Break divided_by(const DividedBy& divisor, std::size_t size = 2) {
  return [=](StepRecord& r) {
    for (WorkerRecord& w : r.workers) {
      w.micro.clear();
      double sum = 0;
      w.targets = 0;
      for (std::size_t m = 0; m < size; ++m) {
        const std::uint64_t count = count_of(w.rank, m, r.step);
        const double weight = 1 / divisor(r, w.rank, m);
        w.micro.push_back({.loss = 1, .tokens = count, .targets = count, .token_weight = weight});
        w.targets += count;
        sum += weight * double(count);
      }
      w.token_weight = sum / double(w.targets);
      w.micro_batches = static_cast<std::uint32_t>(size);
    }
  };
}

double own(const StepRecord& r, std::uint32_t rank, std::size_t micro) {
  return double(count_of(rank, micro, r.step));
}
double ranks_of(const StepRecord& r) { return double(r.workers.size()); }

// The program multiplies the reduced gradient; NaN: presum does not know by what.
Break then_times(const Break& before, const std::function<double(std::uint64_t step)>& factor) {
  return [=](StepRecord& r) {
    before(r);
    for (WorkerRecord& w : r.workers) set(w, Kind::kGradFactor, factor(r.step));
  };
}

Watched with(const DividedBy& divisor, std::uint64_t steps = 30, std::uint32_t workers = 4) {
  return played({.workers = workers}, steps, divided_by(divisor));
}

// The only warning.
Finding warning_of(const Watched& w) {
  Finding out;
  for (const Finding& f : w.findings()) {
    if (f.severity != Severity::kWarning) continue;
    EXPECT_EQ(out.check, "") << f.title;
    out = f;
  }
  EXPECT_EQ(out.check, "token-weight");
  return out;
}

void expect_nothing(const Watched& w) {
  expect_quiet(w);
  EXPECT_EQ(w.check("token-weight").state, State::kPassed);
}

TEST(TokenWeight, AMeanOverAllTokensIsFine) {
  expect_nothing(
      with([](const auto& r, auto, auto) { return of_all_ranks(r, r.step) / ranks_of(r); }));
  expect_nothing(with([](const auto& r, auto rank, auto) { return of_rank(rank, r.step); }, 30, 1));
}

double all_of(std::uint64_t step) {
  return of_all_ranks(HealthyRun({.workers = 4}).step(step), step);
}
const Break kTwice = divided_by([](const auto& r, auto, auto) { return of_all_ranks(r, r.step); });
const Break kSummed = divided_by([](const auto&, auto, auto) { return 1.0; });

Watched later(const Break& loss, const std::function<double(std::uint64_t step)>& factor) {
  return played({.workers = 4}, 30, then_times(loss, factor));
}

TEST(TokenWeight, AFactorOnTheReducedGradientCounts) {
  expect_nothing(later(kTwice, [](std::uint64_t) { return 4.0; }));
  expect_nothing(later(kSummed, [](std::uint64_t step) { return 4 / all_of(step); }));
  const Watched w = later(kSummed, [](std::uint64_t step) { return 1 / all_of(step); });
  EXPECT_EQ(warning_of(w).title.find("divided the loss or the gradient"), 12U);
}

TEST(TokenWeight, AFactorThatDoesNotCorrectTheLossHidesNothing) {
  const auto clipped = [](std::uint64_t step) {
    return 1 / (1 + 0.1 * static_cast<double>(step % 7));
  };
  warning_of(later(kTwice, clipped));
  warning_of(later(kTwice, [](std::uint64_t) { return 1.0; }));
  warning_of(played({.workers = 4}, 30, kTwice));
}

TEST(TokenWeight, WithAFactorThatIsUnknownNoDivisorIsNamed) {
  const Watched unknown = later(kTwice, [](std::uint64_t) { return kNaN; });
  expect_quiet(unknown);
  EXPECT_EQ(unknown.check("token-weight").state, State::kNotPossible);
  expect_quiet(later(kTwice, [](std::uint64_t step) { return step % 5 == 4 ? kNaN : 1.0; }));
  expect_quiet(played({.workers = 4}, 30, [&](StepRecord& r) {
    kTwice(r);
    set(r.workers.front(), Kind::kGradFactor, 4.0);
  }));
}

TEST(TokenWeight, AMeanOfMeansIsInformation) {
  Watched w = with([](const auto& r, auto rank, auto m) { return 2 * own(r, rank, m); }, 18);
  expect_quiet(w);
  w.play(19, 30, divided_by([](const auto& r, auto rank, auto m) { return 2 * own(r, rank, m); }));
  expect(w, "token-weight", {.severity = kInfo, .first_step = 0});
  EXPECT_GT(number_of(w.first(), "weight_ratio"), 1.5);
  EXPECT_GT(number_of(w.first(), "update_share"), number_of(w.first(), "token_share"));
}

TEST(TokenWeight, EqualBatchesHaveEqualWeights) {
  expect_nothing(played(30, [](StepRecord& r) {
    for (WorkerRecord& w : r.workers) {
      w.micro = {{.loss = 1, .tokens = 50, .targets = 50, .token_weight = 0.02}};
      w.targets = 50;
      w.token_weight = 0.02;
    }
  }));
}

// What the weights of an update's targets add up to, on average over these steps.
double mean_total(const Watched& w, const DividedBy& divisor, std::uint64_t first,
                  std::uint64_t last) {
  double sum = 0;
  for (std::uint64_t step = first; step <= last; ++step) {
    const StepRecord r = w.run.step(step);
    for (const WorkerRecord& x : r.workers) {
      for (std::size_t m = 0; m < 2; ++m) sum += own(r, x.rank, m) / divisor(r, x.rank, m);
    }
  }
  return sum / static_cast<double>(last - first + 1) / 4;
}

TEST(TokenWeight, ADivisorOfOtherTokensIsNamed) {
  const auto expect_divisor = [](const DividedBy& divisor, const std::string& name) {
    const Watched w = with(divisor);
    const Finding found = warning_of(w);
    EXPECT_EQ(text_of(found, "tokens_of"), name);
    EXPECT_EQ(found.last_step, 29U) << "the update after it tells";
    const double total = mean_total(w, divisor, found.first_step, found.last_step);
    if (std::abs(total - 1) < 0.01) {
      EXPECT_TRUE(std::isnan(number_of(found, "total"))) << total;
    } else {
      EXPECT_NEAR(number_of(found, "total"), total, 1e-9);
    }
  };
  expect_divisor([](const auto& r, auto, auto) { return of_all_ranks(r, r.step); },
                 "all ranks, and the reduction divides by the number of ranks once more");
  expect_divisor([](const auto& r, auto rank, auto) { return own(r, rank, 1); },
                 "the last micro-batch");
  expect_divisor([](const auto& r, auto rank, auto) { return own(r, rank, 0); },
                 "the first micro-batch");
  expect_divisor([](const auto& r, auto, auto) { return of_rank(0, r.step); }, "the first rank");
  expect_divisor(
      [](const auto& r, auto rank, auto) { return of_rank(rank, r.step == 0 ? 0 : r.step - 1); },
      "the update before");
  expect_divisor([](const auto& r, auto rank,
                    auto) { return of_rank(rank, r.step) + of_rank(rank, r.step + 1); },
                 "this update and the next");
}

TEST(TokenWeight, ADivisorNeedsFiveStepsInARow) {
  const auto now_and_then = [](const StepRecord& r, std::uint32_t, std::size_t) {
    return of_all_ranks(r, r.step) / (r.step % 5 == 4 ? ranks_of(r) : 1);
  };
  Watched w = with(now_and_then);
  for (const Finding& f : w.findings()) EXPECT_EQ(f.severity, kInfo) << f.title;
  // off by more than rounding: labels counted before the shift
  expect_nothing(
      with([](const auto& r, auto, auto) { return (of_all_ranks(r, r.step) + 8) / ranks_of(r); }));
}

// Four micro-batches of a step, or one in step 10; `by` divides their losses.
Watched with_a_smaller_window(double by, bool ends_pass) {
  Watched w({.workers = 2});
  for (std::uint64_t step = 0; step <= 14; ++step) {
    const std::size_t size = step == 10 ? 1 : 4;
    const double divisor = by == 0 ? static_cast<double>(size) : by;
    const Break divided =
        divided_by([=](const StepRecord&, std::uint32_t rank,
                       std::size_t m) { return divisor * double(count_of(rank, m, step)); },
                   size);
    w.play(step, step, [&](StepRecord& r) {
      divided(r);
      forget_sampler(r);
      for (WorkerRecord& x : r.workers) {
        set(x, Kind::kDataPass, ends_pass && step > 10 ? 1 : 0);
      }
    });
  }
  return w;
}

TEST(TokenWeight, ASmallerWindowThatIsDividedByTheFullNumber) {
  std::vector<Finding> found;
  for (const Finding& f : with_a_smaller_window(4, true).findings()) {
    if (f.check == "token-weight") found.push_back(f);
  }
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].severity, Severity::kWarning);
  EXPECT_EQ(found[0].first_step, 10U);
  EXPECT_EQ(found[0].last_step, 10U);
  EXPECT_EQ(found[0].title,
            "Both ranks divided the losses of an update of 1 micro-batch by 4: they add up to 0.25 "
            "of their mean");
  const auto severity = [](const Watched& w) {
    for (const Finding& f : w.findings()) {
      if (f.check == "token-weight") return std::optional(f.severity);
    }
    return std::optional<Severity>();
  };
  EXPECT_EQ(severity(with_a_smaller_window(4, false)), kInfo) << "in the middle of a pass";
  EXPECT_EQ(severity(with_a_smaller_window(0, true)), std::nullopt);
}

TEST(TokenWeight, OneRankWithAnotherFactor) {
  const auto twice = [](const StepRecord& r, std::uint32_t rank, std::size_t m) {
    return (rank == 1 ? 1 : 2) * own(r, rank, m);
  };
  expect_quiet(with(twice, 3));
  const Finding found = warning_of(with(twice, 10));
  EXPECT_EQ(found.ranks, RankList{1});
  EXPECT_EQ(found.title,
            "Rank 1: its targets together weigh 2 times as much as the others' in the loss");
  const Finding two = warning_of(with(twice, 10, 2));
  EXPECT_EQ(two.title,
            "Rank 0: its targets together weigh 0.5 times as much as rank 1's in the loss");
  const auto each = [](const StepRecord& r, std::uint32_t rank, std::size_t) {
    return of_all_ranks(r, r.step) / ranks_of(r) / (rank == 1 ? 3 : 1);
  };
  EXPECT_EQ(warning_of(with(each, 10)).title,
            "Rank 1: a target weighs 3 times as much as the others' in the loss");
}

TEST(TokenWeight, TotalsThatTheProgramKnows) {
  const auto expect_total = [](const DividedBy& divisor, const std::string& equals) {
    std::string found;
    for (const Finding& f : with(divisor).findings()) {
      EXPECT_EQ(f.severity, kInfo) << f.title;
      found += text_of(f, "equals");
    }
    EXPECT_EQ(found, equals);
  };
  expect_total(own, "the number of micro-batches");
  expect_total([](const auto& r, auto rank, auto m) { return own(r, rank, m) / ranks_of(r); },
               "the number of micro-batches times that of ranks");
  // of a loss with other terms
  expect_total([](const auto& r, auto rank, auto m) { return 2 * ranks_of(r) * own(r, rank, m); },
               "");
  expect_total([](const auto&, auto, auto) { return 1.0; }, "");  // a sum over tokens
}

TEST(TokenWeight, ARightDivisorTimesAConstantIsFine) {
  const auto quiet = [](const DividedBy& divisor) {
    const Watched w = with(divisor);
    for (const Finding& f : w.findings()) EXPECT_EQ(f.severity, kInfo) << f.title;
  };
  quiet([](const auto& r, auto rank, auto m) { return 4 * own(r, rank, m); });
  quiet([](const auto& r, auto rank, auto) { return of_rank(rank, r.step) * 2; });
  quiet([](const auto&, auto, auto) { return 40.0; });
}

TEST(TokenWeight, TermsThatAreNotReadMayMakeUpForTheNumberOfRanks) {
  Watched w({.workers = 4});
  w.hello([](std::uint32_t) {
    return WorkerFacts{.facts = {{"fingerprints", "all"}, {"loss_terms", "several"}}};
  });
  w.play(0, 30, divided_by([](const auto& r, auto, auto) { return of_all_ranks(r, r.step); }));
  expect_quiet(w);
}

TEST(TokenWeight, IsNotPossibleWithoutALossFunction) {
  Watched w = played(30, [](StepRecord&) {});
  EXPECT_EQ(w.check("token-weight").state, State::kNotTriggered);
}

}  // namespace
}  // namespace presum::checks
