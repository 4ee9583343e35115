// SPDX-License-Identifier: Apache-2.0
#include "device/driver.h"

#include <gtest/gtest.h>

namespace presum::device {
namespace {

TEST(CudaDriverTest, TheBestImageIsOfTheGenerationElsePtx) {
  const Image all[] = {{"observe", 75, false, ""},
                       {"observe", 75, true, ""},
                       {"observe", 80, false, ""},
                       {"observe", 90, false, ""},
                       {"reduce", 100, false, ""}};
  EXPECT_EQ(image_for(all, "observe", 75), &all[0]);
  EXPECT_EQ(image_for(all, "observe", 86), &all[2]);
  EXPECT_EQ(image_for(all, "observe", 90), &all[3]);
  EXPECT_EQ(image_for(all, "observe", 100), &all[1]);
  EXPECT_EQ(image_for(all, "observe", 70), nullptr);
  EXPECT_EQ(image_for(all, "reduce", 90), nullptr);
  EXPECT_EQ(image_for({}, "observe", 90), nullptr);
}

// Runs on a machine without a GPU, and on one with.
TEST(CudaDriverTest, WithoutAContextItIsSaidWhyThereIsNone) {
  const Result<Launcher*> launcher = driver_launcher();
  ASSERT_FALSE(launcher);
  EXPECT_FALSE(launcher.error().message.empty());
}

}  // namespace
}  // namespace presum::device
