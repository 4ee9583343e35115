// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <memory>

#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/text.h"
#include "presum/run_log.h"

namespace presum::cli {
namespace {

constexpr const char* kHelp =
    "Looks for hard facts in a run: things that no amount of noise explains.\n\n"
    "  non-finite gradient   a worker's own gradient holds NaN or Inf\n"
    "  non-finite loss       a worker's own loss is NaN or Inf\n"
    "  zero gradient         a worker contributes nothing\n"
    "  identical gradients   workers hold the same bits: they read the same data\n"
    "  missing worker        a worker's step never arrived\n\n"
    "Exit code: 0 none found, 1 found, 2 could not judge (no such run, damaged, no step).\n\n"
    "Example: presum check runs/train-20260101T120000Z";

struct Wording {
  const char* title;
  const char* remedy;
};

Wording wording(HardFact::Kind kind) {
  switch (kind) {
    case HardFact::Kind::kNonfiniteGradient:
      return {"non-finite gradient",
              "look at that worker's batch at the first step, its loss and "
              "its device"};
    case HardFact::Kind::kNonfiniteLoss:
      return {"non-finite loss", "look at that worker's batch at the first step"};
    case HardFact::Kind::kZeroGradient:
      return {"zero gradient", "are all its labels masked, or is its loss detached?"};
    case HardFact::Kind::kIdenticalGradients:
      return {"identical gradients",
              "these workers read the same data: give each its own shard "
              "(DistributedSampler with its rank)"};
    case HardFact::Kind::kMissingWorker:
      return {"missing worker",
              "did it die, or could its packets not be sent? The run's notes may "
              "say"};
  }
  return {"", ""};
}

std::string describe(const HardFact& fact) {
  const auto text = wording(fact.kind);
  const auto steps =
      fact.first_step == fact.last_step
          ? fmt::format("step {}", fact.first_step)
          : fmt::format("steps {}-{} ({} of them)", fact.first_step, fact.last_step, fact.steps);
  const auto module = fact.module == 0 ? "" : fmt::format(", module {}", fact.module);
  const auto segment = fact.segment == 1 ? "" : fmt::format(", segment {}", fact.segment);
  return fmt::format("{}: {}, {}{}{}\n    {}\n", text.title, ranks(fact.ranks), steps, module,
                     segment, text.remedy);
}

int judge(const RunLog& log, std::size_t steps, const Streams& io) {
  const auto facts = log.hard_facts();
  const auto notes = log.notes();
  const auto segments = log.segments();
  for (const auto& error : {facts ? "" : facts.error().message, notes ? "" : notes.error().message,
                            segments ? "" : segments.error().message}) {
    if (error.empty()) continue;
    io.err << "presum check: " << printable(error) << '\n';
    return kNoVerdict;
  }
  for (const HardFact& fact : *facts) io.out << describe(fact);
  for (const NoteRecord& note : *notes) {
    io.out << fmt::format("note of rank {}: {}\n", note.rank, printable(note.text));
  }
  io.out << fmt::format(
      "{}: {} step{} checked, {}\n", printable(log.name()), steps, steps == 1 ? "" : "s",
      facts->empty() ? "no hard fact against it" : fmt::format("{} found", facts->size()));
  return facts->empty() ? kOk : kFindings;
}

int check(const std::string& run, const Streams& io) {
  const auto log = RunLog::open(run);
  const auto steps = log ? log->steps() : tl::unexpected(log.error());
  if (!steps) {
    io.err << "presum check: " << printable(steps.error().message) << '\n';
    return kNoVerdict;
  }
  if (steps->empty()) {
    io.err << "presum check: " << printable(log->name())
           << " holds no step: nothing to judge (was a backward pass run after attach?)\n";
    return kNoVerdict;
  }
  return judge(*log, steps->size(), io);
}

}  // namespace

void add_check(CLI::App& program, Command& chosen) {
  auto run = std::make_shared<std::string>();
  auto* command = program.add_subcommand("check", "hard facts against a run, as an exit code");
  command->footer(kHelp);
  command->add_option("RUN", *run, "run folder or presum.db file")->required();
  command->callback(
      [&chosen, run] { chosen = [run](const Streams& io) { return check(*run, io); }; });
}

}  // namespace presum::cli
