// SPDX-License-Identifier: Apache-2.0
// **data-coverage.** Of map-style data sets, at the end of a pass that a loader was gone through in
// and of which every batch was seen at the model, in its order, from the first to the last (kind
// `data_ended`; the last pass by the final note): where a program changes rows on their way to the
// model nothing is known from there on. A pass that the program breaks off, or skips batches of,
// packets that were lost and `every` above 1 make it not possible, and nothing that was not seen
// counts as missing. Samples count by index, exactly, where the indices of every step are known (a
// step's first 4,096) and the data sets that are followed have 2^27 samples at most together; else
// rows count, which are no fewer than the samples: then samples that are left out because others
// are repeated are overlapping-data's alone. Where ranks read data sets that look different each is
// held against its own length, else all together against one. Dropped, filled-up and untrained
// batches are quiet: up to the most rows that a rank read in a step, and one, for each rank.
// Named apart: a pass that draws 1/W (the data is divided twice), samples of the end that are never
// drawn, what none of the passes so drew, and rows that loaders dealt and nobody trained on: where
// the model was given all of such a batch before, without gradients, the program chose among them,
// which is information. Samplers of torch and Accelerate are believed to deal
// every sample, and judged by one pass; one of the program's own by two in a row, for after a
// restart it may begin in the middle, and what it leaves out is information, but for 1/W. A
// `RandomSampler` that is asked for fewer samples is about as many. A `SubsetRandomSampler`'s
// positions are all that it is about. Samplers that draw with replacement, that repeat on purpose,
// or that skip (`Skip` in their class's name) are not judged. Data sets of each rank that look
// alike, with samplers that divide them again, are not seen.

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "checks/engine/rules.h"
#include "checks/engine/sampling.h"

namespace presum::checks {
namespace {

constexpr std::size_t kDataSets = 4096;                     // that left samples out
constexpr std::uint64_t kSamples = std::uint64_t{1} << 27;  // of them, by index, together
constexpr std::uint64_t kSurePasses = 2;  // passes in a row, of a sampler that presum does not know
constexpr const char* kCombined =
    "The wrapper does not reduce the gradients that steps are taken on: the program may clear "
    "passes that it has taken a gradient from, and their samples are not known.";
constexpr const char* kAmongJob =
    "The samplers divide the data among ranks of other data-parallel groups, too.";
constexpr const char* kShares =
    "The data set itself holds other positions on each rank: how many there are in all is not "
    "known.";
constexpr const char* kNoLength =
    "No loader over a data set that has a length and numbers its samples was found.";
constexpr const char* kNotWhole =
    "No pass was seen as a whole: batches were skipped, not recorded or not known.";
constexpr const char* kNoEnd = "No loader has ended a pass over its data yet.";
constexpr const char* kMeant = "Nothing, where the program is meant to leave samples out.";
constexpr const char* kCut =
    "Give the model every row of a batch, or let the loader deal smaller ones.";
constexpr const char* kDesign =
    "The sampler draws with replacement, or repeats samples: a pass need not have all of them.";

struct LeftOut {
  std::uint64_t samples_left_out = 0;  // in the last of the passes
  std::uint64_t of_samples = 0;
  std::uint64_t passes = 0;                          // in a row that left samples out
  std::optional<std::uint64_t> drawn_one_in;         // all that was drawn, where it is 1/ranks
  std::optional<std::uint64_t> from_index;           // where all of the end was left out
  std::optional<std::uint64_t> samples_never_drawn;  // in any of several passes
  // Of batches that loaders dealt, where these account for it: the model was not given them, or it
  // was without gradients and the program trained on others of the batch.
  std::optional<std::uint64_t> rows_cut;
  std::optional<std::uint64_t> rows_passed_over;

