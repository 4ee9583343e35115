// SPDX-License-Identifier: Apache-2.0
#include "observe/cuda/driver.h"

#include <gtest/gtest.h>

#include <string>

namespace presum::observe::cuda {
namespace {

TEST(CudaDriverTest, TheBestImageIsOfTheGenerationElsePtx) {
  const Image all[] = {{75, false, ""}, {75, true, ""}, {80, false, ""}, {90, false, ""}};
  EXPECT_EQ(image_for(all, 75), &all[0]);
  EXPECT_EQ(image_for(all, 86), &all[2]);
  EXPECT_EQ(image_for(all, 90), &all[3]);
  EXPECT_EQ(image_for(all, 100), &all[1]);
  EXPECT_EQ(image_for(all, 70), nullptr);
  EXPECT_EQ(image_for({}, 90), nullptr);
}

// On a machine without a GPU, and on one with.
TEST(CudaDriverTest, WithoutAContextItIsSaidWhyThereIsNone) {
  const Result<Launcher*> launcher = driver_launcher();
  ASSERT_FALSE(launcher);
  EXPECT_FALSE(launcher.error().message.empty());
}

}  // namespace
}  // namespace presum::observe::cuda
