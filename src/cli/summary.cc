// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <vector>

#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/text.h"
#include "presum/run_log.h"

namespace presum::cli {
namespace {

constexpr const char* kHelp =
    "One line per run (and per model in it): means over its recorded steps.\n\n"
    "  loss         mean over workers, averaged over the last 20 steps\n"
    "  loss std     loss dispersion: standard deviation over workers\n"
    "  loss range   largest minus smallest worker loss\n"
    "  |g| std      gradient-norm dispersion; |g| cv is std / mean, free of scale\n"
    "  cosine       gradient-direction consistency: mean cosine over pairs of workers\n"
    "  W_eff        effective workers: 1 if all gradients are equal, W if orthogonal\n"
    "  noise scale  gradient noise scale in worker batches, at the end of the run\n"
    "A dash: undefined (one worker has no cosine) or not measured.\n\n"
    "Example: presum summary demo/*";

class Mean {
 public:
  void add(double value) {
    if (std::isnan(value)) return;
    sum_ += value;
    ++count_;
  }
  double value() const { return count_ == 0 ? kNaN : sum_ / count_; }

 private:
  double sum_ = 0;
  int count_ = 0;
};

using Steps = std::vector<StepRecord>;

std::string mean_of(const Steps& steps, double StepRecord::*field) {
  Mean mean;
  for (const StepRecord& s : steps) mean.add(s.*field);
  return number(mean.value());
}

std::string last_loss(const Steps& steps) {
  constexpr std::size_t kLast = 20;
  Mean mean;
  for (std::size_t i = steps.size() - std::min(kLast, steps.size()); i < steps.size(); ++i) {
    mean.add(steps[i].loss_mean);
  }
  return number(mean.value());
}

std::vector<std::string> row(std::string name, const Steps& steps) {
  return {std::move(name),
          std::to_string(steps.size()),
          steps.empty() ? "-" : std::to_string(steps.back().workers_expected),
          last_loss(steps),
          mean_of(steps, &StepRecord::loss_std),
          mean_of(steps, &StepRecord::loss_range),
          mean_of(steps, &StepRecord::grad_norm_std),
          mean_of(steps, &StepRecord::grad_norm_cv),
          mean_of(steps, &StepRecord::cosine_mean),
          mean_of(steps, &StepRecord::effective_workers),
          steps.empty() ? "-" : number(steps.back().noise_scale)};
}

// The steps of one model, apart from those of the others.
std::vector<Steps> by_module(Steps steps) {
  std::vector<Steps> out;
  for (StepRecord& s : steps) {
    const auto same = std::find_if(out.begin(), out.end(), [&](const Steps& other) {
      return other.front().module == s.module && other.front().shard == s.shard;
    });
    if (same == out.end()) {
      out.push_back({std::move(s)});
    } else {
      same->push_back(std::move(s));
    }
  }
  if (out.empty()) out.emplace_back();
  return out;
}

int summarise(const std::vector<std::string>& runs, const Streams& io) {
  std::vector<std::vector<std::string>> rows = {{"run", "steps", "workers", "loss", "loss std",
                                                 "loss range", "|g| std", "|g| cv", "cosine",
                                                 "W_eff", "noise scale"}};
  for (const std::string& run : runs) {
    const auto log = RunLog::open(run);
    auto steps = log ? log->steps() : tl::unexpected(log.error());
    if (!steps) {
      io.err << "presum summary: " << printable(steps.error().message) << '\n';
      return kNoVerdict;
    }
    const auto modules = by_module(std::move(*steps));
    for (const Steps& module : modules) {
      auto name = printable(log->name());
      if (modules.size() > 1) {
        name += fmt::format(" module {}.{}", module.front().module, module.front().shard);
      }
      rows.push_back(row(name, module));
    }
  }
  io.out << table(rows);
  return kOk;
}

}  // namespace

void add_summary(CLI::App& program, Command& chosen) {
  auto runs = std::make_shared<std::vector<std::string>>();
  auto* command = program.add_subcommand("summary", "one line of metrics per run");
  command->footer(kHelp);
  command->add_option("RUN", *runs, "run folders or presum.db files")->required();
  command->callback(
      [&chosen, runs] { chosen = [runs](const Streams& io) { return summarise(*runs, io); }; });
}

}  // namespace presum::cli
