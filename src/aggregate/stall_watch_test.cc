// SPDX-License-Identifier: Apache-2.0
#include "aggregate/stall_watch.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace presum::aggregate {
namespace {

// Four ranks that train until a test stops some of them.
struct Job {
  StallWatch watch;
  double now = 0;
  std::vector<Heartbeat> ranks = std::vector<Heartbeat>(4);
  std::vector<bool> silent = std::vector<bool>(4);
  std::vector<bool> moves = std::vector<bool>(4, true);
  std::vector<Stall> told;

  // The job has trained for this long.
  explicit Job(double seconds) {
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      ranks[i].host = "node" + std::to_string(i);
      ranks[i].processor = 0.02;
    }
    run(seconds);
  }

  void run(double seconds) {
    for (const double until = now + seconds; now < until; now += 2) {
      for (std::uint32_t i = 0; i < ranks.size(); ++i) {
        Heartbeat& b = ranks[i];
        if (moves[i]) {
          b.events += 10;
          b.still = 0.1;
        } else {
          b.still += 2;
        }
        if (!silent[i]) watch.beat(i, b, Seconds(now));
      }
      if (auto stall = watch.look(Seconds(now))) told.push_back(*stall);
    }
  }
  // The only stall reported in this time.
  Stall one_stall(double seconds) {
    run(seconds);
    EXPECT_EQ(told.size(), 1U);
    return told.empty() ? Stall() : told.front();
  }
  void stop(std::initializer_list<std::size_t> which) {
    for (const std::size_t i : which) moves[i] = false;
  }
  void all_reduce(std::initializer_list<std::size_t> which, std::uint64_t step) {
    for (const std::size_t i : which) {
      ranks[i].waiting = true;
      ranks[i].step = step;
      ranks[i].phase = Phase::kReduction;
      moves[i] = false;
    }
  }
};

TEST(StallWatch, AJobThatGoesOnIsQuiet) {
  Job job(1000);
  EXPECT_TRUE(job.told.empty());
}

TEST(StallWatch, ARankElsewhereKeepsTheOthersWaiting) {
  Job job(100);
  job.all_reduce({0, 1, 3}, 1204);
  job.ranks[2].site = "evaluate() of train.py:88";
  const Stall s = job.one_stall(100);  // rank 2 keeps evaluating
  EXPECT_EQ(s.sentence,
            "Rank 2 is in evaluate() of train.py:88 while ranks 0-1,3 wait in the all-reduce of "
            "step 1204");
  EXPECT_EQ(s.ranks, (std::vector<std::uint32_t>{2}));
  EXPECT_FALSE(s.harmless);
  EXPECT_TRUE(s.busy);
  EXPECT_NEAR(s.seconds, 60, 4);
  EXPECT_EQ(s.step, 1204U);
  EXPECT_EQ(s.all.size(), 4U);
}

TEST(StallWatch, ItIsSaidOnceAndThatItWentOn) {
  Job job(10);
  job.all_reduce({0, 1, 3}, 5);
  job.stop({2});
  job.run(100);
  EXPECT_EQ(job.told.size(), 1U);
  job.moves = {true, true, true, true};
  for (Heartbeat& b : job.ranks) b.waiting = false;
  job.run(20);
  ASSERT_EQ(job.told.size(), 2U);
  EXPECT_TRUE(job.told.back().over);
  EXPECT_NEAR(job.told.back().seconds, 100, 5);
}

TEST(StallWatch, ARankThatDiesStopsAnswering) {
  Job job(100);
  job.all_reduce({0, 1, 2}, 7);
  job.silent[3] = true;
  job.run(80);
  ASSERT_FALSE(job.told.empty());
  EXPECT_EQ(job.told.front().ranks, (std::vector<std::uint32_t>{3}));
  EXPECT_NE(job.told.front().sentence.find("Rank 3 stopped answering"), std::string::npos);
  EXPECT_NE(job.told.front().sentence.find("(host node3)"), std::string::npos);
  EXPECT_NE(job.told.front().sentence.find("while ranks 0-2 wait in the all-reduce of step 7"),
            std::string::npos);
}

TEST(StallWatch, ARankThatHasLeftIsNotWaitedForInVain) {
  Job job(100);
  job.all_reduce({0, 1, 2}, 7);
  job.silent[3] = true;
  job.watch.left(3, "ended by ValueError: bad batch");
  const Stall s = job.one_stall(80);
  EXPECT_EQ(s.sentence,
            "Rank 3 has left the training (ended by ValueError: bad batch) while ranks 0-2 wait in "
            "the all-reduce of step 7");
}

