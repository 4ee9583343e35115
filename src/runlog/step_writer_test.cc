// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "runlog/keyed_hash.h"
#include "runlog/run_testing.h"
#include "runlog/schema.h"
#include "runlog/sqlite.h"

namespace presum::runlog {
namespace {

// ---- samples and their salt

// The test vector of the reference implementation for the bytes 0 to 7 and the key 0 to 15.
TEST(KeyedHash, IsSipHash) {
  const KeyedHash hash(0x0706050403020100ULL, 0x0F0E0D0C0B0A0908ULL);
  EXPECT_EQ(hash(0x0706050403020100ULL), 0x93F5F5799A932462ULL);
}

using Words = std::vector<std::uint64_t>;

void make_salted_run(const Path& folder, const StepRecord& record, std::uint64_t salt) {
  FakeClock clock;
  auto writer = Writer::open(folder, clock.function(), Journal::kWal, salt);
  ASSERT_TRUE(writer);
  add_all(*writer, {record});
  ASSERT_TRUE(writer->close());
}

Words samples_in(const Path& run) {
  return read_blob<std::uint64_t>(run, "SELECT samples FROM worker_step WHERE replica = 2");
}

TEST(Salt, SamplesOfOneSaltCompareAndThoseOfAnotherDoNot) {
  const TempFolder folder;
  const StepRecord record = full_step(1);
  make_salted_run(folder / "a", record, 7);
  make_salted_run(folder / "b", record, 7);
  make_salted_run(folder / "c", record, 8);
  const Words a = samples_in(folder / "a");
  const Words& raw = record.workers[1].samples.hashes;
  ASSERT_EQ(a.size(), raw.size());
  EXPECT_EQ(samples_in(folder / "b"), a);
  const Words c = samples_in(folder / "c");
  for (std::size_t i = 0; i < raw.size(); ++i) {
    EXPECT_EQ(a[i], KeyedHash(7, 1)(raw[i])) << "docs/runlog_format.md, Salt";
    EXPECT_NE(a[i], c[i]);
  }
}

TEST(Salt, HasANameThatDoesNotGiveItAway) {
  const TempFolder folder;
  const auto name_of = [&](const char* run, std::uint64_t salt) {
    make_salted_run(folder / run, plain_step(1, 0), salt);
    Database db = database(folder / run);
    auto row = db.prepare("SELECT salt FROM segment");
    EXPECT_TRUE(*row->next());
    return row->text(0);
  };
  const std::string a = name_of("a", 7);
  EXPECT_EQ(a.size(), 16U);
  EXPECT_EQ(name_of("b", 7), a);
  EXPECT_NE(name_of("c", 8), a);
  EXPECT_EQ(std::stoull(a, nullptr, 16), KeyedHash(7, 2)(0));
}

TEST(Salt, CoversTheFingerprintOfTheBatchAndNoOther) {
  const TempFolder folder;
  StepRecord record = plain_step(1, 0, 1);
  record.workers[0].fingerprints = {{static_cast<std::uint32_t>(FingerprintKind::kBatch), 5},
                                    {static_cast<std::uint32_t>(FingerprintKind::kMode), 5}};
  make_salted_run(folder / "run", record, 7);
  auto db = database(folder / "run");
  EXPECT_EQ(db.query_integer("SELECT value FROM fingerprint WHERE kind = 70"), KeyedHash(7, 1)(5));
  EXPECT_EQ(db.query_integer("SELECT value FROM fingerprint WHERE kind = 30"), 5U);
}

// ---- a rank's data

TEST(WorkerData, WhatIsNotKnownIsNull) {
  const TempFolder folder;
  StepRecord record = plain_step(1, 0, 2);
  record.workers[1].samples.rows = 9;  // all hashes thinned out, no indices
  make_run(folder / "run", {record});
  auto db = database(folder / "run");
  EXPECT_EQ(db.query_integer("SELECT count(*) FROM worker_step WHERE replica = 0 AND rows IS NULL "
                             "AND thinned = 0 AND samples IS NULL AND indices IS NULL "
                             "AND states IS NULL"),
            1U);
  EXPECT_EQ(db.query_integer("SELECT count(*) FROM worker_step WHERE replica = 1 AND rows = 9 "
                             "AND thinned = 0 AND samples IS NULL AND indices IS NULL"),
            1U);
}

TEST(WorkerData, StatesAreStoredOnceWhereTheyAreEqual) {
  const TempFolder folder;
  StepRecord record = plain_step(1, 0, 5);
  const std::vector<StateHash> common = {{1, StateHash::Kind::kParameters, 10},
                                         {1, StateHash::Kind::kBuffers, 11}};
  for (WorkerRecord& w : record.workers) w.states = common;
  record.workers[2].states[1].value = 12;
  record.workers[3].states.clear();
  make_run(folder / "run", {record});
  auto db = database(folder / "run");
  const auto where = [&](const char* condition) {
    return db.query_integer(std::string("SELECT sum(1 << replica) FROM worker_step WHERE ") +
                            condition);
  };
  EXPECT_EQ(where("length(states) = 40"), 0b00101U);
  EXPECT_EQ(where("states IS NULL"), 0b10010U) << "as the first rank's";
  EXPECT_EQ(where("length(states) = 0"), 0b01000U) << "none, unlike the first rank's";
}

// ---- fingerprints

StepRecord with_fingerprints(std::uint32_t segment, std::uint64_t step, const Words& values,
                             std::uint32_t kind = 30) {
  StepRecord r = plain_step(segment, step, static_cast<std::uint32_t>(values.size()));
  for (std::size_t i = 0; i < values.size(); ++i) r.workers[i].fingerprints = {{kind, values[i]}};
  return r;
}

TEST(Fingerprints, AreWrittenWhereTheyChange) {
  const TempFolder folder;
  std::vector<StepRecord> records;
  for (std::uint64_t s = 0; s < 10; ++s) {
    records.push_back(with_fingerprints(1, s, {7, s < 6 ? 7U : 8U}));
  }
  records[8].workers[1].fingerprints.clear();  // a single step without the value is no change
  make_run(folder / "run", records);
  auto db = database(folder / "run");
  EXPECT_EQ(db.query_integer("SELECT count(*) FROM fingerprint"), 3U);
  const auto value_at = [&](std::uint32_t replica, std::uint64_t step) {
    return db.query_integer(
        "SELECT value FROM fingerprint WHERE replica = " + std::to_string(replica) +
        " AND kind = 30 AND step <= " + std::to_string(step) + " ORDER BY step DESC LIMIT 1");
  };
  EXPECT_EQ(value_at(0, 9), 7U);
  EXPECT_EQ(value_at(1, 5), 7U);
  EXPECT_EQ(value_at(1, 6), 8U);
  EXPECT_EQ(value_at(1, 9), 8U);
}

TEST(Fingerprints, AValueThatComesBackIsAChange) {
  const TempFolder folder;
  make_run(folder / "run", {with_fingerprints(1, 0, {7}), with_fingerprints(1, 1, {8}),
                            with_fingerprints(1, 2, {7})});
  EXPECT_EQ(database(folder / "run").query_integer("SELECT count(*) FROM fingerprint"), 3U);
}

TEST(Fingerprints, OfModelsSegmentsAndKindsAreKeptApart) {
  const TempFolder folder;
  auto other = with_fingerprints(1, 0, {7});
  other.model.model_index = 1;
  auto group = with_fingerprints(1, 0, {7});
  group.model.dp_group = 2;
  make_run(folder / "run",
           {with_fingerprints(1, 0, {7}), other, group, with_fingerprints(1, 1, {7}, 31)});
  make_run(folder / "run", {with_fingerprints(2, 0, {7})});
  auto db = database(folder / "run");
  EXPECT_EQ(db.query_integer("SELECT count(*) FROM fingerprint WHERE value = 7"), 5U);
  EXPECT_EQ(db.query_integer("SELECT count(*) FROM fingerprint WHERE segment = 2"), 1U);
}

// ---- size

class RunLogSize : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kSteps = 1000;
  static constexpr std::uint32_t kWorkers = 8;
  static constexpr std::size_t kGroups = 10;
  static constexpr std::size_t kRows = 4;

