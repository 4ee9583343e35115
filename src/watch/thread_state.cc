// SPDX-License-Identifier: Apache-2.0
#include "watch/thread_state.h"

#include <fstream>
#include <limits>
#include <string>

namespace presum::watch {

ThreadState thread_state(std::uint64_t thread) {
  const std::string folder = "/proc/self/task/" + std::to_string(thread);
  ThreadState out{'?', std::numeric_limits<double>::quiet_NaN()};
  std::string line;
  if (std::ifstream stat(folder + "/stat"); std::getline(stat, line)) {
    const std::size_t name = line.rfind(')');  // the name may contain any character
    if (name != std::string::npos && name + 2 < line.size()) out.state = line[name + 2];
  }
  double nanoseconds = 0;
  if (std::ifstream times(folder + "/schedstat"); times >> nanoseconds) {
    out.processor = 1e-9 * nanoseconds;
  }
  return out;
}

}  // namespace presum::watch