TEST(StallWatch, RanksInDifferentCollectivesNeverMeet) {
  Job job(100);
  job.all_reduce({0, 1, 2}, 7);
  job.stop({3});
  job.ranks[3].collective = "all_gather";
  job.ranks[3].site = "log() of train.py:5";
  const Stall s = job.one_stall(80);
  EXPECT_EQ(s.sentence,
            "Rank 3 waits in all_gather() in log() of train.py:5 while ranks 0-2 wait in the "
            "all-reduce of step 7");
  EXPECT_EQ(s.ranks, (std::vector<std::uint32_t>{3}));
}

// Both sides are in one line of the program, which alone does not distinguish them.
TEST(StallWatch, SidesThatShareTheirOuterFramesAreToldByWhereTheyPart) {
  Job job(100);
  job.stop({0, 1, 2, 3});
  for (Heartbeat& b : job.ranks) {
    b.collective = "all_reduce";
    b.site = "training_step() of trainer.py:2090";
    b.stack =
        "dist.py:1 all_reduce\nlib/a.py:5 backward\ntrainer.py:2090 training_step\nt.py:1 main";
  }
  job.ranks[3].collective = "";
  job.ranks[3].stack = "lib/b.py:7 compute_loss\ntrainer.py:2090 training_step\nt.py:1 main";
  const Stall s = job.one_stall(80);
  EXPECT_EQ(s.sentence,
            "Rank 3 is in training_step() of trainer.py:2090, in compute_loss() of b.py:7 while "
            "ranks 0-2 wait in all_reduce() in training_step() of trainer.py:2090, in backward() "
            "of a.py:5");
}

// All are in one function of the program, which waits for a message; they differ in its caller.
TEST(StallWatch, RanksInOneCollectiveThatTwoFunctionsCalledNeverMeet) {
  Job job(100);
  job.stop({0, 1, 2, 3});
  for (Heartbeat& b : job.ranks) {
    b.collective = "all_reduce";
    b.site = "sync() of train.py:5";
    b.stack = "dist.py:1 all_reduce\ntrain.py:5 sync\ntrain.py:8 log_loss\ntrain.py:20 main";
  }
  job.ranks[2].stack =
      "dist.py:1 all_reduce\ntrain.py:5 sync\ntrain.py:12 log_grad\ntrain.py:20 main";
  const Stall s = job.one_stall(80);
  EXPECT_EQ(s.sentence,
            "Rank 2 waits in all_reduce() in sync() of train.py:5, called from log_grad() of "
            "train.py:12 while ranks 0-1,3 wait in all_reduce() in sync() of train.py:5, called "
            "from log_loss() of train.py:8");
  EXPECT_EQ(s.ranks, (std::vector<std::uint32_t>{2}));
}

TEST(StallWatch, RanksInOneCollectiveDisagreeAboutIt) {
  Job job(100);
  job.all_reduce({0, 1, 2, 3}, 7);
  const Stall s = job.one_stall(80);
  EXPECT_TRUE(s.ranks.empty());
  EXPECT_NE(s.sentence.find("none is missing"), std::string::npos);
}

TEST(StallWatch, ACallThatHoldsTheLockIsNamed) {
  Job job(0);
  job.ranks[1].site = "load() of train.py:9";
  job.ranks[1].stack = "train.py:9 load";
  job.run(100);
  job.all_reduce({0, 2, 3}, 7);
  job.stop({1});
  job.ranks[1].lock_held = true;
  job.ranks[1].site = job.ranks[1].stack = "";  // it does not respond: its last known place counts
  job.ranks[1].collective = "broadcast";        // so is this
  const Stall s = job.one_stall(80);
  EXPECT_NE(s.sentence.find(
                "Rank 1 is in a call that holds the interpreter's lock, last seen in load() of "),
            std::string::npos)
      << s.sentence;
  EXPECT_EQ(s.all[1].last.stack, "train.py:9 load");
}

TEST(StallWatch, ABackwardPassThatStandsStillNamesTheLayer) {
  Job job(0);
  job.watch.hello(1, {{.id = 42, .elements = 10, .name = "h.3"}});
  job.run(100);
  job.all_reduce({0, 2, 3}, 7);
  job.stop({1});
  job.ranks[1].phase = Phase::kBackward;
  job.ranks[1].layer = 42;
  job.ranks[1].step = 7;
  const Stall s = job.one_stall(80);
  EXPECT_NE(s.sentence.find("in the backward pass of step 7 after h.3"), std::string::npos)
      << s.sentence;
}

