// SPDX-License-Identifier: Apache-2.0
#include "judge/recording_process.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

namespace presum::judge {
namespace {

constexpr std::size_t kStart = 19;  // field number after the name in /proc/PID/stat

// "START-NAMESPACE", as in python/presum/transport/processes.py; empty if there is no such process.
std::string start_of(const std::string& process) {
  std::string line;
  if (std::ifstream stat("/proc/" + process + "/stat"); !std::getline(stat, line)) return {};
  std::istringstream rest(line.substr(std::min(line.size(), line.rfind(')') + 1)));
  std::string field;
  for (std::size_t i = 0; i <= kStart && rest >> field; ++i) {
    // A zombie: it has ended, but its parent has not waited for it.
    if (i == 0 && field == "Z") return {};
  }
  return field;
}

std::string own_namespace() {
  std::array<char, 64> name{};
  const ssize_t size = ::readlink("/proc/self/ns/pid", name.data(), name.size());
  return size <= 0 ? std::string() : std::string(name.data(), static_cast<std::size_t>(size));
}

bool is_here(const std::string& host) {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 && host == name.data();
}

}  // namespace

bool recorder_is_gone(const RunLog& log, std::uint32_t segment) {
  const auto facts = log.facts();
  const auto models = log.modules();
  if (!facts || !models) return false;
  std::uint32_t rank = UINT32_MAX;
  std::string host;
  for (const ModelInfo& model : *models) {
    for (const WorkerInfo& worker : model.workers) {
      if (model.model.segment != segment || worker.rank >= rank) continue;
      rank = worker.rank;
      host = worker.host;
    }
  }
  const auto fact = [&](std::string_view key) {
    const auto found = std::ranges::find_if(*facts, [&](const Fact& f) {
      return f.segment == segment && f.rank == rank && f.key == key;
    });
    return found == facts->end() ? std::string() : found->value;
  };
  const std::string process = fact("pid");
  const std::string start = fact("process_start");
  const bool number =
      !process.empty() && std::ranges::all_of(process, [](char c) { return c >= '0' && c <= '9'; });
  const std::string end = "-" + own_namespace();
  if (!number || !is_here(host) || end.size() == 1 || !start.ends_with(end)) return false;
  return start_of(process) + end != start;
}

}  // namespace presum::judge
