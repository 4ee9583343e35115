// SPDX-License-Identifier: Apache-2.0
#include "checks/time/slower.h"

#include <fmt/format.h>

#include <algorithm>

namespace presum::checks {
namespace {

constexpr double kNearlyAll = 0.9;  // a larger share means this phase alone

std::string in_phase(Phase phase) {
  switch (phase) {
    case Phase::kData:
      return "before its first forward pass, for data or what the loop does there";
    case Phase::kForward:
      return "in its forward pass and loss";
    case Phase::kBackward:
      return "in its backward pass";
    case Phase::kOptimizer:
      return "in its optimizer's step";
    case Phase::kRest:
    case Phase::kReduction:
      break;
  }
  return "between passes and the optimizer's step";
}

std::string in_phases(const Slower& seen) {
  const char* much = seen.phase_share >= kNearlyAll  ? ""
                     : seen.phase_share >= kMostOfIt ? "mostly "
                                                     : "in several phases, the most ";
  return much + in_phase(seen.slowest);
}

std::string where(const Slower& seen) {
  using By = Slower::By;
  switch (seen.by) {
    case By::kTokens:
      return "for longer batches: its time follows its tokens";
    case By::kQueue:
      return "waiting for a processor";
    case By::kUnknown:
      break;
    case By::kComputing:
      return fmt::format("{}: it computed {:.3g} times as long", in_phases(seen),
                         seen.processor_times_the_others);
    case By::kComputingAndQueue:
      return fmt::format(
          "{}: it computed {:.3g} times as long and waited {:.3g} ms longer for a processor",
          in_phases(seen), seen.processor_times_the_others, seen.queued_longer_ms);
    case By::kSleep:
      return in_phases(seen) + ": its thread slept, or waited for something";
  }
  return in_phases(seen);
}

double queued_longer(const BesideOthers& times) {
  return times.thread.queued - times.others_thread.queued;
}

Slower::By reason(const Causes& causes, double queued_seconds) {
  using By = Slower::By;
  if (causes.only_queued()) return By::kQueue;
  if (causes.blocked) return By::kSleep;
  if (!causes.computes) return By::kUnknown;
  return causes.queued && queued_seconds >= kLeastQueued ? By::kComputingAndQueue : By::kComputing;
}

}  // namespace

Phase slowest_phase(const BesideOthers& times) {
  std::size_t most = 0;
  for (std::size_t p = 0; p < kPhaseCount; ++p) {
    const bool own = static_cast<Phase>(p) != Phase::kReduction;
    if (own && times.phases[p] > times.phases[most]) most = p;
  }
  return static_cast<Phase>(most);
}

Causes causes_of(const BesideOthers& times) {
  const auto& [processor, queued] = times.thread;
  const auto& [others_processor, others_queued] = times.others_thread;
  const double least = kMostOfIt * times.own;
  const double computes = processor - others_processor;
  if (!(processor > 0 && others_processor > 0)) return {};
  // Longer computing also means a longer queue: the time it would save by computing as long as the
  // others.
  const double with_its_queue = computes * (1 + queued / processor);
  const double queued_beyond = queued - processor * others_queued / others_processor;
  const double idle = times.others_own + times.own - processor - queued;
  const double idle_longer = times.own - computes - (queued - others_queued);
  return {.computes = with_its_queue >= least,
          .queued = queued_beyond >= least,
          .blocked = std::min(idle, idle_longer) >= least};
}

std::string sentence(const Slower& seen, const Who& who) {
  return fmt::format(
      "{} took {:.3g} ms longer than the others in each step, {}; the others wait {:.3g} ms of "
      "{:.3g} ms a step: {:.0f}% of the job",
      who.words(), seen.longer_ms, where(seen), seen.others_wait_ms, seen.step_ms,
      100 * seen.job_share);
}

Slower slower(const BesideOthers& times, const Causes& causes, double log10_evidence) {
  const Phase phase = slowest_phase(times);
  const double share = times.phases[static_cast<std::size_t>(phase)] / times.own;
  Slower out{.by = reason(causes, queued_longer(times)),
             .log10_evidence = log10_evidence,
             .slowest = phase,
             .phase = causes.only_queued() ? "processor" : to_string(phase),
             .phase_share = causes.only_queued() ? kNaN : share,
             .longer_ms = 1e3 * times.own,
             .others_own_ms = 1e3 * times.others_own,
             .times_the_others = (times.others_own + times.own) / times.others_own,
             .others_wait_ms = -1e3 * times.waits,
             .step_ms = 1e3 * times.step,
             .job_share = -times.waits / times.step};
  if (times.on_processor > 0) out.on_processor_share = times.on_processor;
  if (times.others_thread.processor > 0) {
    out.processor_times_the_others = times.thread.processor / times.others_thread.processor;
  }
  if (queued_longer(times) > 0) out.queued_longer_ms = 1e3 * queued_longer(times);
  return out;
}

std::string remedy_of(const Causes& causes) {
  if (causes.only_queued()) {
    return "Check what else runs on this rank's processors, or which quota throttles it: start "
           "fewer threads (`OMP_NUM_THREADS`) and processes, or give each rank its own processors.";
  }
  if (causes.blocked) {
    return "Check what this rank alone waits for in the named phase: a disk, a network, a lock, "
           "another process or thread, a sleep.";
  }
  if (causes.computes) {
    return "Check what this rank alone computes in the named phase: work behind `if rank == 0`, "
           "logging, a different precision or build, a slower processor.";
  }
  return "";
}

}  // namespace presum::checks