// A checkpoint of rank 0, for which the others wait in a barrier.
TEST(StallWatch, ACheckpointBehindABarrierIsHarmless) {
  Job job(100);
  job.stop({0, 1, 2, 3});
  for (const std::size_t i : {1, 2, 3}) job.ranks[i].collective = "barrier";
  job.ranks[0].site = "save() of train.py:3";
  job.run(90);
  ASSERT_EQ(job.told.size(), 1U);
  EXPECT_TRUE(job.told.front().harmless);
  job.run(600);  // too long for a checkpoint
  ASSERT_EQ(job.told.size(), 2U);
  EXPECT_FALSE(job.told.back().harmless);
}

// The last rank to arrive is seen in the barrier before the barrier releases the ranks: not a
// stall.
TEST(StallWatch, WhoHasJustComeToABarrierKeepsNobodyWaiting) {
  Job job(100);
  job.stop({0, 1, 2, 3});
  for (Heartbeat& b : job.ranks) {
    b.collective = "barrier";
    b.step = 7;
    b.site = "save() of train.py:5";
    b.stack = "dist.py:90 barrier\ntrain.py:5 save\ntrain.py:9 main";
  }
  job.ranks[0].collective = "";
  job.ranks[0].site = "write() of train.py:3";
  job.run(90);
  job.ranks[0].collective = job.ranks[1].collective;
  job.ranks[0].site = job.ranks[1].site;
  job.ranks[0].stack = "dist.py:80 barrier\ntrain.py:5 save\ntrain.py:9 main";
  job.run(4);
  ASSERT_EQ(job.told.size(), 1U);
  EXPECT_TRUE(job.told.front().harmless);
  job.run(100);  // it releases no rank
  ASSERT_EQ(job.told.size(), 2U);
  EXPECT_FALSE(job.told.back().harmless);
  EXPECT_TRUE(job.told.back().sentence.starts_with(
      "Ranks 0-3 wait in barrier() in save() of train.py:5: none is missing"))
      << job.told.back().sentence;
}

TEST(StallWatch, WorkBehindABarrierIsHarmlessForAsLongAsItTakes) {
  Job job(100);
  job.stop({1, 2, 3});
  for (const std::size_t i : {1, 2, 3}) job.ranks[i].collective = "barrier";
  const Stall s = job.one_stall(3000);
  EXPECT_TRUE(s.harmless);
}

TEST(StallWatch, ACompilationInTheFirstStepIsHarmless) {
  Job job(0);
  for (Heartbeat& b : job.ranks) b.phase = Phase::kForward;
  job.run(4);
  job.stop({0, 1, 2, 3});
  const Stall s = job.one_stall(300);
  EXPECT_TRUE(s.harmless);
}

TEST(StallWatch, RanksThatAllWorkWaitForNobody) {
  Job job(100);
  job.stop({0, 1, 2, 3});
  for (Heartbeat& b : job.ranks) {
    b.processor = 0.9;
    b.step = 20;
  }
  const Stall s = job.one_stall(200);
  EXPECT_TRUE(s.harmless);
}

TEST(StallWatch, RanksThatAllSleepAreToldOfInTheEnd) {
  Job job(100);
  job.stop({0, 1, 2, 3});
  for (Heartbeat& b : job.ranks) {
    b.site = "next() of loader.py:3";
    b.step = 20;
  }
  job.run(80);
  ASSERT_EQ(job.told.size(), 1U);
  EXPECT_TRUE(job.told.front().harmless);
  job.run(600);
  ASSERT_EQ(job.told.size(), 2U);
  EXPECT_FALSE(job.told.back().harmless);
  EXPECT_EQ(job.told.back().sentence, "Ranks 0-3 are in next() of loader.py:3");
}

TEST(StallWatch, AJobOfLongPausesIsGivenTime) {
  Job job(20);
  for (Heartbeat& b : job.ranks) b.longest = 50;
  job.all_reduce({0, 1, 3}, 5);
  job.stop({2});
  job.run(96);
  EXPECT_TRUE(job.told.empty());
  job.run(10);
  EXPECT_EQ(job.told.size(), 1U);
}

TEST(StallWatch, WhoNeverTrainedDoesNotStandStill) {
  Job job(0);
  job.stop({0, 1, 2, 3});
  job.run(500);
  EXPECT_TRUE(job.told.empty());
}

TEST(StallWatch, ARankThatIsIdleWhileOthersTrainIsNone) {
  Job job(100);
  job.stop({2});
  job.run(1000);
  EXPECT_TRUE(job.told.empty());
}

TEST(StallWatch, ARankThatWorksWhileOthersWaitIsBusy) {
  Job job(100);
  job.all_reduce({1, 2, 3}, 9);
  job.stop({0});
  job.ranks[0].processor = std::numeric_limits<double>::quiet_NaN();
  job.ranks[0].thread = 'R';  // if the system does not report processor time
  const Stall s = job.one_stall(80);
  EXPECT_TRUE(s.busy);
  EXPECT_TRUE(s.awaited);
}

