// SPDX-License-Identifier: Apache-2.0
// Why a rank is slower than the others, by the clocks of its thread, and the sentence for it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <tuple>

#include "checks/time/phase_means.h"

namespace presum::checks {

inline constexpr double kMostOfIt = 0.5;      // a larger share names the cause
inline constexpr double kLeastQueued = 2e-2;  // extra seconds of waiting for a processor

Phase slowest_phase(const BesideOthers& times);

// The kinds of time that make a rank's own time longer than the others', each by half of the
// difference or more, by the clocks of its thread. None if the clocks do not show it.
struct Causes {
  bool computes = false;
  bool queued = false;   // for a processor, more than its computing costs at the others' rate
  bool blocked = false;  // neither
  bool only_queued() const { return queued && !computes; }
};
Causes causes_of(const BesideOthers& times);

struct Slower {
  // By the clocks of its thread and by its tokens.
  enum class By : std::uint8_t {
    kTokens,
    kQueue,  // alone
    kUnknown,
    kComputing,
    kComputingAndQueue,
    kSleep,
  };

  By by = By::kUnknown;
  double log10_evidence = 0;
  Phase slowest = Phase::kRest;
  std::string phase;       // the slowest phase, or "processor" if it waits for one
  double phase_share = 0;  // of the extra time
  double longer_ms = 0;
  double others_own_ms = 0;
  double times_the_others = 1;
  double others_wait_ms = 0;
  double step_ms = 0;
  double job_share = 0;
  // Of its training thread.
  double on_processor_share = kNaN;
  double processor_times_the_others = kNaN;
  double queued_longer_ms = kNaN;
  // Only for kTokens.
  double longer_by_tokens_ms = kNaN;
  double correlation = kNaN;

  std::string because() const {
    constexpr std::array kNames = {"longer batches",      "queue",        "", "computing",
                                   "computing and queue", "sleep or wait"};
    return kNames[static_cast<std::size_t>(by)];
  }
  static constexpr std::tuple kFields{
      field("time_log10_evidence", &Slower::log10_evidence),
      field("because", &Slower::because),
      field("phase", &Slower::phase),
      field("phase_share", &Slower::phase_share),
      field("longer_ms", &Slower::longer_ms),
      field("others_own_ms", &Slower::others_own_ms),
      field("times_the_others", &Slower::times_the_others),
      field("others_wait_ms", &Slower::others_wait_ms),
      field("step_ms", &Slower::step_ms),
      field("job_share", &Slower::job_share),
      field("on_processor_share", &Slower::on_processor_share),
      field("processor_times_the_others", &Slower::processor_times_the_others),
      field("queued_longer_ms", &Slower::queued_longer_ms),
      field("longer_by_tokens_ms", &Slower::longer_by_tokens_ms),
      field("correlation", &Slower::correlation)};
};

std::string sentence(const Slower& seen, const Who& who);
Slower slower(const BesideOthers& times, const Causes& causes, double log10_evidence);
// The remedy of slow-rank; empty for that of the catalog.
std::string remedy_of(const Causes& causes);

}  // namespace presum::checks
