// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "checks/engine/testing.h"

namespace presum::checks {
namespace {

using State = CheckRecord::State;

// Every rank clips by the norm of the reduced gradient, which is 0.5.
void clip(StepRecord& r, double norm = 0.5, double clipped = 0.5) {
  for (WorkerRecord& w : r.workers) {
    set(w, Kind::kClipNorm, norm);
    if (r.step % 25 == 0) set(w, Kind::kClippedNorm, clipped);
  }
}

TEST(ClipNorm, OfTheReducedGradientIsQuiet) {
  Watched w = played(60, [](StepRecord& r) { clip(r); });
  EXPECT_TRUE(w.findings().empty());
  EXPECT_EQ(w.check("clip-norm").state, State::kPassed);
  Watched none = played(30);
  EXPECT_EQ(none.check("clip-norm").state, State::kNotPossible);
  // of gradients in 16 bits, and of those that the program scaled by the step's tokens
  expect_quiet(played(60, [](StepRecord& r) { clip(r, 0.502); }));
  expect_quiet(played(60, [](StepRecord& r) { clip(r, 0.02, 0.02); }));
}

TEST(ClipNorm, AWrongNormIsNamedWithItsRatioAndUsualCause) {
  const auto title = [](double norm, double clipped, bool scaler) {
    Watched w;
    if (scaler) w.diagnoser.hello(who(0, 0), {"host", {{"grad_scaler", "GradScaler"}}, {}});
    w.play(0, 3, [&](StepRecord& r) { clip(r, norm, clipped); });
    expect(w, "clip-norm", {.count = 8, .first_step = 0});
    return w.first().title;
  };
  EXPECT_NE(title(4, 0.5, false).find("8 times"), std::string::npos);
  EXPECT_NE(title(4, 0.5, false).find("norm of the sum"), std::string::npos);
  EXPECT_NE(title(0.0625, 0.5, false).find("world size"), std::string::npos);
  EXPECT_NE(title(0.2, 0.5, false).find("of a part"), std::string::npos);
  EXPECT_NE(title(0.7, 0.5, false).find("more than once"), std::string::npos);
  EXPECT_NE(title(0.5 * 65536, 0.5, true).find("loss scaler"), std::string::npos);
  EXPECT_NE(title(0.5 * 65536, 0.5 * 65536, true).find("loss scaler"), std::string::npos)
      << "gradients that hold the factor still";
}

// Every rank clips by a norm of a type; NaN: the type is unknown.
void clip_by(StepRecord& r, double type, double norm, double clipped) {
  clip(r, norm, clipped);
  for (WorkerRecord& w : r.workers) set(w, Kind::kClipNormType, type);
}

TEST(ClipNorm, ANormIsHeldAgainstThatOfItsOwnType) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  for (const double type : {1.0, 3.0, kInf}) {
    Watched w = played(60, [&](StepRecord& r) { clip_by(r, type, 0.08, 0.08); });
    EXPECT_TRUE(w.findings().empty()) << type << ": " << w.first().title;
    EXPECT_EQ(w.check("clip-norm").state, State::kPassed);
  }
  const auto title = [](double type, double ratio) {
    Watched w = played(3, [&](StepRecord& r) { clip_by(r, type, ratio * 0.08, 0.08); });
    EXPECT_EQ(w.ids(), Ids{"clip-norm"});
    return w.first().title;
  };
  EXPECT_EQ(title(kInf, 0.5),
            "All 8 ranks used 0.5 times the gradient's largest element where they clipped or "
            "logged it: perhaps it is the norm of a part, or a mean of such norms");
  EXPECT_NE(title(3, 2).find("every rank's norm was added"), std::string::npos);
  EXPECT_NE(title(1, 8).find("norm of the sum"), std::string::npos);
}

TEST(ClipNorm, ANormThatMayBeOfAnyTypeIsNotJudgedUnlessItIsTheGradients) {
  Watched w = played(60, [](StepRecord& r) { clip_by(r, kNaN, 0.08, 0.5); });
  EXPECT_TRUE(w.findings().empty()) << w.first().title;
  EXPECT_EQ(w.check("clip-norm").state, State::kNotPossible);
  EXPECT_NE(w.check("clip-norm").reason.find("type of the norm"), std::string::npos);
  Watched right = played(60, [](StepRecord& r) { clip_by(r, kNaN, 0.5, 0.5); });
  EXPECT_EQ(right.check("clip-norm").state, State::kPassed);
  Watched one = played(9, [](StepRecord& r) {
    clip_by(r, kNaN, 0.08, 0.5);
    set(r.workers[3], Kind::kClipNorm, 0.04);
  });
  expect(one, "clip-norm", {.ranks = {3}});
}

TEST(ClipNorm, OfGradientsInPartsIsHeldAgainstAllPartsTogether) {
  const auto by = [](double norm, const char* world = "8") {
    Watched out;
    out.hello([&](std::uint32_t) { return WorkerFacts{.facts = {{"world_size", world}}}; });
    out.play(0, 3, [=](StepRecord& r) {
      clip_by(r, kNaN, norm, kNaN);
      for (WorkerRecord& w : r.workers) {
        unset(w, Kind::kClippedNorm);
        if (r.step == 0) set(w, Kind::kClippedShare, 0.25 / 8);
      }
    });
    return out;
  };
  expect_quiet(by(0.5));
  EXPECT_EQ(by(0.5).check("clip-norm").state, State::kPassed);
  expect(by(0.6), "clip-norm",
         {.count = 8, .title = "All 8 ranks used 1.2 times the gradient's norm"});
  expect_quiet(by(0.6, "16"));  // other ranks may hold other stages
  Watched largest = played(3, [](StepRecord& r) {
    clip_by(r, std::numeric_limits<double>::infinity(), 0.2, kNaN);
    for (WorkerRecord& w : r.workers) {
      unset(w, Kind::kClippedNorm);
      set(w, Kind::kClippedShare, 0.25 / 8);
    }
  });
  expect_quiet(largest);  // of a different type than the parts
  expect_quiet(by(5));    // it may be an L1 norm
  EXPECT_EQ(by(5).check("clip-norm").state, State::kNotPossible);
}

TEST(ClipNorm, ARankThatAloneClipsOrDoesNotIsNamed) {
  const auto title = [](bool clips) {
    Watched w = played(9, [&](StepRecord& r) {
      clip(r);
      for (WorkerRecord& one : r.workers) {
        if ((one.rank == 2) == clips) continue;
        unset(one, Kind::kClipNorm);
      }
    });
    expect(w, "clip-norm", {.ranks = {2}, .severity = Severity::kCritical});
    return w.first().title;
  };
  EXPECT_EQ(title(true), "Rank 2 clipped the gradients, and the others did not");
  EXPECT_EQ(title(false), "Rank 2 did not clip the gradients, as the others did");
  Watched half = played(9, [](StepRecord& r) {
    clip(r);
    for (WorkerRecord& one : r.workers) {
      if (one.rank % 2 == 0) unset(one, Kind::kClipNorm);
    }
  });
  EXPECT_EQ(half.first().title, "Ranks 1,3,5,7 clipped the gradients, and the others did not");
  EXPECT_EQ(value_in(half.first(), "ranks_that_clipped"), (RankList{1, 3, 5, 7}));
}

TEST(ClipNorm, AnotherLimitOnOneRankIsNamed) {
  Watched w = played(9, [](StepRecord& r) {
    clip(r);
    for (WorkerRecord& x : r.workers) set(x, Kind::kClipLimit, x.rank == 6 ? 0.25 : 1.0);
  });
  expect(w, "clip-norm", {.ranks = {6}, .severity = Severity::kCritical});
  EXPECT_NE(text_of(w.first(), "clipped_to").find("6: 0.25"), std::string::npos);
  Watched none = played(9, [](StepRecord& r) {
    clip(r);
    for (WorkerRecord& x : r.workers) set(x, Kind::kClipLimit, x.rank == 6 ? 2.0 : 1.0);
  });
  EXPECT_EQ(none.first().severity, Severity::kWarning) << "above every norm";
}

TEST(ClipNorm, OneRanksOwnNormIsNamed) {
  Watched w = played(9, [](StepRecord& r) {
    clip(r);
    if (r.step >= 4) set(r.workers[3], Kind::kClipNorm, 0.4);
  });
  expect(w, "clip-norm", {.ranks = {3}, .first_step = 4});
  EXPECT_EQ(number_of(w.first(), "clip_norm"), 0.4);
  EXPECT_EQ(number_of(w.first(), "others_clip_norm"), 0.5);
  expect_quiet(played(9, [](StepRecord& r) {
    clip(r);
    if (r.step == 4) set(r.workers[3], Kind::kClipNorm, 0.4);
  }));
}

TEST(ClipNorm, TheirOwnGradientsNormIsOneFromBeforeTheReduction) {
  for (const double type : {2.0, std::numeric_limits<double>::infinity()}) {
    Watched w;
    w.play(1, 9, [&](WorkerRecord& x) {
      x.grad_max = 0.1 + 0.01 * x.rank;
      set(x, Kind::kClipNorm, type == 2 ? x.grad_norm : x.grad_max);
      set(x, Kind::kClipNormType, type);
    });
    expect(w, "clip-norm", {.count = 8, .title = "before it was reduced"});
  }
}

TEST(ClipNorm, OfStepsBetweenTwoAveragesIsEachRanksOwn) {
  const Watched w = played(60, [](StepRecord& r) {
    for (WorkerRecord& x : r.workers) {
      x.number = {.window = 0, .unreduced = r.step};
      set(x, Kind::kClipNorm, x.grad_norm);
      for (StateHash& s : x.states) s.value += r.step % 4 == 0 ? 0 : x.rank;
    }
  });
  EXPECT_EQ(w.ids(), Ids{"no-reduction"});
  EXPECT_EQ(w.check("clip-norm").state, CheckRecord::State::kNotPossible);
}

TEST(ClipNorm, WhatAProgramSaysIsHeldAgainstTheReducedGradientTwice) {
  const auto said = [](double early, double late) {
    Watched w = played(60, [&](WorkerRecord& x, StepRecord& r) {
      set(x, Kind::kGradNormTold, r.step < 25 ? early : late);
    });
    return w.ids();
  };
  EXPECT_EQ(said(0.5, 0.5), Ids{});
  EXPECT_EQ(said(0.7, 0.7), Ids{"clip-norm"});
  EXPECT_EQ(said(0.7, 0.5), Ids{});
}

TEST(ClipNorm, WhatIsToldAfterClippingIsTheNormThatItClippedBy) {
  Watched w = played(60, [](StepRecord& r) {
    clip(r, 0.14, 0.14);  // changed since the reduction
    for (WorkerRecord& x : r.workers) {
      set(x, Kind::kGradNormTold, 0.14);
      if (r.step % 25 == 0) set(x, Kind::kGradNormThen, 0.1);
    }
  });
  EXPECT_TRUE(w.findings().empty());
  EXPECT_EQ(w.check("clip-norm").state, State::kPassed);
}

TEST(ClipNorm, ANormThatIsNoNumberIsNamedWhereTheGradientsAreFinite) {
  const auto told = [](std::uint64_t steps, bool scaler, double own, bool all = false) {
    Watched w;
    if (scaler) w.diagnoser.hello(who(0, 0), {"host", {{"grad_scaler", "GradScaler"}}, {}});
    w.play(0, steps, [&](StepRecord& r) {
      for (WorkerRecord& x : r.workers) {
        set(x, Kind::kGradNormTold, all || x.rank == 3 ? kNaN : 0.5);
      }
      r.workers[3].grad_norm = own;
    });
    return w.findings();
  };
  const auto found = told(9, false, 0.5);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found.front().ranks, RankList{3});
  EXPECT_EQ(found.front().severity, Severity::kCritical);
  ASSERT_EQ(told(9, false, 0.5, true).size(), 1U);
  EXPECT_EQ(told(9, false, 0.5, true).front().ranks.size(), 8U);
  EXPECT_TRUE(told(3, false, 0.5).empty());
  EXPECT_TRUE(told(9, true, 0.5).empty());
}

TEST(ClipNorm, ValuesThatAreNotFiniteSayNothing) {
  for (const double norm : {kNaN, std::numeric_limits<double>::infinity()}) {
    Watched w = played(30, [&](StepRecord& r) { clip(r, norm, norm); });
    EXPECT_TRUE(w.findings().empty()) << norm;
  }
  Watched one = played({.workers = 1}, 30, [](StepRecord& r) { clip(r); });
  EXPECT_EQ(one.check("clip-norm").state, State::kPassed);
}

}  // namespace
}  // namespace presum::checks
