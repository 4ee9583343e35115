// SPDX-License-Identifier: Apache-2.0
#include "blame/blame.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "blame/document.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/findings_text.h"
#include "cli/progress.h"
#include "cli/rows.h"
#include "cli/text.h"
#include "cli/verb.h"
#include "presum/run_log.h"

namespace presum::cli {
namespace {

using blame::Compared;
using blame::Layer;
using blame::Sample;
using blame::Step;
using blame::Worker;

constexpr const char* kBlameHelp =
    "What was behind one step: a spike of the loss or of a gradient's norm, a NaN. Each rank's\n"
    "loss and gradient norm with what they usually are (the median of its last 50 steps); then, "
    "of\n"
    "the rank that is furthest from that, or of --rank:\n\n"
    "  micro-batches  losses, targets and what one weighs, and those without a single target\n"
    "  layers         gradient norms and peaks, the furthest from usual first\n"
    "  samples        their indices in the dataset and hashes of their rows; which other ranks\n"
    "                 drew them in this step, when they were drawn before, and the loss then\n\n"
    "Indices are known where a sampler is; at most 4,096 of a step, and 256 hashes. Hashes are\n"
    "keyed: they show that rows are equal, not what is in them. JSON has all ranks.\n\n"
    "Exit code: 0 shown, 2 no such run, step or rank.\n\n"
    "Example: presum blame runs/monday --step 1204 --rank 3";

constexpr std::size_t kLayersShown = 5;
constexpr std::size_t kSamplesShown = 16;
constexpr std::size_t kMicroShown = 16;
constexpr std::size_t kBeforeShown = 3;
constexpr double kFar = 2;  // times the usual value

struct BlameOptions {
  std::string run;
  std::uint64_t step = 0;
  std::optional<std::uint32_t> rank;
  std::optional<std::uint32_t> segment;
  std::string format = "text";
};

std::string finite(double value) { return std::isinf(value) ? "not finite" : number(value); }

std::string with_usual(const Compared& of) {
  const std::string usual =
      std::isnan(of.usual) ? "" : fmt::format(" (usually {})", number(of.usual));
  return finite(of.value) + usual;
}

// ", 4.1 times as usual" if the value is far from usual.
std::string far(const Compared& of) {
  const double ratio = of.ratio();
  if (std::isnan(ratio) || std::isinf(ratio) || (ratio < kFar && ratio * kFar > 1)) return "";
  return fmt::format(", {} times the usual", number(ratio));
}

// The target tokens, or the elements of a loss without tokens.
std::string tokens_text(std::uint64_t tokens, std::uint64_t targets) {
  const std::uint64_t known = tokens > 0 ? tokens : targets;
  return known == 0 ? "-" : fmt::format("{}", known);
}

std::string table_of(const Step& step) {
  std::vector<std::vector<std::string>> cells{{"rank", "loss", "usually", "|g|", "usually",
                                               "not finite", "targets", "weight of one",
                                               "micro-batches", "samples"}};
  for (const Worker& w : step.workers) {
    cells.push_back({fmt::format("{}", w.rank), finite(w.loss.value), number(w.loss.usual),
                     finite(w.norm.value), number(w.norm.usual), fmt::format("{}", w.nonfinite),
                     tokens_text(w.tokens, w.targets), number(w.token_weight),
                     fmt::format("{}", w.micro_batches),
                     w.rows == 0 ? "-" : fmt::format("{}", w.rows)});
  }
  return table(cells);
}

std::string micro_text(const Worker& w) {
  std::string out;
  for (std::size_t i = 0; i < std::min(w.micro.size(), kMicroShown); ++i) {
    const MicroBatch& m = w.micro[i];
    const std::string known = tokens_text(m.tokens, m.targets);
    const bool none = std::ranges::binary_search(w.without_target, i);
    const std::string targets = none           ? ", 0 targets"
                                : known == "-" ? ""
                                               : ", " + known + " targets";
    const std::string weight =
        std::isnan(m.token_weight) ? "" : fmt::format(", each weighs {}", number(m.token_weight));
    out += fmt::format("    micro-batch {}: loss {}{}{}{}\n", i + 1, number(m.loss), targets,
                       weight, none ? ": without a single target" : "");
  }
  if (w.micro.size() > kMicroShown) {
    out += fmt::format("    and {} more, {} of all without a single target\n",
                       w.micro.size() - kMicroShown, w.without_target.size());
  }
  return out;
}

std::string layers_text(const Worker& w) {
  std::string out;
  for (std::size_t i = 0; i < std::min(w.layers.size(), kLayersShown); ++i) {
    const Layer& layer = w.layers[i];
    out += fmt::format("    layer {}: norm {}{}, peak {}\n", printable(layer.name),
                       with_usual(layer.norm), far(layer.norm), number(layer.peak));
  }
  return out;
}

std::string sample_text(const Sample& sample) {
  std::string out = "    sample ";
  if (sample.index) out += fmt::format("{}", *sample.index);
  if (sample.hash) out += fmt::format("{}row {:016x}", sample.index ? ", " : "", *sample.hash);
  if (!sample.others.empty()) out += fmt::format("; drawn by {} too", ranks(sample.others));
  if (sample.before.empty()) return out + '\n';
  out += fmt::format("; drawn {} before: ", times(sample.draws_before));
  std::vector<std::string> before;
  const std::size_t shown = std::min(sample.before.size(), kBeforeShown);
  for (const auto& draw : std::span(sample.before).last(shown)) {
    before.push_back(
        fmt::format("step {} by rank {}, loss {}", draw.step, draw.rank, with_usual(draw.loss)));
  }
  return out + fmt::format("{}\n", fmt::join(before, "; "));
}

std::string samples_text(const Worker& w) {
  if (w.samples.empty()) return "    samples: not known\n";
  std::string out;
  for (std::size_t i = 0; i < std::min(w.samples.size(), kSamplesShown); ++i) {
    out += sample_text(w.samples[i]);
  }
  if (w.samples.size() > kSamplesShown) {
    out += fmt::format("    and {} more: --format json\n", w.samples.size() - kSamplesShown);
  }
  return out;
}

std::string worker_text(const Worker& w) {
  const std::string host = w.host.empty() ? "" : fmt::format(" on {}", printable(w.host));
  return fmt::format("\nrank {}{}: loss {}{}, gradient norm {}{}\n", w.rank, host,
                     with_usual(w.loss), far(w.loss), with_usual(w.norm), far(w.norm)) +
         micro_text(w) + layers_text(w) + samples_text(w);
}

const Worker* chosen_of(const Step& step, std::optional<std::uint32_t> rank) {
  const auto found = rank ? std::ranges::find(step.workers, *rank, &Worker::rank)
                          : std::ranges::max_element(step.workers, {}, &Worker::distance);
  return found == step.workers.end() ? nullptr : &*found;
}

std::string text_of(const std::string& run, const Step& step, std::optional<std::uint32_t> rank) {
  std::string out = fmt::format("{}: step {}", printable(run), step.key.step);
  out += fmt::format("{}, {} of {} ranks; loss {}{}\n\n", model_text(step.key.model),
                     step.workers.size(), step.workers_expected, with_usual(step.loss),
                     far(step.loss));
  const Worker* worker = chosen_of(step, rank);
  return out + table_of(step) + (worker == nullptr ? "" : worker_text(*worker));
}

Result<std::vector<Step>> read(const RunLog& log, const BlameOptions& options, std::ostream& err) {
  ProgressBar bar(err, "steps");
  auto steps = blame::blame(log, {options.step, options.segment},
                            [&](std::uint64_t done, std::uint64_t all) { bar.show(done, all); });
  if (!steps || !options.rank) return steps;
  if (std::ranges::none_of(*steps, [&](const Step& s) { return chosen_of(s, options.rank); })) {
    return Error{ErrorCode::kNotFound,
                 fmt::format("rank {} has no packet of step {}", *options.rank, options.step)};
  }
  return steps;
}

int blame_step(const BlameOptions& options, const Streams& io) {
  const auto log = RunLog::open(options.run);
  if (!log) return complain(io, "blame", log.error());
  const auto steps = read(*log, options, io.err);
  if (!steps) return complain(io, "blame", steps.error());
  if (options.format == "json") {
    io.out << json_text(blame::document(*steps));
    return kOk;
  }
  for (const Step& step : *steps) {
    io.out << (&step == &steps->front() ? "" : "\n") << text_of(log->name(), step, options.rank);
  }
  return kOk;
}

}  // namespace

void add_blame(CLI::App& program, Command& chosen) {
  const auto [command, options] = add_verb<BlameOptions>(
      program, chosen, "blame", "what was behind one step: samples and layers", kBlameHelp,
      blame_step);
  command->add_option("RUN", options->run, "a run folder or a presum.db file")->required();
  command->add_option("--step", options->step, "the step, as findings and the page number it")
      ->required()
      ->check([](const std::string& text) {
        return text.starts_with('-') ? "a step is a whole number from 0" : std::string();
      });
  command->add_option("--rank", options->rank, "a global rank; default: the furthest from usual");
  command->add_option("--segment", options->segment, "default: the last one that has the step");
  add_format(command, options->format, "text or json", {"text", "json"});
}

}  // namespace presum::cli
