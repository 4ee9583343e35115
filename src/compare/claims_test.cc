// SPDX-License-Identifier: Apache-2.0
// That sentences claim no more than was compared.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "compare/compare.h"
#include "compare/testing.h"

namespace presum::compare {
namespace {

using testing::change_gradient;
using testing::change_layer;
using testing::compare_folders;
using testing::compare_steps;
using testing::dealt;
using testing::in_turn;
using testing::lose;
using testing::Made;
using testing::record;
using testing::set;
using testing::step_of;
using testing::steps_of;
using testing::TempFolder;
using Change = std::function<void(WorkerRecord&)>;
using Step = std::optional<std::uint64_t>;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

bool contains(const std::vector<std::string>& lines, const std::string& part) {
  return std::ranges::any_of(lines, [&](const std::string& line) { return has(line, part); });
}

std::string evidence_of(const Comparison& c, Stage stage) {
  std::string out;
  const auto& first = c.models[0].at(stage).first;
  if (!first) return out;
  for (const Evidence& e : first->evidence) out += e.text + "\n";
  return out;
}

// ---- other numbers of workers

// Run B has three workers, and one of them changes from step 1 on.
Comparison with_one_changed(std::size_t worker, const Change& change) {
  auto b = dealt(3);
  for (StepRecord& s : b) {
    if (s.step > 0) change(s.workers[worker]);
  }
  return compare_steps(dealt(2), b);
}

TEST(OtherWorlds, AreNotIdenticalIfAnyWorkerHasOtherParameters) {
  const auto c = with_one_changed(2, [](WorkerRecord& w) { w.states[0].value ^= 1; });
  EXPECT_EQ(c.outcome, Outcome::kDifferent);
  EXPECT_EQ(c.models[0].at(Stage::kParameters).differing, 5U);
  EXPECT_EQ(c.models[0].at(Stage::kFinal).differing, 1U);
  EXPECT_TRUE(has(evidence_of(c, Stage::kParameters), "rank 12 of B differs from the other"));
}

TEST(OtherWorlds, AreNotIdenticalIfAnyWorkerOfTheFirstRunHasOtherParameters) {
  auto a = dealt(2);
  for (StepRecord& s : a) s.workers[1].states[0].value ^= s.step > 0;
  const auto c = compare_steps(a, dealt(3));
  EXPECT_EQ(c.outcome, Outcome::kDifferent);
  EXPECT_TRUE(has(evidence_of(c, Stage::kParameters), "rank 11 of A differs from the other"));
}

TEST(OtherWorlds, AreNotIdenticalIfAnyWorkerHasAnotherReducedGradient) {
  const auto c = with_one_changed(2, [](WorkerRecord& w) { w.reduced_fingerprint ^= 1; });
  EXPECT_EQ(c.outcome, Outcome::kDifferent);
  EXPECT_GT(c.models[0].at(Stage::kReduction).differing, 0U);
}

TEST(OtherWorlds, AreNotIdenticalIfAnyWorkerHasOtherSettings) {
  const auto c =
      with_one_changed(2, [](WorkerRecord& w) { set(w, FingerprintKind::kLearningRate, 9.0); });
  EXPECT_EQ(c.outcome, Outcome::kDifferent);
  EXPECT_TRUE(c.models[0].at(Stage::kConfiguration).first.has_value());
}

TEST(OtherWorlds, SayThatPacketsOfAWorkerAreMissing) {
  auto b = dealt(3);
  lose(b[3], 2);
  EXPECT_TRUE(contains(compare_steps(dealt(2), b).models[0].not_compared,
                       "workers whose packet is missing in a run, at 1 of 6 common steps"));
}

// The last of three workers says something else about itself.
void record_with_own_fact(const std::filesystem::path& folder, const std::string& key) {
  testing::FakeClock clock;
  auto writer = runlog::Writer::open(folder, clock.function(), runlog::Journal::kWal, 5);
  ASSERT_TRUE(writer);
  auto steps = dealt(3);
  for (const WorkerRecord& w : steps.front().workers) {
    packet::Hello hello;
    hello.header.segment = writer->segment();
    hello.header.identity = {.replica = w.replica, .world_rank = w.rank, .replicas = 3};
    hello.facts = {{"every", "1"}, {key, w.replica == 2 ? "SGD" : "Adam"}};
    ASSERT_TRUE(writer->add(hello));
  }
  for (StepRecord& s : steps) {
    s.segment = writer->segment();
    ASSERT_TRUE(writer->add(s));
  }
  testing::add_notes(*writer, steps, {});
  ASSERT_TRUE(writer->close());
}

TEST(OtherWorlds, AreNotIdenticalIfAnyWorkerSaysSomethingElseOfItself) {
  for (const std::string key : {"optimizer", "cuda"}) {
    const TempFolder folder;
    record(folder / "a", dealt(2), {.facts = {{"every", "1"}, {key, "Adam"}}});
    record_with_own_fact(folder / "b", key);
    const auto c = compare_folders(folder / "a", folder / "b");
    ASSERT_EQ(c.facts.size(), 1U);
    EXPECT_EQ(c.facts[0].a, "Adam");
    EXPECT_EQ(c.facts[0].b, "Adam or SGD");
    EXPECT_EQ(c.outcome, key == "optimizer" ? Outcome::kDifferent : Outcome::kIdentical);
  }
}

// ---- parameters that are hashed in turn

void without_buffers(std::vector<StepRecord>& steps) {
  for (StepRecord& s : steps) {
    for (WorkerRecord& w : s.workers) {
      std::erase_if(w.states, [](const StateHash& h) { return h.of == StateHash::Of::kBuffers; });
    }
  }
}

TEST(Slices, AreComparedThoughOneRunRecordedNoBuffers) {
  auto b = in_turn(30);
  change_layer(b, "layers.2", 1);
  without_buffers(b);
  const auto c = compare_steps(in_turn(30), b);
  EXPECT_EQ(c.outcome, Outcome::kDifferent);
  ASSERT_TRUE(c.models[0].at(Stage::kParameters).first.has_value());
  EXPECT_EQ(c.models[0].at(Stage::kParameters).first->step, 1U);
}

}  // namespace
}  // namespace presum::compare
