// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "runlog/run_testing.h"
#include "runlog/schema.h"
#include "runlog/sqlite.h"

namespace presum::runlog {
namespace {

// ---- whole steps, one after another

// The steps of one model in a run.
class Steps {
 public:
  Steps(const Path& run, const StepRecord& like, std::uint64_t from = 0)
      : log_(*RunLog::open(run)), cursor_(*log_.cursor(like.model, from)) {}
  // The next step, copied; empty at the end.
  std::optional<StepRecord> next() {
    const auto record = cursor_.next();
    EXPECT_TRUE(record) << record.error().message;
    return record && *record != nullptr ? std::optional(**record) : std::nullopt;
  }

 private:
  RunLog log_;
  StepCursor cursor_;
};

TEST(StepCursor, GivesEverythingThatWasKeptOfAStep) {
  const TempFolder folder;
  const StepRecord want = full_step(1);
  make_run(folder / "run", {want, plain_step(1, 3)});
  Steps cursor(folder / "run", want);
  const auto got = cursor.next();
  ASSERT_TRUE(got);
  EXPECT_EQ(got->step, want.step);
  EXPECT_EQ(got->mean_norm, want.mean_norm);
  EXPECT_EQ(got->missing_replicas, want.missing_replicas);
  ASSERT_EQ(got->groups.size(), 1U);
  EXPECT_EQ(got->groups[0].id, want.groups[0].id);
  EXPECT_EQ(got->groups[0].norms, want.groups[0].norms);
  EXPECT_EQ(got->groups[0].fingerprints, want.groups[0].fingerprints);
  const WorkerRecord& w = got->workers.at(1);
  EXPECT_EQ(w.rank, 21U);
  EXPECT_EQ(w.fingerprint, 0x8000000000000001ULL);
  ASSERT_EQ(w.micro.size(), 2U);
  EXPECT_EQ(w.micro[0].tokens, 30U);
  EXPECT_TRUE(std::isnan(w.micro[1].loss));
  EXPECT_EQ(w.samples.thinned, 25U);
  EXPECT_EQ(w.samples.hashes.size(), 3U);
  EXPECT_EQ(w.indices, (std::vector<std::uint64_t>{40, 30}));
  ASSERT_EQ(w.states.size(), 1U);
  EXPECT_EQ(w.states[0].kind, StateHash::Kind::kBuffers);
  ASSERT_NE(w.fingerprint_of(FingerprintKind::kSamplerSeed), nullptr);
  EXPECT_EQ(*w.fingerprint_of(FingerprintKind::kSamplerSeed), 42U);
  EXPECT_FALSE(cursor.next()) << "steps of other models are left out";
  EXPECT_FALSE(cursor.next());
}

TEST(StepCursor, HoldsFingerprintsUntilTheyChange) {
  const TempFolder folder;
  std::vector<StepRecord> steps;
  for (const std::uint64_t value : {7, 7, 8}) {
    steps.push_back(plain_step(1, steps.size(), 2));
    steps.back().workers[1].fingerprints = {{11, value}};
  }
  make_run(folder / "run", steps);
  Steps cursor(folder / "run", steps[0], 1);
  for (const std::uint64_t value : {7, 8}) {
    const auto step = cursor.next();
    ASSERT_TRUE(step);
    EXPECT_TRUE(step->workers[0].fingerprints.empty());
    ASSERT_EQ(step->workers[1].fingerprints.size(), 1U);
    EXPECT_EQ(step->workers[1].fingerprints[0].value, value);
  }
}

TEST(StepCursor, GivesAWorkerTheStatesOfTheFirstUnlessItHasItsOwn) {
  const TempFolder folder;
  StepRecord step = plain_step(1, 0, 3);
  const StateHash shared{5, StateHash::Kind::kParameters, 6};
  step.workers[0].states = step.workers[1].states = {shared};
  make_run(folder / "run", {step});
  Steps cursor(folder / "run", step);
  const auto got = cursor.next();
  ASSERT_TRUE(got);
  EXPECT_EQ(got->workers[1].states.size(), 1U);
  EXPECT_TRUE(got->workers[2].states.empty());
}

TEST(StepCursor, SaysThatAFileIsDamaged) {
  const TempFolder folder;
  std::vector<StepRecord> steps;
  for (std::uint64_t s = 0; s < 200; ++s) steps.push_back(plain_step(1, s, 8));
  make_run(folder / "run", steps);
  std::string bytes = read_file(folder / "run" / kFileName);
  for (std::size_t at = bytes.size() / 2; at < bytes.size(); ++at) bytes[at] = '\x5a';
  write_file(folder / "run" / kFileName, bytes);
  const auto log = RunLog::open(folder / "run");
  ASSERT_TRUE(log);
  auto cursor = log->cursor({1, 0, 0});
  bool failed = !cursor;
  for (std::size_t s = 0; !failed && s < steps.size(); ++s) failed = !cursor->next();
  EXPECT_TRUE(failed);
}

// Whatever bytes a list holds, it is read as empty or as valid values.
TEST(StepCursor, ReadsAnyBytesInAList) {
  const TempFolder folder;
  const Path run = folder / "run";
  const StepRecord record = full_step(1);
  make_run(run, {record});
  for (const char* column : {"micro", "micro_times", "states", "samples", "indices"}) {
    for (const std::size_t size : {0, 7, 20, 24, 1000}) {
      for (const int byte : {0, 1, 0xFF}) {
        {
          Database db = database(run, Database::Mode::kWrite);
          auto change = db.prepare(fmt::format("UPDATE worker_step SET {} = ?", column));
          ASSERT_TRUE(change) << column;
          const std::vector<std::byte> bytes(size, static_cast<std::byte>(byte));
          change->bind_blob(1, bytes);
          ASSERT_TRUE(change->run());
        }
        Steps cursor(run, record);
        const auto step = cursor.next();
        ASSERT_TRUE(step) << column;
        for (const MicroBatch& micro : step->workers.at(0).micro) EXPECT_GE(micro.weight, 0);
      }
    }
  }
}

}  // namespace
}  // namespace presum::runlog
