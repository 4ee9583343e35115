// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "cli/testing.h"

namespace presum::cli {
namespace {

TEST(Export, WritesFindingsAsCsvWithTheirListsAsJson) {
  const CommandResult ran =
      run_on("export", steps_of(9, 1), two_findings(), {"--table", "findings"});
  EXPECT_EQ(ran.code, 0);
  const auto rows = lines(ran.out);
  ASSERT_EQ(rows.size(), 3U) << ran.out;
  EXPECT_EQ(rows[0],
            "segment,model_index,dp_group,check_id,also,severity,ranks,hosts,first_step,last_step,"
            "equal_until,certain_step,confidence,title,evidence,suspects,remedy,resembles");
  EXPECT_EQ(rows[1].find(R"(1,0,0,duplicate-data,"[""pair-too-similar"",""too-consistent""]",)"
                         R"(critical,"[0,1,5]",)"),
            0U)
      << rows[1];
  EXPECT_EQ(rows[2], "1,0,0,loss-event,[],info,[4],[],1,1,,,0.5,Title of loss-event,[],,,");
}

TEST(Export, WritesChecksAsJsonLines) {
  const CommandResult ran =
      run_on("export", steps_of(9, 1), {}, {"--table", "checks", "--format", "jsonl"});
  EXPECT_EQ(ran.code, 0);
  const auto rows = lines(ran.out);
  ASSERT_EQ(rows.size(), 5U) << ran.out;
  EXPECT_EQ(rows[0], R"({"segment":1,"model_index":0,"dp_group":0,"check_id":"nonfinite-gradient",)"
                     R"("state":"passed","reason":"every gradient was finite"})");
}

TEST(Export, AnEmptyTableHasItsHead) {
  const TempFolder folder;
  make_run(folder / "run", {});
  const auto file = (folder / "run").string();
  EXPECT_EQ(lines(run({"export", file, "--table", "findings"}).out).size(), 1U);
  EXPECT_EQ(run({"export", file, "--table", "findings", "--format", "jsonl"}).out, "");
  expect_refusal({"export", file, "--table", "segment"}, "segment");
}

}  // namespace
}  // namespace presum::cli