  static constexpr std::tuple kFields{field("samples_left_out", &LeftOut::samples_left_out),
                                      field("of_samples", &LeftOut::of_samples),
                                      field("passes", &LeftOut::passes),
                                      field("drawn_one_in", &LeftOut::drawn_one_in),
                                      field("from_index", &LeftOut::from_index),
                                      field("samples_never_drawn", &LeftOut::samples_never_drawn),
                                      field("rows_cut", &LeftOut::rows_cut),
                                      field("rows_passed_over", &LeftOut::rows_passed_over)};
};

std::string sentence(const LeftOut& seen, const Who& who) {
  if (seen.rows_passed_over) {
    return who.words() +
           " gave the model whole batches without gradients, and trained on a part of each";
  }
  if (seen.rows_cut) {
    return who.words() + " gave the model a part of the batches that the loaders dealt";
  }
  if (seen.drawn_one_in) {
    return fmt::format(
        "{} together drew 1/{} of the data in a whole pass over it: the data is divided twice",
        who.words(), *seen.drawn_one_in);
  }
  if (seen.from_index) {
    return who.words() + " never came to the end of the data in a whole pass over it";
  }
  return who.words() + " left samples out in a whole pass over the data";
}

// Samples that a whole pass over a data set left out, on all workers together: passes that a loader
// ended, of which every batch was seen. By index, where indices are known and the data sets that
// are followed have no more than 2^27 samples together; else by the number of rows, which is at
// least the number of samples.
class DataCoverage final : public Rule {
 public:
  void update(const StepContext& context, SignalLog& log) override {
    by_design_before_ = by_design_;
    combined_ = context.averaging.by_other_means() || context.averaging.own_steps();
    if (context.averaging.by_other_means()) {
      log.retract(&kDataCoverage);  // of passes before that was known
    }
    if (combined_) {
      log.waits(&kDataCoverage, {});
      return log.cannot(&kDataCoverage, kCombined);
    }
    among_job_ = among_job_ || divides_among_job(context.record, context.roster) > 0;
    if (among_job_) return log.cannot(&kDataCoverage, kAmongJob);
    if (split(context.record, FingerprintKind::kDataShare).differs()) {
      return log.cannot(&kDataCoverage, kShares);
    }
    if (draws_with_replacement(context.roster) ||
        repeats_by_design(context.record, context.roster)) {
      by_design_ = context.record.step;
      return log.cannot(&kDataCoverage, kDesign);
    }
    for (const WorkerRecord& worker : context.record.workers) {
      if (reads_passes(worker)) {
        log.waits(&kDataCoverage, kNoEnd);
      } else {
        log.cannot(&kDataCoverage, kNoLength);
      }
    }
  }

  void pass_over(const Pass& pass, const Roster& roster, SignalLog& log) override {
    if (combined_) return log.cannot(&kDataCoverage, kCombined);
    if (among_job_) return log.cannot(&kDataCoverage, kAmongJob);
    const bool within = by_design_before_ && *by_design_before_ >= pass.first_step;
    const bool at_its_end = by_design_ && *by_design_ == pass.last_step;
    if (within || at_its_end) return log.cannot(&kDataCoverage, kDesign);
    if (!pass.whole() || skips(roster.fact("sampler"))) {
      return log.cannot(&kDataCoverage, kNotWhole);
    }
    judge(pass, roster, log);
  }

 private:
  // What was found of a data set so far.
  struct History {
    std::uint64_t passes = 0;  // in a row that left samples out
    std::uint64_t first_step = 0;
    SampleSet drawn{0};  // in any of them
    std::uint64_t length = 0;
    bool indexed = false;
  };
  struct Missing {
    std::uint64_t samples = 0;  // left out
    std::uint64_t length = 0;   // of those that the sampler is about
    std::uint64_t slack = 0;    // what dropped and filled-up batches account for

    bool within(std::uint64_t rows) const { return samples <= slack + rows; }
  };

  void judge(const Pass& pass, const Roster& roster, SignalLog& log) {
    log.checked(&kDataCoverage);
    const std::string sampler = roster.fact("sampler");
    const Missing missing = missing_of(pass, sampler);
    if (missing.within(0)) {
      histories_.erase(pass.data);
      return;
    }
    const std::uint64_t last_batches = pass.ranks.size() * pass.untrained_at_once;
    if (missing.within(pass.passed_over + pass.cut + last_batches)) {
      return log.settle(untrained(pass, missing));
    }
    if (histories_.size() >= kDataSets && !histories_.contains(pass.data)) histories_.clear();
    History& history = histories_[pass.data];
    if (history.length != pass.length) history = {};  // data sets of one hash
    if (history.passes++ == 0) {
      history.length = pass.length;
      history.indexed = pass.indexed && pass.length + samples_kept() <= kSamples;
      if (history.indexed) history.drawn = pass.drawn;
      history.first_step = pass.first_step;
    } else {
      history.indexed = history.indexed && pass.indexed;
      if (history.indexed) history.drawn.unite(pass.drawn);
    }
    const bool known = deals_all(sampler, pass.own, pass.length);
    if (!known && history.passes < kSurePasses) return;
    Signal signal = signal_of(pass, history, missing, known);
    if (signal.severity == Severity::kInfo) return log.settle(std::move(signal));
    log.add(std::move(signal), kAllSteps);
  }

  // A subset that a sampler was given, or as many as it was asked for, is all that it is about.
  static Missing missing_of(const Pass& pass, std::string_view sampler) {
    const bool subset = draws_some(sampler) && pass.own > 0;
    const std::uint64_t length = subset ? std::min(pass.length, pass.own) : pass.length;
    const std::uint64_t drawn = pass.indexed ? pass.drawn.count() : pass.rows;
    const std::uint64_t workers = pass.ranks.size();
    return {length - std::min(length, drawn), length, workers * (pass.rows_at_once + 1)};
  }

