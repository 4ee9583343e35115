// SPDX-License-Identifier: Apache-2.0
#include "base/simd.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "base/simd_dispatch.h"

namespace presum::base {
namespace {

// In a child process, because the variable is read once.
[[noreturn]] void exit_with_success_if(bool success) { std::exit(success ? 0 : 1); }

class SimdEnvironmentTest : public testing::Test {
 protected:
  SimdEnvironmentTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  ~SimdEnvironmentTest() override { unsetenv("PRESUM_SIMD"); }
};

TEST(SimdTest, WithoutAWishTheBestTargetIsChosen) {
  EXPECT_EQ(*simd_target(), simd_targets().front());
}

TEST(SimdTest, EveryListedTargetCanBeForced) {
  for (const std::string_view name : simd_targets()) {
    ASSERT_TRUE(set_simd_target(name));
    EXPECT_EQ(*simd_target(), name);
  }
  ASSERT_TRUE(set_simd_target(""));
}

TEST(SimdTest, AnUnknownNameIsAnErrorThatListsThePossibleOnes) {
  ASSERT_TRUE(set_simd_target(simd_targets().back()));
  const Status done = set_simd_target("AVX9");
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(done.error().message.find("\"AVX9\""), std::string::npos);
  for (const std::string_view name : simd_targets()) {
    EXPECT_NE(done.error().message.find(name), std::string::npos);
  }
  EXPECT_EQ(*simd_target(), simd_targets().back()) << "nothing changed";
  ASSERT_TRUE(set_simd_target(""));
}

TEST_F(SimdEnvironmentTest, TheVariableForcesATarget) {
  const std::string wanted(simd_targets().back());
  setenv("PRESUM_SIMD", wanted.c_str(), 1);
  EXPECT_EXIT(exit_with_success_if(simd_target() == std::string_view(wanted)),
              testing::ExitedWithCode(0), "");
}

TEST_F(SimdEnvironmentTest, AWrongVariableIsAnErrorAndTheKernelsRunWithTheBestTarget) {
  ASSERT_TRUE(set_simd_target(simd_targets().front()));
  const std::size_t best = simd_table_index();
  ASSERT_TRUE(set_simd_target(""));
  setenv("PRESUM_SIMD", "nonsense", 1);
  EXPECT_EXIT(exit_with_success_if(!simd_target() && simd_table_index() == best),
              testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace presum::base
