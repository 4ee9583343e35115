// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "presum/run_log.h"
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
  auto steps = log ? log->steps() : tl::unexpected(log.error());
  EXPECT_TRUE(steps) << steps.error().message;
  return steps.value_or(std::vector<StepRecord>());
}

StepRecord plain_step(std::uint32_t segment, std::uint64_t step, std::uint32_t workers = 4) {
  StepRecord r;
  r.segment = segment;
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
  r.module = 2;
  r.shard = 3;
  r.workers_expected = 5;
  r.missing_replicas = {1, 4};
  double next = 0.1;
  for (double* value :
       {&r.loss_mean, &r.loss_std, &r.loss_range, &r.grad_norm_mean, &r.grad_norm_std,
        &r.grad_norm_cv, &r.cosine_mean, &r.cosine_low, &r.cosine_high, &r.consistency,
        &r.reduced_norm, &r.signal, &r.noise, &r.noise_scale, &r.effective_workers, &r.tokens_cv}) {
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
               .maxima = {4, 5, NAN}}};
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
  r.workers[2].replica = 3;
  return r;
}

packet::Hello hello_of(std::uint32_t segment, std::uint32_t replica, std::uint32_t replicas) {
  packet::Hello h;
  h.header.segment = segment;
  h.header.identity = {.replica = replica, .world_rank = 10 + replica, .replicas = replicas};
  h.host = "node-" + std::to_string(replica);
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
  EXPECT_EQ(got.segment, want.segment);
  EXPECT_EQ(got.module, want.module);
  EXPECT_EQ(got.shard, want.shard);
  EXPECT_EQ(got.step, want.step);
  EXPECT_EQ(got.workers_expected, want.workers_expected);
  EXPECT_EQ(got.missing_replicas, want.missing_replicas);
  for (const auto field :
       {&StepRecord::loss_mean, &StepRecord::loss_std, &StepRecord::loss_range,
        &StepRecord::grad_norm_mean, &StepRecord::grad_norm_std, &StepRecord::grad_norm_cv,
        &StepRecord::cosine_mean, &StepRecord::cosine_low, &StepRecord::cosine_high,
        &StepRecord::consistency, &StepRecord::reduced_norm, &StepRecord::signal,
        &StepRecord::noise, &StepRecord::noise_scale, &StepRecord::effective_workers,
        &StepRecord::tokens_cv}) {
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
      "tokens_cv, cosine_source, reduced_disagrees, distinct_gradients, sketch_size FROM steps");
  ASSERT_TRUE(row) << row.error().message;
  ASSERT_TRUE(row->next().value());
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
}

