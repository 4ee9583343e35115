// SPDX-License-Identifier: Apache-2.0
// What most verbs of the command line have in common.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "presum/status.h"

namespace presum::cli {

// Writes `presum VERB: MESSAGE` in one line; returns kNoVerdict.
int complain(const Streams& io, std::string_view verb, const Error& error);

// --format, one of `formats`. `help` lists them.
void add_format(CLI::App* command, std::string& format, const std::string& help,
                const std::vector<std::string>& formats);

// Has `run` run with the options if the command is on the command line.
template <class Options>
void choose(CLI::App* command, Command& chosen, std::shared_ptr<Options> options,
            int (*run)(const Options&, const Streams&)) {
  command->callback([&chosen, options = std::move(options), run] {
    chosen = [options, run](const Streams& io) { return run(*options, io); };
  });
}

}  // namespace presum::cli
