// SPDX-License-Identifier: Apache-2.0
#include "step/gradients.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

namespace presum::step {
namespace {

using Values = std::vector<float>;

// Multiples of 1/8 up to 8, so sums and sums of squares are exact.
Values exact_values(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Values out(count);
  for (float& x : out) x = (static_cast<float>(random() % 129) - 64) / 8;
  return out;
}

double sum_squares(const Values& values) {
  double sum = 0;
  for (const float x : values) sum += static_cast<double>(x) * static_cast<double>(x);
  return sum;
}

float max_abs(const Values& values) {
  return std::abs(*std::ranges::max_element(values, {}, [](float x) { return std::abs(x); }));
}

Layout layout_of(const std::vector<std::string>& names) {
  std::vector<Parameter> parameters;
  for (const std::string& name : names) parameters.push_back({.name = name});
  return *Layout::of(parameters, {});
}

class Model {
 public:
  explicit Model(const std::vector<std::string>& names, std::uint32_t sketch_size = 256)
      : layout_(layout_of(names)), gradients_(layout_, sketch_size) {}

  Gradients* operator->() { return &gradients_; }
  void begin(std::uint64_t step) { gradients_.begin({.reductions = step}, false); }
  void read(ParameterId id, const Values& values) {
    EXPECT_TRUE(gradients_.read(id, values.data(), values.size(), Dtype::kF32, false));
  }
  void read_reduced(ParameterId id, const Values& values) {
    EXPECT_TRUE(gradients_.read(id, values.data(), values.size(), Dtype::kF32, true));
  }
  packet::Step put() {
    packet::Step out;
    out.groups.resize(layout_.gradient_groups());
    gradients_.put(out);
    return out;
  }
  // A step with one gradient per parameter.
  packet::Step step(std::uint64_t number, const std::vector<Values>& own) {
    begin(number);
    for (ParameterId id = 0; id < own.size(); ++id) read(id, own[id]);
    return put();
  }

