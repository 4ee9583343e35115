// SPDX-License-Identifier: Apache-2.0
#include "checks/engine/signal_log.h"

#include <gtest/gtest.h>

#include <string>

#include "checks/engine/testing.h"

namespace presum::checks {
namespace {

using State = CheckRecord::State;

Signal at(std::uint64_t step, Ranks ranks, std::string text = "", std::uint64_t which = 0) {
  return sighting(&kParameterDesync, step, {std::move(ranks), false}, 0,
                  Text{std::move(text), which});
}

TEST(SignalLog, ASignalGrowsWithItsSightings) {
  SignalLog log;
  log.add(at(3, {1}, "first"));
  log.add(at(9, {1}, "second"));
  ASSERT_EQ(log.signals().size(), 1U);
  const Signal& s = log.signals()[0];
  EXPECT_EQ(s.first_step, 3U);
  EXPECT_EQ(s.last_step, 9U);
  EXPECT_EQ(text_of(s, "text"), "second");
}

TEST(SignalLog, WhatIsSettledTakesThePlaceOfItsKindAndIsNotNew) {
  SignalLog log;
  log.add(at(3, {1}, "grave"));
  log.add(at(5, {2}, "grave"));
  log.add(at(6, {1}, "other", 1));
  Signal graded = at(9, {1, 2}, "graded");
  graded.severity = Severity::kInfo;
  log.settle(graded);
  ASSERT_EQ(log.signals().size(), 2U);
  const Signal& s = log.signals()[0];
  EXPECT_EQ(s.severity, Severity::kInfo);
  EXPECT_EQ(s.ranks, (Ranks{1, 2}));
  EXPECT_EQ(s.id, 1U);
  EXPECT_EQ(s.first_step, 3U);
  EXPECT_EQ(s.last_step, 9U);
}

TEST(SignalLog, WhatIsSoftenedKeepsItsSteps) {
  SignalLog log;
  log.add(at(3, {1}));
  log.soften(&kParameterDesync, log.signals()[0].key, "nothing");
  log.soften(&kBufferDesync, log.signals()[0].key, "else");
  EXPECT_EQ(log.signals()[0].severity, Severity::kInfo);
  EXPECT_EQ(log.signals()[0].remedy, "nothing");
  EXPECT_EQ(log.signals()[0].first_step, 3U);
}

TEST(SignalLog, RanksThatComeLaterAreASignalOfTheirOwn) {
  SignalLog log;
  log.add(at(3, {1}), 50);
  log.add(at(53, {1, 2}), 50);
  ASSERT_EQ(log.signals().size(), 1U) << "within the slack it is one";
  EXPECT_EQ(log.signals()[0].ranks, (Ranks{1, 2}));
  log.add(at(54, {1, 2, 4}), 50);
  ASSERT_EQ(log.signals().size(), 2U);
  EXPECT_EQ(log.signals()[1].ranks, Ranks{4});
  EXPECT_EQ(log.signals()[1].first_step, 54U);
  EXPECT_EQ(log.signals()[0].last_step, 54U);
  EXPECT_NE(log.signals()[0].id, log.signals()[1].id);
}

Signal undecided_at(std::uint64_t step, Ranks ranks) {
  return sighting(&kParameterDesync, step, {std::move(ranks), true, true}, 0, Text{"few"});
}

TEST(SignalLog, FewKnownRanksBlameNoneBesideOnesThatAreKnownToDiffer) {
  SignalLog log;
  log.add(at(3, {1}, "all"));
  log.add(undecided_at(5, {0, 1}));
  ASSERT_EQ(log.signals().size(), 1U);
  EXPECT_EQ(log.signals()[0].ranks, Ranks{1});
  EXPECT_EQ(log.signals()[0].last_step, 5U);
  EXPECT_EQ(text_of(log.signals()[0], "text"), "all");
}

TEST(SignalLog, WhatFewKnownRanksLeftOpenIsDecidedLater) {
  SignalLog log;
  log.add(undecided_at(3, {0, 1}));
  EXPECT_EQ(log.signals()[0].ranks, (Ranks{0, 1}));
  log.add(at(5, {1}, "all"));
  ASSERT_EQ(log.signals().size(), 1U);
  EXPECT_EQ(log.signals()[0].ranks, Ranks{1});
  EXPECT_EQ(log.signals()[0].first_step, 3U);
}

TEST(SignalLog, NoneOfFewKnownRanksIsNamedAlone) {
  SignalLog log;
  log.add(undecided_at(3, {0, 1}));
  log.add(undecided_at(5, {1, 2}));
  ASSERT_EQ(log.signals().size(), 1U);
  EXPECT_EQ(log.signals()[0].ranks, (Ranks{0, 1, 2}));
}

TEST(SignalLog, KeepsKeysAndChecksApart) {
  SignalLog log;
  log.add(at(3, {1}), 50);
  log.add(at(3, {1}, "", 7), 50);
  log.add(sighting(&kBufferDesync, 3, {{1}, false}, 0, Text{}), 50);
  EXPECT_EQ(log.signals().size(), 3U);
}

TEST(SignalLog, HoldsAtMost64SignalsOfACheck) {
  SignalLog log;
  for (std::uint32_t r = 0; r < 1000; ++r) log.add(at(r, {r}));
  EXPECT_EQ(log.signals().size(), 64U);
  EXPECT_EQ(log.signals().back().last_step, 999U);
  EXPECT_EQ(log.signals().back().ranks.back(), 999U);
}

TEST(SignalLog, ToleratesTheLargestStep) {
  SignalLog log;
  log.add(at(UINT64_MAX, {1}), 50);
  log.add(at(UINT64_MAX, {2}), 50);
  EXPECT_EQ(log.signals().size(), 1U);
}

TEST(SignalLog, TellsTheStateOfACheckByWhatItKnowsBest) {
  SignalLog log;
  EXPECT_EQ(log.record(&kEpochNotSet).state, State::kNotPossible);
  log.cannot(&kEpochNotSet, "No sampler.");
  EXPECT_EQ(log.record(&kEpochNotSet).reason, "No sampler.");
  log.waits(&kEpochNotSet, "One pass.");
  EXPECT_EQ(log.record(&kEpochNotSet).state, State::kNotTriggered);
  log.checked(&kEpochNotSet);
  EXPECT_EQ(log.record(&kEpochNotSet).state, State::kPassed);
  log.add(sighting(&kEpochNotSet, 12, {{0}, false}, 0, Text{}));
  EXPECT_EQ(log.record(&kEpochNotSet).state, State::kFound);
  EXPECT_EQ(log.record(&kEpochNotSet).reason, "Seen first at step 12.");
}

TEST(SignalLog, ACheckThatNeedsMoreRecordsHasNotPassed) {
  SignalLog log;
  const auto look = [&] {
    log.begin_record();
    log.checked(&kLostGradients);
    log.needs_records(&kLostGradients, 3, "Once is no habit.");
    return log.record(&kLostGradients);
  };
  EXPECT_EQ(look().reason, "Looked at in 1 of 3 steps that it needs: Once is no habit.");
  EXPECT_EQ(look().state, State::kNotTriggered);
  EXPECT_EQ(look().state, State::kPassed);
  log.begin_record();
  log.checked(&kLostGradients);
  log.needs(&kLostGradients, 2, "Seen once.");
  EXPECT_EQ(log.record(&kLostGradients).reason,
            "Looked at in 4 of 6 steps that it needs: Seen once.");
  EXPECT_EQ(look().state, State::kPassed);
}

TEST(SignalLog, OfSeveralReasonsTheOneThatWasTrueLongestIsTold) {
  SignalLog log;
  for (int step = 0; step < 30; ++step) log.cannot(&kEpochNotSet, "No sampler.");
  log.cannot(&kEpochNotSet, "One rank.");
  EXPECT_EQ(log.record(&kEpochNotSet).reason, "No sampler.");
}

TEST(SignalLog, AStatisticWithoutAnAlarmIsNotTriggered) {
  SignalLog log;
  log.checked(&kRankOutlier);
  EXPECT_EQ(log.record(&kRankOutlier).state, State::kNotTriggered);
  EXPECT_EQ(log.record(&kRankOutlier).reason, "No alarm in 1 step.");
}

TEST(SignalLog, FindsTheNewestSignalOfARank) {
  SignalLog log;
  log.add(at(3, {1, 4}));
  EXPECT_EQ(log.find(&kParameterDesync, 2), nullptr);
  ASSERT_NE(log.find(&kParameterDesync, 4), nullptr);
  EXPECT_EQ(log.find(&kBufferDesync, 4), nullptr);
}

}  // namespace
}  // namespace presum::checks
