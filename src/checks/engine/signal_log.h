// SPDX-License-Identifier: Apache-2.0
// What rules saw: signals that grow from step to step, and the coverage of every check.
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

// A violation of one check on one set of ranks, from its first to its last step.
struct Signal {
  Check check = nullptr;
  std::uint64_t key = 0;  // of the evidence: tells apart what one check can report
  Ranks ranks;
  bool everyone = false;   // there is no minority: the ranks are all ranks
  bool undecided = false;  // too few ranks were known to tell which of them differ
  std::uint64_t first_step = 0;
  std::uint64_t last_step = 0;
  Severity severity = Severity::kWarning;
  double confidence = 0;
  Evidence evidence;
  std::string remedy;         // empty: the check's fix
  std::uint32_t workers = 0;  // ranks in the run at that time; 0: unknown
  double effect = 0;          // of a statistic: distance from the others, in standard deviations
  std::uint64_t lasted = 0;   // steps since its alarm in which it persisted
  bool turned_away = false;   // its ranks' gradients pointed away from the others'
  bool allowed = false;       // the program declares its check as intended
  bool derived = false;       // of a number that is computed from another statistic's
  // The last step at which the differing values were equal; none if they never were.
  std::optional<std::uint64_t> equal_until{};
  std::optional<std::uint64_t> certain_step{};  // at which a detector had enough evidence
  std::uint64_t id = 0;
};

// A slack that makes all ranks of a check and key one signal.
inline constexpr std::uint64_t kAllSteps = UINT64_MAX / 2;

// A signal at one step with the check's own severity.
Signal sighting(Check check, std::uint64_t step, Blame blame, double confidence, Evidence evidence);

// Thread-safety: not synchronized. At most 64 signals per check; more join the last one.
class SignalLog {
 public:
  // Extends the signal with the same check and key on ranks that it already has. Other ranks form a
  // new signal, or join the newest one if that began at most `slack` steps ago. The latest evidence
  // replaces earlier evidence as a whole.
  void add(Signal now, std::uint64_t slack = 0);
  // Replaces all signals of the check by one, or by none. The signal keeps its id while its key
  // stays the same.
  void replace(Check check, std::optional<Signal> now);
  // Replaces all signals of its check and key by one. It keeps the first one's id and first step: a
  // new severity does not make it new.
  void settle(Signal now);
  // Turns signals of the check and key into information.
  void soften(Check check, std::uint64_t key, const std::string& remedy);
  // Removes signals of the check and key.
  void forget(Check check, std::uint64_t key);
  // The check could never look, as is known only now: it has neither passed nor found anything.
  void retract(Check check);
  // Signals of the check and key on these ranks still hold at the step.
  void prolong(Check check, std::uint64_t key, const Ranks& ranks, std::uint64_t step);
  // The newest signal of a check that contains the rank, or null.
  Signal* find(Check check, std::uint32_t rank);
  const std::vector<Signal>& signals() const { return signals_; }

  // Starts the next record.
  void begin_record() { ++records_; }
  // The check looked, and passes unless it adds a signal. Counts once per record.
  void checked(Check check) {
    Coverage& c = coverage_[place_of(check)];
    if (c.record == records_) return;
    ++c.looked;
    c.record = records_;
    c.more = 0;
  }
  // After `checked`, as of this record: a violation needs this many more records to become a
  // finding. The check does not pass before that. `why` must outlive the log.
  void needs(Check check, std::uint64_t more, std::string_view why);
  // The same, until the check has looked at this many records.
  void needs_records(Check check, std::uint64_t records, std::string_view why) {
    const std::uint64_t looked = coverage_[place_of(check)].looked;
    if (looked < records) needs(check, records - looked, why);
  }
  // What the check waits for, or why it is not possible; both must outlive the log.
  void waits(Check check, std::string_view why) { coverage_[place_of(check)].armed = why; }
  // Of several reasons, the most frequent one is shown.
  void cannot(Check check, std::string_view why);
  CheckRecord record(Check check) const;

 private:
  struct Coverage {
    std::uint64_t looked = 0;
    std::uint64_t record = 0;  // in which it last looked
    std::uint64_t more = 0;    // records that it needs after that one
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
  std::uint64_t ids_ = 0;        // ids given so far
  std::array<Coverage, kChecks> coverage_{};
  std::uint64_t records_ = 1;
};

}  // namespace presum::checks
