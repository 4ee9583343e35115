// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "presum/status.h"
#include "runlog/file_identity.h"
#include "runlog/sqlite.h"

namespace presum::runlog {

// Where the database file is written, and with which journal mode.
enum class Journal {
  kWal,        // readable while it is written
  kExclusive,  // network file systems: rollback journal, exclusive lock, not readable until closed
  kLocalCopy,  // the file system cannot lock at all: a local file, copied into place at close
};

// The journal mode to use in a folder, by its file system type (statfs).
Journal choose_journal(const std::filesystem::path& folder);

// The database file that a recording writes: creates it, and notices if another file replaces it.
// Thread-safety: one thread at a time. Holds the file until release().
class RunFile {
 public:
  // Creates the folder and the database, or opens an existing one. Errors: kIo (not writable, no
  // space), kCorrupt or kUnsupported (the existing file is not a run log of this version).
  static Result<RunFile> open(const std::filesystem::path& folder, Journal journal);

  Database& db() { return db_; }

  // From now on, checks that the file keeps this row of `segment`.
  void watch(std::uint32_t segment, std::string run);
  // Call it before each write. Error (kIo, and then is_gone()): the file was deleted, replaced or
  // changed. `last_step`: the id of the last committed step; 0: none.
  Status check(std::uint64_t last_step);
  // Records the file's current state as this recording's.
  void remember() { identity_->remember(); }
  bool is_gone() const { return gone_; }

  // Releases the file and its lock; an exclusive lock keeps readers out until then. REQUIRES: no
  // statement of db() exists.
  void release();
  // After release(): copies a local file into the run folder. Does nothing for other journals.
  Status copy_back() const;

 private:
  bool holds_the_segment() const;
  bool holds_the_step(std::uint64_t id) const;

  Database db_;
  std::filesystem::path file_;
  std::filesystem::path copy_to_;  // kLocalCopy only
  Journal journal_ = Journal::kWal;
  std::optional<FileIdentity> identity_;
  bool gone_ = false;  // the file was deleted, replaced or changed
  std::uint32_t segment_ = 0;
  std::string run_;
};

}  // namespace presum::runlog
