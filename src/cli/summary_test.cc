// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cli/testing.h"

namespace presum::cli {
namespace {

TEST(Summary, HasOneLinePerRun) {
  const TempFolder folder;
  make_run(folder / "first", steps_of(3, 2));
  make_run(folder / "second", steps_of(30, 1.5));
  const CommandResult ran =
      run({"summary", (folder / "first").string(), (folder / "second/presum.db").string()});
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.err, "");
  const auto rows = lines(ran.out);
  ASSERT_EQ(rows.size(), 3U) << ran.out;
  EXPECT_EQ(words(rows[1]), (std::vector<std::string>{"first", "3", "2", "2", "0.25", "0.5", "3",
                                                      "0.125", "0.0625", "1.75", "2"}));
  EXPECT_EQ(words(rows[2])[0], "second");
  EXPECT_EQ(words(rows[2])[1], "30");
  EXPECT_EQ(words(rows[2])[10], "29") << "the noise scale at the end";
}

TEST(Summary, LossIsTheMeanOfTheLast20Steps) {
  const TempFolder folder;
  auto steps = steps_of(30, 100);
  for (std::size_t s = 10; s < 30; ++s) steps[s].loss_mean = s % 2 == 0 ? 1 : 2;
  make_run(folder / "run", steps);
  EXPECT_EQ(words(lines(run({"summary", (folder / "run").string()}).out).at(1))[3], "1.5");
}

TEST(Summary, ShowsDashesForWhatIsUnknownAndForARunWithoutSteps) {
  const TempFolder folder;
  auto steps = steps_of(2, 1);
  for (StepRecord& s : steps) s.cosine_mean = kNaN;
  make_run(folder / "one", steps);
  make_run(folder / "none", {});
  const CommandResult ran = run({"summary", (folder / "one").string(), (folder / "none").string()});
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(words(lines(ran.out).at(1))[8], "-");
  EXPECT_EQ(words(lines(ran.out).at(2)),
            (std::vector<std::string>{"none", "0", "-", "-", "-", "-", "-", "-", "-", "-", "-"}));
}

TEST(Summary, KeepsModelsApart) {
  const TempFolder folder;
  auto steps = steps_of(4, 1);
  steps[2].model.module = 1;
  steps[3].model.shard = 1;
  make_run(folder / "run", steps);
  const auto rows = lines(run({"summary", (folder / "run").string()}).out);
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows[1].find("run module 0 shard 0"), 0U);
  EXPECT_EQ(rows[2].find("run module 0 shard 1"), 0U);
  EXPECT_EQ(rows[3].find("run module 1 shard 0"), 0U);
  steps.pop_back();
  make_run(folder / "unsharded", steps);
  const auto models = lines(run({"summary", (folder / "unsharded").string()}).out);
  EXPECT_EQ(models.at(2).find("unsharded module 1  "), 0U);
}

TEST(Summary, NamesCannotSteerTheTerminal) {
  const TempFolder folder;
  make_run(folder / "run\x1b[31m", steps_of(1, 1));
  const CommandResult ran = run({"summary", (folder / "run\x1b[31m").string()});
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.out.find('\x1b'), std::string::npos);
  EXPECT_NE(ran.out.find("run?[31m"), std::string::npos) << ran.out;
}

}  // namespace
}  // namespace presum::cli
