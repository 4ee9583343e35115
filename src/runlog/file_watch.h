// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <optional>

namespace presum::runlog {

// Whether a database that one process writes is still the file at its path: others may delete it,
// move it away, put another in its place or write into it. Not synchronised.
class FileWatch {
 public:
  // `wal`: it has a write-ahead log beside it, and is not written in between its checkpoints.
  FileWatch(std::filesystem::path file, bool wal);

  // As it is now, after this process has written it.
  void remember();

  enum class State : std::uint8_t {
    kOurs,
    kTouched,  // somebody has written to it or cut its log: perhaps only moved the one to the other
    kGone,
  };
  State look() const;

 private:
  struct Seen {
    dev_t device = 0;
    ino_t inode = 0;
    off_t size = 0;
    std::int64_t modified_ns = 0;
  };
  static std::optional<Seen> see(const std::filesystem::path& file);

  std::filesystem::path file_;
  std::filesystem::path log_;  // empty: none
  std::filesystem::path index_;
  std::optional<Seen> seen_;
  std::optional<Seen> seen_log_;
  std::optional<Seen> seen_index_;
};

}  // namespace presum::runlog
