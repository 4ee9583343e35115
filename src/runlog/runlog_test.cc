// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "presum/run_log.h"
#include "runlog/keyed_hash.h"
#include "runlog/schema.h"
#include "runlog/sqlite.h"
#include "runlog/testing.h"
#include "runlog/writer.h"

namespace presum::runlog {
namespace {

using presum::testing::FakeClock;
using presum::testing::read_file;
using presum::testing::TempFolder;
using presum::testing::write_file;
using Path = std::filesystem::path;

// ---- helpers

Writer open_writer(const Path& folder, FakeClock& clock, Journal journal = Journal::kWal) {
  auto writer = Writer::open(folder, clock.function(), journal);
  EXPECT_TRUE(writer) << writer.error().message;
  return std::move(*writer);
}

Database database(const Path& folder, Database::Mode mode = Database::Mode::kRead) {
  auto db = Database::open(folder / kFileName, mode);
  EXPECT_TRUE(db) << db.error().message;
  return std::move(*db);
}

std::uint64_t count_steps(const Path& folder) {
  return database(folder).query_integer("SELECT count(*) FROM steps").value_or(999);
}

std::vector<StepRecord> read_steps(const Path& run) {
  const auto log = RunLog::open(run);
  auto steps = log ? log->steps() : log.error();
  EXPECT_TRUE(steps) << steps.error().message;
  return steps.value_or(std::vector<StepRecord>());
}

StepRecord plain_step(std::uint32_t segment, std::uint64_t step, std::uint32_t workers = 4) {
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

// Every field has a value of its own.
StepRecord full_step(std::uint32_t segment) {
  StepRecord r = plain_step(segment, 1ULL << 40, 3);
  r.model.module = 2;
  r.model.shard = 3;
  r.workers_expected = 5;
  r.missing_replicas = {1, 4};
  r.workers_seen = static_cast<std::uint32_t>(r.workers.size());
  double next = 0.1;
  for (double* value :
       {&r.loss_mean, &r.loss_std, &r.loss_range, &r.grad_norm_mean, &r.grad_norm_std,
        &r.grad_norm_cv, &r.cosine_mean, &r.cosine_low, &r.cosine_high, &r.consistency,
        &r.reduced_norm, &r.signal, &r.noise, &r.noise_scale, &r.effective_workers, &r.tokens_cv,
        &r.mean_norm, &r.mean_norm_error}) {
    *value = next += 1.0 / 3;
  }
  r.cosine_source = CosineSource::kRowSums;
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

packet::Hello hello_of(std::uint32_t segment, std::uint32_t replica, std::uint32_t replicas) {
  packet::Hello h;
  h.header.segment = segment;
  h.header.identity = {.replica = replica, .rank = 10 + replica, .replicas = replicas};
  h.facts.host = "node-" + std::to_string(replica);
  return h;
}

void add_all(Writer& writer, const std::vector<StepRecord>& records) {
  for (const StepRecord& r : records) {
    const auto added = writer.add(r);
    ASSERT_TRUE(added) << added.error().message;
  }
}

// A run of those steps, closed.
void make_run(const Path& folder, const std::vector<StepRecord>& records) {
  FakeClock clock;
  Writer writer = open_writer(folder, clock);
  add_all(writer, records);
  ASSERT_TRUE(writer.close());
}

bool one_line(const Error& error) {
  return !error.message.empty() && error.message.find('\n') == std::string::npos;
}

template <class T>
std::vector<T> blob(sqlite3_stmt* statement, int column) {
  const auto bytes = static_cast<std::size_t>(sqlite3_column_bytes(statement, column));
  std::vector<T> out(bytes / sizeof(T));
  if (bytes > 0) std::memcpy(out.data(), sqlite3_column_blob(statement, column), bytes);
  return out;
}

// The first cell of the first row, as numbers.
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

// ---- round trip

TEST(RunLog, EveryFieldOfAStepSurvives) {
  const TempFolder folder;
  const StepRecord want = full_step(1);
  make_run(folder / "run", {want});
  const auto steps = read_steps(folder / "run");
  ASSERT_EQ(steps.size(), 1U);
  const StepRecord& got = steps[0];
  EXPECT_EQ(got.model.segment, want.model.segment);
  EXPECT_EQ(got.model.module, want.model.module);
  EXPECT_EQ(got.model.shard, want.model.shard);
  EXPECT_EQ(got.step, want.step);
  EXPECT_EQ(got.workers_expected, want.workers_expected);
  EXPECT_EQ(got.missing_replicas, want.missing_replicas);
  EXPECT_EQ(got.workers_seen, want.workers_seen);
  for (const auto field :
       {&StepRecord::loss_mean, &StepRecord::loss_std, &StepRecord::loss_range,
        &StepRecord::grad_norm_mean, &StepRecord::grad_norm_std, &StepRecord::grad_norm_cv,
        &StepRecord::cosine_mean, &StepRecord::cosine_low, &StepRecord::cosine_high,
        &StepRecord::consistency, &StepRecord::reduced_norm, &StepRecord::signal,
        &StepRecord::noise, &StepRecord::noise_scale, &StepRecord::effective_workers,
        &StepRecord::tokens_cv, &StepRecord::mean_norm, &StepRecord::mean_norm_error}) {
    EXPECT_EQ(got.*field, want.*field);
  }
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

TEST(RunLogViews, StepsHoldEveryColumn) {
  const TempFolder folder;
  const StepRecord want = full_step(1);
  make_run(folder / "run", {want});
  auto db = database(folder / "run");
  auto row = db.prepare(
      "SELECT step, segment, module, shard, workers_expected, workers, loss_mean, loss_std, "
      "loss_range, grad_norm_mean, grad_norm_std, grad_norm_cv, cosine_mean, cosine_low, "
      "cosine_high, consistency, reduced_norm, signal, noise, noise_scale, effective_workers, "
      "tokens_cv, cosine_source, reduced_disagrees, distinct_gradients, sketch_size, mean_norm, "
      "mean_norm_error FROM steps");
  ASSERT_TRUE(row) << row.error().message;
  ASSERT_TRUE(*row->next());
  EXPECT_EQ(row->integer(0), want.step);
  EXPECT_EQ(row->small(1), 1U);
  EXPECT_EQ(row->small(2), 2U);
  EXPECT_EQ(row->small(3), 3U);
  EXPECT_EQ(row->small(4), 5U);
  EXPECT_EQ(row->small(5), 3U);
  int column = 6;
  for (const double value :
       {want.loss_mean, want.loss_std, want.loss_range, want.grad_norm_mean, want.grad_norm_std,
        want.grad_norm_cv, want.cosine_mean, want.cosine_low, want.cosine_high, want.consistency,
        want.reduced_norm, want.signal, want.noise, want.noise_scale, want.effective_workers,
        want.tokens_cv}) {
    EXPECT_EQ(row->number(column), value) << column;
    ++column;
  }
  EXPECT_EQ(row->text(22), "row-sums");
  EXPECT_EQ(row->small(23), 1U);
  EXPECT_EQ(row->small(24), 7U);
  EXPECT_EQ(row->small(25), 4096U);
  EXPECT_EQ(row->number(26), want.mean_norm);
  EXPECT_EQ(row->number(27), want.mean_norm_error);
}

TEST(RunLogViews, EverySourceOfCosinesHasAName) {
  const TempFolder folder;
  std::vector<StepRecord> records;
  for (std::uint64_t i = 0; i <= 5; ++i) {
    records.push_back(plain_step(1, i));
    records.back().cosine_source = static_cast<CosineSource>(i);
  }
  make_run(folder / "run", records);
  auto db = database(folder / "run");
  auto row = db.prepare("SELECT cosine_source FROM steps");
  for (const char* name : {"none", "sketch", "total-norm", "row-sums", "exact", "gram"}) {
    ASSERT_TRUE(*row->next());
    EXPECT_EQ(row->text(0), name);
  }
}

TEST(RunLogViews, WorkersHoldEveryColumn) {
  const TempFolder folder;
  FakeClock clock;
  Writer writer = open_writer(folder / "run", clock);
  packet::Hello hello = hello_of(1, 2, 5);
  hello.header.identity.module = 2;
  hello.header.identity.shard = 3;
  ASSERT_TRUE(writer.add(hello));
  add_all(writer, {full_step(1)});
  ASSERT_TRUE(writer.close());
  auto db = database(folder / "run");
  auto row = db.prepare(
      "SELECT step, segment, module, shard, rank, replica, host, loss, weight, tokens, "
      "micro_batches, grad_norm, grad_max, nonfinite, loss_nonfinite, cosine_to_others, "
      "reduced_norm, optimizer_step, dropped, skipped_parameters, fingerprint, "
      "reduced_fingerprint FROM workers WHERE replica = 2");
  ASSERT_TRUE(row) << row.error().message;
  ASSERT_TRUE(*row->next());
  const double want[] = {static_cast<double>(1ULL << 40), 1, 2, 3, 21, 2};
  for (int c = 0; c < 6; ++c) EXPECT_EQ(row->number(c), want[c]) << c;
  EXPECT_EQ(row->text(6), "node-2");
  const double rest[] = {3.25, 2.5, 77, 14, 8.125, 9.5, 11, 1, -0.75, 6.5, 12, 13, 15};
  for (int c = 7; c < 20; ++c) EXPECT_EQ(row->number(c), rest[c - 7]) << c;
  EXPECT_EQ(row->text(20), "8000000000000001");
  EXPECT_EQ(row->text(21), "0000000000000abc");
  EXPECT_EQ(db.query_integer("SELECT count(*) FROM workers WHERE reduced_fingerprint IS NULL"), 2U);
}

TEST(RunLogViews, GroupsAndMissingWorkersAreNamed) {
  const TempFolder folder;
  FakeClock clock;
  Writer writer = open_writer(folder / "run", clock);
  packet::Hello hello = hello_of(1, 0, 5);
  hello.header.identity.module = 2;
  hello.header.identity.shard = 3;
  hello.facts.groups = {{0xFFFFFFFFFFFFFFF5ULL, 600, "model.layers.3"}};
  ASSERT_TRUE(writer.add(hello));
  add_all(writer, {full_step(1)});
  ASSERT_TRUE(writer.close());
  auto db = database(folder / "run");
  auto group = db.prepare(
      "SELECT \"group\", elements, norm_mean, norm_std, nonfinite, module, shard FROM groups");
  ASSERT_TRUE(group) << group.error().message;
  ASSERT_TRUE(*group->next());
  EXPECT_EQ(group->text(0), "model.layers.3");
  const double want[] = {600, 1.5, 0.5, 6, 2, 3};
  for (int c = 1; c < 7; ++c) EXPECT_EQ(group->number(c), want[c - 1]) << c;
  auto missing = db.prepare("SELECT replica, step, module, shard FROM missing");
  for (const std::uint32_t replica : {1U, 4U}) {
    ASSERT_TRUE(*missing->next());
    EXPECT_EQ(missing->small(0), replica);
    EXPECT_EQ(missing->integer(1), 1ULL << 40);
    EXPECT_EQ(missing->small(2), 2U);
    EXPECT_EQ(missing->small(3), 3U);
  }
}

TEST(RunLogViews, BlobsAreArraysOfFloats) {
  const TempFolder folder;
  make_run(folder / "run", {full_step(1)});
  const Path run = folder / "run";
  const auto cosines = read_blob<float>(run, "SELECT cosines FROM step");
  ASSERT_EQ(cosines.size(), 3U);
  EXPECT_EQ(cosines[0], 0.25F);
  EXPECT_TRUE(std::isnan(cosines[1]));
  EXPECT_EQ(read_blob<float>(run, "SELECT norms FROM group_step"), (std::vector<float>{1, 2, 3}));
  EXPECT_EQ(read_blob<float>(run, "SELECT maxima FROM group_step")[1], 5.0F);
  const auto micro =
      read_blob<double>(run, "SELECT micro FROM worker_step WHERE micro IS NOT NULL");
  ASSERT_EQ(micro.size(), 6U);
  EXPECT_EQ(micro[0], 1.5);
  EXPECT_EQ(micro[1], 2);
  EXPECT_EQ(micro[2], 30);
  EXPECT_TRUE(std::isnan(micro[3]));
  EXPECT_EQ(micro[5], 47);
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
  note.sent = 100;
  note.dropped = 3;
  ASSERT_TRUE(writer.add(note));
  note.text.clear();
  note.final = true;
  note.sent = 200;
  ASSERT_TRUE(writer.add(note));
  ASSERT_TRUE(writer.add(hello_of(1, 1, 3))) << "with new facts: the counts stay";
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
  auto db = database(folder / "run");
  EXPECT_EQ(db.query_integer("SELECT sent FROM worker WHERE replica = 1"), 200U);
  EXPECT_EQ(db.query_integer("SELECT dropped FROM worker WHERE replica = 1"), 3U);
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

TEST(Segments, OfRecordingsThatBeginAtOnceAreTwo) {
  for (int round = 0; round < 20; ++round) {
    const TempFolder folder;
    FakeClock clock;
    std::array<std::optional<Writer>, 2> writers;
    {
      std::vector<std::jthread> threads;
      for (auto& writer : writers) {
        threads.emplace_back([&] {
          auto opened = Writer::open(folder / "run", clock.function(), Journal::kWal);
          if (opened) writer.emplace(*std::move(opened));
        });
      }
    }
    ASSERT_TRUE(writers[0] && writers[1]);
    EXPECT_EQ(writers[0]->segment() + writers[1]->segment(), 3U);
  }
}

// ---- commits

TEST(Writer, CommitsASecondAfterTheFirstRecordAndNotBefore) {
  const TempFolder folder;
  FakeClock clock;
  Writer writer = open_writer(folder / "run", clock);
  add_all(writer, {plain_step(1, 0)});
  ASSERT_TRUE(writer.tick());
  EXPECT_EQ(count_steps(folder / "run"), 0U);
  clock.advance(0.9);
  add_all(writer, {plain_step(1, 1)});
  ASSERT_TRUE(writer.tick());
  EXPECT_EQ(count_steps(folder / "run"), 0U);
  clock.advance(0.2);
  EXPECT_EQ(count_steps(folder / "run"), 0U) << "only tick commits";
  ASSERT_TRUE(writer.tick());
  EXPECT_EQ(count_steps(folder / "run"), 2U);
  // The second counts anew.
  add_all(writer, {plain_step(1, 2)});
  ASSERT_TRUE(writer.tick());
  EXPECT_EQ(count_steps(folder / "run"), 2U);
}

TEST(Writer, IsReadableWhileOpen) {
  const TempFolder folder;
  FakeClock clock;
  Writer writer = open_writer(folder / "run", clock);
  const auto log = RunLog::open(folder / "run");
  ASSERT_TRUE(log) << log.error().message;
  EXPECT_TRUE(log->steps()->empty());
  for (std::uint64_t s = 0; s < 3; ++s) {
    add_all(writer, {plain_step(1, s)});
    clock.advance(1.5);
    ASSERT_TRUE(writer.tick());
    EXPECT_EQ(log->steps()->size(), s + 1) << "the same reader sees it grow";
  }
}

TEST(Writer, CloseMarksTheSegmentAndLeavesOneFile) {
  const TempFolder folder;
  FakeClock clock;
  Writer writer = open_writer(folder / "run", clock);
  add_all(writer, {plain_step(1, 0)});
  ASSERT_TRUE(writer.close());
  ASSERT_TRUE(writer.close()) << "again is fine";
  EXPECT_EQ(database(folder / "run").query_integer("SELECT closed FROM segment"), 1U);
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "run")) {
    files.push_back(entry.path().filename().string());
  }
  EXPECT_EQ(files, std::vector<std::string>{kFileName});
}

TEST(Writer, RefusesRecordsAfterClose) {
  const TempFolder folder;
  FakeClock clock;
  Writer writer = open_writer(folder / "run", clock);
  ASSERT_TRUE(writer.close());
  EXPECT_FALSE(writer.add(plain_step(1, 0)));
  EXPECT_FALSE(writer.add(hello_of(1, 0, 1)));
  EXPECT_FALSE(writer.add(packet::Note{}));
  EXPECT_TRUE(writer.tick());
  EXPECT_EQ(count_steps(folder / "run"), 0U);
}

TEST(Writer, ASecondOpenBeginsTheNextSegment) {
  const TempFolder folder;
  make_run(folder / "run", {plain_step(1, 0), plain_step(1, 1)});
  FakeClock clock;
  Writer writer = open_writer(folder / "run", clock);
  EXPECT_EQ(writer.segment(), 2U);
  add_all(writer, {plain_step(2, 0)});
  ASSERT_TRUE(writer.close());
  const auto steps = read_steps(folder / "run");
  ASSERT_EQ(steps.size(), 3U);
  EXPECT_EQ(steps[2].model.segment, 2U);
  EXPECT_EQ(steps[2].step, 0U);
  EXPECT_EQ(database(folder / "run").query_integer("SELECT count(DISTINCT run) FROM segment"), 2U);
}

TEST(Writer, IsDestroyedWithoutCloseAndKeepsItsSteps) {
  const TempFolder folder;
  FakeClock clock;
  {
    Writer writer = open_writer(folder / "run", clock);
    add_all(writer, {plain_step(1, 0)});
  }
  EXPECT_EQ(read_steps(folder / "run").size(), 1U);
  EXPECT_EQ(database(folder / "run").query_integer("SELECT closed FROM segment"), 0U);
  EXPECT_EQ(open_writer(folder / "run", clock).segment(), 2U);
}

TEST(Writer, AProcessThatDiesKeepsItsCommittedSteps) {
  const TempFolder folder;
  const pid_t child = fork();
  if (child == 0) {
    FakeClock clock;
    Writer writer = open_writer(folder / "run", clock);
    add_all(writer, {plain_step(1, 0)});
    clock.advance(2);
    static_cast<void>(writer.tick());
    add_all(writer, {plain_step(1, 1)});
    _exit(0);  // neither destroyed nor closed
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  EXPECT_EQ(read_steps(folder / "run").size(), 1U);
  FakeClock clock;
  Writer writer = open_writer(folder / "run", clock);
  EXPECT_EQ(writer.segment(), 2U);
  add_all(writer, {plain_step(2, 0)});
  ASSERT_TRUE(writer.close());
  EXPECT_EQ(read_steps(folder / "run").size(), 2U);
}

// ---- journals

class WriterJournal : public ::testing::TestWithParam<Journal> {};

TEST_P(WriterJournal, LeavesAReadableFileAfterClose) {
  const TempFolder folder;
  FakeClock clock;
  Writer writer = open_writer(folder / "run", clock, GetParam());
  add_all(writer, {full_step(1), plain_step(1, 1)});
  clock.advance(2);
  ASSERT_TRUE(writer.tick());
  add_all(writer, {plain_step(1, 2)});
  ASSERT_TRUE(writer.close());
  // The writer still lives: closed means closed.
  EXPECT_EQ(read_steps(folder / "run").size(), 3U);
}

TEST_P(WriterJournal, ContinuesARun) {
  const TempFolder folder;
  make_run(folder / "run", {plain_step(1, 0)});
  FakeClock clock;
  Writer writer = open_writer(folder / "run", clock, GetParam());
  EXPECT_EQ(writer.segment(), 2U);
  add_all(writer, {plain_step(2, 0)});
  ASSERT_TRUE(writer.close());
  EXPECT_EQ(read_steps(folder / "run").size(), 2U);
}

INSTANTIATE_TEST_SUITE_P(All, WriterJournal,
                         ::testing::Values(Journal::kWal, Journal::kExclusive,
                                           Journal::kLocalCopy));

// Sets an environment variable and puts it back.
class Environment {
 public:
  Environment(const char* name, const std::string& value) : name_(name) {
    const char* old = getenv(name);
    had_ = old != nullptr;
    if (had_) old_ = old;
    setenv(name, value.c_str(), 1);
  }
  ~Environment() { had_ ? setenv(name_, old_.c_str(), 1) : unsetenv(name_); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const char* name_;
  bool had_ = false;
  std::string old_;
};

TEST(Writer, LocalCopyStaysAwayFromTheFolderUntilClosed) {
  const TempFolder folder;
  const TempFolder local;
  const Environment environment("TMPDIR", local.path().string());
  FakeClock clock;
  Writer writer = open_writer(folder / "run", clock, Journal::kLocalCopy);
  add_all(writer, {plain_step(1, 0)});
  EXPECT_TRUE(std::filesystem::is_empty(folder / "run"));
  EXPECT_FALSE(std::filesystem::is_empty(local.path()));
  ASSERT_TRUE(writer.close());
  EXPECT_TRUE(std::filesystem::exists(folder / "run" / kFileName));
  EXPECT_TRUE(std::filesystem::is_empty(local.path())) << "nothing is left behind";
}

TEST(Writer, LocalCopyWithoutATemporaryFolderIsAnErrorNotAnException) {
  const TempFolder folder;
  const Environment environment("TMPDIR", (folder / "absent").string());
  FakeClock clock;
  const auto writer = Writer::open(folder / "run", clock.function(), Journal::kLocalCopy);
  ASSERT_FALSE(writer);
  EXPECT_EQ(writer.error().code, ErrorCode::kIo);
  EXPECT_TRUE(one_line(writer.error()));
}

TEST(Writer, LocalCopyThatCannotGoHomeSaysWhereItIs) {
  const TempFolder folder;
  FakeClock clock;
  Writer writer = open_writer(folder / "run", clock, Journal::kLocalCopy);
  std::filesystem::remove_all(folder / "run");
  const auto closed = writer.close();
  ASSERT_FALSE(closed);
  EXPECT_EQ(closed.error().code, ErrorCode::kIo);
  const auto at = closed.error().message.find("kept in ");
  ASSERT_NE(at, std::string::npos) << closed.error().message;
  auto kept = closed.error().message.substr(at + 8);
  kept.pop_back();  // the closing bracket
  EXPECT_TRUE(std::filesystem::exists(kept)) << kept;
  std::filesystem::remove(kept);
}

TEST(ChooseJournal, IsWalOnALocalFileSystem) {
  const TempFolder folder;
  EXPECT_EQ(choose_journal(folder.path()), Journal::kWal);
}

// ---- what is in the way

void expect_refused(const Path& folder, ErrorCode code, const std::string& says) {
  FakeClock clock;
  const auto writer = Writer::open(folder, clock.function(), Journal::kWal);
  ASSERT_FALSE(writer);
  EXPECT_EQ(writer.error().code, code) << writer.error().message;
  EXPECT_TRUE(one_line(writer.error())) << writer.error().message;
  EXPECT_NE(writer.error().message.find(says), std::string::npos) << writer.error().message;
  const auto path = folder.string();
  const auto first = writer.error().message.find(path);
  EXPECT_NE(first, std::string::npos) << writer.error().message;
  EXPECT_EQ(writer.error().message.find(path, first + 1), std::string::npos)
      << "names the file once: " << writer.error().message;
}

TEST(Writer, SaysThatItsFolderCannotBeCreated) {
  const TempFolder folder;
  write_file(folder / "taken", "a file");
  expect_refused(folder / "taken", ErrorCode::kIo, "cannot create run folder");
  expect_refused(folder / "taken/run", ErrorCode::kIo, "cannot create run folder");
  EXPECT_EQ(read_file(folder / "taken"), "a file");
}

TEST(Writer, SaysThatItsFileCannotBeOpened) {
  const TempFolder folder;
  std::filesystem::create_directories(folder / "run" / kFileName);
  expect_refused(folder / "run", ErrorCode::kIo, "unable to open");
}

TEST(Writer, LeavesAForeignDatabaseAlone) {
  const TempFolder folder;
  std::filesystem::create_directories(folder / "run");
  {
    Database other = database(folder / "run", Database::Mode::kWrite);
    ASSERT_TRUE(other.execute("CREATE TABLE mine (x); INSERT INTO mine VALUES (1);"));
  }
  const std::string before = read_file(folder / "run" / kFileName);
  expect_refused(folder / "run", ErrorCode::kCorrupt, "not a presum");
  EXPECT_EQ(read_file(folder / "run" / kFileName), before);
}

TEST(Writer, LeavesRandomBytesAlone) {
  const TempFolder folder;
  std::filesystem::create_directories(folder / "run");
  std::mt19937_64 random(1);
  std::string bytes(10'000, ' ');
  for (char& c : bytes) c = static_cast<char>(random());
  write_file(folder / "run" / kFileName, bytes);
  expect_refused(folder / "run", ErrorCode::kCorrupt, "not a database");
  EXPECT_EQ(read_file(folder / "run" / kFileName), bytes);
}

TEST(Writer, LeavesAnotherSchemaAlone) {
  const TempFolder folder;
  make_run(folder / "run", {plain_step(1, 0)});
  ASSERT_TRUE(database(folder / "run", Database::Mode::kWrite).execute("PRAGMA user_version=99"));
  const std::string before = read_file(folder / "run" / kFileName);
  expect_refused(folder / "run", ErrorCode::kUnsupported, "newer presum");
  EXPECT_EQ(read_file(folder / "run" / kFileName), before);
  const auto log = RunLog::open(folder / "run");
  ASSERT_FALSE(log);
  EXPECT_EQ(log.error().code, ErrorCode::kUnsupported);
  EXPECT_TRUE(one_line(log.error()));
}

// ---- what happens to the file while it is written

// A run with a committed step, and what becomes of the writing after `sabotage`.
class Sabotaged {
 public:
  template <class Sabotage>
  explicit Sabotaged(Sabotage&& sabotage) {
    auto opened = Writer::open(run(), clock_.function(), Journal::kWal);
    EXPECT_TRUE(opened);
    auto writer = std::make_optional(std::move(*opened));
    EXPECT_TRUE(writer->add(plain_step(1, 0)));
    clock_.advance(2);
    EXPECT_TRUE(writer->tick());
    sabotage(file());
    told = writer->add(plain_step(1, 1));
    clock_.advance(2);
    if (told) told = writer->tick();
    if (told) told = writer->close();
  }
  Path run() const { return folder_ / "run"; }
  Path file() const { return run() / kFileName; }

  Status told;  // by what is written after it, its commit or the close

 private:
  TempFolder folder_;
  FakeClock clock_;
};

void expect_lost(const Sabotaged& run) {
  ASSERT_FALSE(run.told);
  EXPECT_EQ(run.told.error().code, ErrorCode::kIo);
  EXPECT_NE(run.told.error().message.find("the record is lost"), std::string::npos);
  EXPECT_TRUE(one_line(run.told.error()));
}

TEST(FileUnderTheWriter, WithoutSabotageIsWhole) {
  const Sabotaged run([](const Path&) {});
  EXPECT_TRUE(run.told);
}

TEST(FileUnderTheWriter, ThatIsDeletedIsLost) {
  expect_lost(Sabotaged([](const Path& file) { std::filesystem::remove(file); }));
}

TEST(FileUnderTheWriter, WhoseFolderIsDeletedIsLost) {
  expect_lost(Sabotaged([](const Path& file) { std::filesystem::remove_all(file.parent_path()); }));
}

TEST(FileUnderTheWriter, WhoseLogIsDeletedIsLost) {
  expect_lost(Sabotaged([](const Path& file) { std::filesystem::remove(file.string() + "-wal"); }));
}

TEST(FileUnderTheWriter, ThatIsTruncatedIsLost) {
  expect_lost(Sabotaged([](const Path& file) { std::filesystem::resize_file(file, 0); }));
}

TEST(FileUnderTheWriter, WhoseLogIsTruncatedIsLost) {
  expect_lost(
      Sabotaged([](const Path& file) { std::filesystem::resize_file(file.string() + "-wal", 0); }));
}

TEST(FileUnderTheWriter, WhoseIndexIsTruncatedIsLost) {
  expect_lost(
      Sabotaged([](const Path& file) { std::filesystem::resize_file(file.string() + "-shm", 0); }));
}

TEST(FileUnderTheWriter, ThatIsReplacedIsLostAndTheOtherUntouched) {
  const TempFolder elsewhere;
  make_run(elsewhere / "other", {plain_step(1, 0), plain_step(1, 1)});
  const auto other = elsewhere / "other" / kFileName;
  const Sabotaged run([&](const Path& file) {
    std::filesystem::copy_file(other, file.string() + ".2");
    std::filesystem::rename(file.string() + ".2", file);
  });
  expect_lost(run);
  EXPECT_TRUE(read_file(run.file()) == read_file(other));
}

TEST(FileUnderTheWriter, ThatIsWrittenOverInPlaceIsLostAndTheOtherUntouched) {
  const TempFolder elsewhere;
  make_run(elsewhere / "other", {plain_step(1, 0), plain_step(1, 1)});
  const auto other = elsewhere / "other" / kFileName;
  const Sabotaged run([&](const Path& file) {
    std::filesystem::remove(file.string() + "-wal");
    std::filesystem::copy_file(other, file, std::filesystem::copy_options::overwrite_existing);
  });
  expect_lost(run);
  EXPECT_TRUE(read_file(run.file()) == read_file(other));
}

TEST(FileUnderTheWriter, WrittenOverWithAnotherRunBesideItsLogIsLost) {
  const TempFolder elsewhere;
  make_run(elsewhere / "other", {plain_step(1, 0), plain_step(1, 1)});
  const auto bytes = read_file(elsewhere / "other" / kFileName);
  expect_lost(Sabotaged([&](const Path& file) { write_file(file, bytes); }));
}

TEST(FileUnderTheWriter, MayBeCheckpointedBySomebodyElse) {
  const Sabotaged run([](const Path& file) {
    auto other = Database::open(file, Database::Mode::kWrite);
    ASSERT_TRUE(other);
    ASSERT_TRUE(other->execute("PRAGMA wal_checkpoint(TRUNCATE)"));
  });
  EXPECT_TRUE(run.told) << run.told.error().message;
  EXPECT_EQ(RunLog::open(run.run())->steps()->size(), 2U);
}

// ---- a record that lacks something

TEST(Writer, NotesSinceWhenAndWhyARecordIsIncomplete) {
  const TempFolder folder;
  FakeClock clock;
  auto writer = Writer::open(folder / "run", clock.function(), Journal::kWal);
  ASSERT_TRUE(writer->add(plain_step(1, 0)));
  ASSERT_TRUE(writer->add(plain_step(1, 1)));
  ASSERT_TRUE(writer->mark_incomplete("the first reason"));
  ASSERT_TRUE(writer->add(plain_step(1, 2)));
  ASSERT_TRUE(writer->mark_incomplete("a later one"));
  ASSERT_TRUE(writer->count({.damaged = 1, .foreign = 2, .duplicate = 3, .late = 4}));
  ASSERT_TRUE(writer->close());
  const auto segments = RunLog::open(folder / "run")->segments();
  ASSERT_EQ(segments->size(), 1U);
  const SegmentInfo& segment = segments->front();
  EXPECT_TRUE(segment.closed);
  EXPECT_EQ(segment.incomplete, "the first reason");
  EXPECT_EQ(segment.incomplete_after, 1U);
  EXPECT_EQ(segment.packets, (PacketCounts{1, 2, 3, 4}));
}

TEST(Writer, ThatIsAbandonedKeepsWhatCameAndIsNotClosed) {
  const TempFolder folder;
  FakeClock clock;
  auto writer = Writer::open(folder / "run", clock.function(), Journal::kWal);
  ASSERT_TRUE(writer->add(plain_step(1, 0)));
  writer->abandon("a thread has failed");
  EXPECT_FALSE(writer->add(plain_step(1, 1)));
  EXPECT_TRUE(writer->close()) << "nothing is left to do";
  const auto log = RunLog::open(folder / "run");
  EXPECT_EQ(log->steps()->size(), 1U);
  const auto segments = log->segments();
  EXPECT_FALSE(segments->front().closed);
  EXPECT_EQ(segments->front().incomplete, "a thread has failed");
  EXPECT_EQ(segments->front().incomplete_after, 0U);
}

TEST(Writer, RemovesWhatAKilledOneLeftOfADatabaseThatItWasMaking) {
  const TempFolder folder;
  std::filesystem::create_directories(folder / "run");
  const auto old = folder / "run" / "presum.db.new-0123";
  const auto under_way = folder / "run" / "presum.db.new-4567";
  for (const auto& file : {old, under_way}) write_file(file, "half of a database");
  std::filesystem::last_write_time(
      old, std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
  make_run(folder / "run", {plain_step(1, 0)});
  EXPECT_FALSE(std::filesystem::exists(old));
  EXPECT_TRUE(std::filesystem::exists(under_way)) << "of another writer";
}

TEST(Writer, AbandonedBeforeItsFirstStepSaysSo) {
  const TempFolder folder;
  FakeClock clock;
  Writer::open(folder / "run", clock.function(), Journal::kWal)->abandon("too early");
  const auto segments = RunLog::open(folder / "run")->segments();
  EXPECT_EQ(segments->front().incomplete, "too early");
  EXPECT_FALSE(segments->front().incomplete_after);
}

TEST(Writer, StepsThatLackPacketsAreReadBackAsSuch) {
  const TempFolder folder;
  StepRecord step = plain_step(1, 0, 2);
  step.workers_expected = 3;
  StepRecord other = plain_step(1, 1, 2);
  other.workers_expected = 3;
  other.missing_replicas = {2};
  make_run(folder / "run", {step, other});
  const auto steps = RunLog::open(folder / "run")->steps();
  EXPECT_EQ((*steps)[0].workers_seen, 2U);
  EXPECT_TRUE((*steps)[0].lacks_packets());
  EXPECT_FALSE((*steps)[1].lacks_packets());
}

// ---- runs that cannot be read

void expect_unreadable(const Path& run, ErrorCode code, const std::string& says) {
  const auto log = RunLog::open(run);
  ASSERT_FALSE(log);
  EXPECT_EQ(log.error().code, code) << log.error().message;
  EXPECT_TRUE(one_line(log.error()));
  EXPECT_NE(log.error().message.find(says), std::string::npos) << log.error().message;
  EXPECT_NE(log.error().message.find(run.string()), std::string::npos) << log.error().message;
}

TEST(RunLogOpen, SaysThatThereIsNoRun) {
  const TempFolder folder;
  expect_unreadable(folder / "absent", ErrorCode::kNotFound, "no such run");
  expect_unreadable(folder.path(), ErrorCode::kNotFound, "it holds no presum.db");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "looking creates nothing";
}

TEST(RunLogOpen, SaysThatAFileIsNotARunLog) {
  const TempFolder folder;
  write_file(folder / "notes.txt", std::string(5000, 'x'));
  expect_unreadable(folder / "notes.txt", ErrorCode::kCorrupt, "not a presum run log");
  write_file(folder / kFileName, "");
  expect_unreadable(folder.path(), ErrorCode::kCorrupt, "not a presum run log");
}

// A file of a stranger's, made from a run log.
class ForeignRun : public ::testing::Test {
 protected:
  void SetUp() override {
    FakeClock clock;
    Writer writer = open_writer(folder_ / "run", clock);
    for (std::uint64_t s = 0; s < 5; ++s) ASSERT_TRUE(writer.add(plain_step(1, s)));
    Finding finding;
    finding.check = "worker-outlier";
    ASSERT_TRUE(writer.replace({writer.segment(), 0, 0}, {&finding, 1}, {}));
    ASSERT_TRUE(writer.close());
  }
  Path run() const { return folder_ / "run"; }
  void change(const std::string& statements) const {
    auto db = database(run(), Database::Mode::kWrite);
    const auto done = db.execute(statements.c_str());
    ASSERT_TRUE(done) << done.error().message;
  }
  void expect_refused(const std::string& says) const {
    expect_unreadable(run(), ErrorCode::kCorrupt, says);
  }

  TempFolder folder_;
};

constexpr const char* kEndless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) ";

TEST_F(ForeignRun, WithAViewInThePlaceOfATableIsRefused) {
  change(
      fmt::format("ALTER TABLE missing_worker RENAME TO other; CREATE VIEW missing_worker AS {} "
                  "SELECT x AS step_id, x AS replica FROM n",
                  kEndless));
  expect_refused("missing_worker is not a table");
}

TEST_F(ForeignRun, WithAnotherViewIsRefused) {
  change(
      fmt::format("DROP VIEW groups; CREATE VIEW groups AS {} SELECT x AS step FROM n", kEndless));
  expect_refused("view groups is another");
}

TEST_F(ForeignRun, WithAComputedColumnIsRefused) {
  change(
      "ALTER TABLE note RENAME TO other; CREATE TABLE note (id INTEGER PRIMARY KEY, "
      "segment INTEGER, rank INTEGER, text TEXT AS (hex(zeroblob(300000000))))");
  expect_refused("table note has other columns");
}

TEST_F(ForeignRun, WithoutAColumnIsRefused) {
  change("DROP VIEW steps; ALTER TABLE step DROP COLUMN signal");
  expect_refused("table step has other columns");
}

TEST_F(ForeignRun, MayHaveTablesAndColumnsOfItsOwn) {
  change("CREATE TABLE mine (x); ALTER TABLE note ADD COLUMN mine; CREATE VIEW v AS SELECT 1");
  const auto log = RunLog::open(run());
  ASSERT_TRUE(log) << log.error().message;
  EXPECT_EQ(log->steps()->size(), 5U);
}

TEST_F(ForeignRun, EvidenceThatIsNestedWithoutEndIsLeftOut) {
  const std::string deep = std::string(150'000, '[') + std::string(150'000, ']');
  for (const std::string& text : {"{\"a\":" + deep + ",\"b\":1}", deep, "[" + deep}) {
    change(
        fmt::format("UPDATE finding SET evidence='{}', ranks='{}', hosts='{}'", text, text, text));
    const auto findings = RunLog::open(run())->findings();
    ASSERT_TRUE(findings);
    EXPECT_EQ(findings->size(), 1U);
    for (const auto& [name, value] : findings->front().evidence) {
      const auto* shown = std::get_if<std::string>(&value);
      EXPECT_TRUE(shown == nullptr || shown->size() < 100) << name;
    }
  }
}

TEST_F(ForeignRun, TextThatIsNoUtf8IsReadAsText) {
  change("UPDATE segment SET presum_version = CAST(x'41ff42' AS TEXT)");
  EXPECT_EQ(RunLog::open(run())->segments()->front().presum_version, "A\uFFFDB");
}

TEST_F(ForeignRun, WithAStepTwiceIsRefused) {
  change(
      "PRAGMA legacy_alter_table = ON; CREATE TABLE other AS SELECT * FROM step; DROP TABLE step; "
      "ALTER TABLE other RENAME TO step; UPDATE step SET step = 3");
  const auto log = RunLog::open(run());
  ASSERT_TRUE(log) << log.error().message;
  const auto steps = log->steps();
  ASSERT_FALSE(steps);
  EXPECT_EQ(steps.error().code, ErrorCode::kCorrupt);
}

// The end of a journal: a name of another one, its length, its checksum and eight fixed bytes.
std::string journal_that_names(const std::string& name) {
  std::uint32_t sum = 0;
  for (const char c : name) sum += static_cast<std::uint32_t>(static_cast<signed char>(c));
  const auto big_endian = [](std::uint32_t value) {
    std::string out;
    for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(value >> shift);
    return out;
  };
  const std::string magic("\xd9\xd5\x05\xf9\x20\xa1\x63\xd7", 8);
  std::string out =
      magic + big_endian(0) + big_endian(0) + big_endian(1) + big_endian(512) + big_endian(4096);
  out.resize(512);
  return out + big_endian(1) + name + big_endian(static_cast<std::uint32_t>(name.size())) +
         big_endian(sum) + magic;
}

TEST_F(ForeignRun, WhoseJournalNamesAnotherFileDeletesNothing) {
  const auto other = folder_ / "other.txt";
  write_file(other, "the user's own");
  write_file((run() / kFileName).string() + "-journal", journal_that_names(other.string()));
  const auto log = RunLog::open(run());
  EXPECT_FALSE(log && log->steps());
  EXPECT_EQ(read_file(other), "the user's own");
}

TEST_F(ForeignRun, WithAPipeForAJournalIsNotWaitedFor) {
  for (const char* suffix : {"-journal", "-wal", "-shm"}) {
    const auto beside = (run() / kFileName).string() + suffix;
    ASSERT_EQ(mkfifo(beside.c_str(), 0600), 0);
    expect_refused("is not a regular file");
    FakeClock clock;
    EXPECT_FALSE(Writer::open(run(), clock.function(), Journal::kWal));
    std::filesystem::remove(beside);
  }
}

TEST_F(ForeignRun, AQueryWithoutEndIsGivenUp) {
  auto db = Database::open(run() / kFileName, Database::Mode::kRead, std::chrono::milliseconds(50));
  ASSERT_TRUE(db);
  auto count = db->prepare(fmt::format("{} SELECT count(*) FROM n", kEndless));
  ASSERT_TRUE(count);
  const auto row = count->next();
  ASSERT_FALSE(row);
  EXPECT_EQ(row.error().code, ErrorCode::kCorrupt);
  EXPECT_TRUE(one_line(row.error()));
  EXPECT_EQ(db->query_integer("SELECT count(*) FROM step"), 5U) << "the next one is answered";
}

TEST_F(ForeignRun, ManyRowsMayTakeLongerThanOne) {
  auto db = Database::open(run() / kFileName, Database::Mode::kRead, std::chrono::milliseconds(50));
  auto rows = db->prepare(fmt::format("{} SELECT x FROM n LIMIT 2000000", kEndless));
  std::uint64_t count = 0;
  while (rows->next().value_or(false)) ++count;
  EXPECT_EQ(count, 2'000'000U);
}

TEST(RunLogOpen, DoesNotWaitForAPipe) {
  const TempFolder folder;
  ASSERT_EQ(mkfifo((folder / kFileName).c_str(), 0600), 0);
  expect_unreadable(folder.path(), ErrorCode::kCorrupt, "not a regular file");
  FakeClock clock;
  EXPECT_FALSE(Writer::open(folder.path(), clock.function(), Journal::kWal));
}

// Cut off or overwritten anywhere: an error or an answer, never a crash.
class DamagedRun : public ::testing::Test {
 protected:
  void SetUp() override {
    std::vector<StepRecord> records;
    for (std::uint64_t s = 0; s < 50; ++s) records.push_back(plain_step(1, s, 8));
    FakeClock clock;
    Writer writer = open_writer(folder_ / "run", clock);
    add_all(writer, records);
    ASSERT_TRUE(writer.replace({writer.segment(), 0, 0}, std::vector<Finding>(20),
                               std::vector<CheckRecord>(24)));
    ASSERT_TRUE(writer.close());
    whole_ = read_file(file());
  }
  Path file() const { return folder_ / "run" / kFileName; }

  // The first error of reading everything, if any.
  std::optional<Error> read_everything() const {
    const auto log = RunLog::open(folder_ / "run");
    if (!log) return log.error();
    if (const auto r = log->steps(); !r) return r.error();
    if (const auto r = log->findings(); !r) return r.error();
    if (const auto r = log->checks(); !r) return r.error();
    if (const auto r = log->modules(); !r) return r.error();
    if (const auto r = log->facts(); !r) return r.error();
    if (const auto r = log->notes(); !r) return r.error();
    if (const auto r = log->for_each_workers([](const auto&, auto) {}); !r) return r.error();
    if (const auto r = log->visit_table("groups", [](auto, auto) {}); !r) return r.error();
    return std::nullopt;
  }

  // Which file, that it is damaged, what to do; what SQLite says comes last.
  void expect_says_what_to_do(const Error& error) const {
    const auto& text = error.message;
    EXPECT_TRUE(one_line(error)) << text;
    EXPECT_TRUE(text.starts_with(file().string() + " is ")) << text;
    EXPECT_NE(text.find("damaged: "), std::string::npos) << text;
    EXPECT_NE(text.find("copy it again from where it was written"), std::string::npos) << text;
  }

  TempFolder folder_;
  std::string whole_;
};

TEST_F(DamagedRun, TruncatedIsAClearError) {
  ASSERT_FALSE(read_everything());
  for (const double share : {0.02, 0.3, 0.7, 0.95}) {
    const auto kept = static_cast<std::size_t>(share * static_cast<double>(whole_.size()));
    write_file(file(), whole_.substr(0, kept));
    const auto error = read_everything();
    ASSERT_TRUE(error) << share;
    EXPECT_EQ(error->code, ErrorCode::kCorrupt) << error->message;
    expect_says_what_to_do(*error);
  }
}

TEST_F(DamagedRun, FlippedBytesNameTheFileAndWhatToDo) {
  std::mt19937_64 random(5);
  int errors = 0;
  for (int round = 0; round < 60; ++round) {
    std::string damaged = whole_;
    constexpr std::size_t kPage = 4096;
    const std::size_t header = random() % (damaged.size() / kPage) * kPage;  // where pages begin
    for (std::size_t i = 0; i < 3; ++i)
      damaged[header + i] ^= static_cast<char>(1 + random() % 255);
    write_file(file(), damaged);
    const auto error = read_everything();
    if (!error) continue;
    ++errors;
    expect_says_what_to_do(*error);
  }
  EXPECT_GT(errors, 30);
}

TEST_F(DamagedRun, WithoutATableIsDamaged) {
  for (const char* sql : {"DROP TABLE step", "DROP TABLE fact", "DROP VIEW missing"}) {
    write_file(file(), whole_);
    ASSERT_TRUE(database(folder_ / "run", Database::Mode::kWrite).execute(sql));
    const auto error = read_everything();
    ASSERT_TRUE(error) << sql;
    expect_says_what_to_do(*error);
  }
}

TEST_F(DamagedRun, OverwrittenPagesNeverCrash) {
  std::mt19937_64 random(3);
  int errors = 0;
  for (int round = 0; round < 60; ++round) {
    std::string damaged = whole_;
    const std::size_t at = random() % damaged.size();
    for (std::size_t i = at; i < std::min(at + 2000, damaged.size()); ++i) {
      damaged[i] = static_cast<char>(random());
    }
    write_file(file(), damaged);
    const auto error = read_everything();
    if (!error) continue;
    ++errors;
    EXPECT_EQ(error->code, ErrorCode::kCorrupt) << error->message;
    expect_says_what_to_do(*error);
  }
  EXPECT_GT(errors, 30);
}

// ---- samples and their salt

// The reference implementation's vector for the bytes 0 to 7 under the key 0 to 15.
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

// ---- what a worker was given

TEST(WorkerData, EveryColumnSurvives) {
  const TempFolder folder;
  make_run(folder / "run", {full_step(1)});
  const Path run = folder / "run";
  auto db = database(run);
  EXPECT_EQ(db.query_integer("SELECT rows FROM worker_step WHERE replica = 2"), 1ULL << 33);
  EXPECT_EQ(db.query_integer("SELECT thinned FROM worker_step WHERE replica = 2"), 25U);
  EXPECT_EQ(
      read_blob<std::uint64_t>(run, "SELECT indices FROM worker_step WHERE indices IS NOT NULL"),
      (Words{40, 30}));
  EXPECT_EQ(
      read_blob<std::uint64_t>(run, "SELECT states FROM worker_step WHERE states IS NOT NULL"),
      (Words{0xFFFFFFFFFFFFFFF5ULL, 2, 0x8000000000000002ULL}));
}

TEST(WorkerData, WhatIsNotKnownIsNull) {
  const TempFolder folder;
  StepRecord record = plain_step(1, 0, 2);
  record.workers[1].samples.rows = 9;  // all hashes were thinned out, no indices
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
  const Path run = folder / "run";
  auto db = database(run);
  const auto where = [&](const char* condition) {
    return db.query_integer(std::string("SELECT sum(1 << replica) FROM worker_step WHERE ") +
                            condition);
  };
  EXPECT_EQ(where("length(states) = 48"), 0b00101U);
  EXPECT_EQ(where("states IS NULL"), 0b10010U) << "as the first worker's";
  EXPECT_EQ(where("length(states) = 0"), 0b01000U) << "none, unlike the first worker's";
  EXPECT_EQ(read_blob<std::uint64_t>(run, "SELECT states FROM worker_step WHERE replica = 2"),
            (Words{1, 1, 10, 1, 2, 12}));
}

TEST(WorkerData, StatesOfAnotherThanTheFirstWorkerAreKept) {
  const TempFolder folder;
  StepRecord record = plain_step(1, 0, 2);
  record.workers[1].states = {{1, StateHash::Kind::kParameters, 10}};
  make_run(folder / "run", {record});
  auto db = database(folder / "run");
  EXPECT_EQ(db.query_integer("SELECT states IS NULL FROM worker_step WHERE replica = 0"), 1U);
  EXPECT_EQ(db.query_integer("SELECT length(states) FROM worker_step WHERE replica = 1"), 24U);
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
  records[8].workers[1].fingerprints.clear();  // one step without is no change
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
  other.model.module = 1;
  auto shard = with_fingerprints(1, 0, {7});
  shard.model.shard = 2;
  make_run(folder / "run",
           {with_fingerprints(1, 0, {7}), other, shard, with_fingerprints(1, 1, {7}, 31)});
  make_run(folder / "run", {with_fingerprints(2, 0, {7})});
  auto db = database(folder / "run");
  EXPECT_EQ(db.query_integer("SELECT count(*) FROM fingerprint WHERE value = 7"), 5U);
  EXPECT_EQ(db.query_integer("SELECT count(*) FROM fingerprint WHERE segment = 2"), 1U);
}

// ---- a worker's last words

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
  auto db = database(folder / "run");
  EXPECT_EQ(db.query_integer("SELECT count(*) FROM final_state"), 1U);
  EXPECT_EQ(db.query_integer("SELECT optimizer_steps FROM final_state WHERE replica = 3"), 501U);
  EXPECT_EQ(read_blob<std::uint64_t>(folder / "run", "SELECT states FROM final_state"),
            (Words{9, 1, 0xFFFFFFFFFFFFFFFFULL}));
}

// ---- findings

Finding full_finding() {
  Finding f;
  f.model.module = 2;
  f.model.shard = 3;
  f.check = "duplicate-data";
  f.also = {"pair-too-similar", "too-consistent"};
  f.severity = Severity::kCritical;
  f.ranks = {0, 7, 4'294'967'295U};
  f.hosts = {"node-1", "node-2"};
  f.first_step = 3;
  f.last_step = 1ULL << 40;
  f.confidence = 0.75;
  f.title = "Ranks 0 and 7 read the same samples";
  f.evidence = {{"share", 0.5}, {"samples", std::int64_t{-3}}, {"sampler", "Random\"Sampler"}};
  f.remedy = "Give every worker its own part.";
  f.resembles = "pytorch/pytorch#31771";
  return f;
}

void expect_equal(const Finding& got, const Finding& want) {
  EXPECT_EQ(got.model.module, want.model.module);
  EXPECT_EQ(got.model.shard, want.model.shard);
  EXPECT_EQ(got.check, want.check);
  EXPECT_EQ(got.also, want.also);
  EXPECT_EQ(got.severity, want.severity);
  EXPECT_EQ(got.ranks, want.ranks);
  EXPECT_EQ(got.hosts, want.hosts);
  EXPECT_EQ(got.first_step, want.first_step);
  EXPECT_EQ(got.last_step, want.last_step);
  EXPECT_EQ(got.confidence, want.confidence);
  EXPECT_EQ(got.title, want.title);
  EXPECT_EQ(got.evidence, want.evidence);
  EXPECT_EQ(got.remedy, want.remedy);
  EXPECT_EQ(got.resembles, want.resembles);
}

using Findings = std::vector<Finding>;
using Checks = std::vector<CheckRecord>;

// A run with those findings of model (2, 3), closed.
void make_judged_run(const Path& folder, const Findings& findings, const Checks& checks = {}) {
  FakeClock clock;
  Writer writer = open_writer(folder, clock);
  const auto replaced = writer.replace({writer.segment(), 2, 3}, findings, checks);
  ASSERT_TRUE(replaced) << replaced.error().message;
  ASSERT_TRUE(writer.close());
}

Findings findings_in(const Path& run) {
  const auto log = RunLog::open(run);
  auto findings = log ? log->findings() : log.error();
  EXPECT_TRUE(findings) << findings.error().message;
  return findings.value_or(Findings());
}

TEST(Findings, EveryFieldSurvives) {
  const TempFolder folder;
  make_judged_run(folder / "run", {full_finding()});
  const Findings got = findings_in(folder / "run");
  ASSERT_EQ(got.size(), 1U);
  EXPECT_EQ(got[0].model.segment, 1U) << "that of the writer";
  expect_equal(got[0], full_finding());
}

TEST(Findings, EmptyOnesSurvive) {
  const TempFolder folder;
  Finding bare;
  bare.model.module = 2;
  bare.model.shard = 3;
  make_judged_run(folder / "run", {bare});
  const Findings got = findings_in(folder / "run");
  ASSERT_EQ(got.size(), 1U);
  expect_equal(got[0], bare);
}

TEST(Findings, HostileTextSurvives) {
  const TempFolder folder;
  const std::string hostile("'); DROP TABLE finding; --\0\x1B[31m\n\t\"\\ \xF0\x9F\x98\x80 {}]",
                            44);
  Finding f = full_finding();
  f.title = f.remedy = f.resembles = f.check = hostile;
  f.hosts = f.also = {hostile, ""};
  f.evidence = {{hostile, hostile}, {"", ""}};
  make_judged_run(folder / "run", {f, full_finding()});
  const Findings got = findings_in(folder / "run");
  ASSERT_EQ(got.size(), 2U);
  expect_equal(got[0], f);
}

TEST(Findings, TextThatIsNotUtf8IsMended) {
  const TempFolder folder;
  Finding f = full_finding();
  f.hosts = {"node\xFF"};
  f.evidence = {{"\xC3", "a\xFE"}};
  make_judged_run(folder / "run", {f});
  const Findings got = findings_in(folder / "run");
  ASSERT_EQ(got.size(), 1U);
  EXPECT_EQ(got[0].hosts, std::vector<std::string>{"node\xEF\xBF\xBD"});
  ASSERT_EQ(got[0].evidence.size(), 1U);
  EXPECT_EQ(std::get<std::string>(got[0].evidence[0].second), "a\xEF\xBF\xBD");
}

TEST(Findings, NumbersThatAreNotFiniteComeBackAsUnknown) {
  const TempFolder folder;
  Finding f = full_finding();
  f.evidence = {
      {"nan", NAN}, {"inf", INFINITY}, {"low", -INFINITY}, {"one", 1.0}, {"tiny", 5e-324}};
  make_judged_run(folder / "run", {f});
  const auto evidence = findings_in(folder / "run").at(0).evidence;
  ASSERT_EQ(evidence.size(), 5U);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(std::isnan(std::get<double>(evidence[i].second))) << evidence[i].first;
  }
  EXPECT_EQ(std::get<double>(evidence[3].second), 1.0) << "a real number stays one";
  EXPECT_EQ(std::get<double>(evidence[4].second), 5e-324);
}

TEST(Findings, ComeWorstFirstThenByStep) {
  const TempFolder folder;
  Findings all(4, full_finding());
  all[0].severity = Severity::kInfo;
  all[1].first_step = 9;
  all[2].first_step = 5;
  all[3].severity = Severity::kWarning;
  make_judged_run(folder / "run", all);
  const Findings got = findings_in(folder / "run");
  ASSERT_EQ(got.size(), 4U);
  expect_equal(got[0], all[2]);
  expect_equal(got[1], all[1]);
  expect_equal(got[2], all[3]);
  expect_equal(got[3], all[0]);
  auto db = database(folder / "run");
  auto row = db.prepare("SELECT severity, check_id, ranks, first_step FROM findings");
  ASSERT_TRUE(row) << row.error().message;
  for (const char* severity : {"critical", "critical", "warning", "info"}) {
    ASSERT_TRUE(*row->next());
    EXPECT_EQ(row->text(0), severity);
    EXPECT_EQ(row->text(2), "[0,7,4294967295]");
  }
}

TEST(Findings, ReplaceReplacesThoseOfItsModelOnly) {
  const TempFolder folder;
  make_judged_run(folder / "run", {full_finding()});
  FakeClock clock;
  Writer writer = open_writer(folder / "run", clock);
  Finding other = full_finding();
  other.model.module = other.model.shard = 0;
  ASSERT_TRUE(writer.replace({writer.segment(), 0, 0}, Findings{other}, Checks{{.check = "a"}}));
  const Checks three = {{.check = "a"}, {.check = "b"}, {.check = "c"}};
  ASSERT_TRUE(writer.replace({writer.segment(), 2, 3}, Findings(3, full_finding()), three));
  Finding last = full_finding();
  last.title = "Only this one is left";
  ASSERT_TRUE(writer.replace({writer.segment(), 2, 3}, Findings{last}, Checks{{.check = "a"}}));
  ASSERT_TRUE(writer.close());
  const Findings got = findings_in(folder / "run");
  ASSERT_EQ(got.size(), 3U) << "of the segment before, of the other model, and the last one";
  EXPECT_EQ(got[0].model.segment, 1U);
  EXPECT_EQ(got[1].model.segment, 2U);
  EXPECT_EQ(got[1].model.module, 0U);
  EXPECT_EQ(got[2].title, last.title);
  EXPECT_EQ(RunLog::open(folder / "run")->checks()->size(), 2U);
  FakeClock again;
  Writer empty = open_writer(folder / "run", again);
  ASSERT_TRUE(empty.replace({empty.segment(), 2, 3}, {}, {}));
  ASSERT_TRUE(empty.close());
  EXPECT_EQ(findings_in(folder / "run").size(), 3U);
}

TEST(Findings, AreReadAsOfTheLastCommit) {
  const TempFolder folder;
  FakeClock clock;
  Writer writer = open_writer(folder / "run", clock);
  ASSERT_TRUE(writer.replace({writer.segment(), 2, 3}, Findings{full_finding()}, {}));
  EXPECT_TRUE(findings_in(folder / "run").empty());
  clock.advance(1.1);
  ASSERT_TRUE(writer.tick());
  EXPECT_EQ(findings_in(folder / "run").size(), 1U);
}

// What someone else wrote into the file must not end the reader.
TEST(Findings, FromAFileThatSomeoneChangedNeverCrash) {
  const TempFolder folder;
  make_judged_run(folder / "run", {full_finding()}, {{.check = "a"}});
  const std::string deep(100'000, '[');
  for (const std::string& value :
       {std::string("x"), std::string("{"), std::string("null"), std::string("7"), deep,
        std::string("[1,\"a\",null,{\"b\":[1]},-1,1e999]"), std::string("{\"a\":[1,2],\"b\":true}"),
        std::string("{\"a\":99999999999999999999}"), std::string("\xFF"), std::string()}) {
    auto db = database(folder / "run", Database::Mode::kWrite);
    auto update = db.prepare(
        "UPDATE finding SET also = ?1, ranks = ?1, hosts = ?1, evidence = ?1, severity = ?1, "
        "first_step = ?1, confidence = ?1");
    ASSERT_TRUE(update->with(value).run());
    ASSERT_TRUE(db.execute("UPDATE check_state SET state = -5"));
    EXPECT_EQ(findings_in(folder / "run").size(), 1U);
    const auto checks = RunLog::open(folder / "run")->checks();
    ASSERT_TRUE(checks);
    EXPECT_LE(checks->at(0).record.state, CheckRecord::State::kNotPossible);
  }
}

TEST(Findings, WhatIsNotARankOrATextIsLeftOut) {
  const TempFolder folder;
  make_judged_run(folder / "run", {full_finding()});
  ASSERT_TRUE(database(folder / "run", Database::Mode::kWrite)
                  .execute("UPDATE finding SET ranks='[3,\"a\",-1,null,4]', hosts='[1,\"b\"]', "
                           "evidence='{\"list\":[1,2],\"flag\":true}'"));
  const Finding got = findings_in(folder / "run").at(0);
  EXPECT_EQ(got.ranks, (std::vector<std::uint32_t>{3, 4}));
  EXPECT_EQ(got.hosts, std::vector<std::string>{"b"});
  ASSERT_EQ(got.evidence.size(), 2U);
  EXPECT_EQ(std::get<std::string>(got.evidence[0].second), "[1,2]");
  EXPECT_EQ(std::get<std::string>(got.evidence[1].second), "true");
}

TEST(Checks, SurviveInTheirOrder) {
  const TempFolder folder;
  const Checks want = {{"zero-gradient", CheckRecord::State::kFound, ""},
                       {"duplicate-data", CheckRecord::State::kPassed, "512 samples"},
                       {"epoch-not-set", CheckRecord::State::kNotTriggered, "no second epoch"},
                       {"shared-rng", CheckRecord::State::kNotPossible, "it's off"}};
  make_judged_run(folder / "run", {}, want);
  const auto log = RunLog::open(folder / "run");
  const auto got = *log->checks();
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(got[i].model.segment, 1U);
    EXPECT_EQ(got[i].model.module, 2U);
    EXPECT_EQ(got[i].model.shard, 3U);
    EXPECT_EQ(got[i].record.check, want[i].check);
    EXPECT_EQ(got[i].record.state, want[i].state);
    EXPECT_EQ(got[i].record.reason, want[i].reason);
  }
}

// ---- detectors, preflight

TEST(DetectorState, IsTheLastOneOfAnySegment) {
  const TempFolder folder;
  const std::string bytes("\0state\xFF\0", 8);
  FakeClock clock;
  {
    Writer writer = open_writer(folder / "run", clock);
    EXPECT_EQ(*writer.saved_detector(2, 3), std::nullopt);
    ASSERT_TRUE(writer.save_detector(2, 3, "before"));
    ASSERT_TRUE(writer.save_detector(2, 3, bytes));
    ASSERT_TRUE(writer.save_detector(0, 0, ""));
    EXPECT_EQ(*writer.saved_detector(2, 3), bytes) << "also before it is committed";
    ASSERT_TRUE(writer.close());
  }
  {
    Writer writer = open_writer(folder / "run", clock);
    EXPECT_EQ(*writer.saved_detector(2, 3), bytes);
    EXPECT_EQ(*writer.saved_detector(0, 0), "");
    EXPECT_EQ(*writer.saved_detector(2, 0), std::nullopt);
    ASSERT_TRUE(writer.save_detector(2, 3, "after"));
    ASSERT_TRUE(writer.close());
  }
  EXPECT_EQ(*open_writer(folder / "run", clock).saved_detector(2, 3), "after");
  auto db = database(folder / "run");
  EXPECT_EQ(db.query_integer("SELECT segment FROM detector_state WHERE module = 2"), 2U);
}

TEST(Preflight, LeavesItsExitCodeInItsSegment) {
  const TempFolder folder;
  make_run(folder / "run", {plain_step(1, 0)});
  FakeClock clock;
  Writer writer = open_writer(folder / "run", clock);
  ASSERT_TRUE(writer.preflight(1));
  ASSERT_TRUE(writer.preflight(2));
  ASSERT_TRUE(writer.close());
  auto db = database(folder / "run");
  auto row = db.prepare("SELECT preflight_exit_code FROM segment ORDER BY segment");
  ASSERT_TRUE(*row->next());
  EXPECT_EQ(row->type(0), SQLITE_NULL);
  ASSERT_TRUE(*row->next());
  EXPECT_EQ(row->integer(0), 2U);
  const auto segments = RunLog::open(folder / "run")->segments();
  ASSERT_EQ(segments->size(), 2U);
  EXPECT_EQ(segments->at(0).preflight_exit_code, std::nullopt);
  EXPECT_EQ(segments->at(1).preflight_exit_code, 2U);
}

// ---- tables for people

using Rows = std::vector<std::vector<RunLog::Cell>>;

Rows table_of(const Path& run, std::string_view name, std::vector<std::string>& columns) {
  Rows out;
  const auto done = RunLog::open(run)->visit_table(name, [&](auto names, auto cells) {
    columns.assign(names.begin(), names.end());
    out.emplace_back(cells.begin(), cells.end());
  });
  EXPECT_TRUE(done) << done.error().message;
  return out;
}

TEST(RunLogTables, BeginWithACallForTheColumnsAlone) {
  const TempFolder folder;
  make_run(folder / "run", {});
  for (const char* name : {"steps", "workers", "groups", "findings", "checks", "audits"}) {
    std::vector<std::string> columns;
    EXPECT_EQ(table_of(folder / "run", name, columns), Rows(1)) << name;
    EXPECT_GT(columns.size(), 5U) << name;
  }
  EXPECT_EQ(RunLog::open(folder / "run")->visit_table("segment", [](auto, auto) {}).error().code,
            ErrorCode::kInvalidArgument);
}

TEST(RunLogTables, HoldChecksInTheirOrder) {
  using State = CheckRecord::State;
  const TempFolder folder;
  FakeClock clock;
  Writer writer = open_writer(folder / "run", clock);
  const std::vector<CheckRecord> checks = {{"d", State::kFound, ""},
                                           {"c", State::kPassed, "p"},
                                           {"b", State::kNotTriggered, "t"},
                                           {"a", State::kNotPossible, "n"}};
  ASSERT_TRUE(writer.replace({writer.segment(), 2, 3}, Findings{full_finding()}, checks));
  ASSERT_TRUE(writer.close());
  std::vector<std::string> columns;
  const auto rows = table_of(folder / "run", "checks", columns);
  EXPECT_EQ(columns, (std::vector<std::string>{"segment", "module", "shard", "check_id", "state",
                                               "reason"}));
  ASSERT_EQ(rows.size(), 5U);
  for (std::size_t i = 0; i < checks.size(); ++i) {
    const auto& [check, state, reason] = checks[i];
    EXPECT_EQ(rows[i + 1],
              (std::vector<RunLog::Cell>{std::int64_t{1}, std::int64_t{2}, std::int64_t{3}, check,
                                         to_string(state), reason}));
  }
  EXPECT_EQ(table_of(folder / "run", "findings", columns).size(), 2U);
}

TEST(RunLogTables, HoldEveryAudit) {
  const TempFolder folder;
  std::vector<StepRecord> steps;
  for (const std::uint64_t wrong : {0, 0, 3}) {
    steps.push_back(plain_step(1, steps.size(), 2));
    AuditRecord audit{.elements = 10, .wrong = wrong, .gradient = Accumulation::kBF16};
    audit.order = SumOrder::kRing;
    steps.back().workers[1].audit = audit;
  }
  make_run(folder / "run", steps);
  std::vector<std::string> columns;
  const auto rows = table_of(folder / "run", "audits", columns);
  ASSERT_EQ(rows.size(), 4U) << "the columns, and three audits of which two found the same";
  const auto column = [&](std::string_view name) {
    return static_cast<std::size_t>(std::ranges::find(columns, name) - columns.begin());
  };
  const std::vector<RunLog::Cell>& last = rows.back();
  ASSERT_EQ(last.size(), columns.size());
  EXPECT_EQ(last[column("step")], RunLog::Cell(std::int64_t{2}));
  EXPECT_EQ(last[column("replica")], RunLog::Cell(std::int64_t{1}));
  EXPECT_EQ(last[column("wrong")], RunLog::Cell(std::int64_t{3}));
  EXPECT_EQ(last[column("gradient")], RunLog::Cell("bf16"));
  EXPECT_EQ(last[column("order")], RunLog::Cell("ring"));
  EXPECT_EQ(last[column("relative_l2")], RunLog::Cell());
  EXPECT_EQ(last[column("repeat")], RunLog::Cell("not-tried"));
}

TEST(Writer, RefusesJudgementsAfterClose) {
  const TempFolder folder;
  FakeClock clock;
  Writer writer = open_writer(folder / "run", clock);
  ASSERT_TRUE(writer.close());
  EXPECT_FALSE(writer.replace({writer.segment(), 0, 0}, {}, {}));
  EXPECT_FALSE(writer.save_detector(0, 0, "x"));
  EXPECT_FALSE(writer.preflight(0));
}

// ---- whole steps, one after the other

// The next step of a cursor, copied; nothing at its end.
std::optional<StepRecord> next_step(StepCursor& cursor) {
  const auto record = cursor.next();
  EXPECT_TRUE(record) << record.error().message;
  return record && *record != nullptr ? std::optional(**record) : std::nullopt;
}

StepCursor cursor_of(const RunLog& log, const StepRecord& like, std::uint64_t from = 0) {
  auto cursor = log.cursor(like.model, from);
  EXPECT_TRUE(cursor) << cursor.error().message;
  return std::move(*cursor);
}

TEST(StepCursor, GivesEverythingThatWasKeptOfAStep) {
  const TempFolder folder;
  const StepRecord want = full_step(1);
  make_run(folder / "run", {want, plain_step(1, 3)});
  const auto log = RunLog::open(folder / "run");
  ASSERT_TRUE(log);
  StepCursor cursor = cursor_of(*log, want);
  const auto got = next_step(cursor);
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
  EXPECT_FALSE(next_step(cursor)) << "steps of other models are left out";
  EXPECT_FALSE(next_step(cursor));
}

TEST(StepCursor, HoldsFingerprintsUntilTheyChange) {
  const TempFolder folder;
  std::vector<StepRecord> steps;
  for (const std::uint64_t value : {7, 7, 8}) {
    steps.push_back(plain_step(1, steps.size(), 2));
    steps.back().workers[1].fingerprints = {{11, value}};
  }
  make_run(folder / "run", steps);
  const auto log = RunLog::open(folder / "run");
  ASSERT_TRUE(log);
  StepCursor cursor = cursor_of(*log, steps[0], 1);
  for (const std::uint64_t value : {7, 8}) {
    const auto step = next_step(cursor);
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
  const auto log = RunLog::open(folder / "run");
  ASSERT_TRUE(log);
  StepCursor cursor = cursor_of(*log, step);
  const auto got = next_step(cursor);
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

TEST(FinalState, IsRead) {
  const TempFolder folder;
  FakeClock clock;
  Writer writer = open_writer(folder / "run", clock);
  packet::Note note;
  note.header.segment = 1;
  note.header.identity = {.replica = 1, .replicas = 2};
  note.state.optimizer_steps = 17;
  note.state.states = {{5, StateHash::Kind::kParameters, 6}};
  ASSERT_TRUE(writer.add(note));
  ASSERT_TRUE(writer.close());
  const auto states = RunLog::open(folder / "run")->final_states();
  ASSERT_TRUE(states);
  ASSERT_EQ(states->size(), 1U);
  EXPECT_EQ(states->at(0).replica, 1U);
  EXPECT_EQ(states->at(0).optimizer_steps, 17U);
  EXPECT_EQ(states->at(0).states.at(0).value, 6U);
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

TEST(StepCursor, TakesACountThatIsNoneForZero) {
  const TempFolder folder;
  for (const double bad : std::array{double{NAN}, -1.0, 0x1p64, 1e300}) {
    const Path run = folder / fmt::format("{}", bad);
    const StepRecord record = full_step(1);
    make_run(run, {record});
    {
      Database db = database(run, Database::Mode::kWrite);
      auto change = db.prepare("UPDATE worker_step SET micro = ?");
      const std::array<double, 3> micro = {1.5, 2, bad};
      change->bind_blob(1, std::as_bytes(std::span(micro)));
      ASSERT_TRUE(change->run());
    }
    const auto log = RunLog::open(run);
    ASSERT_TRUE(log);
    StepCursor cursor = cursor_of(*log, record);
    const auto step = next_step(cursor);
    ASSERT_TRUE(step);
    EXPECT_EQ(step->workers.at(0).micro.at(0).loss, 1.5);
    EXPECT_EQ(step->workers.at(0).micro.at(0).tokens, 0U) << bad;
  }
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
                          .norm_mean = normal_(random_),
                          .norm_std = normal_(random_),
                          .nonfinite = 0,
                          .norms = std::vector<float>(kWorkers, 1),
                          .maxima = std::vector<float>(kWorkers, 1),
                          .fingerprints = std::vector<std::uint32_t>(kWorkers, 1)});
    }
    r.cosines.assign(kWorkers * (kWorkers - 1) / 2, 0.5F);
    return r;
  }

  // What the default settings add: a slice of the states, samples with their indices, 31 kinds of
  // fingerprints of which some change at every step.
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

  // Bytes per step of a run of steps made by `make`.
  template <class Make>
  std::uintmax_t measure(const char* what, Make&& make) {
    const TempFolder folder;
    std::vector<StepRecord> records;
    for (std::uint64_t s = 0; s < kSteps; ++s) records.push_back(make(s));
    make_run(folder / "run", records);
    const auto bytes = std::filesystem::file_size(folder / "run" / kFileName) / kSteps;
    std::printf("%s: %ju bytes per step, %ju per step and worker (8 workers, 10 groups)\n", what,
                bytes, bytes / kWorkers);
    RecordProperty("bytes_per_step", static_cast<int>(bytes));
    return bytes;
  }

 private:
  WorkerRecord worker(std::uint32_t replica) {
    WorkerRecord w = full_step(1).workers[1];
    w.replica = w.rank = replica;
    w.loss = normal_(random_);
    w.grad_norm = normal_(random_);
    w.grad_max = normal_(random_);
    w.cosine_to_others = normal_(random_);
    w.reduced_norm = normal_(random_);
    w.fingerprint = random_();
    w.reduced_fingerprint = random_();
    w.micro.resize(1);
    w.samples.rows = 0;
    w.samples.hashes.clear();
    w.indices.clear();
    w.states.clear();
    w.fingerprints.clear();
    return w;
  }

  std::mt19937_64 random_{7};
  std::normal_distribution<double> normal_{1, 0.1};
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