  static bool divided_twice(const Pass& pass, const Missing& missing) {
    const std::uint64_t drawn = std::max(pass.rows, missing.length - missing.samples);
    const std::uint64_t off = drawn * pass.workers > missing.length
                                  ? drawn * pass.workers - missing.length
                                  : missing.length - drawn * pass.workers;
    return pass.workers > 1 && off <= pass.workers * missing.slack &&
           drawn * 3 < missing.length * 2;
  }

  // Whether each rank drew as many as its sampler, of the program's own, says that it has.
  static bool as_announced(const Pass& pass, const Missing& missing) {
    const std::uint64_t drawn = missing.length - missing.samples;
    return pass.own > 0 && pass.own * pass.ranks.size() <= drawn + missing.slack;
  }

  static LeftOut left_out(const Pass& pass, const History& history, const Missing& missing,
                          bool announced) {
    LeftOut out{.samples_left_out = missing.samples,
                .of_samples = missing.length,
                .passes = history.passes};
    if (!announced && divided_twice(pass, missing)) {
      out.drawn_one_in = pass.workers;
    } else if (pass.indexed && pass.drawn.end() + missing.samples == missing.length) {
      out.from_index = pass.drawn.end();
    }
    if (history.passes > 1 && history.indexed) {
      out.samples_never_drawn = missing.length - std::min(missing.length, history.drawn.count());
    }
    return out;
  }

  // What loaders dealt, and nobody trained on.
  static Signal untrained(const Pass& pass, const Missing& missing) {
    LeftOut seen{.samples_left_out = missing.samples, .of_samples = missing.length, .passes = 1};
    const bool chosen = pass.passed_over >= pass.cut;
    (chosen ? seen.rows_passed_over : seen.rows_cut) = chosen ? pass.passed_over : pass.cut;
    Signal signal = sighting(&kDataCoverage, pass.last_step, all_of(pass), 0.95, seen);
    signal.first_step = pass.first_step;
    if (chosen) signal.severity = Severity::kInfo;
    signal.remedy = chosen ? kMeant : kCut;
    return signal;
  }

  static Blame all_of(const Pass& pass) { return {pass.ranks, pass.ranks.size() == pass.workers}; }

  static Signal signal_of(const Pass& pass, const History& history, const Missing& missing,
                          bool told) {
    const LeftOut seen = left_out(pass, history, missing, !told && as_announced(pass, missing));
    Signal signal =
        sighting(&kDataCoverage, pass.last_step, all_of(pass), pass.indexed ? 0.95 : 0.9, seen);
    signal.first_step = history.first_step;
    if (!told && !seen.drawn_one_in) {
      signal.severity = Severity::kInfo;
      signal.remedy = kMeant;
    }
    return signal;
  }

  std::uint64_t samples_kept() const {
    std::uint64_t out = 0;
    for (const auto& [data, history] : histories_) out += history.indexed ? history.length : 0;
    return out;
  }

  std::map<std::uint64_t, History> histories_;  // by data set
  bool combined_ = false;
  bool among_job_ = false;
  // The last steps whose sampler draws with replacement or repeats: of all, and before this one.
  std::optional<std::uint64_t> by_design_;
  std::optional<std::uint64_t> by_design_before_;
};

}  // namespace

constinit const CheckInfo kDataCoverage{
    .id = "data-coverage",
    .severity = Severity::kWarning,
    .compares = "samples drawn in a whole pass against the data set's length",
    .fires = "at the end of the pass",
    .consequence =
        "Samples that are never drawn are never learned from, and an epoch is shorter than it is "
        "believed to be.",
    .cannot_see =
        "Passes that the program breaks off, samplers that draw with replacement or repeat, data "
        "sets without a length; shards of each rank whose data sets look alike; where indices are "
        "unknown, samples that are left out because others are repeated. A pass is judged where "
        "its last batch was seen at the model: not where the program changes rows on their way "
        "(augmentation on a device). Batches that are cut before the model leave samples out, and "
        "are told as such.",
    .mistake =
        "sampler = DistributedSampler(data)\n"
        "loader = accelerator.prepare(DataLoader(data, sampler=sampler))  # divides it again",
    .fix =
        "Divide the data once: hand Accelerate or the Trainer a loader without a "
        "DistributedSampler, and a data set that is not split by rank already. A sampler of your "
        "own has to deal every sample.",
    .resembles = "huggingface/accelerate#3520",
    .precedence = 140,
    .dates_finding = false,
    .make = make<DataCoverage>,
};

}  // namespace presum::checks
