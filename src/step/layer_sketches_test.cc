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
  std::vector<packet::Layer> told() const {
    std::vector<packet::Layer> out;
    sketches_.put(out);
    return out;
  }
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

TEST(LayerSketches, AStepForgetsTheOneBefore) {
  const Layout of = layout();
  LayerSketches sketches(of);
  const auto data = values(300, 1);
  for (const bool due : {true, false, true}) {
    sketches.begin(due);
    for (const bool reduced : {false, true}) {
      sketches.read(2, data.data(), data.size(), Dtype::kF32, kSeed, reduced);
    }
    std::vector<packet::Layer> told;
    sketches.put(told);
    ASSERT_EQ(told.size(), due ? 1U : 0U);
    if (due) {
      EXPECT_EQ(told.front().own, told.front().reduced);
    }
  }
}

}  // namespace
}  // namespace presum::step
