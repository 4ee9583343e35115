// SPDX-License-Identifier: Apache-2.0
#include "runlog/run_file.h"

#include <fmt/format.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "base/random_id.h"
#include "base/try.h"
#include "runlog/file_checks.h"
#include "runlog/schema.h"

namespace presum::runlog {
namespace {

// f_type of file systems whose shared-memory locks, which WAL needs, do not reach other machines.
constexpr std::array<std::uint32_t, 9> kNetworkFileSystems = {
    0x6969,      // NFS
    0xFF534D42,  // CIFS
    0xFE534D42,  // SMB2
    0x517B,      // SMB
    0x0BD00BD0,  // Lustre
    0x47504653,  // GPFS
    0x00C36400,  // Ceph
    0x19830326,  // BeeGFS
    0x65735546,  // FUSE (sshfs, s3fs, ...)
};

Status create_schema(Database& db) {
  // One transaction, so that a reader sees either no database or a complete one.
  return db.execute(
      fmt::format("BEGIN; {} PRAGMA application_id={}; PRAGMA user_version={}; COMMIT;", schema(),
                  kApplicationId, kSchemaVersion)
          .c_str());
}

const char* journal_mode(Journal journal) {
  // WAL with synchronous=NORMAL survives a killed process; a power failure may lose the last
  // commits.
  return journal == Journal::kExclusive
             ? "PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=DELETE;"
             : "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;";
}

// Removes incomplete databases of writers that were killed. A file that is minutes old does not
// belong to a running writer.
void remove_parts(const std::filesystem::path& file) {
  namespace fs = std::filesystem;
  constexpr std::chrono::minutes kOld{10};
  const auto prefix = file.filename().string() + ".new-";
  std::error_code error;
  for (fs::directory_iterator at(file.parent_path(), error), end; !error && at != end;
       at.increment(error)) {
    std::error_code ignored;
    const auto written = fs::last_write_time(at->path(), ignored);
    if (ignored || !at->path().filename().string().starts_with(prefix)) continue;
    if (fs::file_time_type::clock::now() - written > kOld) fs::remove(at->path(), ignored);
  }
}

// Creates the database under a temporary name and links it into place, so that a killed process
// leaves no partial database. Does nothing if the file exists.
Status make_file(const std::filesystem::path& file, Journal journal) {
  std::error_code error;
  if (std::filesystem::exists(file, error)) return {};
  remove_parts(file);
  const std::filesystem::path part =
      fmt::format("{}.new-{:016x}", file.string(), base::random_id());
  {
    PRESUM_ASSIGN(auto db, Database::open(part, Database::Mode::kWrite));
    PRESUM_TRY(db.execute(journal_mode(journal)));
    PRESUM_TRY(create_schema(db));
  }
  std::filesystem::create_hard_link(part, file, error);
  if (error && error != std::errc::file_exists) std::filesystem::rename(part, file, error);
  std::error_code ignored;
  std::filesystem::remove(part, ignored);
  if (!error || error == std::errc::file_exists) return {};
  return fail(ErrorCode::kIo, fmt::format("cannot make {}: {}", file.string(), error.message()));
}

Status prepare_file(Database& db, const std::filesystem::path& file, Journal journal) {
  PRESUM_ASSIGN(const auto tables, db.query_integer("SELECT count(*) FROM sqlite_master"));
  if (tables != 0) {
    PRESUM_TRY(check_identity(db, file));
    PRESUM_TRY(check_shape(db, file));
  }
  PRESUM_TRY(db.execute(journal_mode(journal)));
  return tables == 0 ? create_schema(db) : Status{};
}

Status make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    return fail(ErrorCode::kIo,
                fmt::format("cannot create run folder {}: {}", folder.string(), error.message()));
  }
  return {};
}

// A new file on a local file system, with the current contents of `target`.
Result<std::filesystem::path> local_copy(const std::filesystem::path& target) {
  std::error_code error;
  auto file = std::filesystem::temp_directory_path(error);
  if (error) return fail(ErrorCode::kIo, "no folder for temporary files: " + error.message());
  file /= fmt::format("presum-{}-{:016x}.db", getpid(), base::random_id());
  if (std::filesystem::exists(target, error)) std::filesystem::copy_file(target, file, error);
  if (error && error != std::errc::no_such_file_or_directory) {
    return fail(ErrorCode::kIo, fmt::format("{}: {}", file.string(), error.message()));
  }
  return file;
}

