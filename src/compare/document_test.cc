// SPDX-License-Identifier: Apache-2.0
#include "compare/document.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "compare/compare.h"
#include "compare/testing.h"

namespace presum::compare {
namespace {

TEST(Document, SaysWhatTheComparisonSays) {
  const auto c = changed_at(7, [](StepRecord& s) { change_gradient(s, 2, {"layers.2"}); });
  const auto json = document(c);
  EXPECT_EQ(json["outcome"], "different");
  const auto& model = json["models"][0];
  EXPECT_EQ(model["first_stage"], "local-gradient");
  EXPECT_EQ(model["first_step"], 7);
  EXPECT_EQ(model["last_identical"], 6);
  EXPECT_EQ(model["stages"][6]["first"]["ranks"], std::vector<int>{12});
  EXPECT_EQ(model["stages"][6]["first"]["layers"], std::vector<std::string>{"layers.2"});
  EXPECT_TRUE(model["stages"][1]["first"].is_null());
  EXPECT_TRUE(json["agreement"].get<std::string>().empty());
}

TEST(Document, SaysBetweenWhichStepsParametersBeganToDiffer) {
  const auto json = document(changed_late());
  const auto& model = json["models"][0];
  EXPECT_EQ(model["last_identical"], 2);
  EXPECT_EQ(model["stages"][3]["first"]["last_seen"], 2);
  EXPECT_TRUE(model["stages"][8]["first"].is_null());
  for (const auto* key : {"bracket", "between"}) EXPECT_NE(model[key], "") << key;
}

}  // namespace
}  // namespace presum::compare
