// SPDX-License-Identifier: Apache-2.0
#include "step/names.h"

#include <gtest/gtest.h>

#include "step/layout.h"

namespace presum::step {
namespace {

TEST(CanonicalName, DropsWrappersAnywhereInThePath) {
  EXPECT_EQ(canonical_name("module.model.layers.3.mlp.w"), "model.layers.3.mlp.w");
  EXPECT_EQ(canonical_name("_orig_mod.module.a.b"), "a.b");
  EXPECT_EQ(canonical_name("model._orig_mod.layers.0._checkpoint_wrapped_module.w"),
            "model.layers.0.w");
  EXPECT_EQ(canonical_name("a._fsdp_wrapped_module.b"), "a.b");
}

TEST(CanonicalName, KeepsTheParametersOwnName) {
  EXPECT_EQ(canonical_name("module"), "module");
  EXPECT_EQ(canonical_name("module.module"), "module");
  EXPECT_EQ(canonical_name("layer._orig_mod"), "layer._orig_mod");
  EXPECT_EQ(canonical_name("weight"), "weight");
  EXPECT_EQ(canonical_name(""), "");
}

TEST(CanonicalName, OnlyWholePartsAreWrappers) {
  EXPECT_EQ(canonical_name("my_module.modules.w"), "my_module.modules.w");
}

TEST(DefaultGroup, IsThePathUpToTheFirstNumber) {
  EXPECT_EQ(default_group("model.layers.3.mlp.w"), "model.layers.3");
  EXPECT_EQ(default_group("h.10.attn.2.weight"), "h.10");
  EXPECT_EQ(default_group("0.weight"), "0");
}

TEST(DefaultGroup, WithoutANumberIsTheFirstTwoParts) {
  EXPECT_EQ(default_group("lm_head.weight"), "lm_head.weight");
  EXPECT_EQ(default_group("model.embed.tokens.weight"), "model.embed");
  EXPECT_EQ(default_group("weight"), "weight");
  EXPECT_EQ(default_group("module"), "module");
  EXPECT_EQ(default_group("layer3a.w.x"), "layer3a.w");
}

// ---- parameters and buffers by these names

TEST(Layout, BuffersAreNoGradients) {
  const auto layout =
      Layout::of({{"module.layers.0.w", 10, ""}, {"layers.0.b", 5, ""}, {"x", 7, "mine"}},
                 {{"layers.0.running_mean", 2, ""}, {"frozen.w", 2, ""}});
  ASSERT_TRUE(layout);
  EXPECT_EQ(layout->gradient_groups(), 2U);
  const auto& groups = layout->groups();
  ASSERT_EQ(groups.size(), 3U);
  EXPECT_EQ(groups[0].name, "layers.0");
  EXPECT_EQ(groups[0].elements, 15U) << "of the parameters only";
  EXPECT_EQ(groups[1].name, "mine");
  EXPECT_EQ(groups[2].name, "frozen.w");
  EXPECT_EQ(groups[2].elements, 0U);
}

TEST(Layout, RefusesTwoParametersOfOneCanonicalName) {
  const auto layout = Layout::of({{"module.a.w", 1, ""}, {"a._orig_mod.w", 1, ""}}, {});
  ASSERT_FALSE(layout);
  EXPECT_EQ(layout.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(layout.error().message.find("a.w"), std::string::npos);
}

}  // namespace
}  // namespace presum::step