Status not_in_the_way(const std::filesystem::path& file) {
  std::error_code error;
  if (!std::filesystem::exists(file, error) || std::filesystem::is_regular_file(file, error)) {
    return {};
  }
  return fail(ErrorCode::kIo,
              fmt::format("unable to open {}: it is in the way, and not a file", file.string()));
}

}  // namespace

Journal choose_journal(const std::filesystem::path& folder) {
  struct statfs info {};
  if (statfs(folder.c_str(), &info) != 0) return Journal::kWal;
  const auto type = static_cast<std::uint32_t>(info.f_type);
  const bool network = std::find(kNetworkFileSystems.begin(), kNetworkFileSystems.end(), type) !=
                       kNetworkFileSystems.end();
  return network ? Journal::kExclusive : Journal::kWal;
}

Result<RunFile> RunFile::open(const std::filesystem::path& folder, Journal journal) {
  PRESUM_TRY(make_folder(folder));
  RunFile out;
  const auto target = folder / kFileName;
  out.journal_ = journal;
  out.file_ = target;
  if (journal == Journal::kLocalCopy) {
    PRESUM_ASSIGN(out.file_, local_copy(target));
    out.copy_to_ = target;
  }
  PRESUM_TRY(not_in_the_way(out.file_));
  PRESUM_TRY(check_side_files(out.file_));
  PRESUM_TRY(make_file(out.file_, journal));
  PRESUM_ASSIGN(out.db_, Database::open(out.file_, Database::Mode::kWrite));
  PRESUM_TRY(prepare_file(out.db_, target, journal));
  return out;
}

void RunFile::watch(std::uint32_t segment, std::string run) {
  segment_ = segment;
  run_ = std::move(run);
  identity_.emplace(file_, journal_ != Journal::kExclusive);
}

Status RunFile::check(std::uint64_t last_step) {
  const auto seen = identity_->state();
  if (seen == FileIdentity::State::kOurs) return {};
  if (seen == FileIdentity::State::kTouched && holds_the_segment() && holds_the_step(last_step)) {
    identity_->remember();
    return {};
  }
  gone_ = true;
  return fail(ErrorCode::kIo,
              fmt::format("{} is no longer the file that was written: it was deleted, "
                          "replaced or changed by another process; the record is lost",
                          file_.string()));
}

// Whether the file without its log has this segment. (The log is written into the file when a
// segment begins.)
bool RunFile::holds_the_segment() const {
  auto alone = Database::open(file_, Database::Mode::kReadFileAlone);
  if (!alone) return false;
  auto mine = alone->prepare("SELECT 1 FROM segment WHERE segment=? AND run=?");
  if (!mine) return false;
  const auto row = mine->with(segment_, std::string_view(run_)).next();
  return row && *row;
}

// Reads the file and its log through a new connection, to check that no commit is missing.
bool RunFile::holds_the_step(std::uint64_t id) const {
  if (id == 0) return true;
  auto other = Database::open(file_, Database::Mode::kRead);
  if (!other) return false;
  auto last = other->prepare("SELECT 1 FROM step WHERE id=? AND segment=?");
  if (!last) return false;
  const auto row = last->with(id, segment_).next();
  return row && *row;
}

void RunFile::release() {
  if (gone_) db_.leave_the_file_alone();
  db_ = {};
}

Status RunFile::copy_back() const {
  if (copy_to_.empty() || gone_) return {};
  // Rename into place, so that a reader sees either the whole old file or the whole new one.
  auto part = copy_to_;
  part += ".part";
  std::error_code error;
  std::filesystem::copy_file(file_, part, std::filesystem::copy_options::overwrite_existing, error);
  if (!error) std::filesystem::rename(part, copy_to_, error);
  if (error) {
    return fail(ErrorCode::kIo, fmt::format("cannot copy the run log to {}: {} (it is kept in {})",
                                            copy_to_.string(), error.message(), file_.string()));
  }
  std::filesystem::remove(file_, error);
  return {};
}

}  // namespace presum::runlog
