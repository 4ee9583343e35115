// SPDX-License-Identifier: Apache-2.0
#include "cli/testing.h"

namespace presum::cli {
namespace {

std::vector<StepRecord> steps_with_a_spike() {
  std::vector<StepRecord> out;
  for (std::uint64_t s = 0; s < 6; ++s) {
    out.push_back(step_of(s, 2));
    for (WorkerRecord& w : out.back().workers) {
      w.micro_batches = 1;
      w.indices = {10 * s + w.replica};
      w.samples.rows = 1;
      w.samples.hashes = {w.indices[0] + 1};
    }
  }
  WorkerRecord& spike = out.back().workers[1];
  spike.loss = 9;
  spike.indices = {21};
  return out;
}

TEST(BlameCommand, ShowsTheWorkerThatIsFurthestFromUsual) {
  const CommandResult ran = run_on("blame", steps_with_a_spike(), {}, {"--step", "5"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_NE(ran.out.find("run: step 5, 2 of 2 ranks; loss 2 (usually 2)"), std::string::npos)
      << ran.out;
  EXPECT_NE(ran.out.find("rank 5: loss 9 (usually 2), 4.5 times the usual"), std::string::npos);
  EXPECT_NE(ran.out.find("sample 21"), std::string::npos);
  EXPECT_NE(ran.out.find("drawn once before: step 2 by rank 5, loss 2 (usually 2)"),
            std::string::npos)
      << ran.out;
  const CommandResult other =
      run_on("blame", steps_with_a_spike(), {}, {"--step", "5", "--rank", "4"});
  EXPECT_NE(other.out.find("rank 4: loss 2"), std::string::npos);
  EXPECT_EQ(other.out.find("sample 21"), std::string::npos);
}

TEST(BlameCommand, JsonHasAllWorkers) {
  const CommandResult ran =
      run_on("blame", steps_with_a_spike(), {}, {"--step", "5", "--format", "json"});
  EXPECT_EQ(ran.code, 0);
  const auto document = nlohmann::ordered_json::parse(ran.out);
  EXPECT_EQ(keys(document[0]),
            (std::vector<std::string>{"segment", "model_index", "dp_group", "step",
                                      "workers_expected", "loss", "compared_with", "workers"}));
  EXPECT_EQ(document[0]["workers"][1]["samples"][0]["before"][0]["step"], 2);
  EXPECT_EQ(keys(document[0]["workers"][0]),
            (std::vector<std::string>{"rank", "host", "loss", "grad_norm", "nonfinite", "tokens",
                                      "targets", "token_weight", "micro_batches", "micro",
                                      "without_target", "rows", "layers", "samples"}));
}

TEST(BlameCommand, RefusesWhatIsNotThere) {
  const TempFolder folder;
  make_run(folder / "run", steps_with_a_spike());
  const std::string path = (folder / "run").string();
  expect_refusal({"blame", path, "--step", "77"}, "steps are from 0 to 5");
  expect_refusal({"blame", path, "--step", "5", "--rank", "9"}, "rank 9 has no packet of step 5");
  expect_refusal({"blame", (folder / "no").string(), "--step", "5"}, "no such run");
  expect_refusal({"blame", path}, "--step");
  expect_refusal({"blame", path, "--step", "-3"}, "--step");
}

}  // namespace
}  // namespace presum::cli
