// SPDX-License-Identifier: Apache-2.0
// **overlapping-data.** Counts the draws of a sample beyond its first in one pass over the data: by
// index if samplers split one dataset, otherwise by row hash. By row hash, records that are equal
// in the dataset look like overlap. So rows whose indices differ do not count, and without indices,
// draws by several ranks must exceed those by one rank more than 4 (W - 1)-fold and be 1% of all
// draws. Repeats at the end of a pass that fill up the last batches (up to a whole step) do not
// count: draws of samples of the pass's first step wait until the pass continues. Steps with
// micro-batches of two passes are skipped. The single long pass of an endless sampler is cut
// whenever the length of the dataset has been drawn. An index counts within its dataset, so loaders
// may take turns.
//
// Sampling with replacement, or by a sampler that repeats on purpose, is not judged. Two cases are
// information. In the first, a custom sampler draws a rank's own samples again as often as chance
// makes it draw others' (class balancing, episodes, no end). The second is a stream without a known
// length, until an eighth of the samples that a rank draws were drawn by other ranks before: a
// stream that restarts before its pass ends may deal some shards to other ranks.
//
// At most 262,144 samples of a pass are remembered. In longer passes only samples whose hash is
// divisible by a power of two are followed, and counts are scaled. Evidence: `samples_doubled`,
// `samples_drawn`; data-coverage reports what a whole pass left out. If rows were compared and a
// rank's sampler does not divide the data, the remedy says so. If ranks draw their own samples
// again, the remedy explains how to resume.
//
// Repeated batches are reported too. A batch that equals the previous step's batch three steps in a
// row, on at most half of the ranks, means a stuck loader. If a loader deals a batch several times
// in a row, for two in five of 12 or more batches (not counting a batch that the program reuses),
// its worker processes do not divide their stream. Rows that repeat within one rank's step in 2
// steps in a row are a micro-batch that was fed twice; if indices are unknown, only if at most half
// of the ranks show it.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "checks/data/parted_generators.h"
#include "checks/data/sampler_mismatch.h"
#include "checks/engine/rules.h"
#include "checks/engine/sampling.h"
#include "checks/engine/text.h"

namespace presum::checks {
namespace {

constexpr double kDoubled = 3;         // draws before it is a finding
constexpr double kOfChance = 4;        // times the draws between ranks that chance gives,
constexpr double kFew = 2;             // beside this many within one rank
constexpr double kSure = 8;            // per rank: by chance, some would be within one rank
constexpr double kShare = 0.01;        // of all draws, where only row hashes are known
constexpr double kOfStream = 1.0 / 8;  // of a rank's draws from a stream, that others drew before
constexpr double kOfOneRank = 0.9;     // of the doubled draws: then this rank is the cause
constexpr double kDrawnAgain = 0.1;    // of the doubled draws, that it drew after others
constexpr const char* kNoLoader =
    "No batch of a data loader was seen to reach the model, so passes over the data are unknown.";
constexpr const char* kSharedRows =
    "The hashed rows are the same on all ranks although their batches differ.";
constexpr const char* kChangedRows =
    "The program changes rows between the loader and the model (noise, augmentation, a cut). Fewer "
    "than three came twice, so it is unknown whether a sample that is drawn again would be "
    "recognized.";
constexpr const char* kNoSamples = "No samples were seen.";
constexpr const char* kFewDraws = "A sample or two may be drawn again to fill up batches.";
constexpr const char* kMayRepeat =
    "The sampler may repeat samples by design: more draws are needed to tell.";
constexpr const char* kBeginsAnew =
    "Nothing, if the stream restarts before its pass ends, with different shards on each rank. If "
    "not, split it among the ranks by this job's rank and world size.";
constexpr const char* kReplacement =
    "The sampler draws with replacement, so a sample may repeat on purpose.";

constexpr const char* kRestarted =
    "After a restart, continue the pass where it stopped: restore the loader's and the sampler's "
    "state on every rank, including the epoch, and skip the batches that are done.";
constexpr const char* kMeant =
    "Nothing, if the sampler is meant to draw a sample more than once (class balancing, episodes, "
    "an endless pass).";
constexpr const char* kByDesign = "The sampler repeats samples by design.";

struct DrawnTwice {
  std::uint64_t samples_doubled = 0;
  std::uint64_t samples_drawn = 0;
  std::uint64_t data_pass = 0;
  bool by_the_same_rank = false;  // nearly all doubled draws of this pass
  // If no sampler has its own seed: a generator that had the same state on all ranks until it
  // changed on these.
  std::string parted_generator;
  Ranks ranks_changed;
  std::optional<std::uint64_t> generators_equal_until;
  std::optional<std::uint64_t> generators_apart_at;

