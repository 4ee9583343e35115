// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <string_view>
#include <vector>

// What the benchmarks of kernels share.
namespace presum {

struct Ratio {
  double median, low, high;
};

inline volatile std::uint64_t consumed;  // keeps the work

// Processor time of this thread, so that other processes disturb less.
inline double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

inline double seconds(const std::function<std::uint64_t()>& work) {
  const double begin = thread_seconds();
  consumed = work();
  return thread_seconds() - begin;
}

inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The median and its distribution-free 95% interval from order statistics.
inline Ratio summarize(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto n = static_cast<double>(values.size());
  const double reach = 1.96 * std::sqrt(n) / 2;
  const auto low = static_cast<std::size_t>(std::max(0.0, std::floor(n / 2 - reach)));
  return {values[values.size() / 2], values[low], values[values.size() - 1 - low]};
}

// Whether the only argument is --quick; ends the program where there is another.
inline bool is_quick(int argc, char** argv) {
  if (argc == 1) return false;
  if (argc == 2 && std::string_view(argv[1]) == "--quick") return true;
  std::fprintf(stderr, "usage: %s [--quick]\n", argv[0]);
  std::exit(2);
}

}  // namespace presum
