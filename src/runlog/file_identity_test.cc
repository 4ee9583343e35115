// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>

#include "runlog/run_testing.h"
#include "runlog/schema.h"
#include "runlog/sqlite.h"

namespace presum::runlog {
namespace {

// ---- changes to the file while it is written

// A run with one committed step, and the outcome of writing after `sabotage`.
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

  Status told;  // the result of the next write, its commit or the close

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

TEST(FileUnderTheWriter, ThatIsDeletedOrCutOffIsLost) {
  namespace fs = std::filesystem;
  expect_lost(Sabotaged([](const Path& file) { fs::remove(file); }));
  expect_lost(Sabotaged([](const Path& file) { fs::remove_all(file.parent_path()); }));
  expect_lost(Sabotaged([](const Path& file) { fs::remove(file.string() + "-wal"); }));
  for (const char* suffix : {"", "-wal", "-shm"}) {
    expect_lost(Sabotaged([&](const Path& file) { fs::resize_file(file.string() + suffix, 0); }));
  }
}

// Another run with the same tables.
class AnotherRun : public ::testing::Test {
 protected:
  void SetUp() override { make_run(folder_ / "other", {plain_step(1, 0), plain_step(1, 1)}); }
  Path file() const { return folder_ / "other" / kFileName; }
  void expect_lost_and_untouched(const Sabotaged& run) const {
    expect_lost(run);
    EXPECT_TRUE(read_file(run.file()) == read_file(file()));
  }

 private:
  TempFolder folder_;
};

TEST_F(AnotherRun, InThePlaceOfTheFileIsNotWritten) {
  expect_lost_and_untouched(Sabotaged([&](const Path& file) {
    std::filesystem::copy_file(this->file(), file.string() + ".2");
    std::filesystem::rename(file.string() + ".2", file);
  }));
}

TEST_F(AnotherRun, CopiedOverTheFileIsNotWritten) {
  expect_lost_and_untouched(Sabotaged([&](const Path& file) {
    std::filesystem::remove(file.string() + "-wal");
    write_file(file, read_file(this->file()));
  }));
}

TEST_F(AnotherRun, CopiedOverTheFileBesideItsLogIsALoss) {
  expect_lost(Sabotaged([&](const Path& file) { write_file(file, read_file(this->file())); }));
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
