// SPDX-License-Identifier: Apache-2.0
#include "step/layer_sketches.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "base/hash.h"
#include "observe/gradient_pass.h"

namespace presum::step {
namespace {

constexpr std::uint64_t kSeed = 11;

Layout layout() {
  return *Layout::of({{"a.0.w", 300, ""}, {"a.0.b", 3, ""}, {"a.1.w", 300, ""}}, {});
}

std::vector<float> values(std::size_t count, float first) {
  std::vector<float> out(count);
  std::iota(out.begin(), out.end(), first);
  return out;
}

class Read {
 public:
  explicit Read(bool due = true) : layout_(layout()), sketches_(layout_) { sketches_.begin(due); }

  Read& operator()(ParameterId id, bool reduced, float first = 1) {
    const auto data = values(id == 1 ? 3 : 300, first);
    sketches_.read(id, data.data(), data.size(), Dtype::kF32, kSeed + id, reduced);
    return *this;
  }
  Read& both(ParameterId id) { return (*this)(id, false)(id, true); }
  Read& elsewhere(ParameterId id) {
    sketches_.read_elsewhere(id);
    return *this;
  }
  std::vector<packet::Layer> told() const { return sketches_.told(); }
  std::vector<std::uint64_t> ids() const {
    std::vector<std::uint64_t> out;
    for (const packet::Layer& layer : told()) out.push_back(layer.id);
    return out;
  }

 private:
  Layout layout_;
  LayerSketches sketches_;
};

std::vector<std::uint64_t> groups(std::vector<std::string_view> names) {
  std::vector<std::uint64_t> out;
  for (const auto name : names) out.push_back(name_hash(name));
  return out;
}

TEST(LayerSketches, AGroupIsTheSumOfItsParameters) {
  Read read;
  read(0, false, 1)(1, false, 2)(0, true, 3)(1, true, 4);
  ASSERT_EQ(read.ids(), groups({"a.0"}));
  std::array<float, packet::kLayerSketch> want{};
  std::uint64_t fingerprint = 0;
  for (const ParameterId id : {0U, 1U}) {
    const auto data = values(id == 1 ? 3 : 300, 3 + static_cast<float>(id));
    const auto sums = observe::gradient_pass(
        data.data(), data.size(), Dtype::kF32,
        {.values = want.data(), .size = packet::kLayerSketch, .seed = kSeed + id});
    fingerprint += mix64(sums.fingerprint ^ name_hash(id == 0 ? "a.0.w" : "a.0.b"));
  }
  EXPECT_EQ(read.told().front().reduced, want);
  EXPECT_EQ(read.told().front().fingerprint, fingerprint);
  EXPECT_NE(read.told().front().own, want);
}

TEST(LayerSketches, WhatWasNotPutInHereIsZero) {
  Read read;
  EXPECT_EQ(read.both(0)(1, true)(2, true).ids(), groups({"a.0", "a.1"}));
  EXPECT_EQ(read.told().back().own, (std::array<float, packet::kLayerSketch>{}));
}

TEST(LayerSketches, AGroupThatWasReadInPartIsNotTold) {
  EXPECT_EQ(Read().both(0)(1, false).both(2).ids(), groups({"a.1"})) << "not reduced";
  EXPECT_EQ(Read().both(0)(0, false).both(2).ids(), groups({"a.1"})) << "twice";
  EXPECT_EQ(Read().both(0).elsewhere(1).both(2).ids(), groups({"a.1"}));
  EXPECT_TRUE(Read().ids().empty());
  EXPECT_TRUE(Read(false).both(0).both(2).ids().empty()) << "not due";
}

// Two ranks, each with a part of every parameter.
std::vector<packet::Layer> of_part(const Layout& of, std::uint32_t worker, double scale = 1,
                                   float other = 0) {
  LayerSketches sketches(of);
  sketches.begin(true);
  for (const ParameterId id : {0U, 1U, 2U}) {
    auto data = values(id == 1 ? 3 : 300, 1);
    sketches.read(id, data.data(), data.size(), Dtype::kF32, kSeed + id, false);
    const std::size_t cut = id == 1 ? 2 : 150;
    const std::size_t first = worker == 0 ? 0 : cut;
    const std::size_t count = worker == 0 ? cut : data.size() - cut;
    for (const bool reduced : {false, true}) {
      if (reduced) data[first] += other;
      sketches.read_part(id, data.data() + first, count, Dtype::kF32, kSeed + id,
                         {first, worker + 1, reduced ? scale : 1, reduced});
    }
  }
  return sketches.told();
}

TEST(LayerSketches, PartsAddUpToTheWhole) {
  const Layout of = layout();
  const auto low = of_part(of, 0);
  const auto high = of_part(of, 1);
  ASSERT_EQ(low.size(), 2U);
  for (std::size_t g = 0; g < low.size(); ++g) {
    EXPECT_EQ(low[g].part + high[g].part, low[g].elements);
    EXPECT_NE(low[g].shard, high[g].shard);
    double squares = 0;
    for (std::size_t i = 0; i < packet::kLayerSketch; ++i) {
      EXPECT_FLOAT_EQ(low[g].reduced[i] + high[g].reduced[i], low[g].own[i]);
    }
    for (const float x : values(300, 1)) squares += static_cast<double>(x) * static_cast<double>(x);
    if (g == 1) {
      EXPECT_DOUBLE_EQ(low[g].squares + high[g].squares, squares);
    }
  }
}

TEST(LayerSketches, APartThatCameOutAsItWentInIsKept) {
  const Layout of = layout();
  EXPECT_TRUE(of_part(of, 1).back().kept);
  EXPECT_FALSE(of_part(of, 1, 1, 5).back().kept);
  EXPECT_FALSE(of_part(of, 1, 0.5).back().kept);
  EXPECT_EQ(of_part(of, 1, 0.5).back().squares, of_part(of, 1).back().squares / 4);
  EXPECT_TRUE(Read().both(2).told().back().kept) << "of a whole one too";
}

TEST(LayerSketches, AnEmptyPartIsNotKept) {
  const Layout of = layout();
  LayerSketches sketches(of);
  sketches.begin(true);
  const auto data = values(300, 1);
  sketches.read(2, data.data(), data.size(), Dtype::kF32, kSeed, false);
  for (const bool reduced : {false, true}) {
    sketches.read_part(2, nullptr, 0, Dtype::kF32, kSeed, {300, 7, 1, reduced});
  }
  const auto told = sketches.told();
  ASSERT_EQ(told.size(), 1U);
  EXPECT_FALSE(told.front().kept);
  EXPECT_EQ(told.front().shard, 7U);
}

TEST(LayerSketches, AStepForgetsTheOneBefore) {
  const Layout of = layout();
  LayerSketches sketches(of);
  const auto data = values(300, 1);
  for (const bool due : {true, false, true}) {
    sketches.begin(due);
    for (const bool reduced : {false, true}) {
      sketches.read(2, data.data(), data.size(), Dtype::kF32, kSeed, reduced);
    }
    const auto told = sketches.told();
    ASSERT_EQ(told.size(), due ? 1U : 0U);
    if (due) {
      EXPECT_EQ(told.front().own, told.front().reduced);
    }
  }
}

}  // namespace
}  // namespace presum::step
