// SPDX-License-Identifier: Apache-2.0
#include "step/steps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "packet/packet.h"

namespace presum::step {
namespace {

constexpr Dtype kType = Dtype::kF32;

// A model with two parameters, trained as a framework trains it.
class Trained {
 public:
  explicit Trained(Settings settings = {.knows_optimizer = true})
      : steps_(std::move(*Steps::create(
            {.sketch_size = 64},
            {{.name = "a.weight", .elements = 2}, {.name = "b.weight", .elements = 2}},
            settings))) {}

  Steps& operator*() { return steps_; }
  Steps* operator->() { return &steps_; }

  void forward() {
    steps_.forward(left_);
    steps_.enter_wrapper();
    steps_.enter_module();
  }
  // A pass whose gradients are all `value`, with `.grad` holding something of size `held` before
  // it.
  Read pass(bool reduces, float value, double held = 0, bool more_follow = false) {
    steps_.reached(++forwards_, {.loss = value, .tokens = 1.0, .share = {}});
    const Read read = steps_.pass_begins(
        {.reduces = reduces, .more_follow = more_follow, .readable = true, .held = held});
    if (read != Read::kNothing) this->read(value);
    steps_.pass_ends({});
    left_ = 1;
    return read;
  }
  void read(float value) {
    const float gradient[] = {value, value};
    for (const ParameterId id : {0U, 1U}) {
      EXPECT_TRUE(steps_.gradients().read(id, gradient, 2, kType, false));
    }
  }
  void read_reduced(float value) {
    const float gradient[] = {value, value};
    for (const ParameterId id : {0U, 1U}) {
      EXPECT_TRUE(steps_.gradients().read(id, gradient, 2, kType, true));
    }
  }
  void optimizer(std::uint64_t which = 0) {
    steps_.optimizer_begins();
    steps_.optimizer_steps(which);
  }
  void zero() { left_ = 0; }
  std::optional<packet::Step> ended() {
    auto step = steps_.take_ended();
    if (!step) return std::nullopt;
    return std::get<packet::Step>(*packet::decode(step->packet().bytes));
  }

