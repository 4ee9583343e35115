// SPDX-License-Identifier: Apache-2.0
#include "aggregate/stack_partings.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <vector>

namespace presum::aggregate {
namespace {

using Texts = std::vector<std::string>;

// Makes a stack from its frames, outermost first.
std::string stack(std::initializer_list<const char*> frames) {
  std::string out;
  for (const char* frame : frames) out.insert(0, "\n").insert(0, frame);
  out.pop_back();
  return out;
}

const char* const kMain = "/a/train.py:9 main";
const char* const kStep = "/a/trainer.py:2090 training_step";
const std::string kSite = "training_step() of trainer.py:2090";

TEST(WithoutCall, LeavesOutWhatIsBelowACollective) {
  const auto cut = [](std::initializer_list<const char*> frames) {
    return std::string(without_call(stack(frames), "barrier", kSite));
  };
  EXPECT_EQ(cut({kMain, kStep, "lib/dist.py:3 barrier", "lib/dist.py:9 wait"}),
            stack({kMain, kStep}));
  EXPECT_EQ(cut({kMain, kStep, "lib/dist.py:3 barrier"}), stack({kMain, kStep}));
  EXPECT_EQ(cut({kMain, "x.py:1 barrier", kStep, "lib/dist.py:9 wait"}),
            stack({kMain, "x.py:1 barrier", kStep, "lib/dist.py:9 wait"}))
      << "the program's own function of that name, above the site";
  EXPECT_EQ(cut({kMain, kStep, "lib/dist.py:9 wait"}), stack({kMain, kStep, "lib/dist.py:9 wait"}));
  EXPECT_EQ(without_call("", "barrier", kSite), "");
}

TEST(StackPartings, TwoHelpersBelowACommonStepAreNamed) {
  const Texts said = sites_apart(
      {{"", kSite, stack({kMain, kStep, "lib/accelerator.py:2734 backward", "torch.py:5 run"}),
        true},
       {"", kSite, stack({kMain, kStep, "lib/losses.py:7 mean_loss", "torch.py:5 run"}), true}});
  EXPECT_EQ(said, (Texts{kSite + ", in backward() of accelerator.py:2734",
                         kSite + ", in mean_loss() of losses.py:7"}));
}

TEST(StackPartings, TwoHelpersThatWaitInOneFunctionAreItsCallers) {
  const std::string site = "wait() of sync.py:3";
  const Texts said = sites_apart(
      {{"", site, stack({kMain, kStep, "x.py:1 save", "sync.py:3 wait"}), true},
       {"", site, stack({kMain, kStep, "x.py:8 load", "sync.py:3 wait", "threading.py:1 acquire"}),
        true}});
  EXPECT_EQ(said, (Texts{site + ", called from save() of x.py:1",
                         site + ", called from load() of x.py:8"}));
}

TEST(StackPartings, EqualStacksStayAsTheyAre) {
  const std::string same = stack({kMain, kStep, "lib/a.py:1 f"});
  EXPECT_EQ(sites_apart({{"waits", kSite, same, true}, {"is", kSite, same, true}}),
            (Texts{kSite, kSite}));
  EXPECT_EQ(sites_apart({{"", kSite, "", true}, {"", kSite, "", true}}), (Texts{kSite, kSite}));
  EXPECT_TRUE(sites_apart({}).empty());
}

TEST(StackPartings, OneThatIsTheBeginningOfTheOtherIsTheFrameItself) {
  EXPECT_EQ(sites_apart({{"", kSite, stack({kMain, kStep}), true},
                         {"", kSite, stack({kMain, kStep, "lib/a.py:1 f"}), true}}),
            (Texts{kSite + " itself", kSite + ", in f() of a.py:1"}));
  EXPECT_EQ(sites_apart({{"", kSite, stack({kMain, kStep, "lib/a.py:1 f"}), true},
                         {"", kSite, stack({kMain, kStep, "lib/a.py:1 f", "lib/b.py:2 g"}), true}}),
            (Texts{kSite + ", in f() of a.py:1", kSite + ", in g() of b.py:2"}));
}

TEST(StackPartings, EachPartsFromItsNearest) {
  const auto in = [](const char* outer, const char* inner) {
    return ThreadPlace{"", kSite, stack({kMain, kStep, outer, inner}), true};
  };
  EXPECT_EQ(sites_apart({in("l.py:1 a", "l.py:2 b"), in("l.py:1 a", "l.py:3 c"),
                         in("l.py:4 d", "l.py:2 b")}),
            (Texts{kSite + ", in b() of l.py:2", kSite + ", in c() of l.py:3",
                   kSite + ", in d() of l.py:4"}));
}

TEST(StackPartings, AFunctionThatHasANameOfItsOwnIsPreferred) {
  const Texts said = sites_apart(
      {{"", kSite, stack({kMain, kStep, "m.py:1773 _call_impl", "m.py:9 forward"}), true},
       {"", kSite, stack({kMain, kStep, "t.py:5 backward"}), true}});
  EXPECT_EQ(said, (Texts{kSite + ", in forward() of m.py:9", kSite + ", in backward() of t.py:5"}));
  // Not if both arrive at the same line.
  const Texts again =
      sites_apart({{"", kSite, stack({kMain, kStep, "m.py:1 _a", "m.py:9 forward"}), true},
                   {"", kSite, stack({kMain, kStep, "m.py:2 _b", "m.py:9 forward"}), true}});
  EXPECT_EQ(again, (Texts{kSite + ", in _a() of m.py:1", kSite + ", in _b() of m.py:2"}));
}

TEST(StackPartings, ThoseThatWorkAtOnePlacePassThroughManyFrames) {
  const std::string one = stack({kMain, kStep, "l.py:1 a"});
  const std::string other = stack({kMain, kStep, "l.py:2 b"});
  EXPECT_EQ(sites_apart({{"", kSite, one, false}, {"", kSite, other, true}}),
            (Texts{kSite, kSite}));
  EXPECT_EQ(sites_apart({{"waits", kSite, one, false}, {"is", kSite, other, false}}),
            (Texts{kSite + ", in a() of l.py:1", kSite + ", in b() of l.py:2"}));
}

TEST(StackPartings, OtherSitesOrHostsAreNoParting) {
  const std::string here = stack({kMain, kStep});
  const std::string there = stack({"/b/train.py:9 main", "/x/trainer.py:2090 training_step"});
  EXPECT_EQ(sites_apart({{"a", kSite, here, true}, {"b", kSite, there, true}}),
            (Texts{kSite, kSite}));
  EXPECT_EQ(sites_apart({{"a", kSite, here, true}, {"b", "main() of train.py:9", kMain, true}}),
            (Texts{kSite, "main() of train.py:9"}));
}

TEST(StackPartings, InFramesThatWereLeftOutNothingIsKnown) {
  const std::string one = stack({kMain, "...", "l.py:1 a", kStep});
  const std::string other = stack({kMain, "...", "l.py:2 b", kStep});
  EXPECT_EQ(sites_apart({{"", kSite, one, true}, {"", kSite, other, true}}), (Texts{kSite, kSite}));
}

TEST(StackPartings, WhateverAStackIs) {
  for (const char* odd : {"\n", "\n\n", " ", "x", "x \n y", "/ /", "..."}) {
    EXPECT_EQ(sites_apart({{"a", odd, odd, true}, {"b", odd, "z\n", true}}).size(), 2U);
  }
}

}  // namespace
}  // namespace presum::aggregate
