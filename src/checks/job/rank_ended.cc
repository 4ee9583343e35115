// SPDX-License-Identifier: Apache-2.0
// **rank-ended.** A rank's last packet names the exception that ends its program. The recording
// rank watches the processes of its own host (by process id and start time) and learns the signal
// or exit code of each one that ends. Of other hosts it knows only the last sign of life. The
// finding names the rank that ended first for its own reason: an exception, or a signal such as
// SIGKILL. Errors that report a lost peer (an exception of a collective, a watchdog's SIGABRT) are
// effects and appear in the evidence. That a rank left in order, its exit code, and that it
// vanished for an unknown reason count only if a collective fails because of it. If all ranks end
// alike, it is information, and so is Ctrl-C; SIGTERM is a warning at most. The finding is in the
// run log immediately, because a launcher then ends the other ranks, including the recording one.
// The check cannot see the end of the recording rank. Its run stays "not closed", and on the same
// host it is judged incomplete once that process is gone.

#include "checks/job/rank_ended.h"

#include <fmt/format.h>

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/hash.h"
#include "checks/engine/rules.h"

namespace presum::checks {
namespace {

std::string plural(const std::string& verb) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kVerbs{
      {{"was ", "were "}, {"is ", "are "}, {"does ", "do "}, {"has ", "have "}}};
  for (const auto& [one, many] : kVerbs) {
    if (verb.starts_with(one)) return std::string(many) + verb.substr(one.size());
  }
  return verb;
}

class RankEnded final : public Rule {
 public:
  void update(const StepContext& context, SignalLog& log) override {
    ranks_ = context.record.workers_expected;
    if (ranks_ < 2) return log.cannot(&kRankEnded, "There is only one rank.");
    if (beats_) return log.waits(&kRankEnded, "Not all ranks have reported their end yet.");
    log.cannot(&kRankEnded, "No rank reported its position; C++ programs do not report it.");
  }

  void farewell(std::uint32_t rank, const FinalState& /*last*/, const Roster& /*roster*/,
                SignalLog& log) override {
    insert(left_, rank);
    if (beats_ && ranks_ > 1 && left_.size() >= ranks_) log.checked(&kRankEnded);
  }

  void beats() override { beats_ = true; }

 private:
  bool beats_ = false;
  std::uint32_t ranks_ = 0;  // the expected number
  Ranks left_;
};

}  // namespace

std::string sentence(const RankEnd& seen, const Who& who) {
  return fmt::format("{} {}", who.words(), seen.words());
}

std::string RankEnd::words() const {
  const bool clause = how.find_first_of(":,") != std::string::npos;
  return fmt::format("{}{} {}{}", ranks.size() > 1 ? plural(how) : how, clause ? "," : "",
                     last_step ? fmt::format("after step {}", *last_step) : "before its first step",
                     left_in_order ? ", before the others" : "");
}

std::uint64_t RankEnd::key() const { return name_hash(words()); }

void report_end(const std::optional<RankEnd>& end, SignalLog& log) {
  if (!end) return log.replace(&kRankEnded, std::nullopt);
  Signal signal =
      sighting(&kRankEnded, end->last_step.value_or(0), {end->ranks, end->everyone}, 1, *end);
  signal.severity = end->severity;
  log.replace(&kRankEnded, std::move(signal));
}

constexpr Check kRankEndedExplains[] = {&kMissingRank};
constinit const CheckInfo kRankEnded{
    .id = "rank-ended",
    .severity = Severity::kCritical,
    .compares = "whether every rank stays until all have left the training",
    .fires =
        "when the rank ends; a warning for SIGTERM, information for Ctrl-C and if all ranks end "
        "alike",
    .consequence =
        "The other ranks cannot continue, and their errors name the network rather than the cause.",
    .cannot_see =
        "How a process on another host ended: only its last sign of life is known. A program that "
        "catches its exception and exits. The end of the recording process.",
    .mistake =
        "if not torch.isfinite(loss):   # on one rank\n    raise RuntimeError(\"loss is not "
        "finite\")",
    .fix =
        "Read the traceback and the system log of the named rank: the others failed because it was "
        "gone. A process that was killed without a message often ran out of memory.",
    .precedence = 10,
    .explains = kRankEndedExplains,
    .dates_itself = true,
    .make = make<RankEnded>,
};

}  // namespace presum::checks
