// SPDX-License-Identifier: Apache-2.0
// What was computed elsewhere, such as on a device, in place of what `Steps` reads itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "base/hash.h"
#include "observe/gradient_pass.h"
#include "packet/packet.h"
#include "step/steps.h"

namespace presum::step {
namespace {

using Kind = StateHash::Kind;

// Multiples of 1/8 up to 8: sums of them and of their squares are exact.
std::vector<float> exact_values(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<float> out(count);
  for (float& x : out) x = (static_cast<float>(random() % 129) - 64) / 8;
  return out;
}

Steps steps_of(const std::vector<Parameter>& parameters) {
  return std::move(*Steps::create(
      {.sketch_size = 256, .buffers = {{"frozen.w", 2, ""}, {"frozen.v", 2, ""}}}, parameters, {}));
}

packet::Step ended(Steps& steps, const StepEnd& how = {}) {
  return std::get<packet::Step>(*packet::decode(end_step(steps, how).bytes));
}

TEST(Elsewhere, ThePassOfADeviceIsTakenForItsOwn) {
  const std::vector<std::vector<float>> gradients = {exact_values(5000, 15),
                                                     exact_values(3000, 16)};
  const std::vector<Parameter> parameters = {{"a.w", 5000, ""}, {"b.w", 3000, ""}};
  Steps own = steps_of(parameters);
  Steps device = steps_of(parameters);
  for (const std::uint64_t step : {2U, 3U}) {
    own.begin_step(step);
    device.begin_step(step);
    std::vector<float> sketch(256);
    for (ParameterId id = 0; id < 2; ++id) {
      const auto& values = gradients[id];
      ASSERT_TRUE(own.gradients().read(id, values.data(), values.size(), Dtype::kF32));
      const auto found = observe::gradient_pass(
          values.data(), values.size(), Dtype::kF32,
          {.values = sketch.data(), .size = 256, .seed = device.gradients().seed(id)});
      const GradientSums sums = {found.sum_squares, found.max_abs, found.nonfinite,
                                 found.fingerprint};
      ASSERT_TRUE(device.gradients().take(id, sums, values.size(), false));
      ASSERT_TRUE(device.gradients().take(id, sums, values.size(), true));
    }
    device.gradients().add_sketch(sketch);
    const packet::Step want = ended(own);
    const packet::Step got = ended(device);
    EXPECT_EQ(got.sketch, want.sketch);
    EXPECT_EQ(got.elements, 8000U);
    EXPECT_EQ(got.total.sum_squares, want.total.sum_squares);
    EXPECT_EQ(got.total.fingerprint, want.total.fingerprint);
    ASSERT_TRUE(got.reduced);
    EXPECT_EQ(got.reduced->fingerprint, want.total.fingerprint);
  }
}

TEST(Elsewhere, AnUnknownParameterIsRefused) {
  Steps steps = steps_of({{"w", 1, ""}});
  steps.begin_step(0);
  const auto refused = steps.gradients().take(1, {}, 1, false);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
}

TEST(Elsewhere, SketchSeedsDifferByParameterAndStepAndAgreeBetweenWorkers) {
  Steps one = steps_of({{"a", 1, ""}, {"b", 1, ""}});
  Steps other = steps_of({{"b", 1, ""}, {"a", 1, ""}});
  const auto seed = [](Steps& steps, ParameterId id, std::uint64_t step) {
    steps.begin_step(step);
    return steps.gradients().seed(id);
  };
  EXPECT_NE(seed(one, 0, 5), seed(one, 1, 5));
  EXPECT_NE(seed(one, 0, 5), seed(one, 0, 6));
  EXPECT_EQ(seed(one, 0, 5), seed(other, 1, 5)) << "the order does not matter";
}

// ---- products

TEST(Elsewhere, ProductsAreUnscaledLikeNormsAndCountAsTheirLastForTheirStep) {
  Steps steps = std::move(*Steps::create({.identity = {.replicas = 2}}, {}, {}));
  steps.begin_step(1);
  for (const std::vector<double>& share : {std::vector{1.0, 1.0, 1.0}, {9.0, -3.0, 1.0}}) {
    ASSERT_TRUE(steps.contents().set_gram(share, 2));
  }
  EXPECT_EQ(ended(steps, {.gradient_scale = 4}).gram,
            (std::vector<double>{9.0 / 16, -3.0 / 16, 1.0 / 16}));
  steps.begin_step(2);
  EXPECT_TRUE(ended(steps).gram.empty());
}

TEST(Elsewhere, AGramMatrixOfAnotherSizeIsRefused) {
  Contents contents;
  for (const auto& [workers, size] :
       {std::pair{3U, 0U}, {3U, 5U}, {3U, 7U}, {3U, 9U}, {65U, 2145U}, {65U, 0U}, {65'536U, 0U}}) {
    const Status status = contents.set_gram(std::vector<double>(size, 1.0), workers);
    ASSERT_FALSE(status) << workers << ": " << size;
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
    EXPECT_TRUE(contents.gram.empty());
  }
  EXPECT_TRUE(contents.set_gram(std::vector<double>(2080, 1.0), 64));
}

// ---- states

std::vector<StateHash> states_of(const Steps& steps) {
  return std::get<packet::Note>(*packet::decode(steps.goodbye(0).bytes)).state.states;
}

class StateWidth : public ::testing::TestWithParam<std::uint32_t> {};

TEST_P(StateWidth, TheHashIsOfTheBits) {
  const auto dtype = GetParam() == 2 ? Dtype::kBF16 : GetParam() == 4 ? Dtype::kF32 : Dtype::kF64;
  // Bit patterns of any kind, NaN and Inf among them.
  std::mt19937_64 random(GetParam());
  std::vector<std::byte> bits(GetParam() * std::size_t{1500});
  for (auto& b : bits) b = static_cast<std::byte>(random());
  Steps steps = steps_of({{"head.w", 1500, ""}});
  const auto read = [&] {
    steps.contents().begin_states();
    EXPECT_TRUE(steps.contents().state(steps.layout(), Kind::kParameters, 0, bits.data(), 1500,
                                       GetParam(), 0));
    return states_of(steps).at(0).value;
  };
  const std::uint64_t value = read();
  Steps other = steps_of({{"head.w", 1500, ""}});
  other.contents().begin_states();
  const std::uint64_t sum = observe::gradient_pass(bits.data(), 1500, dtype, {}).fingerprint;
  ASSERT_TRUE(other.contents().state_sum(other.layout(), Kind::kParameters, 0, sum, 0));
  EXPECT_EQ(value, states_of(other).at(0).value);
  bits[700] ^= std::byte{1};
  EXPECT_NE(read(), value) << "one bit is enough";
}

INSTANTIATE_TEST_SUITE_P(All, StateWidth, ::testing::Values(2U, 4U, 8U));

TEST(Elsewhere, StatesOfAnOptimiserShardsAndWhatIsWatchedStandApart) {
  Steps steps = steps_of({{"w", 1, ""}});
  steps.worker().watch("ema");
  steps.worker().watch("ema");
  Contents& contents = steps.contents();
  contents.begin_states();
  ASSERT_TRUE(contents.state_sum(steps.layout(), Kind::kParameters, 0, 5, 0));
  ASSERT_TRUE(contents.state_sum(steps.layout(), Kind::kOptimizer, 0, 5, 0));
  ASSERT_TRUE(contents.state_sum(steps.layout(), Kind::kFrozen, 1, 5, 0));
  ASSERT_TRUE(contents.state_sum(steps.layout(), Kind::kParameters, 0, 5, 3));
  contents.watched("ema", 0, 7);
  contents.watched("ema", 1, 7);
  const auto states = states_of(steps);
  ASSERT_EQ(states.size(), 5U);
  EXPECT_EQ(states[0].value, states[1].value);
  EXPECT_EQ(states[1].kind, Kind::kOptimizer);
  EXPECT_EQ(states[2].kind, Kind::kFrozen);
  EXPECT_EQ(states[3].shard, 3U);
  EXPECT_EQ(states[4].group, name_hash("ema"));
  EXPECT_EQ(states[4].kind, Kind::kWatched);
  const auto hello = packet::decode(steps.hello().bytes);
  const auto& groups = std::get<packet::Hello>(*hello).facts.groups;
  EXPECT_EQ(std::ranges::count(groups, "ema", &GroupName::name), 1);
}

// ---- words

TEST(Elsewhere, NotesCarryTheirWords) {
  const Steps steps = steps_of({{"w", 1, ""}});
  const auto note_of = [](const Packet& packet) {
    return std::get<packet::Note>(*packet::decode(packet.bytes));
  };
  const packet::Note said = note_of(steps.worker().note("hm"));
  EXPECT_FALSE(said.final || said.broken);
  EXPECT_EQ(said.text, "hm");
  const packet::Note broken = note_of(steps.worker().broken("ouch"));
  EXPECT_TRUE(broken.broken);
  EXPECT_EQ(broken.text, "ouch");
  const packet::Note goodbye = note_of(steps.goodbye(9, {{.kind = 3, .value = 4}}));
  EXPECT_TRUE(goodbye.final);
  EXPECT_EQ(goodbye.state.optimizer_steps, 9U);
  ASSERT_EQ(goodbye.state.fingerprints.size(), 1U);
}

}  // namespace
}  // namespace presum::step