TEST(StallWatch, WhatEndsByAnExceptionDidNotGoOn) {
  Job job(100);
  job.all_reduce({0, 1, 2}, 9);
  job.stop({3});
  job.run(80);
  EXPECT_EQ(job.told.size(), 1U);
  for (std::uint32_t i = 0; i < 4; ++i) job.watch.left(i, "ended by RuntimeError: timed out");
  job.silent = {true, true, true, true};
  job.run(20);
  EXPECT_EQ(job.told.size(), 1U);
  EXPECT_FALSE(job.watch.now());
}

TEST(StallWatch, WhatEndsInOrderWentOn) {
  Job job(100);
  job.all_reduce({1, 2, 3}, 9);
  job.stop({0});
  job.run(80);
  for (std::uint32_t i = 0; i < 4; ++i) job.watch.left(i, "");
  job.silent = {true, true, true, true};
  job.run(4);
  ASSERT_EQ(job.told.size(), 2U);
  EXPECT_TRUE(job.told.back().over);
  EXPECT_EQ(job.told.back().number, job.told.front().number);
}

TEST(StallWatch, ARankThatTrainsAnotherModelHasNotLeft) {
  Job job(100);
  for (std::uint32_t i = 0; i < 4; ++i) {
    job.watch.left(i, "");
    job.watch.hello(i, {});
  }
  job.run(20);
  job.all_reduce({0, 1, 2}, 3);
  job.stop({3});
  const Stall s = job.one_stall(80);
  EXPECT_EQ(s.ranks, (std::vector<std::uint32_t>{3}));
}

TEST(StallWatch, RanksThatWereNeverHeardAreNotForgotten) {
  Job job(0);
  job.watch = StallWatch(6);
  job.run(100);
  job.all_reduce({0, 1, 2, 3}, 7);
  const Stall s = job.one_stall(80);
  EXPECT_EQ(s.sentence,
            "Ranks 4-5 have not been heard from while ranks 0-3 wait in the all-reduce of step 7");
  EXPECT_EQ(s.ranks, (std::vector<std::uint32_t>{4, 5}));
}

TEST(StallWatch, OneProcessAloneIsLeftInPeace) {
  Job job(0);
  job.ranks.resize(1);
  job.run(100);
  job.stop({0});
  job.run(3000);
  for (const Stall& s : job.told) EXPECT_TRUE(s.harmless);
}

// Each stall is reported at most twice, whatever the ranks do: when it starts or becomes severe,
// and when it ends.
// end.
TEST(StallWatch, DoesNotFlap) {
  Job job(100);
  job.stop({0, 1, 2, 3});
  job.all_reduce({0, 1}, 4);
  for (int i = 0; i < 400; ++i) {
    job.ranks[2].processor = i % 2 == 0 ? 0.1 : 0.9;
    job.silent[3] = i / 7 % 2 == 0;
    job.run(2);
  }
  EXPECT_LE(job.told.size(), 6U);  // each time for twice as long
}

TEST(StallWatch, ANightLongOneIsToldToBe) {
  Job job(100);
  job.all_reduce({0, 1, 3}, 9);
  job.stop({2});
  job.run(8 * 3600);
  EXPECT_LT(job.told.size(), 12U);
  EXPECT_GT(job.told.back().seconds, 4 * 3600);
  for (const Stall& s : job.told) EXPECT_EQ(s.number, 1U);
}

TEST(StallWatch, WhoSleepsIsNotBusyBetweenTwoHeartbeats) {
  Job job(100);
  job.all_reduce({0, 1, 3}, 9);
  job.run(2);
  job.stop({2});  // a moment later than the others
  job.run(80);
  ASSERT_FALSE(job.told.empty());
  EXPECT_FALSE(job.told.back().busy);
}

TEST(StallWatch, AFirstStepThatSomebodyHasNotComeToIsHarmless) {
  Job job(0);
  job.watch = StallWatch(5);
  job.run(4);
  job.all_reduce({0, 1, 2, 3}, 0);
  const Stall s = job.one_stall(100);
  EXPECT_TRUE(s.harmless);
}

TEST(StallWatch, ARunThatEndsIsNoStall) {
  Job job(100);
  for (std::uint32_t i = 1; i < 4; ++i) {
    job.watch.left(i, "");
    job.silent[i] = true;
  }
  job.stop({0});  // rank 0 saves the model
  job.run(100);
  for (const Stall& s : job.told) EXPECT_TRUE(s.harmless) << s.sentence;
}

}  // namespace
}  // namespace presum::aggregate
