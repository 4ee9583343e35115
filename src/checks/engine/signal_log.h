// SPDX-License-Identifier: Apache-2.0
// What rules saw: signals that grow from step to step, and what every check has looked at.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checks/engine/check.h"
#include "checks/engine/evidence.h"
#include "checks/engine/split.h"
#include "presum/finding.h"

namespace presum::checks {

// One check seen broken on one set of ranks, from its first to its last step.
struct Signal {
  Check check = nullptr;
  std::uint64_t key = 0;  // of the evidence: tells apart what one check can see
  Ranks ranks;
  bool everyone = false;  // there is no minority: the ranks are all workers
  std::uint64_t first_step = 0;
  std::uint64_t last_step = 0;
  Severity severity = Severity::kWarning;
  double confidence = 0;
  Evidence evidence;
  std::string remedy;         // empty: the check's
  std::uint32_t workers = 0;  // in the run at that time; 0: unknown
  double effect = 0;          // of a statistic: distance from the others, in their deviations
  std::uint64_t lasted = 0;   // steps since its alarm in which it was still so
  bool turned_away = false;   // its ranks' gradients pointed away from the others'
  // The last step at which what differs now was seen to be equal; none where it never was.
  std::optional<std::uint64_t> equal_until{};
  std::optional<std::uint64_t> certain_step{};  // in which a detector had enough evidence
  std::uint64_t id = 0;
};

// A slack within which all ranks of a check and key are one signal.
inline constexpr std::uint64_t kAllSteps = UINT64_MAX / 2;

// A sighting at one step with the check's own severity.
Signal sighting(Check check, std::uint64_t step, Blame blame, double confidence, Evidence evidence);

// Thread-safety: not synchronized. At most 64 signals a check; what is beyond joins the last one.
class SignalLog {
 public:
  // Ranks that a signal of the same check and key has already are added to it. The others make a
  // new signal, or join the newest if that began at most `slack` steps ago. The latest evidence
  // stays, whole.
  void add(Signal now, std::uint64_t slack = 0);
  // The one signal of the check, or none, in the place of those there are. It keeps its id while
  // its key stays.
  void replace(Check check, std::optional<Signal> now);
  // The one signal of its check and key, in the place of those there are. It keeps the first one's
  // id and first step: what is only graded otherwise is not new.
  void settle(Signal now);
  // What was seen of the check and key is information.
  void soften(Check check, std::uint64_t key, const std::string& remedy);
  // Nothing of the check and key was seen after all.
  void forget(Check check, std::uint64_t key);
  // The check never could look, as shows only now: it has neither passed nor found anything.
  void retract(Check check);
  // Signals of the check and key on these ranks are still so at the step.
  void prolong(Check check, std::uint64_t key, const Ranks& ranks, std::uint64_t step);
  // The newest signal of a check that holds the rank, or null.
  Signal* find(Check check, std::uint32_t rank);
  const std::vector<Signal>& signals() const { return signals_; }

  // Another record begins.
  void begin_record() { ++records_; }
  // The expectation was looked at, and held unless it is seen broken. Counts once a record.
  void checked(Check check) {
    Coverage& c = coverage_[place_of(check)];
    if (c.record == records_) return;
    ++c.looked;
    c.record = records_;
    c.more = 0;
  }
  // After `checked`, as of this record: so many more are needed before a broken expectation would
  // be a finding. Until then the check has not passed. `why` outlives the log.
  void needs(Check check, std::uint64_t more, std::string_view why);
  // Likewise, until it was looked at in so many records.
  void needs_records(Check check, std::uint64_t records, std::string_view why) {
    const std::uint64_t looked = coverage_[place_of(check)].looked;
    if (looked < records) needs(check, records - looked, why);
  }
  // What the check waits for, or why it cannot be made; both outlive the log.
  void waits(Check check, std::string_view why) { coverage_[place_of(check)].armed = why; }
  // Of several reasons the one that was given most often is told.
  void cannot(Check check, std::string_view why);
  CheckRecord record(Check check) const;

 private:
  struct Coverage {
    std::uint64_t looked = 0;
    std::uint64_t record = 0;  // in which it was last looked at
    std::uint64_t more = 0;    // records that it needs yet, as of that one
    std::string_view needed;   // why
    std::string_view armed;
    struct Reason {
      std::string_view why;
      std::uint64_t times = 0;
    };
    std::array<Reason, 6> cannot;
  };
  Signal* joinable(const Signal& now, std::uint64_t slack);

  std::vector<Signal> signals_;  // by id
  std::uint64_t ids_ = 0;        // that were given
  std::array<Coverage, kChecks> coverage_{};
  std::uint64_t records_ = 1;
};

}  // namespace presum::checks
