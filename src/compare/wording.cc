// SPDX-License-Identifier: Apache-2.0
#include "compare/wording.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace presum::compare {
namespace {

constexpr const char* kOneSalt =
    "record both by one user, or with the same PRESUM_SALT, and without other `.presum-salt` files "
    "beside the runs";

// ---- remarks

std::string restart_text(Alignment alignment) {
  switch (alignment) {
    case Alignment::kReplays:
      return "which it does again";
    case Alignment::kRestart:
      return "from the beginning";
    default:
      return "which is assumed: no single earlier step is like its first";
  }
}

struct RemarkWords {
  std::string operator()(const FewerUpdates& r) const {
    return fmt::format(
        "rank{} {} made fewer optimizer steps in {} than in the other run, from step {} on",
        r.ranks.size() == 1 ? "" : "s", fmt::join(r.ranks, ", "), name_of(r.run), r.from);
  }
  std::string operator()(const UnseededGenerators& r) const {
    return fmt::format(
        "{} differ from the first common step on and are left out: they were not seeded, and "
        "torch does not draw from them",
        kinds_text(r.kinds));
  }
  std::string operator()(const IdleGenerators& r) const {
    const auto differ = fmt::format("{} differ from step {} on", kinds_text(r.kinds), r.from);
    return r.equal_at ? fmt::format("{}, but step {} came out equal", differ, *r.equal_at)
                      : differ + ", and nothing that was compared follows from it";
  }
  std::string operator()(const IncompleteRecord& r) const {
    return fmt::format("the record of {} is {}", name_of(r.run), incomplete_text(r.segment));
  }
  std::string operator()(const UnclosedRun& r) const {
    return fmt::format(
        "{} was not closed: it was killed or is still going on, and its last steps may be missing",
        name_of(r.run));
  }
  std::string operator()(const Restart& r) const {
    return fmt::format("segment {} of {} continues at step {}, {}", r.segment, name_of(r.run),
                       r.step, restart_text(r.alignment));
  }
};

// ---- what was not compared

std::string why_text(UncomparedStage::Why why) {
  constexpr std::array kWhy = {
      "not recorded in A",
      "not recorded in B",
      "not recorded in either run",
      "the numbers of ranks differ",
      "the runs' salts differ, so their samples cannot be compared",
      "not all rows of the step were kept",
      "hashes are of other parameters (recorded at other distances, after a restart, or of models "
      "with other parameters)",
      "the runs did not end at the same step, or made other numbers of optimizer steps after the "
      "last recorded one",
      "no gradient was read (sparse, or of earlier micro-batches alone)",
      "no rank is in both runs"};
  static_assert(kWhy.size() == static_cast<std::size_t>(UncomparedStage::Why::kNoCommonWorker) + 1);
  const auto* const text = kWhy[static_cast<std::size_t>(why)];
  return why == UncomparedStage::Why::kSalts ? fmt::format("{} ({})", text, kOneSalt) : text;
}

struct NotComparedWords {
  const ModelComparison& model;

  std::string operator()(const UncomparedStage& u) const {
    const bool all = u.stage == Stage::kFinal || u.steps == model.common_steps;
    return fmt::format("{}{}: {}", to_string(u.stage), all ? "" : " at " + of_common(u.steps),
                       why_text(u.why));
  }
  std::string operator()(const UncomparedPart& u) const {
    using Part = UncomparedPart::Part;
    switch (u.part) {
      case Part::kSampleContents:
        return fmt::format("content of samples at {}: the salts differ ({})", of_common(u.steps),
                           kOneSalt);
      case Part::kUnreadGradients:
        return "gradients that were not read (sparse, or of earlier micro-batches alone) at " +
               of_common(u.steps);
      case Part::kMissingRanks:
        return "ranks whose packet is missing in a run, at " + of_common(u.steps);
    }
    return "";
  }
  std::string operator()(const StepsOfOneRun& u) const {
    const bool of_a = u.run == Side::kA;
    const RecordedSteps& own = of_a ? model.a : model.b;
    const RecordedSteps& other = of_a ? model.b : model.a;
    return fmt::format("{} of the {} steps of {} ({} to {}): {} does not hold them ({} to {})",
                       u.steps, own.steps, name_of(u.run), own.first_step, own.last_step,
                       name_of(of_a ? Side::kB : Side::kA), other.first_step, other.last_step);
  }

