// SPDX-License-Identifier: Apache-2.0
// **rank-ended.** A rank's last packet says by which exception its program ends. The rank that
// records watches the processes of its own host (by number and start time) and learns the signal or
// exit code of each that ends; of other hosts it knows the last sign of life and no more. The rank
// that ended first for a reason of its own is named: by an exception, or a signal such as SIGKILL.
// What says that a peer was gone (an exception of a collective, a watchdog's SIGABRT) is an effect:
// it is in the evidence. Only where a collective fails for it does it count that a rank left in
// order, and with which exit code, or is gone without anybody knowing how. The same end on all
// ranks is information, and so is Ctrl-C; SIGTERM is a warning at most. The finding is in the run
// log at once, because a launcher ends the other ranks, and with them the one that records, a
// moment later. The check cannot see the end of the rank that records. Its run stays "not closed",
// and on the same host it is judged incomplete once that process is gone.

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
    if (ranks_ < 2) return log.cannot(&kRankEnded, "One rank: no other can end before it.");
    if (beats_) return log.waits(&kRankEnded, "Not all ranks have said how they end.");
    log.cannot(&kRankEnded, "No rank told where it stands: programs in C++ do not.");
  }

  void farewell(std::uint32_t rank, const FinalState& /*last*/, const Roster& /*roster*/,
                SignalLog& log) override {
    insert(left_, rank);
    if (beats_ && ranks_ > 1 && left_.size() >= ranks_) log.checked(&kRankEnded);
  }

  void beats() override { beats_ = true; }

 private:
  bool beats_ = false;
  std::uint32_t ranks_ = 0;  // that are expected
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
    .compares = "whether every rank is there until all have left the training",
    .fires =
        "when the rank ends; a warning for SIGTERM, information for Ctrl-C and where all end alike",
    .consequence =
        "The other ranks cannot go on, and what they raise names the network rather than the "
        "cause.",
    .cannot_see =
        "How a process of another host ended: of it only its last sign of life is known. A program "
        "that catches its exception and exits. The end of the process that records.",
    .mistake =
        "if not torch.isfinite(loss):   # on one rank\n    raise RuntimeError(\"loss is not "
        "finite\")",
    .fix =
        "Read the traceback and the system's log of the named rank: the others failed because it "
        "was gone. A process that was killed without a word has often run out of memory.",
    .precedence = 10,
    .explains = kRankEndedExplains,
    .dates_itself = true,
    .make = make<RankEnded>,
};

}  // namespace presum::checks
