// SPDX-License-Identifier: Apache-2.0
#include "diagnose/book.h"

#include <gtest/gtest.h>

#include <string>

namespace presum::diagnose {
namespace {

using State = CheckRecord::State;

Signal at(std::uint64_t step, Ranks ranks, std::string title = "") {
  Signal s = sighting(Check::kParameterDesync, step, {std::move(ranks), false});
  s.title = std::move(title);
  return s;
}

TEST(Book, ASignalGrowsWithItsSightings) {
  Book book;
  book.see(at(3, {1}, "first"));
  book.see(at(9, {1}, "second"));
  ASSERT_EQ(book.signals().size(), 1U);
  const Signal& s = book.signals()[0];
  EXPECT_EQ(s.first_step, 3U);
  EXPECT_EQ(s.last_step, 9U);
  EXPECT_EQ(s.sightings, 2U);
  EXPECT_EQ(s.title, "second");
}

TEST(Book, RanksThatComeLaterAreASignalOfTheirOwn) {
  Book book;
  book.see(at(3, {1}), 50);
  book.see(at(53, {1, 2}), 50);
  ASSERT_EQ(book.signals().size(), 1U) << "within the slack it is one";
  EXPECT_EQ(book.signals()[0].ranks, (Ranks{1, 2}));
  book.see(at(54, {1, 2, 4}), 50);
  ASSERT_EQ(book.signals().size(), 2U);
  EXPECT_EQ(book.signals()[1].ranks, Ranks{4});
  EXPECT_EQ(book.signals()[1].first_step, 54U);
  EXPECT_EQ(book.signals()[0].last_step, 54U);
  EXPECT_NE(book.signals()[0].id, book.signals()[1].id);
}

TEST(Book, KeepsKeysAndChecksApart) {
  Book book;
  book.see(at(3, {1}), 50);
  Signal other = at(3, {1});
  other.key = 7;
  book.see(other, 50);
  book.see(sighting(Check::kBufferDesync, 3, {{1}, false}), 50);
  EXPECT_EQ(book.signals().size(), 3U);
}

TEST(Book, HoldsAtMost64SignalsOfACheck) {
  Book book;
  for (std::uint32_t r = 0; r < 1000; ++r) book.see(at(r, {r}));
  EXPECT_EQ(book.signals().size(), 64U);
  EXPECT_EQ(book.signals().back().last_step, 999U);
  EXPECT_EQ(book.signals().back().ranks.back(), 999U);
}

TEST(Book, ToleratesTheLargestStep) {
  Book book;
  book.see(at(UINT64_MAX, {1}), 50);
  book.see(at(UINT64_MAX, {2}), 50);
  EXPECT_EQ(book.signals().size(), 1U);
}

TEST(Book, TellsTheStateOfACheckByWhatItKnowsBest) {
  Book book;
  EXPECT_EQ(book.record(Check::kEpochNotSet).state, State::kNotPossible);
  book.cannot(Check::kEpochNotSet, "No sampler.");
  EXPECT_EQ(book.record(Check::kEpochNotSet).reason, "No sampler.");
  book.armed(Check::kEpochNotSet, "One pass.");
  EXPECT_EQ(book.record(Check::kEpochNotSet).state, State::kNotTriggered);
  book.looked(Check::kEpochNotSet);
  EXPECT_EQ(book.record(Check::kEpochNotSet).state, State::kPassed);
  book.see(sighting(Check::kEpochNotSet, 12, {{0}, false}));
  EXPECT_EQ(book.record(Check::kEpochNotSet).state, State::kFound);
  EXPECT_EQ(book.record(Check::kEpochNotSet).reason, "Seen first at step 12.");
}

TEST(Book, AStatisticWithoutAnAlarmIsNotTriggered) {
  Book book;
  book.looked(Check::kWorkerOutlier);
  EXPECT_EQ(book.record(Check::kWorkerOutlier).state, State::kNotTriggered);
  EXPECT_EQ(book.record(Check::kWorkerOutlier).reason, "No alarm in 1 steps.");
}

TEST(Book, FindsTheNewestSignalOfARank) {
  Book book;
  book.see(at(3, {1, 4}));
  EXPECT_EQ(book.find(Check::kParameterDesync, 2), nullptr);
  ASSERT_NE(book.find(Check::kParameterDesync, 4), nullptr);
  EXPECT_EQ(book.find(Check::kBufferDesync, 4), nullptr);
}

}  // namespace
}  // namespace presum::diagnose