 private:
  std::string of_common(std::uint64_t steps) const {
    return fmt::format("{} of {} common steps", steps, model.common_steps);
  }
};

// ---- the cause of the first difference

// "step 6", "steps 3 to 6".
std::string steps_text(std::uint64_t first, std::uint64_t last) {
  return first == last ? fmt::format("step {}", first) : fmt::format("steps {} to {}", first, last);
}

std::string one_of(std::uint64_t first, std::uint64_t last) {
  return (first == last ? "" : "one of the ") + steps_text(first, last);
}

const Difference& first_of(const ModelComparison& m) { return *m.at(*m.first).first; }

std::string before_parameters(const ModelComparison& m) {
  if (!m.last_identical) {
    return m.any_before ? "the weights that the runs began with, and all updates so far: these "
                          "parameters were not compared before"
                        : "the weights that the runs began with: initialization, or the checkpoint";
  }
  const std::uint64_t last =
      *m.first == Stage::kFinal ? first_of(m).step + m.unrecorded : first_of(m).step - 1;
  return fmt::format("reduction and optimizer update of {}, and writes to parameters or buffers",
                     steps_text(*m.last_identical, last));
}

// "step 6", or all steps since it was last seen equal.
std::string at_steps(const ModelComparison& m) {
  const std::uint64_t step = first_of(m).step;
  if (!m.bracket) return steps_text(step, step);
  return m.bracket->since ? steps_text(*m.bracket->since, step)
                          : fmt::format("step {}, or of an earlier one", step);
}

// Most steps compare only a part of the parameters, so an update of another part may show here
// first.
std::string computation(const char* pass, const ModelComparison& m) {
  return fmt::format(
      "the {} of {}{}", pass, at_steps(m),
      m.any_before ? ", or an update before it of parameters that are not hashed then" : "");
}

// ---- what is identical

const char* plural(std::uint64_t count) { return count == 1 ? "" : "s"; }

// "data, parameters, reduction at 2 steps": the stages that were compared at least once, or those
// that never were.
std::string stages_text(const ModelComparison& m, bool compared) {
  std::string out;
  for (std::size_t s = static_cast<std::size_t>(Stage::kData); s < kStages; ++s) {
    const std::uint64_t times = m.stages[s].compared;
    if ((times > 0) != compared) continue;
    const auto stage = static_cast<Stage>(s);
    std::string name(compared && stage == Stage::kData ? "samples" : to_string(stage));
    std::ranges::replace(name, '-', ' ');
    if (compared && stage != Stage::kFinal && times < m.common_steps) {
      name += fmt::format(" at {} step{}", times, plural(times));
    }
    out += (out.empty() ? "" : ", ") + name;
  }
  return out;
}

std::string common_steps_text(const ModelComparison& m) {
  auto of = fmt::format("{} common step{}", m.common_steps, plural(m.common_steps));
  if (m.a.steps == m.common_steps && m.b.steps == m.common_steps) return of;
  return fmt::format("{} (A holds {}, B {})", of, m.a.steps, m.b.steps);
}

// "2 and 3, 2 and 4".
std::string worlds_text(const ModelComparison& m) {
  std::vector<std::string> out;
  for (const WorkerCounts& w : m.worlds) out.push_back(fmt::format("{} and {}", w.a, w.b));
  return fmt::format("{}", fmt::join(out, ", "));
}

std::string agreement_text(const ModelComparison& m) {
  if (!m.compares_numbers()) return "nothing was compared that is computed";
  const auto rest = stages_text(m, false);
  const auto without = rest.empty() ? "" : "; not compared: " + rest;
  const auto steps = common_steps_text(m);
  if (!m.other_worlds) {
    return fmt::format("identical in all that was compared, at {}{}", steps, without);
  }
  const auto some =
      m.world_steps == m.common_steps
          ? ""
          : fmt::format(" (at {} of the steps, equal numbers at the others)", m.world_steps);
  return fmt::format("identical for {} ranks{}, bit for bit, at {}: {}{}", worlds_text(m), some,
                     steps, stages_text(m, true), without);
}

// ---- how long it took

constexpr double kMilliseconds = 1e3;

// "12.30 ms in A, 15.10 ms in B (+22.8 %, 95% interval +20.1 to +25.4)".
std::string difference_text(const TimeDifference& d) {
  auto text =
      fmt::format("{:.2f} ms in A, {:.2f} ms in B", kMilliseconds * d.a, kMilliseconds * d.b);
  if (!(d.a > 0)) return text;
  const auto percent = [&](double seconds) { return fmt::format("{:+.1f}", 100 * seconds / d.a); };
  const auto interval =
      std::isnan(d.low) ? std::string(", too few steps to say how sure that is")
                        : fmt::format(", 95% interval {} to {}", percent(d.low), percent(d.high));
  return fmt::format("{} ({} %{})", text, percent(d.b - d.a), interval);
}

// The phase that contributes most to the difference of the own times, in the same direction.
Phase most_of(const TimeComparison& times) {
  const double sign = times.own.b > times.own.a ? 1 : -1;
  Phase out = Phase::kData;
  for (const Phase phase : {Phase::kForward, Phase::kBackward, Phase::kOptimizer, Phase::kRest}) {
    const auto by = [&](Phase p) { return sign * (times.of(p).b - times.of(p).a); };
    if (by(phase) > by(out)) out = phase;
  }
  return out;
}

}  // namespace

