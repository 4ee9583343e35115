// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of all folders that write run folders.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "base/clock.h"

namespace presum::testing {

// A temporary folder, removed on destruction.
class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "presum-test-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  ~TempFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

// A clock that moves only when advanced. REQUIRES: it outlives every user of its function.
class FakeClock {
 public:
  MonotonicClock function() {
    return [this] { return now_; };
  }
  Seconds now() const { return now_; }
  void advance(double seconds) { now_ += Seconds(seconds); }

 private:
  Seconds now_{1000};
};

inline std::string read_file(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

inline void write_file(const std::filesystem::path& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary) << bytes;
}

}  // namespace presum::testing
