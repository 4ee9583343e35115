// SPDX-License-Identifier: Apache-2.0
#include "base/thread_clock.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <ctime>
#include <string_view>

namespace presum::base {
namespace {

double processor_seconds() {
  timespec t{};
  if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) != 0) return NAN;
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Reads the second of three numbers, in nanoseconds. Opens the file on each call, because a
// descriptor opened before a fork still reports the parent.
double queued_seconds() {
  const int file = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
  if (file < 0) return NAN;
  std::array<char, 96> text{};
  const ssize_t size = read(file, text.data(), text.size());
  close(file);
  if (size <= 0) return NAN;
  const std::string_view line(text.data(), static_cast<std::size_t>(size));
  const std::size_t at = line.find(' ');
  std::uint64_t value = 0;
  if (at == std::string_view::npos) return NAN;
  const auto parsed = std::from_chars(line.data() + at + 1, line.data() + line.size(), value);
  return parsed.ec == std::errc() ? 1e-9 * static_cast<double>(value) : NAN;
}

}  // namespace

ThreadTimes thread_times() { return {processor_seconds(), queued_seconds()}; }

}  // namespace presum::base
