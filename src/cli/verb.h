// SPDX-License-Identifier: Apache-2.0
// What most command-line verbs have in common.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "presum/run_log.h"
#include "presum/status.h"

namespace presum::cli {

// Writes `presum VERB: MESSAGE` on one line; returns kNoVerdict.
int complain(const Streams& io, std::string_view verb, const Error& error);

Result<std::vector<RunLog>> open_runs(const std::vector<std::string>& paths);

// Adds --format, with one of `formats`; `help` describes them.
void add_format(CLI::App* command, std::string& format, const std::string& help,
                const std::vector<std::string>& formats);

// Adds a verb. If it is on the command line, `run` is called with its options.
template <class Options>
std::pair<CLI::App*, std::shared_ptr<Options>> add_verb(
    CLI::App& program, Command& chosen, const char* name, const char* about,
    const std::string& help, int (*run)(const Options&, const Streams&)) {
  auto* command = program.add_subcommand(name, about);
  command->footer(help);
  auto options = std::make_shared<Options>();
  command->callback([&chosen, options, run] {
    chosen = [options, run](const Streams& io) { return run(*options, io); };
  });
  return {command, options};
}

}  // namespace presum::cli
