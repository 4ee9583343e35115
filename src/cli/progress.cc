// SPDX-License-Identifier: Apache-2.0
#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <utility>

#include "cli/text.h"

namespace presum::cli {

ProgressBar::ProgressBar(std::ostream& err, std::string things)
    : err_(err),
      things_(std::move(things)),
      on_terminal_(&err == &std::cerr && isatty(STDERR_FILENO) == 1) {}

ProgressBar::~ProgressBar() {
  if (on_terminal_) err_ << "\r\x1b[K" << std::flush;
}

void ProgressBar::show(std::uint64_t done, std::uint64_t all) {
  if (!on_terminal_) return;
  const auto tenths = static_cast<std::size_t>(30 * done / std::max<std::uint64_t>(all, 1));
  err_ << fmt::format("\r\x1b[K[{:<30}] {} of {} {}", std::string(tenths, '#'), counted(done),
                      counted(all), things_)
       << std::flush;
}

}  // namespace presum::cli
