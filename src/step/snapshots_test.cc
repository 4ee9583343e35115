// SPDX-License-Identifier: Apache-2.0
#include "step/snapshots.h"

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

TrainingSnapshot told(Snapshots& snapshots) {
  return std::get<packet::SnapshotOf>(*packet::decode(snapshots.packet().bytes)).snapshot;
}

std::vector<float> values(std::size_t count, float first) {
  std::vector<float> out(count);
  std::iota(out.begin(), out.end(), first);
  return out;
}

Status tell(Snapshots& snapshots, ParameterId id, const std::vector<float>& data,
            std::size_t first = 0, std::size_t count = SIZE_MAX, std::uint32_t shard = 0) {
  return snapshots.parameter(id, data.data() + first, std::min(count, data.size() - first),
                             Dtype::kF32, first, shard, true);
}

TEST(Snapshots, HoldSumsAndFingerprintsOfGroups) {
  Steps of = model();
  of.begin_step(11);
  Snapshots snapshots(of);
  snapshots.begin(TrainingSnapshot::Kind::kSaved, 7, 0.5);
  snapshots.generator(1, 99);
  ASSERT_TRUE(tell(snapshots, 0, values(300, 1)));
  ASSERT_TRUE(tell(snapshots, 1, values(3, 2)));
  ASSERT_TRUE(snapshots.state(1, 5));
  const TrainingSnapshot got = told(snapshots);
  EXPECT_EQ(got.kind, TrainingSnapshot::Kind::kSaved);
  EXPECT_EQ(got.step, 12U) << "the one to come";
  EXPECT_EQ(got.optimizer_steps, 7);
  ASSERT_EQ(got.generators.size(), 1U);
  ASSERT_EQ(got.groups.size(), 1U) << "of the other group nothing was told";
  const SnapshotGroup& group = got.groups.front();
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

TEST(Snapshots, SketchesOfShardsAddUp) {
  const Steps of = model();
  const auto sketch = [&](std::size_t first, std::size_t count) {
    Snapshots snapshots(of);
    snapshots.begin(TrainingSnapshot::Kind::kBegun, kNaN, kNaN);
    EXPECT_TRUE(tell(snapshots, 2, values(300, 1), first, count, first == 0 ? 1 : 2));
    return told(snapshots).groups.front().sketch;
  };
  const auto whole = sketch(0, 300);
  const auto low = sketch(0, 100);
  const auto high = sketch(100, 200);
  for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_FLOAT_EQ(low[i] + high[i], whole[i]);
}

TEST(Snapshots, WithoutOrderThereIsNoSketch) {
  const Steps of = model();
  Snapshots snapshots(of);
  snapshots.begin(TrainingSnapshot::Kind::kBegun, 0, 0);
  const auto data = values(300, 1);
  ASSERT_TRUE(snapshots.parameter(0, data.data(), 300, Dtype::kF32, 0, 1, false));
  ASSERT_TRUE(snapshots.parameter_sums(2, 9, 16, 4, 4, 0));
  const TrainingSnapshot got = told(snapshots);
  ASSERT_EQ(got.groups.size(), 2U);
  EXPECT_TRUE(got.groups[0].sketch.empty());
  EXPECT_TRUE(got.groups[1].sketch.empty()) << "sums that were computed elsewhere";
  EXPECT_EQ(got.groups[1].squares, 16);
  EXPECT_EQ(got.groups[0].formats, 1) << "fp32";
  EXPECT_EQ(got.groups[1].formats, 4) << "bf16";
}

TEST(Snapshots, StatesInEachOthersPlaceAreOthers) {
  const Steps of = model();
  const auto hash = [&](std::uint64_t first, std::uint64_t second) {
    Snapshots snapshots(of);
    snapshots.begin(TrainingSnapshot::Kind::kSaved, 7, 0.5);
    EXPECT_TRUE(snapshots.state(0, first));
    EXPECT_TRUE(snapshots.state(0, second));
    EXPECT_TRUE(snapshots.state(1, 1));
    return told(snapshots).groups.front().optimizer;
  };
  EXPECT_EQ(hash(5, 6), hash(5, 6));
  EXPECT_NE(hash(5, 6), hash(6, 5));
}

TEST(Snapshots, UnknownParametersAreRefused) {
  const Steps of = model();
  Snapshots snapshots(of);
  EXPECT_FALSE(snapshots.state(0, 1)) << "none has begun";
  snapshots.begin(TrainingSnapshot::Kind::kBegun, 0, 0);
  EXPECT_FALSE(snapshots.state(3, 1));
  EXPECT_FALSE(snapshots.parameter(0, nullptr, 3, Dtype::kF32, 0, 0, true));
}

}  // namespace
}  // namespace presum::step