  static constexpr std::tuple kFields{
      field("parted_generator", &DrawnTwice::parted_generator),
      field("ranks_changed", &DrawnTwice::ranks_changed),
      field("generators_equal_until", &DrawnTwice::generators_equal_until),
      field("generators_apart_at", &DrawnTwice::generators_apart_at),
      field("samples_doubled", &DrawnTwice::samples_doubled),
      field("samples_drawn", &DrawnTwice::samples_drawn),
      field("data_pass", &DrawnTwice::data_pass),
      field("by_the_same_rank", &DrawnTwice::by_the_same_rank)};
};

std::string sentence(const DrawnTwice& seen, const Who& who) {
  if (seen.by_the_same_rank) {
    return who.words() + " drew their own samples again in the same pass over the data";
  }
  return who.words() + " drew samples that had been drawn before in the same pass over the data";
}

std::string overlap_suspects(std::span<const Signal* const> signals) {
  const auto* seen = signals.front()->evidence.as<DrawnTwice>();
  if (seen == nullptr || seen->parted_generator.empty()) return "";
  return fmt::format(
      "an order that is drawn from {}'s global generator: that of {} changed between steps {} and "
      "{}, the others' did not (a validation or a log on some ranks alone?)",
      seen->parted_generator, Who{seen->ranks_changed, false}.within(),
      *seen->generators_equal_until, *seen->generators_apart_at);
}

// Draws of samples beyond their first in one pass over the data. If samples are followed by their
// hash, each draw counts as 2^bits.
class Doubled {
 public:
  struct Part {
    double involved = 0;   // doubled draws in which the rank drew first or again
    double again = 0;      // of them, where it drew again
    double of_others = 0;  // of these, where another rank drew first
  };

  // A pass may repeat samples at its end to fill up the last batches. That is not overlap: a draw
  // of a sample of the first step counts only once the pass continues after it. Samples that were
  // first drawn before `since` are skipped.
  void see(const DrawnPass& pass, std::span<const DrawnAgain> draws, std::uint64_t step,
           std::uint64_t since) {
    pass_ = pass;
    if (pass.last_step == step) settle(step);
    for (const DrawnAgain& again : draws) {
      if (again.pass != pass.id || !again.in_pass || again.shares_place) continue;
      if (!pass.follows(again.sample) || again.first_step < since) continue;
      if (again.first_step == pass.first_step) {
        waiting_.push_back(again);
      } else {
        count(again);
      }
    }
  }

  const DrawnPass& pass() const { return pass_; }
  double all() const { return all_; }
  double between() const { return between_; }  // of them, by another rank than the first
  // By one rank, including within one step, which equal records show too.
  double within() const { return all_ - between_ + within_step_; }
  double exact() const { return exact_; }  // of them, with equal indices
  const std::map<std::uint32_t, Part>& by_rank() const { return by_rank_; }

 private:
  void settle(std::uint64_t step) {
    std::erase_if(waiting_, [&](const DrawnAgain& again) {
      if (again.step >= step) return false;
      if (pass_.follows(again.sample)) count(again);
      return true;
    });
  }

  void count(const DrawnAgain& again) {
    const double each = std::ldexp(1.0, static_cast<int>(pass_.bits));
    if (again.rank == again.first_rank && again.step == again.first_step) {
      within_step_ += each;  // one draw
      return;
    }
    all_ += each;
    if (again.same_index) exact_ += each;
    by_rank_[again.rank].involved += each;
    by_rank_[again.rank].again += each;
    if (again.rank == again.first_rank) return;
    between_ += each;
    by_rank_[again.rank].of_others += each;
    by_rank_[again.first_rank].involved += each;
  }

