// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>

#include "checks/engine/testing.h"

namespace presum::checks {
namespace {

using State = CheckRecord::State;

Watched computed_again(std::uint64_t answer, int rank) {
  Watched w;
  w.diagnoser.hello(who(3, 3), {"host", {{"recomputed_different", "1 of 9: layers.2.weight"}}, {}});
  w.play(0, 40, [&](StepRecord& r) {
    if (r.step % 10 != 0) return;
    for (WorkerRecord& one : r.workers) {
      const bool differs = r.step == 20 && (rank < 0 || static_cast<int>(one.rank) == rank);
      set(one, Kind::kRecomputed, differs ? answer : 0);
    }
  });
  return w;
}

TEST(Recomputed, EqualGradientsPass) {
  Watched w = computed_again(0, 3);
  EXPECT_TRUE(w.findings().empty());
  EXPECT_EQ(w.check("recompute-mismatch").state, State::kPassed);
  Watched none = played(10);
  EXPECT_EQ(none.check("recompute-mismatch").state, State::kNotPossible);
}

TEST(Recomputed, OneThatIsCorruptedIsCritical) {
  Watched w = computed_again(2, 3);
  expect(w, "recompute-mismatch",
         {.ranks = {3},
          .severity = Severity::kCritical,
          .first_step = 20,
          .title = "another gradient"});
  EXPECT_EQ(text_of(w.first(), "gradients_different"), "1 of 9: layers.2.weight");
  Watched changed = computed_again(3, 3);
  EXPECT_EQ(changed.first().severity, Severity::kCritical);
  EXPECT_NE(changed.first().title.find("one bit turned over"), std::string::npos);
  const Finding everywhere = computed_again(2, -1).first();
  EXPECT_EQ(everywhere.severity, Severity::kInfo) << "not all their hardware";
  EXPECT_NE(everywhere.title.find("a kernel that depends on more"), std::string::npos);
}

TEST(Recomputed, OneRepetitionAmongManyThatAreEqualIsAWarning) {
  Watched w = played(59, [&](StepRecord& r) {
    if (r.step % 10 != 0) return;
    for (WorkerRecord& one : r.workers) {
      const bool early = one.rank == 2 && r.step == 0;
      const bool late = one.rank == 3 && r.step == 50;
      set(one, Kind::kRecomputed, std::uint64_t{early || late ? 4U : 0U});
    }
  });
  const auto found = w.findings();
  ASSERT_EQ(found.size(), 2U);
  const auto of = [&](std::uint32_t rank) {
    return std::ranges::find(found, RankList{rank}, &Finding::ranks)->severity;
  };
  EXPECT_EQ(of(3), Severity::kWarning);
  EXPECT_EQ(of(2), Severity::kInfo) << "nothing is known of it yet";
}

TEST(Recomputed, WhatIsNotDeterministicIsInformation) {
  Watched w = computed_again(1, -1);
  expect(w, "recompute-mismatch", {.count = 8, .severity = Severity::kInfo});
}

}  // namespace
}  // namespace presum::checks
