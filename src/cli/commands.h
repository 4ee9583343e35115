// SPDX-License-Identifier: Apache-2.0
// One function per verb: it adds the verb to the program and selects the command to run.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <ostream>
#include <string>

namespace presum::cli {

struct Streams {
  std::ostream& out;
  std::ostream& err;
};

using Command = std::function<int(const Streams&)>;

// Each function stores its Command in `chosen` if its verb is on the command line.
void add_summary(CLI::App& program, Command& chosen);
void add_check(CLI::App& program, Command& chosen);
void add_findings(CLI::App& program, Command& chosen);
void add_tail(CLI::App& program, Command& chosen);
void add_compare(CLI::App& program, Command& chosen);
void add_export(CLI::App& program, Command& chosen);
void add_audit(CLI::App& program, Command& chosen);
void add_blame(CLI::App& program, Command& chosen);
void add_explain(CLI::App& program, Command& chosen);
void add_report(CLI::App& program, Command& chosen);

}  // namespace presum::cli
