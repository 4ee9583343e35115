// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <optional>

namespace presum::runlog {

// Checks whether a database that this process writes is still the file at its path: others may
// delete, move, replace or write it. Not synchronized.
class FileIdentity {
 public:
  // `wal`: the database has a write-ahead log, so the file itself is written at checkpoints only.
  FileIdentity(std::filesystem::path file, bool wal);

  // Records the file's current state as this process's. Call it after each write by this process.
  void remember();

  enum class State : std::uint8_t {
    kOurs,
    kTouched,  // another process wrote to it or shortened its log; perhaps only a checkpoint
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
  std::filesystem::path log_;  // empty if there is none
  std::filesystem::path index_;
  std::optional<Stamp> stamp_;
  std::optional<Stamp> log_stamp_;
  std::optional<Stamp> index_stamp_;
};

}  // namespace presum::runlog
