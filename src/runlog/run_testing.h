// SPDX-License-Identifier: Apache-2.0
// Creates and reads run folders for the tests of this folder.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "presum/run_log.h"
#include "runlog/schema.h"
#include "runlog/sqlite.h"
#include "runlog/testing.h"
#include "runlog/writer.h"

namespace presum::runlog {

using presum::testing::FakeClock;
using presum::testing::read_file;
using presum::testing::TempFolder;
using presum::testing::write_file;
using Path = std::filesystem::path;

inline Writer open_writer(const Path& folder, FakeClock& clock, Journal journal = Journal::kWal) {
  auto writer = Writer::open(folder, clock.function(), journal);
  EXPECT_TRUE(writer) << writer.error().message;
  return std::move(*writer);
}

inline Database database(const Path& folder, Database::Mode mode = Database::Mode::kRead) {
  auto db = Database::open(folder / kFileName, mode);
  EXPECT_TRUE(db) << db.error().message;
  return std::move(*db);
}

inline std::uint64_t count_steps(const Path& folder) {
  return database(folder).query_integer("SELECT count(*) FROM steps").value_or(999);
}

inline std::vector<StepRecord> read_steps(const Path& run) {
  const auto log = RunLog::open(run);
  auto steps = log ? log->steps() : log.error();
  EXPECT_TRUE(steps) << steps.error().message;
  return steps.value_or(std::vector<StepRecord>());
}

inline StepRecord plain_step(std::uint32_t segment, std::uint64_t step, std::uint32_t workers = 4) {
  StepRecord r;
  r.model.segment = segment;
  r.step = step;
  r.workers_expected = workers;
  for (std::uint32_t i = 0; i < workers; ++i) {
    WorkerRecord w;
    w.replica = i;
    w.rank = 10 + i;
    w.loss = 1;
    w.weight = 1;
    w.grad_norm = 2;
    w.grad_max = 0.5;
    w.fingerprint = 1000 + i;
    r.workers.push_back(w);
  }
  r.distinct_gradients = workers;
  return r;
}

// The real-valued fields of a step, by column.
inline constexpr std::pair<const char*, double StepRecord::*> kStepNumbers[] = {
    {"loss_mean", &StepRecord::loss_mean},
    {"loss_std", &StepRecord::loss_std},
    {"loss_range", &StepRecord::loss_range},
    {"grad_norm_mean", &StepRecord::grad_norm_mean},
    {"grad_norm_std", &StepRecord::grad_norm_std},
    {"grad_norm_cv", &StepRecord::grad_norm_cv},
    {"cosine_mean", &StepRecord::cosine_mean},
    {"cosine_low", &StepRecord::cosine_low},
    {"cosine_high", &StepRecord::cosine_high},
    {"consistency", &StepRecord::consistency},
    {"reduced_norm", &StepRecord::reduced_norm},
    {"signal", &StepRecord::signal},
    {"noise", &StepRecord::noise},
    {"noise_scale", &StepRecord::noise_scale},
    {"effective_workers", &StepRecord::effective_workers},
    {"tokens_cv", &StepRecord::tokens_cv},
    {"mean_norm", &StepRecord::mean_norm},
    {"mean_norm_error", &StepRecord::mean_norm_error}};

// Every field has a distinct value.
inline StepRecord full_step(std::uint32_t segment) {
  StepRecord r = plain_step(segment, 1ULL << 40, 3);
  r.model.model_index = 2;
  r.model.dp_group = 3;
  r.workers_expected = 5;
  r.missing_replicas = {1, 4};
  r.workers_seen = static_cast<std::uint32_t>(r.workers.size());
  double next = 0.1;
  for (const auto& [name, field] : kStepNumbers) r.*field = next += 1.0 / 3;
  r.cosine_source = CosineSource::kTotalNorm;
  r.reduced_disagrees = true;
  r.distinct_gradients = 7;
  r.sketch_size = 4096;
  r.cosines = {0.25F, NAN, -0.5F};
  r.groups = {{.id = 0xFFFFFFFFFFFFFFF5ULL,
               .norm_mean = 1.5,
               .norm_std = 0.5,
               .nonfinite = 6,
               .norms = {1, 2, 3},
               .maxima = {4, 5, NAN},
               .fingerprints = {7, 0xFFFFFFFFU, 0}}};
  WorkerRecord& w = r.workers[1];
  w = {.rank = 21, .replica = 2, .loss = 3.25, .loss_nonfinite = true, .weight = 2.5};
  w.tokens = 77;
  w.grad_norm = 8.125;
  w.grad_max = 9.5;
  w.nonfinite = 11;
  w.cosine_to_others = -0.75;
  w.reduced_norm = 6.5;
  w.fingerprint = 0x8000000000000001ULL;
  w.reduced_fingerprint = 0xABCULL;
  w.optimizer_step = 12;
  w.dropped = 13;
  w.micro_batches = 14;
  w.skipped_parameters = 15;
  w.micro = {{1.5, 2, 30}, {NAN, 0.5, 47}};
  w.samples.rows = 1ULL << 33;
  w.samples.hashes = {0, 1, 0xFFFFFFFFFFFFFFFFULL};
  w.samples.thinned = 25;
  w.indices = {40, 30};
  w.states = {{0xFFFFFFFFFFFFFFF5ULL, StateHash::Kind::kBuffers, 0x8000000000000002ULL}};
  w.fingerprints = {{11, 42}, {1024, 0xFFFFFFFFFFFFFFFFULL}};
  r.workers[2].replica = 3;
  return r;
}

inline packet::Hello hello_of(std::uint32_t segment, std::uint32_t replica,
                              std::uint32_t replicas) {
  packet::Hello h;
  h.header.segment = segment;
  h.header.identity = {.replica = replica, .rank = 10 + replica, .replicas = replicas};
  h.facts.host = "node-" + std::to_string(replica);
  return h;
}

inline void add_all(Writer& writer, const std::vector<StepRecord>& records) {
  for (const StepRecord& r : records) {
    const auto added = writer.add(r);
    ASSERT_TRUE(added) << added.error().message;
  }
}

// A closed run with these steps.
inline void make_run(const Path& folder, const std::vector<StepRecord>& records) {
  FakeClock clock;
  Writer writer = open_writer(folder, clock);
  add_all(writer, records);
  ASSERT_TRUE(writer.close());
}

inline bool one_line(const Error& error) {
  return !error.message.empty() && error.message.find('\n') == std::string::npos;
}

template <class T>
std::vector<T> blob(sqlite3_stmt* statement, int column) {
  const auto bytes = static_cast<std::size_t>(sqlite3_column_bytes(statement, column));
  std::vector<T> out(bytes / sizeof(T));
  if (bytes > 0) std::memcpy(out.data(), sqlite3_column_blob(statement, column), bytes);
  return out;
}

// The first cell of the first row, as a vector of T.
template <class T>
std::vector<T> read_blob(const Path& folder, const char* sql) {
  sqlite3* db = nullptr;
  sqlite3_open_v2((folder / kFileName).c_str(), &db, SQLITE_OPEN_READONLY, nullptr);
  sqlite3_stmt* statement = nullptr;
  EXPECT_EQ(sqlite3_prepare_v2(db, sql, -1, &statement, nullptr), SQLITE_OK) << sqlite3_errmsg(db);
  EXPECT_EQ(sqlite3_step(statement), SQLITE_ROW);
  auto out = blob<T>(statement, 0);
  sqlite3_finalize(statement);
  sqlite3_close(db);
  return out;
}

using Findings = std::vector<Finding>;
using Checks = std::vector<CheckRecord>;

inline Finding full_finding() {
  Finding f;
  f.model.model_index = 2;
  f.model.dp_group = 3;
  f.check = "duplicate-data";
  f.also = {"pair-too-similar", "too-consistent"};
  f.severity = Severity::kCritical;
  f.ranks = {0, 7, 4'294'967'295U};
  f.hosts = {"node-1", "node-2"};
  f.first_step = 3;
  f.last_step = 1ULL << 40;
  f.confidence = 0.75;
  f.title = "Ranks 0 and 7 read the same samples";
  f.equal_until = 1;
  f.certain_step = 5;
  f.suspects = "one seed";
  f.evidence = {{f.check, f.ranks, f.title, R"({"share":0.5,"sampler":"Random\"Sampler"})"},
                {"too-consistent", {0}, "Rank 0 differed less", "{}"}};
  f.remedy = "Give every rank its own part.";
  f.resembles = "pytorch/pytorch#31771";
  return f;
}

// A closed run with these findings of model (2, 3).
inline void make_judged_run(const Path& folder, const Findings& findings,
                            const Checks& checks = {}) {
  FakeClock clock;
  Writer writer = open_writer(folder, clock);
  const auto replaced = writer.replace({writer.segment(), 2, 3}, findings, checks);
  ASSERT_TRUE(replaced) << replaced.error().message;
  ASSERT_TRUE(writer.close());
}

inline Findings findings_in(const Path& run) {
  const auto log = RunLog::open(run);
  auto findings = log ? log->findings() : log.error();
  EXPECT_TRUE(findings) << findings.error().message;
  return findings.value_or(Findings());
}

}  // namespace presum::runlog