  StepRecord step(std::uint64_t number) {
    StepRecord r = full_step(1);
    r.step = number;
    r.missing_replicas.clear();
    r.workers.clear();
    for (std::uint32_t i = 0; i < kWorkers; ++i) r.workers.push_back(worker(i));
    r.groups.clear();
    for (std::size_t g = 0; g < kGroups; ++g) {
      r.groups.push_back({.id = random_(),
                          .norm_mean = 1.1,
                          .norm_std = 0.1,
                          .nonfinite = 0,
                          .norms = std::vector<float>(kWorkers, 1),
                          .maxima = std::vector<float>(kWorkers, 1),
                          .fingerprints = std::vector<std::uint32_t>(kWorkers, 1)});
    }
    r.cosines.assign(kWorkers * (kWorkers - 1) / 2, 0.5F);
    return r;
  }

  // What the default settings add: a slice of the states, samples with their indices, and 31 kinds
  // of fingerprints, some of which change at every step.
  void add_fingerprints(StepRecord& r) {
    for (WorkerRecord& w : r.workers) {
      w.samples.rows = kRows;
      for (std::size_t row = 0; row < kRows; ++row) {
        w.samples.hashes.push_back(random_());
        w.indices.push_back(random_() % 50'000);
      }
      for (std::size_t g = 0; g < kGroups / 2; ++g) {
        w.states.push_back({g << 40, StateHash::Kind::kParameters, r.step * 100 + g});
      }
      for (std::uint32_t kind = 100; kind < 128; ++kind) w.fingerprints.push_back({kind, kind});
      const auto each_step = {FingerprintKind::kRngTorch, FingerprintKind::kDataBatch,
                              FingerprintKind::kBatch};
      for (const FingerprintKind kind : each_step) {
        const bool counts = kind == FingerprintKind::kDataBatch;
        w.fingerprints.push_back({static_cast<std::uint32_t>(kind), counts ? r.step : random_()});
      }
    }
  }

  // Bytes per step of a run whose steps `make` creates.
  template <class Make>
  std::uintmax_t measure(const char* what, Make&& make) {
    const TempFolder folder;
    std::vector<StepRecord> records;
    for (std::uint64_t s = 0; s < kSteps; ++s) records.push_back(make(s));
    make_run(folder / "run", records);
    const auto bytes = std::filesystem::file_size(folder / "run" / kFileName) / kSteps;
    std::printf("%s: %ju bytes per step, %ju per step and rank (8 ranks, 10 groups)\n", what, bytes,
                bytes / kWorkers);
    return bytes;
  }

 private:
  WorkerRecord worker(std::uint32_t replica) {
    WorkerRecord w = full_step(1).workers[1];
    w.replica = w.rank = replica;
    w.reduced_fingerprint = random_();
    w.micro.resize(1);
    w.samples = {};
    w.indices.clear();
    w.states.clear();
    w.fingerprints.clear();
    return w;
  }

  std::mt19937_64 random_{7};
};

TEST_F(RunLogSize, OfAStepIsBounded) {
  EXPECT_LE(measure("no fingerprints", [&](std::uint64_t s) { return step(s); }), 3500U);
}

TEST_F(RunLogSize, OfAStepWithFingerprintsIsBounded) {
  const auto with_all = [&](std::uint64_t s) {
    StepRecord r = step(s);
    add_fingerprints(r);
    return r;
  };
  EXPECT_LE(measure("all fingerprints", with_all), 6000U);
}

}  // namespace
}  // namespace presum::runlog
