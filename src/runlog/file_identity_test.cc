// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>

#include "runlog/run_testing.h"
#include "runlog/schema.h"
#include "runlog/sqlite.h"

namespace presum::runlog {
namespace {

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

}  // namespace
}  // namespace presum::runlog