const char* name_of(Side run) { return run == Side::kA ? "A" : "B"; }

std::string model_name(std::uint32_t model_index, std::uint32_t dp_group) {
  return fmt::format("model {}, data-parallel group {}", model_index, dp_group);
}

std::string bracket_text(const ModelComparison& m) {
  if (!m.bracket) return "";
  if (!m.bracket->since) return "these were not compared before";
  const std::uint64_t since = *m.bracket->since;
  const std::uint64_t end = m.bracket->end;
  const std::uint64_t step = first_of(m).step;
  const bool after_last = *m.first == Stage::kFinal;
  if (!after_last && *m.first != Stage::kParameters) return "it began at " + one_of(since, step);
  if (since > step) {
    return fmt::format(
        "they differ since one of the last {} updates, those of the steps {} to {}: parameters are "
        "hashed in turn, and these were last seen equal at step {}",
        end - since + 1, since - 1, end - 1, since - 1);
  }
  return fmt::format(
      "they differ since {}{}: parameters are hashed in turn, and these were last seen equal at "
      "step {}",
      one_of(since, step), after_last ? ", or after it" : "", since - 1);
}

std::string between_text(const ModelComparison& m) {
  if (!m.first) return "";
  const bool loss_unseen = std::ranges::find(m.unseen, Stage::kLoss) != m.unseen.end();
  switch (*m.first) {
    case Stage::kParameters:
    case Stage::kFinal:
      return before_parameters(m);
    case Stage::kTokenWeight:
      return "the loss of " + at_steps(m);
    case Stage::kLoss:
      return computation("forward pass", m);
    case Stage::kGradient:
      return computation(loss_unseen ? "forward and backward pass" : "backward pass", m);
    case Stage::kReduction:
      return "the reduction of " + at_steps(m);
    case Stage::kConfiguration:
    case Stage::kData:
    case Stage::kRandom:
      break;
  }
  return "";
}

std::vector<std::string> remark_texts(const ModelComparison& model) {
  std::vector<std::string> out;
  for (const Remark& r : model.remarks) out.push_back(std::visit(RemarkWords{}, r));
  return out;
}

std::vector<std::string> not_compared_texts(const ModelComparison& model) {
  std::vector<std::string> out;
  for (const NotCompared& n : model.not_compared) {
    out.push_back(std::visit(NotComparedWords{model}, n));
  }
  return out;
}

std::string times_text(const ModelComparison& model) {
  if (!model.times) return "";
  const TimeDifference& own = model.times->own;
  const auto most =
      own.differs() ? fmt::format(", most of it in {}", to_string(most_of(*model.times))) : "";
  return fmt::format("own time of a step (without waiting): {}{}", difference_text(own), most);
}

std::string obstacle_text(const Comparison& c) {
  constexpr std::array kObstacles = {
      "A holds no step", "B holds no step", "the runs have no model with steps in common",
      "the runs have no step in common", "the common steps hold nothing that can be compared"};
  static_assert(kObstacles.size() == static_cast<std::size_t>(Obstacle::kNothingInSteps) + 1);
  return c.obstacle ? kObstacles[static_cast<std::size_t>(*c.obstacle)] : "";
}

std::string agreement_text(const Comparison& c) {
  if (c.outcome != Outcome::kIdentical) return "";
  auto first = agreement_text(c.models.front());
  if (c.models.size() == 1) return first;
  std::string out;
  bool alike = true;
  for (const ModelComparison& m : c.models) {
    const auto own = agreement_text(m);
    alike = alike && own == first;
    out += fmt::format("{}{}: {}", out.empty() ? "" : "; ", model_name(m.model_index, m.dp_group),
                       own);
  }
  return alike ? fmt::format("{} models, each {}", c.models.size(), first) : out;
}

std::vector<std::string> not_compared_texts(const Comparison& c) {
  std::vector<std::string> out;
  for (const ModelOfOneRun& m : c.not_compared) {
    out.push_back(
        fmt::format("{}: only in {}", model_name(m.model_index, m.dp_group), name_of(m.run)));
  }
  return out;
}

}  // namespace presum::compare
