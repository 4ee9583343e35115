// SPDX-License-Identifier: Apache-2.0
#include "cli/tail_table.h"

#include <gtest/gtest.h>

#include <sstream>

#include "cli/testing.h"

namespace presum::cli {
namespace {

class TailTableTest : public ::testing::Test {
 protected:
  // What is drawn since the last call.
  std::string drawn() {
    out_.str("");
    table_.end_look();
    return out_.str();
  }
  void add(std::uint64_t from, std::uint64_t to) {
    for (std::uint64_t s = from; s < to; ++s) table_.add(step_of(s, 0.5), false);
  }

  TerminalSize size_ = {.columns = 200, .lines = 24};
  std::ostringstream out_;
  TailTable table_{"runs/a\x1b", 3, out_, [this] { return size_; }};
};

TEST_F(TailTableTest, DrawsTheLastStepsAgainInTheirPlace) {
  add(0, 5);
  const auto first = lines(drawn());
  ASSERT_EQ(first.size(), 6U) << "title, head, three steps, what clears the rest";
  EXPECT_EQ(first[0], "runs/a?\x1b[K");
  EXPECT_EQ(words(first[2]).front(), "2");
  EXPECT_EQ(words(first[4]).front(), "4");
  add(5, 6);
  const auto second = drawn();
  EXPECT_EQ(second.find("\r\x1b[5A"), 0U) << "five lines up";
  EXPECT_EQ(words(lines(second).at(4)).front(), "5");
}

TEST_F(TailTableTest, MarksTheSlowRank) {
  StepRecord step = step_of(1, 0.5);
  step.workers[0].times = times_of(10, 1);
  step.workers[1].times = times_of(14.2, 1);
  table_.add(step, false);
  const auto row = lines(drawn()).at(2);
  EXPECT_NE(row.find("12.1  \x1b[33m5 x1.42\x1b[0m\x1b[K"), std::string::npos) << row;
}

TEST_F(TailTableTest, FitsTheTerminal) {
  add(0, 5);
  const std::vector<Finding> found(20, finding("duplicate-data", Severity::kCritical));
  EXPECT_TRUE(table_.show(found));
  EXPECT_FALSE(table_.show(found)) << "nothing new";
  size_ = {.columns = 10, .lines = 8};
  const auto small = lines(drawn());
  ASSERT_EQ(small.size(), 8U);
  EXPECT_EQ(words(small[2]).front(), "4") << "one step at least";
  EXPECT_EQ(small[3], "\x1b[31mcritical: \x1b[0m\x1b[K");
  size_.lines = 1;
  EXPECT_EQ(lines(drawn()).size(), 4U);
}

TEST_F(TailTableTest, ShowsTheLastStallsAndWhatIsTold) {
  const std::vector<StallRecord> stalls = {
      {Stall{.step = 40, .seconds = 72, .sentence = "rank 1 is in load()"}, 1}};
  EXPECT_TRUE(table_.show(stalls));
  table_.say_quiet("nothing new");
  table_.say("closed");
  const auto said = drawn();
  EXPECT_NE(said.find("stall: the job stood still for 72 s at step 40: rank 1 is in load()"),
            std::string::npos);
  EXPECT_NE(said.find("-- nothing new"), std::string::npos);
  add(0, 1);
  const auto after = drawn();
  EXPECT_EQ(after.find("-- nothing new"), std::string::npos) << "something came";
  EXPECT_NE(after.find("-- closed"), std::string::npos);
}

TEST(Cut, CountsCharactersNotBytes) {
  EXPECT_EQ(cut("a\u00fcb", 2), "a\u00fc");
  EXPECT_EQ(cut("ab", 5), "ab");
  EXPECT_EQ(cut("\xff\xff\xff", 2), "\xff\xff");
}

}  // namespace
}  // namespace presum::cli
