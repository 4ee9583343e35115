// SPDX-License-Identifier: Apache-2.0
#include "step/moments.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "base/hash.h"
#include "observe/gradient_pass.h"

namespace presum::step {
namespace {

Steps model() {
  return *Steps::create({}, {{"a.0.w", 300, ""}, {"a.0.b", 3, ""}, {"a.1.w", 300, ""}}, {});
}

Moment told(Moments& moments) {
  return std::get<packet::MomentOf>(*packet::decode(moments.packet().bytes)).moment;
}

std::vector<float> values(std::size_t count, float first) {
  std::vector<float> out(count);
  std::iota(out.begin(), out.end(), first);
  return out;
}

Status tell(Moments& moments, ParameterId id, const std::vector<float>& data, std::size_t first = 0,
            std::size_t count = SIZE_MAX, std::uint32_t shard = 0) {
  return moments.parameter(id, data.data() + first, std::min(count, data.size() - first),
                           Dtype::kF32, first, shard, true);
}

TEST(Moments, HoldSumsAndFingerprintsOfGroups) {
  Steps of = model();
  of.begin_step(11);
  Moments moments(of);
  moments.begin(Moment::Kind::kSaved, 7, 0.5);
  moments.generator(1, 99);
  ASSERT_TRUE(tell(moments, 0, values(300, 1)));
  ASSERT_TRUE(tell(moments, 1, values(3, 2)));
  ASSERT_TRUE(moments.state(1, 5));
  const Moment got = told(moments);
  EXPECT_EQ(got.kind, Moment::Kind::kSaved);
  EXPECT_EQ(got.step, 12U) << "the one to come";
  EXPECT_EQ(got.optimizer_steps, 7);
  ASSERT_EQ(got.generators.size(), 1U);
  ASSERT_EQ(got.groups.size(), 1U) << "of the other group nothing was told";
  const MomentGroup& group = got.groups.front();
  EXPECT_EQ(group.id, name_hash("a.0"));
  EXPECT_EQ(group.elements, 303U);
  double squares = 4 + 9 + 16;
  for (int i = 1; i <= 300; ++i) squares += i * i;
  EXPECT_DOUBLE_EQ(group.squares, squares);
  const auto hash = [](const std::vector<float>& data, std::string_view name) {
    const auto sums = observe::gradient_pass(data.data(), data.size(), Dtype::kF32, {});
    return mix64(sums.fingerprint ^ name_hash(name));
  };
  EXPECT_EQ(group.parameters, hash(values(300, 1), "a.0.w") + hash(values(3, 2), "a.0.b"));
  EXPECT_EQ(group.optimizer, mix64(5 ^ name_hash("a.0.b") ^ splitmix64(0)));
}

TEST(Moments, SketchesOfShardsAddUp) {
  const Steps of = model();
  const auto sketch = [&](std::size_t first, std::size_t count) {
    Moments moments(of);
    moments.begin(Moment::Kind::kBegun, kNaN, kNaN);
    EXPECT_TRUE(tell(moments, 2, values(300, 1), first, count, first == 0 ? 1 : 2));
    return told(moments).groups.front().sketch;
  };
  const auto whole = sketch(0, 300);
  const auto low = sketch(0, 100);
  const auto high = sketch(100, 200);
  for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_FLOAT_EQ(low[i] + high[i], whole[i]);
}

TEST(Moments, WithoutOrderThereIsNoSketch) {
  const Steps of = model();
  Moments moments(of);
  moments.begin(Moment::Kind::kBegun, 0, 0);
  const auto data = values(300, 1);
  ASSERT_TRUE(moments.parameter(0, data.data(), 300, Dtype::kF32, 0, 1, false));
  ASSERT_TRUE(moments.parameter_sums(2, 9, 16, 4, 4, 0));
  const Moment got = told(moments);
  ASSERT_EQ(got.groups.size(), 2U);
  EXPECT_TRUE(got.groups[0].sketch.empty());
  EXPECT_TRUE(got.groups[1].sketch.empty()) << "sums that were computed elsewhere";
  EXPECT_EQ(got.groups[1].squares, 16);
  EXPECT_EQ(got.groups[0].formats, 1) << "fp32";
  EXPECT_EQ(got.groups[1].formats, 4) << "bf16";
}

TEST(Moments, StatesInEachOthersPlaceAreOthers) {
  const Steps of = model();
  const auto hash = [&](std::uint64_t first, std::uint64_t second) {
    Moments moments(of);
    moments.begin(Moment::Kind::kSaved, 7, 0.5);
    EXPECT_TRUE(moments.state(0, first));
    EXPECT_TRUE(moments.state(0, second));
    EXPECT_TRUE(moments.state(1, 1));
    return told(moments).groups.front().optimizer;
  };
  EXPECT_EQ(hash(5, 6), hash(5, 6));
  EXPECT_NE(hash(5, 6), hash(6, 5));
}

TEST(Moments, UnknownParametersAreRefused) {
  const Steps of = model();
  Moments moments(of);
  EXPECT_FALSE(moments.state(0, 1)) << "none has begun";
  moments.begin(Moment::Kind::kBegun, 0, 0);
  EXPECT_FALSE(moments.state(3, 1));
  EXPECT_FALSE(moments.parameter(0, nullptr, 3, Dtype::kF32, 0, 0, true));
}

}  // namespace
}  // namespace presum::step
