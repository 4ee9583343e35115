// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <ostream>
#include <string>

namespace presum::cli {

// A progress bar; only on a terminal. Erased on destruction.
class ProgressBar {
 public:
  // `things`: what is counted.
  ProgressBar(std::ostream& err, std::string things);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  void show(std::uint64_t done, std::uint64_t all);

 private:
  std::ostream& err_;
  std::string things_;
  bool on_terminal_;
};

}  // namespace presum::cli