  DrawnPass pass_;
  std::vector<DrawnAgain> waiting_;
  double all_ = 0;
  double between_ = 0;
  double exact_ = 0;
  double within_step_ = 0;
  std::map<std::uint32_t, Part> by_rank_;
};

// Records that are equal in the dataset fall to other ranks W - 1 times as often as to the same
// rank by chance. Overlap is far above that.
bool beyond_equal_records(const Doubled& doubled, double workers) {
  return doubled.between() > kOfChance * (workers - 1) * (doubled.within() + kFew) &&
         doubled.between() > kShare * static_cast<double>(doubled.pass().drawn);
}

// A stream that restarts before its pass ends deals whole shards, perhaps to another rank: a small
// part of what a rank draws.
bool begins_anew(const Doubled& doubled, const StepRecord& record, double workers) {
  const double share = kOfStream * static_cast<double>(doubled.pass().drawn) / workers;
  return split(record, FingerprintKind::kDataLength).known == 0 &&
         std::ranges::none_of(doubled.by_rank(),
                              [&](const auto& part) { return part.second.of_others >= share; });
}

// Whether ranks repeat their own samples as often as chance predicts: others' W - 1 times as often.
bool as_chance_repeats(const Doubled& doubled, double workers) {
  return doubled.between() * kOfChance > (workers - 1) * doubled.within();
}

// Whether the pass continued after its first step and has enough draws to show any overlap.
bool could_show(const DrawnPass& pass, double workers) {
  const bool by_index = pass.identity == DrawnPass::Identity::kIndex;
  const double least = by_index ? kDoubled : kOfChance * kFew * (workers - 1);
  return pass.went_on() && static_cast<double>(pass.drawn) > least;
}

// The one rank that takes part in nearly all doubled draws, if it also draws what others drew
// before; otherwise all ranks that take part.
Blame blame_of(const Doubled& doubled, const StepRecord& record) {
  Blame out;
  for (const auto& [rank, part] : doubled.by_rank()) {
    const bool one = part.involved >= kOfOneRank * doubled.all() &&
                     part.again >= kDrawnAgain * doubled.all() && doubled.between() > 0;
    if (one && record.workers.size() > 2) out.ranks.push_back(rank);
  }
  if (out.ranks.size() == 1) return out;
  out.ranks.clear();
  for (const auto& [rank, part] : doubled.by_rank()) out.ranks.push_back(rank);
  out.everyone = out.ranks.size() >= record.workers.size();
  return out;
}

std::uint64_t whole(double count) {
  return static_cast<std::uint64_t>(std::llround(std::min(count, 9e18)));
}

// Why a rank's samples are not followed; null if they are, or will be.
const char* why_not(Draws::Followed followed) {
  switch (followed) {
    case Draws::Followed::kNoSamples:
      return kNoSamples;
    case Draws::Followed::kNoLoader:
      return kNoLoader;
    case Draws::Followed::kSharedRows:
      return kSharedRows;
    case Draws::Followed::kChanged:
      return kChangedRows;
    case Draws::Followed::kYes:
    case Draws::Followed::kNotNow:
      break;
  }
  return nullptr;
}

bool changes_rows(const Draws& draws) {
  return std::ranges::find(draws.followed(), Draws::Followed::kChanged) != draws.followed().end();
}

class Overlap final : public Rule {
 public:
  void update(const StepContext& context, SignalLog& log) override {
    if (context.workers() == 0) return;
    if (draws_with_replacement(context.roster)) {
      return log.cannot(&kOverlappingData, kReplacement);
    }
    if (repeats_by_design(context.record, context.roster)) {
      since_ = context.record.step + 1;
      return log.cannot(&kOverlappingData, kByDesign);
    }
    repeats_->update(context, log);
    generators_.see(context.record);
    for (const Draws::Followed followed : context.draws.followed()) {
      if (const char* why = why_not(followed)) log.cannot(&kOverlappingData, why);
    }
    follow(context);
    const auto drawn = [](const auto& entry) { return entry.second.pass().drawn > 0; };
    if (std::ranges::none_of(passes_, drawn) || changes_rows(context.draws)) return;
    log.checked(&kOverlappingData);
    const std::size_t places = context.workers() / ranks_per_place(context.record);
    const auto count = static_cast<double>(places);
    for (const auto& [id, doubled] : passes_) {
      could_show_ = could_show_ || could_show(doubled.pass(), count);
    }
    if (!could_show_) log.needs(&kOverlappingData, 1, kFewDraws);
    for (const auto& [id, doubled] : passes_) {
      const bool beyond_chance = beyond_equal_records(doubled, count);
      const bool exact = doubled.exact() >= kDoubled;
      if (!exact && !beyond_chance) continue;
      const bool may_repeat = !beyond_chance && !deals_each_once(context.roster);
      if (may_repeat && doubled.all() < kSure * count) {
        log.needs(&kOverlappingData, 1, kMayRepeat);
        continue;
      }
      const bool by_design = may_repeat && as_chance_repeats(doubled, count);
      const bool anew = !exact && begins_anew(doubled, context.record, count);
      report(context, doubled, by_design ? kMeant : anew ? kBeginsAnew : nullptr, log);
    }
  }