 private:
  Steps steps_;
  std::uint64_t forwards_ = 0;
  double left_ = 0;
};

double norm(const packet::Step& step) { return std::sqrt(step.total.sum_squares); }

TEST(Steps, RefuseBadSketchSizesAndAReplicaOutsideTheWorld) {
  const auto created = [](std::uint32_t size, std::uint32_t replica = 0) {
    return Steps::create({.identity = {.replica = replica}, .sketch_size = size}, {}, {});
  };
  for (const std::uint32_t size : {1U, 32U, 63U, 65U, 1000U, 131'072U}) {
    const auto refused = created(size);
    ASSERT_FALSE(refused) << size;
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(refused.error().message.find(std::to_string(size)), std::string::npos);
  }
  for (const std::uint32_t size : {0U, 64U, 65'536U}) EXPECT_TRUE(created(size)) << size;
  EXPECT_EQ(created(64, 1).error().code, ErrorCode::kInvalidArgument);
}

TEST(Steps, AReducedStepEndsAtTheOptimizer) {
  Trained model;
  model.forward();
  EXPECT_EQ(model.pass(true, 3), Read::kSums);
  EXPECT_FALSE(model.ended());
  model.optimizer();
  const auto step = model.ended();
  ASSERT_TRUE(step);
  EXPECT_TRUE(step->number.is_reduced());
  EXPECT_EQ(step->use, StepUse::kUsed);
  EXPECT_EQ(step->optimizer_step, 1U);
  EXPECT_EQ(norm(*step), 6);
  ASSERT_EQ(step->micro.size(), 1U);
  EXPECT_EQ(step->micro[0].loss, 3);
}

TEST(Steps, AWindowThatAnOptimizerTookIsAStepThatWasNotReduced) {
  Trained model;
  for (std::uint32_t i = 0; i < 3; ++i) {
    model.forward();
    // The first pass could be one of several; after its step, it is known to be one.
    EXPECT_EQ(model.pass(false, 3, 0, true), i == 0 ? Read::kNothing : Read::kSums);
    model.optimizer();
    const auto step = model.ended();
    ASSERT_TRUE(step);
    EXPECT_FALSE(step->number.is_reduced());
    EXPECT_EQ(step->number.window, i);
    EXPECT_EQ(step->number.unreduced, i);
    EXPECT_EQ(step->elements, i == 0 ? 0U : 4U);
    EXPECT_EQ(step->skipped_parameters, i == 0 ? 2U : 0U);
    EXPECT_EQ(step->micro.at(0).loss, 3);
  }
  EXPECT_EQ(model->machine().steps(), 3U);
}

bool left_over(const packet::Step& step) {
  return step.fingerprint_of(FingerprintKind::kLeftOver) != nullptr;
}

TEST(Steps, WhatAnOptimizerStepLeavesIsTold) {
  for (const bool one : {true, false}) {
    Trained model({.knows_optimizer = true, .one_optimizer = one});
    for (int i = 0; i < 3; ++i) {
      model.forward();
      model.pass(true, 3, i == 0 ? 0 : 1);  // nothing clears it
      model.optimizer();
      EXPECT_EQ(left_over(*model.ended()), one && i > 0) << i;
    }
  }
}

TEST(Steps, WhatIsClearedBeforeItIsUsedIsNotLeftOver) {
  Trained model({.knows_optimizer = true, .one_optimizer = true});
  for (int i = 0; i < 3; ++i) {
    model.forward();
    model.pass(true, 3, i == 0 ? 0 : 1);  // a generator's pass through the discriminator
    model.forward();
    EXPECT_FALSE(left_over(*model.ended()));
    model.zero();
    model.pass(true, 3, 0);
    model.optimizer();
    EXPECT_FALSE(left_over(*model.ended()));
  }
}

TEST(Steps, WhatIsAddedToAHeldGradientIsReadAsItArrives) {
  Trained model;
  model.forward();
  model.pass(true, 3);
  model.forward();
  EXPECT_EQ(model.ended()->use, StepUse::kKept);
  EXPECT_EQ(model.pass(true, 5, 1), Read::kArrivals);
  EXPECT_FALSE(model->reduced_is_due());  // the reduced gradient includes what was held
  model.optimizer();
  EXPECT_EQ(norm(*model.ended()), 10);
}

TEST(Steps, OfSeveralPassesOverAHeldGradientNothingIsKnown) {
  Trained model;
  model.forward();
  model.pass(false, 3, 1, true);
  model.forward();
  EXPECT_EQ(model.pass(true, 5, 1), Read::kNothing);
  model.optimizer();
  const auto step = model.ended();
  EXPECT_EQ(step->micro_batches, 2U);
  EXPECT_EQ(step->elements, 0U);
  EXPECT_EQ(step->skipped_parameters, 2U);
  EXPECT_TRUE(step->sketch.empty());
}

TEST(Steps, TwoArrivalsAtOneParameterAreNotKnown) {
  Trained model;
  model->forward();
  model->pass_begins({.reduces = true, .held = 1.0});
  const float gradient[2] = {1, 1};
  for (int i = 0; i < 2; ++i) {
    model->arrives(0);
    ASSERT_TRUE(model->gradients().read(0, gradient, 2, kType, false));
  }
  model->pass_ends({});
  model.optimizer();
  EXPECT_EQ(model.ended()->elements, 0U);
}

TEST(Steps, AGradientThatIsZeroedIsUnused) {
  Trained model;
  model.forward();
  model.pass(true, 3);
  model.zero();
  model.forward();
  EXPECT_EQ(model.ended()->use, StepUse::kUnused);
  // A pass within an optimizer step is a step of its own (LBFGS).
  model->optimizer_begins();
  model.pass(true, 3);
  model.zero();
  model.forward();
  EXPECT_EQ(model.ended()->use, StepUse::kUsed);
}

TEST(Steps, AWindowThatIsZeroedIsDropped) {
  Trained model;
  model.forward();
  model.pass(false, 100, 0, true);
  model->zeroed(false);
  model.forward();
  model.pass(true, 3);
  model.optimizer();
  const auto step = model.ended();
  EXPECT_EQ(step->micro_batches, 1U);
  EXPECT_EQ(step->micro.size(), 1U);
  EXPECT_FALSE(model.ended());
}

TEST(Steps, TheReducedGradientOfTheStepBeforeIsNotThatOfAnUnreducedOne) {
  Trained model;
  model.forward();
  model.pass(true, 3);
  model.read_reduced(3);
  model.optimizer();
  EXPECT_TRUE(model.ended()->reduced);
  model.forward();
  model.pass(false, 5, 0, true);  // not read: more passes could follow
  model.optimizer();
  const auto step = model.ended();
  ASSERT_TRUE(step);
  EXPECT_FALSE(step->number.is_reduced());
  EXPECT_FALSE(step->reduced);
}

TEST(Steps, ReducedGradientsAreReadAtTheSameReductionsWhateverCouldBeReadBefore) {
  for (const std::uint64_t every : {1, 3, 7}) {
    std::vector<std::uint64_t> read[2];
    for (std::uint64_t worker = 0; worker < 2; ++worker) {
      Trained model({.every = every, .reduced_every = 5, .knows_optimizer = true});
      for (std::uint64_t step = 0; step < 60; ++step) {
        model.forward();
        model.pass(true, 3, worker == 1 && step % 4 == 0 ? 1 : 0);
        if (model->reduced_is_due()) read[worker].push_back(step);
        model.optimizer();
        model.ended();
      }
    }
    std::vector<std::uint64_t> expected;
    for (const std::uint64_t step : read[0]) {
      if (step % 4 != 0) expected.push_back(step);
    }
    EXPECT_EQ(read[1], expected);
    EXPECT_GE(read[0].size(), 60 / std::max<std::uint64_t>(5, every) - 1);
    EXPECT_LE(read[0].size(), 12U);
    EXPECT_EQ(read[0].front(), 0U);
  }
}

TEST(Steps, OfAPostponedReducedGradientTheNextOneIsRead) {
  for (const std::uint64_t every : {1, 3}) {
    Trained model({.every = every, .reduced_every = 5, .knows_optimizer = true});
    std::vector<std::uint64_t> read;
    for (std::uint64_t step = 0; step < 12; ++step) {
      if (step == 0) model->postpone_reduced();
      model.forward();
      model.pass(true, 3);
      if (model->reduced_is_due()) read.push_back(step);
      model.optimizer();
      model.ended();
    }
    const std::vector<std::uint64_t> grid =
        every == 1 ? std::vector<std::uint64_t>{1, 5, 10} : std::vector<std::uint64_t>{3, 6};
    EXPECT_EQ(read, grid);
  }
}

TEST(Steps, WithAScaleThatIsNotKnownNeitherAreTheGradients) {
  for (const double scale : {kNaN, 0.0, -1.0, HUGE_VAL, 1e200, 1e-320}) {
    Trained model;
    model.forward();
    model->pass_begins({.reduces = true});
    model.read(6);
    model->pass_ends({.root = 5.0, .root_scale = scale});
    model.read_reduced(3);
    model.optimizer();
    const auto step = model.ended();
    EXPECT_EQ(step->elements, 0U);
    EXPECT_EQ(step->skipped_parameters, 2U);
    EXPECT_EQ(step->gradient_scale, 1);
    EXPECT_FALSE(step->reduced);
  }
}

TEST(Steps, AWindowOfAFailedPassLeavesNothingToTheNextStep) {
  Trained model;
  model.forward();
  model->pass_begins({.reduces = false, .more_follow = true});
  model.forward();
  model.optimizer();
  model->loss(100.0, 1, 0);
  model->pass_begins({.reduces = false, .more_follow = true});
  model->zeroed(false);
  model.forward();
  model.pass(true, 3);
  model.zero();
  model.forward();
  const auto step = model.ended();
  EXPECT_EQ(step->use, StepUse::kUnused);
  ASSERT_EQ(step->micro.size(), 1U);
  EXPECT_EQ(step->micro[0].loss, 3);
}

TEST(Steps, WhatNobodyLookedAtIsNotUnused) {
  Trained model;
  model->reduction();
  model->reduction();
  EXPECT_EQ(model.ended()->use, StepUse::kUnknown);
  model->shadow();
  EXPECT_EQ(model.ended()->use, StepUse::kUnknown);
  EXPECT_EQ(model.ended()->use, StepUse::kUnknown);
}

TEST(Steps, AnOptimizerThatRaisedHasTakenNothing) {
  Trained model;
  model->optimizer_begins();
  model->optimizers().fail();
  model.forward();
  model.pass(true, 3);
  model.zero();
  model.forward();
  EXPECT_EQ(model.ended()->use, StepUse::kUnused);
}

TEST(Steps, WhatReducesInPartGoesOnInTheNextPass) {
  Trained model;
  model.forward();
  const std::vector<float> gradient(2, 3);
  for (ParameterId id = 0; id < 2; ++id) {
    ASSERT_EQ(model->pass_begins({.reduces = true, .held = static_cast<double>(id)}), Read::kSums);
    ASSERT_TRUE(model->gradients().read(id, gradient.data(), 2, kType, false));
    model->pass_ends({.root = 3.0}, id == 0);
    EXPECT_EQ(model->machine().in_window(), id == 0);
  }
  model.optimizer();
  const auto step = model.ended();
  EXPECT_EQ(step->header.step, 0U);
  EXPECT_TRUE(step->number.is_reduced());
  EXPECT_EQ(step->micro_batches, 2U);
  EXPECT_EQ(step->micro.size(), 2U);
}

TEST(Steps, TurnsAreTakenByReductionsWhateverWindowsWereDropped) {
  Trained model;
  model.forward();
  model.pass(false, 3, 0, true);
  model->zeroed(false);
  EXPECT_EQ(model->turn(), 0U);
  model.forward();
  model.pass(true, 3);
  model.optimizer();
  EXPECT_EQ(model->turn(), 1U);
  model.forward();
  model.pass(false, 3);
  model.optimizer();
  EXPECT_EQ(model->turn(), 2U);  // an unreduced step takes a turn too
}

TEST(Steps, WithoutAnOptimizerParametersThatChangedTellOfItsStep) {
  Trained model({.knows_optimizer = false});
  model.forward();
  model.pass(false, 3);
  model->zeroed(true);
  const auto step = model.ended();
  ASSERT_TRUE(step);
  EXPECT_FALSE(step->number.is_reduced());
  EXPECT_EQ(norm(*step), 6);
}

TEST(Steps, StepsOfSeveralOptimizersAfterOnePassAreOne) {
  Trained model;
  for (std::uint64_t i = 1; i <= 3; ++i) {
    model.forward();
    model.pass(true, 1);
    model.optimizer(0);
    model.optimizer(1);
    EXPECT_EQ(model->optimizer_steps(), i);
    EXPECT_EQ(model.ended()->optimizer_step, i);
    EXPECT_FALSE(model.ended());
  }
  model.optimizer(1);
  EXPECT_EQ(model->optimizer_steps(), 4U);
}

TEST(Steps, APassThatFailedLeavesAGradientThatIsNotKnown) {
  Trained model;
  model.forward();
  model->pass_begins({.reduces = false, .held = 0.0});
  model.forward();  // the pass raised
  model.pass(false, 3, 0, true);
  model.forward();
  model->pass_begins({.reduces = true, .held = 1.0});
  model.forward();  // the pass raised
  model.pass(true, 3, 1);
  model.optimizer();
  const auto step = model.ended();
  EXPECT_EQ(step->number.reductions, 1U);  // other ranks may have reduced in the failed pass
  EXPECT_EQ(step->micro_batches, 2U);
  EXPECT_EQ(step->elements, 0U);
}

TEST(Steps, EveryNthIsRecordedAndTheFirstThatWasNotReduced) {
  Trained model({.every = 3, .knows_optimizer = true});
  std::vector<std::uint64_t> reduced;
  std::vector<std::uint32_t> unreduced;
  for (int i = 0; i < 16; ++i) {
    model.forward();
    model.pass(i < 8, 1, 0, i >= 8);
    model.optimizer();
    const auto step = model.ended();
    if (!step) continue;
    if (step->number.is_reduced()) reduced.push_back(step->number.reductions);
    if (!step->number.is_reduced()) unreduced.push_back(step->number.window);
  }
  EXPECT_EQ(reduced, (std::vector<std::uint64_t>{0, 3, 6}));
  EXPECT_EQ(unreduced, (std::vector<std::uint32_t>{0, 1, 4, 7}));
}

TEST(Steps, TheThreadsClocksAreReadWhereAStepIsRecordedOrTheNextMayBe) {
  int reads = 0;
  double now = 0;
  const auto thread = [&] {
    ++reads;
    return base::ThreadTimes{now, 0};
  };
  const Clocks clocks{.reading = [&] { return Reading{now, 0}; }, .thread = thread};
  Trained model({.every = 3, .knows_optimizer = true, .clocks = clocks});
  std::vector<double> processor;
  for (int i = 0; i < 8; ++i) {
    model.forward();
    model.pass(true, 1);
    now += 1;
    model.optimizer();
    if (const auto step = model.ended(); step && step->times.known()) {
      processor.push_back(step->times.processor);
    }
  }
  EXPECT_EQ(reads, 5);  // at the ends of steps 0, 2, 3, 5 and 6
  EXPECT_EQ(processor, (std::vector<double>{1, 1}));
}

TEST(Steps, AWorkerWithoutInputHasAStepOfItsOwn) {
  Trained model;
  model.forward();
  model.pass(true, 3);
  model->forward();
  EXPECT_TRUE(model.ended());
  model->shadow();
  const auto step = model.ended();
  ASSERT_TRUE(step);
  EXPECT_EQ(step->number.reductions, 1U);
  EXPECT_EQ(step->micro_batches, 0U);
}

TEST(Steps, WhatComesLateDecidesToo) {
  for (const double held : {0.0, 1.0}) {
    Trained model;
    model.forward();
    model.pass(true, 3);
    model.forward();
    model.ended();
    EXPECT_EQ(model->pass_begins({.reduces = true, .held = Late{0}}), Read::kArrivals);
    model.read(4);
    model->pass_ends({.root_scale = Late{1}});
    EXPECT_TRUE(model->reduced_is_due());
    model.read_reduced(4);
    model.optimizer();
    auto ended = model->take_ended();
    const std::vector<double> come = {held, 2};
    ended->numbers(come);
    const auto step = std::get<packet::Step>(*packet::decode(ended->packet().bytes));
    EXPECT_EQ(norm(step), 4);  // 8 divided by the scale
    EXPECT_EQ(step.reduced.has_value(), held == 0);
  }
}

}  // namespace
}  // namespace presum::step
