// SPDX-License-Identifier: Apache-2.0
#include "cli/cli.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <exception>

#include "cli/commands.h"
#include "cli/text.h"
#include "presum/version.h"

namespace presum::cli {
namespace {

constexpr const char* kAbout =
    "presum shows what the ranks of a data-parallel training disagree about before the sum "
    "hides it.\n\nA RUN is a folder that holds presum.db; every command takes the folder or the "
    "file.";

constexpr const char* kMore =
    "Record a run:  monitor = presum.attach(ddp_model, optimizer=optimizer)\n"
    "Exit codes:    0 fine, 1 findings, 2 could not judge (bad use or input), 3 internal error\n"
    "Help on one:   presum VERB --help";

// Verbs of the Python package, which handles them before they get here.
constexpr struct {
  const char* name;
  const char* about;
} kPythonVerbs[] = {
    {"run", "start a launcher whose ranks are watched: presum run -- torchrun ... train.py"},
    {"serve", "show runs in a browser while they are recorded"},
    {"doctor", "what this machine, this torch and this program allow"},
};

const char* python_verb(const std::vector<std::string>& args) {
  for (const auto& verb : kPythonVerbs) {
    if (!args.empty() && args.front() == verb.name) return verb.name;
  }
  return nullptr;
}

// "unknown verb: finding (findings?)"; empty if the first word is a verb or an option. CLI11 would
// search the other words for a verb, so that a run named "run" is one.
std::string unknown_verb(const CLI::App& program, const std::vector<std::string>& args) {
  if (args.empty() || args.front().starts_with('-')) return "";
  std::vector<std::string> names;
  for (const CLI::App* verb : program.get_subcommands({})) names.push_back(verb->get_name());
  if (std::ranges::find(names, args.front()) != names.end()) return "";
  return "unknown verb: " + printable(args.front()) +
         nearest(args.front(), std::vector<std::string_view>(names.begin(), names.end()));
}

// CLI11 reports that a verb is missing, not which option it does not know.
std::string describe(const CLI::App& program, const CLI::ParseError& error) {
  const auto unknown = program.remaining();
  if (!program.get_subcommands().empty() || unknown.empty()) return error.what();
  return "unknown option: " + unknown.front();
}

// "audit ", or "" without a verb.
std::string verb_of(const CLI::App& program) {
  const auto chosen = program.get_subcommands();
  return chosen.empty() ? "" : chosen.front()->get_name() + " ";
}

// The verb's exit code, or an error if its output could not be written. It is no error if the
// reader closes the pipe early (`head`).
int written(int code, const Streams& streams) {
  streams.out.flush();
  struct stat out {};
  const bool pipe =
      fstat(STDOUT_FILENO, &out) == 0 && (S_ISFIFO(out.st_mode) || S_ISSOCK(out.st_mode));
  if (streams.out.good() || pipe) return code;
  streams.err << "presum: cannot write to standard output\n";
  return kNoVerdict;
}

int dispatch(CLI::App& program, Command& chosen, std::vector<std::string> args,
             const Streams& streams) {
  try {
    std::reverse(args.begin(), args.end());  // CLI11 takes the last argument first
    program.parse(std::move(args));
    return written(chosen(streams), streams);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      program.exit(error, streams.out, streams.err);
      return written(kOk, streams);
    }
    streams.err << "presum: " << printable(describe(program, error)) << " (see presum "
                << verb_of(program) << "--help)\n";
    return kNoVerdict;
  }
}

}  // namespace

int main(const std::vector<std::string>& args, std::ostream& out, std::ostream& err) {
  if (const char* verb = python_verb(args)) {
    err << "presum: " << verb << " needs the Python package: pip install presum\n";
    return kNoVerdict;
  }
  try {
    CLI::App program(kAbout, "presum");
    program.footer(kMore);
    program.set_version_flag("--version", std::string("presum ") + version());
    program.require_subcommand(1);
    Command chosen;
    for (const auto& verb : kPythonVerbs) program.add_subcommand(verb.name, verb.about);
    add_summary(program, chosen);
    add_tail(program, chosen);
    add_findings(program, chosen);
    add_check(program, chosen);
    add_explain(program, chosen);
    add_blame(program, chosen);
    add_report(program, chosen);
    add_compare(program, chosen);
    add_export(program, chosen);
    add_audit(program, chosen);
    if (const std::string unknown = unknown_verb(program, args); !unknown.empty()) {
      err << "presum: " << unknown << " (see presum --help)\n";
      return kNoVerdict;
    }
    return dispatch(program, chosen, args, {out, err});
  } catch (const std::exception& error) {
    err << "presum: internal error: " << error.what() << '\n';
    return kInternal;
  }
}

}  // namespace presum::cli