 private:
  Layout layout_;
  Gradients gradients_;
};

TEST(Gradients, SumsPerGroupAndTotalAreThoseOfFloat64) {
  const Values a = exact_values(1003, 1);
  const Values b = exact_values(517, 2);
  const Values c = exact_values(64, 3);
  const auto step = Model({"layers.0.w", "layers.0.b", "head.w"}).step(5, {a, b, c});
  EXPECT_EQ(step.elements, 1003U + 517U + 64U);
  EXPECT_EQ(step.total.sum_squares, sum_squares(a) + sum_squares(b) + sum_squares(c));
  EXPECT_EQ(step.total.max_abs, std::max({max_abs(a), max_abs(b), max_abs(c)}));
  EXPECT_EQ(step.total.nonfinite, 0U);
  ASSERT_EQ(step.groups.size(), 2U);
  EXPECT_EQ(step.groups[0].sums.sum_squares, sum_squares(a) + sum_squares(b));
  EXPECT_EQ(step.groups[0].sums.max_abs, std::max(max_abs(a), max_abs(b)));
  EXPECT_EQ(step.groups[1].sums.sum_squares, sum_squares(c));
}

TEST(Gradients, NonfiniteElementsAreCountedAndKeptOutOfTheMaximum) {
  const auto step = Model({"a.0.w", "a.1.w"}).step(0, {{1, NAN, -INFINITY, 2}, {1, -3, 0, 2}});
  EXPECT_EQ(step.total.nonfinite, 2U);
  EXPECT_TRUE(std::isnan(step.total.sum_squares));
  EXPECT_EQ(step.total.max_abs, 3);
  EXPECT_EQ(step.groups[0].sums.nonfinite, 2U);
  EXPECT_EQ(step.groups[1].sums.sum_squares, 14);
}

TEST(Gradients, EmptyParametersCountAsZero) {
  const auto step = Model({"w", "v"}).step(0, {{}, {3, 4}});
  EXPECT_EQ(step.total.sum_squares, 25);
  EXPECT_EQ(step.elements, 2U);
  EXPECT_EQ(step.sketch.size(), 256U);
}

TEST(Gradients, ReducedOnesStandApartAndAStepForgetsTheOneBefore) {
  Model model({"w", "v"});
  model.begin(0);
  model.read(1, {1, 2});
  model.read_reduced(0, {3, 4});
  const auto with = model.put();
  ASSERT_TRUE(with.reduced);
  EXPECT_EQ(with.reduced->sum_squares, 25);
  EXPECT_NE(with.reduced->fingerprint, 0U);
  EXPECT_EQ(with.total.sum_squares, 5);
  const auto next = model.step(1, {});
  EXPECT_FALSE(next.reduced);
  EXPECT_EQ(next.total.sum_squares, 0);
  EXPECT_EQ(next.elements, 0U);
  EXPECT_EQ(next.sketch, Values(256, 0.0F));
}

TEST(Gradients, ASecondReportReplacesTheFirstWhoseStepHasNoSketch) {
  const Values first = exact_values(700, 6);
  const Values last = exact_values(700, 7);
  const Values other = exact_values(500, 8);
  Model twice({"a.w", "b.w"});
  Model once({"a.w", "b.w"});
  for (std::uint64_t s = 0; s < 4; ++s) {
    twice.begin(s);
    twice.read(0, first);
    twice.read(1, other);
    twice.read(0, last);
    const auto step = twice.put();
    const auto want = once.step(s, {last, other});
    EXPECT_EQ(step.total.sum_squares, want.total.sum_squares);
    EXPECT_EQ(step.total.fingerprint, want.total.fingerprint);
    EXPECT_EQ(step.sketch, s == 0 ? Values() : want.sketch) << "step " << s;
  }
  // A later step without that parameter must not contain its old sketch.
  twice.begin(4);
  twice.read(1, other);
  once.begin(4);
  once.read(1, other);
  EXPECT_EQ(twice.put().sketch, once.put().sketch);
}

TEST(Gradients, TheOrderOfReportsDoesNotMatter) {
  const Values a = exact_values(900, 13);
  const Values b = exact_values(900, 14);
  Model model({"a", "b"});
  const auto forward = model.step(1, {a, b});
  model.begin(1);
  model.read(1, b);
  model.read(0, a);
  const auto backward = model.put();
  EXPECT_EQ(forward.sketch, backward.sketch);
  EXPECT_EQ(forward.total.fingerprint, backward.total.fingerprint);
  EXPECT_NE(model.step(1, {b, a}).total.fingerprint, forward.total.fingerprint);
}

TEST(Gradients, SketchSizeZeroTurnsItOff) {
  const auto step = Model({"w"}, 0).step(0, {{1, 2, 2}});
  EXPECT_TRUE(step.sketch.empty());
  EXPECT_EQ(step.total.sum_squares, 9);
}

TEST(Gradients, UnknownParametersAndNullDataAreRefused) {
  Model model({"w"});
  model.begin(0);
  const Values buffer = {1, 2, 3, 4};
  for (const Status& status :
       {model->read(1, buffer.data(), 4, Dtype::kF32, false),
        model->read(0, nullptr, 4, Dtype::kF32, false),
        model->read(1, buffer.data(), 4, Dtype::kF32, true),
        model->read(0, nullptr, 4, Dtype::kF32, true), model->take(1, {}, 1, false)}) {
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(model.put().total.sum_squares, 0);
  EXPECT_FALSE(model.put().reduced);
}

// ---- gradients read elsewhere, such as on a device

TEST(Gradients, ThePassOfADeviceIsTakenForItsOwn) {
  const std::vector<Values> own = {exact_values(5000, 15), exact_values(3000, 16)};
  Model here({"a.w", "b.w"});
  Model device({"a.w", "b.w"});
  for (const std::uint64_t step : {2U, 3U}) {
    const auto want = here.step(step, own);
    device.begin(step);
    Values sketch(256);
    for (ParameterId id = 0; id < 2; ++id) {
      const auto sums =
          observe::gradient_pass(own[id].data(), own[id].size(), Dtype::kF32,
                                 {.values = sketch.data(), .size = 256, .seed = device->seed(id)});
      ASSERT_TRUE(device->take(id, sums, own[id].size(), false));
      ASSERT_TRUE(device->take(id, sums, own[id].size(), true));
    }
    device->add_sketch(sketch);
    const auto got = device.put();
    EXPECT_EQ(got.sketch, want.sketch);
    EXPECT_EQ(got.elements, 8000U);
    EXPECT_EQ(got.total.sum_squares, want.total.sum_squares);
    EXPECT_EQ(got.total.fingerprint, want.total.fingerprint);
    ASSERT_TRUE(got.reduced);
    EXPECT_EQ(got.reduced->fingerprint, want.total.fingerprint);
  }
}

TEST(Gradients, SketchSeedsDifferByParameterAndStepAndAgreeBetweenWorkers) {
  Model one({"a", "b"});
  Model other({"b", "module.a"});
  const auto seed = [](Model& model, ParameterId id, std::uint64_t step) {
    model.begin(step);
    return model->seed(id);
  };
  EXPECT_NE(seed(one, 0, 5), seed(one, 1, 5));
  EXPECT_NE(seed(one, 0, 5), seed(one, 0, 6));
  EXPECT_EQ(seed(one, 0, 5), seed(other, 1, 5)) << "order and wrappers do not matter";
}

}  // namespace
}  // namespace presum::step
