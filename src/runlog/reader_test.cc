// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "runlog/run_testing.h"
#include "runlog/schema.h"

namespace presum::runlog {
namespace {

TEST(RunLog, EveryFieldOfAStepSurvives) {
  const TempFolder folder;
  const StepRecord want = full_step(1);
  make_run(folder / "run", {want});
  const auto steps = read_steps(folder / "run");
  ASSERT_EQ(steps.size(), 1U);
  const StepRecord& got = steps[0];
  EXPECT_EQ(got.model, want.model);
  EXPECT_EQ(got.step, want.step);
  EXPECT_EQ(got.workers_expected, want.workers_expected);
  EXPECT_EQ(got.missing_replicas, want.missing_replicas);
  EXPECT_EQ(got.workers_seen, want.workers_seen);
  for (const auto& [name, field] : kStepNumbers) EXPECT_EQ(got.*field, want.*field) << name;
  EXPECT_EQ(got.cosine_source, want.cosine_source);
  EXPECT_EQ(got.reduced_disagrees, want.reduced_disagrees);
  EXPECT_EQ(got.distinct_gradients, want.distinct_gradients);
  EXPECT_EQ(got.sketch_size, want.sketch_size);
}

TEST(RunLog, UnknownNumbersStayUnknownAndInfinityStaysInfinite) {
  const TempFolder folder;
  StepRecord record = plain_step(1, 0);
  record.loss_mean = INFINITY;
  record.signal = -INFINITY;
  make_run(folder / "run", {record});
  const StepRecord got = read_steps(folder / "run").at(0);
  EXPECT_EQ(got.loss_mean, INFINITY);
  EXPECT_EQ(got.signal, -INFINITY);
  EXPECT_TRUE(std::isnan(got.cosine_mean));
  EXPECT_TRUE(std::isnan(got.mean_norm));
  EXPECT_FALSE(got.reduced_disagrees);
  auto db = database(folder / "run");
  EXPECT_EQ(db.query_integer("SELECT cosine_mean IS NULL FROM steps"), 1U);
}

TEST(RunLog, ModulesFactsAndNotesSurvive) {
  const TempFolder folder;
  FakeClock clock;
  Writer writer = open_writer(folder / "run", clock);
  for (const std::uint32_t replica : {1U, 0U}) {
    packet::Hello hello = hello_of(1, replica, 3);
    hello.facts.facts = {{"torch", "2.13.0"}, {"device", "cpu"}};
    ASSERT_TRUE(writer.add(hello));
    ASSERT_TRUE(writer.add(hello)) << "a repeated hello changes nothing";
  }
  packet::Note note;
  note.header = hello_of(1, 1, 3).header;
  note.text = "sparse gradients are skipped";
  ASSERT_TRUE(writer.add(note));
  note.text.clear();
  note.final = true;
  ASSERT_TRUE(writer.add(note));
  ASSERT_TRUE(writer.close());

  const auto log = RunLog::open(folder / "run");
  ASSERT_TRUE(log);
  const auto modules = *log->modules();
  ASSERT_EQ(modules.size(), 1U);
  EXPECT_EQ(modules[0].workers_expected, 3U);
  ASSERT_EQ(modules[0].workers.size(), 2U);
  EXPECT_EQ(modules[0].workers[0].rank, 10U);
  EXPECT_EQ(modules[0].workers[1].host, "node-1");
  const auto facts = *log->facts();
  ASSERT_EQ(facts.size(), 4U);
  EXPECT_EQ(facts[0].rank, 10U);
  EXPECT_EQ(facts[0].key, "device");
  EXPECT_EQ(facts[3].value, "2.13.0");
  const auto notes = *log->notes();
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_EQ(notes[0].rank, 11U);
  EXPECT_EQ(notes[0].segment, 1U);
  EXPECT_EQ(notes[0].text, "sparse gradients are skipped");
}

TEST(RunLog, NameIsTheFoldersName) {
  const TempFolder folder;
  make_run(folder / "train-1", {plain_step(1, 0)});
  for (const Path& path : {folder / "train-1", folder / "train-1/", folder / "train-1" / kFileName,
                           folder / "train-1/."}) {
    const auto log = RunLog::open(path);
    ASSERT_TRUE(log) << path;
    EXPECT_EQ(log->name(), "train-1") << path;
  }
}

// ---- a rank's final state

TEST(FinalState, IsThatOfTheLastNoteThatHasOne) {
  const TempFolder folder;
  FakeClock clock;
  Writer writer = open_writer(folder / "run", clock);
  packet::Note note;
  note.header = hello_of(1, 3, 4).header;
  note.final = true;
  ASSERT_TRUE(writer.add(note));
  note.state.optimizer_steps = 500;
  note.state.states = {{9, StateHash::Kind::kParameters, 0xFFFFFFFFFFFFFFFFULL}};
  ASSERT_TRUE(writer.add(note));
  note.state.optimizer_steps = 501;
  ASSERT_TRUE(writer.add(note));
  ASSERT_TRUE(writer.close());
  const auto states = RunLog::open(folder / "run")->final_states();
  ASSERT_TRUE(states);
  ASSERT_EQ(states->size(), 1U);
  EXPECT_EQ(states->at(0).replica, 3U);
  EXPECT_EQ(states->at(0).optimizer_steps, 501U);
  EXPECT_EQ(states->at(0).states.at(0).group, 9U);
  EXPECT_EQ(states->at(0).states.at(0).value, 0xFFFFFFFFFFFFFFFFULL);
}

TEST(Groups, KeepTheirOrderInTheModel) {
  const TempFolder folder;
  FakeClock clock;
  Writer writer = open_writer(folder / "run", clock);
  packet::Hello hello = hello_of(1, 0, 1);
  hello.facts.groups = {{3, 10, "embed"}, {1, 20, "layers.10"}, {2, 5, "head"}};
  ASSERT_TRUE(writer.add(hello));
  ASSERT_TRUE(writer.close());
  const auto groups = RunLog::open(folder / "run")->groups();
  ASSERT_TRUE(groups);
  ASSERT_EQ(groups->size(), 3U);
  for (const GroupInfo& g : *groups) {
    EXPECT_EQ(g.position, g.name == "embed" ? 0U : g.name == "head" ? 2U : 1U) << g.name;
  }
}

}  // namespace
}  // namespace presum::runlog