TEST(RunLogViews, EverySourceOfCosinesHasAName) {
  const TempFolder folder;
  std::vector<StepRecord> records;
  for (std::uint64_t i = 0; i <= 4; ++i) {
    records.push_back(plain_step(1, i));
    records.back().cosine_source = static_cast<CosineSource>(i);
  }
  make_run(folder / "run", records);
  auto db = database(folder / "run");
  auto row = db.prepare("SELECT cosine_source FROM steps");
  for (const char* name : {"none", "sketch", "total-norm", "row-sums", "exact"}) {
    ASSERT_TRUE(row->next().value());
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
  ASSERT_TRUE(row->next().value());
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
  hello.groups = {{0xFFFFFFFFFFFFFFF5ULL, 600, "model.layers.3"}};
  ASSERT_TRUE(writer.add(hello));
  add_all(writer, {full_step(1)});
  ASSERT_TRUE(writer.close());
  auto db = database(folder / "run");
  auto group = db.prepare(
      "SELECT \"group\", elements, norm_mean, norm_std, nonfinite, module, shard FROM groups");
  ASSERT_TRUE(group) << group.error().message;
  ASSERT_TRUE(group->next().value());
  EXPECT_EQ(group->text(0), "model.layers.3");
  const double want[] = {600, 1.5, 0.5, 6, 2, 3};
  for (int c = 1; c < 7; ++c) EXPECT_EQ(group->number(c), want[c - 1]) << c;
  auto missing = db.prepare("SELECT replica, step, module, shard FROM missing");
  for (const std::uint32_t replica : {1U, 4U}) {
    ASSERT_TRUE(missing->next().value());
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
  EXPECT_EQ(read_blob<float>(run, "SELECT norms FROM group_values"), (std::vector<float>{1, 2, 3}));
  EXPECT_EQ(read_blob<float>(run, "SELECT maxima FROM group_values")[1], 5.0F);
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
    hello.facts = {{"torch", "2.13.0"}, {"device", "cpu"}};
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
  ASSERT_TRUE(writer.close());

  const auto log = RunLog::open(folder / "run");
  ASSERT_TRUE(log);
  const auto modules = log->modules().value();
  ASSERT_EQ(modules.size(), 1U);
  EXPECT_EQ(modules[0].workers_expected, 3U);
  ASSERT_EQ(modules[0].workers.size(), 2U);
  EXPECT_EQ(modules[0].workers[0].rank, 10U);
  EXPECT_EQ(modules[0].workers[1].host, "node-1");
  const auto facts = log->facts().value();
  ASSERT_EQ(facts.size(), 4U);
  EXPECT_EQ(facts[0].rank, 10U);
  EXPECT_EQ(facts[0].key, "device");
  EXPECT_EQ(facts[3].value, "2.13.0");
  const auto notes = log->notes().value();
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
  EXPECT_EQ(steps[2].segment, 2U);
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

TEST(Writer, LeavesANewerSchemaAlone) {
  const TempFolder folder;
  make_run(folder / "run", {plain_step(1, 0)});
  ASSERT_TRUE(database(folder / "run", Database::Mode::kWrite).execute("PRAGMA user_version=2"));
  const std::string before = read_file(folder / "run" / kFileName);
  expect_refused(folder / "run", ErrorCode::kUnsupported, "newer presum");
  EXPECT_EQ(read_file(folder / "run" / kFileName), before);
  const auto log = RunLog::open(folder / "run");
  ASSERT_FALSE(log);
  EXPECT_EQ(log.error().code, ErrorCode::kUnsupported);
  EXPECT_TRUE(one_line(log.error()));
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

// Cut off or overwritten anywhere: an error or an answer, never a crash.
class DamagedRun : public ::testing::Test {
 protected:
  void SetUp() override {
    std::vector<StepRecord> records;
    for (std::uint64_t s = 0; s < 50; ++s) records.push_back(plain_step(1, s, 8));
    make_run(folder_ / "run", records);
    whole_ = read_file(file());
  }
  Path file() const { return folder_ / "run" / kFileName; }

  // The first error of reading everything, if any.
  std::optional<Error> read_everything() const {
    const auto log = RunLog::open(folder_ / "run");
    if (!log) return log.error();
    if (const auto r = log->steps(); !r) return r.error();
    if (const auto r = log->hard_facts(); !r) return r.error();
    if (const auto r = log->modules(); !r) return r.error();
    if (const auto r = log->facts(); !r) return r.error();
    if (const auto r = log->notes(); !r) return r.error();
    return std::nullopt;
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
    EXPECT_TRUE(one_line(*error)) << error->message;
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
    EXPECT_TRUE(one_line(*error)) << error->message;
  }
  EXPECT_GT(errors, 30);
}

// ---- hard facts

std::vector<HardFact> facts_of(const Path& run) {
  const auto log = RunLog::open(run);
  EXPECT_TRUE(log);
  auto facts = log->hard_facts();
  EXPECT_TRUE(facts) << facts.error().message;
  return *facts;
}

using Ranks = std::vector<std::uint32_t>;

void expect_fact(const HardFact& fact, HardFact::Kind kind, const Ranks& ranks, std::uint64_t first,
                 std::uint64_t last, std::uint64_t steps) {
  EXPECT_EQ(fact.kind, kind);
  EXPECT_EQ(fact.ranks, ranks);
  EXPECT_EQ(fact.first_step, first);
  EXPECT_EQ(fact.last_step, last);
  EXPECT_EQ(fact.steps, steps);
}

std::vector<StepRecord> healthy_steps(std::uint64_t count) {
  std::vector<StepRecord> out;
  for (std::uint64_t s = 0; s < count; ++s) out.push_back(plain_step(1, s));
  return out;
}

TEST(HardFacts, AHealthyRunHasNone) {
  const TempFolder folder;
  make_run(folder / "run", healthy_steps(5));
  EXPECT_TRUE(facts_of(folder / "run").empty());
}

TEST(HardFacts, NonfiniteGradientNamesWorldRanksAndSteps) {
  const TempFolder folder;
  auto steps = healthy_steps(6);
  for (const std::size_t s : {2U, 4U}) {
    for (const std::size_t w : {1U, 3U}) {
      steps[s].workers[w].nonfinite = 9;
      steps[s].workers[w].grad_norm = kNaN;
    }
  }
  make_run(folder / "run", steps);
  const auto facts = facts_of(folder / "run");
  ASSERT_EQ(facts.size(), 1U);
  expect_fact(facts[0], HardFact::Kind::kNonfiniteGradient, {11, 13}, 2, 4, 2);
  EXPECT_EQ(facts[0].segment, 1U);
  EXPECT_EQ(facts[0].module, 0U);
}

TEST(HardFacts, NonfiniteLossIsFound) {
  const TempFolder folder;
  auto steps = healthy_steps(3);
  steps[1].workers[2].loss = INFINITY;
  steps[1].workers[2].loss_nonfinite = true;
  steps[2].workers[0].loss = kNaN;  // none was reported
  make_run(folder / "run", steps);
  const auto facts = facts_of(folder / "run");
  ASSERT_EQ(facts.size(), 1U);
  expect_fact(facts[0], HardFact::Kind::kNonfiniteLoss, {12}, 1, 1, 1);
}

TEST(HardFacts, ZeroGradientIsFoundAndIsNotCalledIdentical) {
  const TempFolder folder;
  auto steps = healthy_steps(2);
  for (const std::size_t w : {0U, 2U}) {
    steps[1].workers[w].grad_norm = 0;
    steps[1].workers[w].fingerprint = 5;
  }
  steps[1].distinct_gradients = 2;
  make_run(folder / "run", steps);
  const auto facts = facts_of(folder / "run");
  ASSERT_EQ(facts.size(), 1U);
  expect_fact(facts[0], HardFact::Kind::kZeroGradient, {10, 12}, 1, 1, 1);
}

TEST(HardFacts, IdenticalGradientsOfTwoOfFourWorkersNameThoseTwo) {
  const TempFolder folder;
  auto steps = healthy_steps(5);
  for (const std::size_t s : {1U, 2U, 3U}) {
    steps[s].workers[3].fingerprint = steps[s].workers[1].fingerprint;
    steps[s].distinct_gradients = 3;
  }
  make_run(folder / "run", steps);
  const auto facts = facts_of(folder / "run");
  ASSERT_EQ(facts.size(), 1U);
  expect_fact(facts[0], HardFact::Kind::kIdenticalGradients, {11, 13}, 1, 3, 3);
}

TEST(HardFacts, MissingWorkerIsNamedByItsWorldRankWhereItIsKnown) {
  const TempFolder folder;
  FakeClock clock;
  Writer writer = open_writer(folder / "run", clock);
  ASSERT_TRUE(writer.add(hello_of(1, 3, 4)));
  for (std::uint64_t s = 0; s < 4; ++s) {
    StepRecord record = plain_step(1, s);
    if (s >= 2) {
      record.workers.pop_back();
      record.missing_replicas = {3};
    }
    add_all(writer, {record});
  }
  ASSERT_TRUE(writer.close());
  const auto facts = facts_of(folder / "run");
  ASSERT_EQ(facts.size(), 1U);
  expect_fact(facts[0], HardFact::Kind::kMissingWorker, {13}, 2, 3, 2);
}

TEST(HardFacts, SegmentsAndModulesAreKeptApart) {
  const TempFolder folder;
  auto first = plain_step(1, 0);
  first.workers[0].nonfinite = 1;
  auto other = plain_step(1, 0);
  other.module = 1;
  other.workers[0].nonfinite = 1;
  make_run(folder / "run", {first, other});
  auto later = plain_step(2, 0);
  later.workers[0].nonfinite = 1;
  make_run(folder / "run", {later});
  const auto facts = facts_of(folder / "run");
  ASSERT_EQ(facts.size(), 3U);
  EXPECT_EQ(facts[1].module, 1U);
  EXPECT_EQ(facts[2].segment, 2U);
}

// ---- size

TEST(RunLogSize, OfAStepIsBounded) {
  constexpr std::uint64_t kSteps = 1000;
  constexpr std::uint32_t kWorkers = 8;
  constexpr std::size_t kGroups = 10;
  const TempFolder folder;
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal(1, 0.1);
  std::vector<StepRecord> records;
  for (std::uint64_t s = 0; s < kSteps; ++s) {
    StepRecord r = full_step(1);
    r.step = s;
    r.missing_replicas.clear();
    r.workers.assign(kWorkers, r.workers[1]);
    for (std::uint32_t i = 0; i < kWorkers; ++i) {
      WorkerRecord& w = r.workers[i];
      w.replica = w.rank = i;
      w.loss = normal(random);
      w.grad_norm = normal(random);
      w.grad_max = normal(random);
      w.cosine_to_others = normal(random);
      w.reduced_norm = normal(random);
      w.fingerprint = random();
      w.reduced_fingerprint = random();
      w.micro.resize(1);
    }
    r.groups.clear();
    for (std::size_t g = 0; g < kGroups; ++g) {
      r.groups.push_back({.id = random(),
                          .norm_mean = normal(random),
                          .norm_std = normal(random),
                          .nonfinite = 0,
                          .norms = std::vector<float>(kWorkers, 1),
                          .maxima = std::vector<float>(kWorkers, 1)});
    }
    r.cosines.assign(kWorkers * (kWorkers - 1) / 2, 0.5F);
    records.push_back(std::move(r));
  }
  make_run(folder / "run", records);
  const auto bytes = std::filesystem::file_size(folder / "run" / kFileName) / kSteps;
  std::printf("%ju bytes per step, %ju per step and worker (8 workers, 10 groups)\n", bytes,
              bytes / kWorkers);
  RecordProperty("bytes_per_step", static_cast<int>(bytes));
  EXPECT_LE(bytes, 3500U);
}

}  // namespace
}  // namespace presum::runlog
