// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <optional>

namespace presum::runlog {

// Whether a database that one process writes is still the file at its path: others may delete it,
// move it away, put another in its place or write into it. Not synchronized.
class FileIdentity {
 public:
  // `wal`: the database has a write-ahead log and is itself written at checkpoints only.
  FileIdentity(std::filesystem::path file, bool wal);

  // Takes the file as it is now for ours. Call it after each of this process's writes.
  void remember();

  enum class State : std::uint8_t {
    kOurs,
    kTouched,  // somebody wrote to it or shortened its log: perhaps only a checkpoint
    kGone,
  };
  State state() const;

 private:
  struct Stamp {
    dev_t device = 0;
    ino_t inode = 0;
    off_t size = 0;
    std::int64_t modified_ns = 0;
  };
  static std::optional<Stamp> stamp_of(const std::filesystem::path& file);

  std::filesystem::path file_;
  std::filesystem::path log_;  // empty: none
  std::filesystem::path index_;
  std::optional<Stamp> stamp_;
  std::optional<Stamp> log_stamp_;
  std::optional<Stamp> index_stamp_;
};

}  // namespace presum::runlog
