// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "runlog/run_testing.h"
#include "runlog/schema.h"
#include "runlog/sqlite.h"

namespace presum::runlog {
namespace {

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

// An untrusted file, made from a run log.
class ForeignRun : public ::testing::Test {
 protected:
  void SetUp() override {
    FakeClock clock;
    Writer writer = open_writer(folder_ / "run", clock);
    for (std::uint64_t s = 0; s < 5; ++s) ASSERT_TRUE(writer.add(plain_step(1, s)));
    Finding finding;
    finding.check = "rank-outlier";
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

// The end of a journal: another journal's name, its length, its checksum and eight fixed bytes.
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

// A file cut off or overwritten anywhere gives an error or an answer, never a crash.
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

  // The first error from reading everything, if any.
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

  // The message says which file it is, that it is damaged, and what to do; SQLite's message comes
  // last.
  void expect_says_what_to_do(const Error& error) const {
    const auto& text = error.message;
    EXPECT_TRUE(one_line(error)) << text;
    EXPECT_TRUE(text.starts_with(file().string() + " is ")) << text;
    EXPECT_NE(text.find("damaged: "), std::string::npos) << text;
    EXPECT_NE(text.find("copy it again from where it was written"), std::string::npos) << text;
  }

  // Repeats the damage many times: most of it must be noticed.
  template <class Damage>
  void expect_errors(Damage&& damage) const {
    std::mt19937_64 random(5);
    int errors = 0;
    for (int round = 0; round < 60; ++round) {
      std::string damaged = whole_;
      damage(damaged, random);
      write_file(file(), damaged);
      const auto error = read_everything();
      if (!error) continue;
      ++errors;
      EXPECT_EQ(error->code, ErrorCode::kCorrupt) << error->message;
      expect_says_what_to_do(*error);
    }
    EXPECT_GT(errors, 30);
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

// SQLite answers from what is left of the last page.
TEST_F(DamagedRun, CutWithinItsLastPageIsNotOpened) {
  for (const std::size_t lost : {1U, 100U, 4095U}) {
    write_file(file(), whole_.substr(0, whole_.size() - lost));
    const auto log = RunLog::open(folder_ / "run");
    ASSERT_FALSE(log) << lost;
    expect_says_what_to_do(log.error());
  }
}

TEST_F(DamagedRun, FlippedBytesNameTheFileAndWhatToDo) {
  expect_errors([](std::string& bytes, std::mt19937_64& random) {
    constexpr std::size_t kPage = 4096;
    const std::size_t header = random() % (bytes.size() / kPage) * kPage;  // the start of a page
    for (std::size_t i = 0; i < 3; ++i) bytes[header + i] ^= static_cast<char>(1 + random() % 255);
  });
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
  expect_errors([](std::string& bytes, std::mt19937_64& random) {
    const std::size_t at = random() % bytes.size();
    for (std::size_t i = at; i < std::min(at + 2000, bytes.size()); ++i) {
      bytes[i] = static_cast<char>(random());
    }
  });
}

}  // namespace
}  // namespace presum::runlog
