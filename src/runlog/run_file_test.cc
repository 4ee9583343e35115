// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "runlog/run_testing.h"
#include "runlog/schema.h"
#include "runlog/sqlite.h"

namespace presum::runlog {
namespace {

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
  // The writer still exists: closed means closed.
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
  const auto steps = read_steps(folder / "run");
  ASSERT_EQ(steps.size(), 2U);
  EXPECT_EQ(steps[1].model.segment, 2U);
  EXPECT_EQ(database(folder / "run").query_integer("SELECT count(DISTINCT run) FROM segment"), 2U);
}

INSTANTIATE_TEST_SUITE_P(All, WriterJournal,
                         ::testing::Values(Journal::kWal, Journal::kExclusive,
                                           Journal::kLocalCopy));

// Sets an environment variable and restores it.
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

// ---- something in the file's place

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

}  // namespace
}  // namespace presum::runlog
