// SPDX-License-Identifier: Apache-2.0
#include "cli/verb.h"

#include "base/try.h"
#include "cli/cli.h"
#include "cli/text.h"

namespace presum::cli {

int complain(const Streams& io, std::string_view verb, const Error& error) {
  io.err << "presum " << verb << ": " << printable(error.message) << '\n';
  return kNoVerdict;
}

Result<std::vector<RunLog>> open_runs(const std::vector<std::string>& paths) {
  std::vector<RunLog> out;
  for (const std::string& path : paths) {
    PRESUM_ASSIGN(auto log, RunLog::open(path));
    out.push_back(std::move(log));
  }
  return out;
}

void add_format(CLI::App* command, std::string& format, const std::string& help,
                const std::vector<std::string>& formats) {
  command->add_option("--format", format, help)
      ->check(CLI::IsMember(formats))
      ->capture_default_str();
}

}  // namespace presum::cli