 private:
  struct Totals {
    double doubled = 0;
    double drawn = 0;
  };

  void follow(const StepContext& context) {
    const std::vector<DrawnPass> passes = context.draws.passes();
    std::erase_if(passes_, [&](const auto& entry) {
      const bool over = std::ranges::find(passes, entry.first, &DrawnPass::id) == passes.end();
      if (over) finish(entry.second);
      return over;
    });
    for (const DrawnPass& pass : passes) {
      passes_[pass.id].see(pass, context.draws.again(), context.record.step, since_);
    }
  }

  void finish(const Doubled& doubled) {
    if (doubled.all() < kDoubled) return;
    finished_.doubled += doubled.all();
    finished_.drawn += static_cast<double>(doubled.pass().drawn);
  }

  // `meant`: what it may be if it is not a mistake.
  void report(const StepContext& context, const Doubled& in_pass, const char* meant,
              SignalLog& log) const {
    const DrawnPass& pass = in_pass.pass();
    const double doubled = finished_.doubled + in_pass.all();
    const double drawn = finished_.drawn + static_cast<double>(pass.drawn);
    DrawnTwice seen{.samples_doubled = whole(doubled),
                    .samples_drawn = whole(drawn),
                    .data_pass = pass.number,
                    .by_the_same_rank = in_pass.between() < kDrawnAgain * in_pass.all()};
    if (!seen.by_the_same_rank) name_generator(context.record, pass.first_step, seen);
    Signal signal = sighting(&kOverlappingData, context, blame_of(in_pass, context.record),
                             in_pass.exact() >= kDoubled ? 0.99 : 0.9, seen);
    if (meant != nullptr) {
      signal.severity = Severity::kInfo;
      signal.remedy = meant;
    } else if (seen.by_the_same_rank) {
      signal.remedy = kRestarted;
    } else if (pass.identity == DrawnPass::Identity::kRow) {
      signal.remedy = undivided_remedy(context.record);
    }
    log.add(std::move(signal), kAllSteps);
  }

  void name_generator(const StepRecord& record, std::uint64_t first_step, DrawnTwice& seen) const {
    const auto seeded = [](const WorkerRecord& w) {
      return w.fingerprint_of(FingerprintKind::kSamplerSeed) != nullptr;
    };
    const auto& parted = generators_.first();
    if (!parted || parted->step > first_step || std::ranges::any_of(record.workers, seeded)) return;
    seen.parted_generator = parted->generator;
    seen.ranks_changed = parted->changed;
    seen.generators_equal_until = parted->equal_until;
    seen.generators_apart_at = parted->step;
  }

  std::map<std::uint64_t, Doubled> passes_;  // by DrawnPass::id
  PartedGenerators generators_;
  Totals finished_;  // of finished passes with doubled samples
  std::unique_ptr<Rule> repeats_ = make_repeated_batches();
  bool could_show_ = false;  // some pass was long enough
  std::uint64_t since_ = 0;  // the step after the last one that repeats by design
};

}  // namespace

constexpr Check kOverlappingDataExplains[] = {&kDataCoverage, &kRankOutlier, &kPairTooSimilar,
                                              &kTooConsistent};
constinit const CheckInfo kOverlappingData{
    .id = "overlapping-data",
    .severity = Severity::kWarning,
    .compares = "whether a pass over the data draws a sample twice",
    .fires = "after 3 samples by index; without an index, see below",
    .consequence = "Repeated samples count twice and take the place of others.",
    .cannot_see =
        "Steps in which a pass ends; samplers that draw with replacement or repeat by design; "
        "without a sampler that splits the data, samples that the program changes at random on "
        "the way to the model (noise of a diffusion model, augmentation on a device).",
    .mistake = "sampler = DistributedSampler(data, seed=int(time.time()))",
    .fix =
        "Give every rank's sampler the same seed and epoch, or split the data into disjoint "
        "shards, and feed each micro-batch once.",
    .resembles = "karpathy/llm.c#792",
    .precedence = 130,
    .explains = kOverlappingDataExplains,
    .suspects = overlap_suspects,
    .make = make<Overlap>,
};

}  // namespace presum::checks
