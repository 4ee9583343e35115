// SPDX-License-Identifier: Apache-2.0
// **data-coverage.** Applies to map-style datasets. A pass is judged when its loader is exhausted
// and every batch from the first to the last was seen at the model in order (kind `data_ended`; for
// the last pass, the rank's last packet). Once a program changes rows on their way to the model,
// later batches are unknown. The check is not possible for a pass that the program breaks off or
// skips batches of, for lost packets, and with `every` above 1: a batch that presum did not see
// never counts as missing.
//
// Samples count by index, exactly, while the indices of every step are known (the first 4,096 of a
// step) and the followed datasets have at most 2^27 samples together. Beyond that, rows count.
// There are at least as many rows as samples, so only overlapping-data shows samples that are left
// out because others repeat. If the ranks' datasets look different, each is compared with its own
// length; if they look the same, all ranks together are compared with one length. Dropped, padded
// and untrained batches are tolerated: per rank, the largest number of rows that a rank read in a
// step, plus one.
//
// Evidence names four cases: a pass that draws 1/W (the data is divided twice), samples at the end
// that are never drawn, samples that no pass has drawn so far, and rows that loaders dealt but no
// rank trained on. If the model was given the whole batch before, without gradients, the program
// selected rows from it: that is information. presum assumes that the samplers of torch and
// Accelerate deal every sample, and judges them after one pass. A custom sampler is judged after
// two passes in a row, because after a restart it may begin in the middle; what it leaves out is
// information, except for 1/W. A `RandomSampler` with `num_samples` is judged against that number,
// and a `SubsetRandomSampler` against the number of its positions. Samplers that draw with
// replacement, repeat on purpose, or skip (`Skip` in the class name) are not judged. The check
// misses per-rank datasets that look alike and are divided again by a sampler.

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
constexpr std::uint64_t kSurePasses = 2;  // in a row, for a sampler unknown to presum
constexpr const char* kCombined =
    "The wrapper does not reduce the gradients that the optimizer steps on. The program may "
    "discard forward passes after it has taken their gradient, and the samples of those are "
    "unknown.";
constexpr const char* kAmongJob =
    "The samplers also divide the data among ranks of other data-parallel groups.";
constexpr const char* kShares =
    "The dataset itself holds different positions on each rank, so the total number is unknown.";
constexpr const char* kNoLength =
    "No loader was found over a dataset that has a length and numbers its samples.";
constexpr const char* kNotWhole =
    "No pass was seen in full: batches were skipped, not recorded or unknown.";
constexpr const char* kNoEnd =
    "No loader was seen to finish a pass over its data: none has yet, or the program changed the "
    "last batch before the model received it.";
constexpr const char* kMeant = "Nothing, if the program leaves samples out on purpose.";
constexpr const char* kCut =
    "Give the model every row of a batch, or let the loader deal smaller batches.";
constexpr const char* kDesign =
    "The sampler draws with replacement or repeats samples, so a pass need not contain every "
    "sample.";

struct LeftOut {
  std::uint64_t samples_left_out = 0;  // in the last of the passes
  std::uint64_t of_samples = 0;
  std::uint64_t passes = 0;                   // in a row that left samples out
  std::optional<std::uint64_t> drawn_one_in;  // set if the pass drew 1/ranks of the data
  std::optional<std::uint64_t> from_index;    // set if everything from this index on was left out
  std::optional<std::uint64_t> samples_never_drawn;  // in any of several passes
  // Rows of dealt batches that explain what was left out: the model was not given them, or it was
  // given them only without gradients and trained on other rows of the batch.
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

// Samples that all ranks together left out in a whole pass over a dataset. A pass counts if its
// loader is exhausted and every batch was seen. Counts by index where indices are known and the
// followed datasets have at most 2^27 samples together; otherwise by rows, of which there are at
// least as many as samples.
class DataCoverage final : public Rule {
 public:
  void update(const StepContext& context, SignalLog& log) override {
    by_design_before_ = by_design_;
    combined_ = context.averaging.by_other_means() || context.averaging.own_steps();
    if (context.averaging.by_other_means()) {
      log.retract(&kDataCoverage);  // from passes before this was known
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
  // What is known of a dataset so far.
  struct History {
    std::uint64_t passes = 0;  // in a row that left samples out
    std::uint64_t first_step = 0;
    SampleSet drawn{0};  // in any of them
    std::uint64_t length = 0;
    bool indexed = false;
  };
  struct Missing {
    std::uint64_t samples = 0;  // left out
    std::uint64_t length = 0;   // of the samples that the sampler deals from
    std::uint64_t slack = 0;    // tolerated for dropped and padded batches

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
    if (history.length != pass.length) history = {};  // two datasets with the same hash
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

  // A sampler over a subset, or with num_samples, is judged against that number.
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

  // Whether each rank drew as many samples as its custom sampler's length.
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

  // Rows that loaders dealt but no rank trained on.
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

  std::map<std::uint64_t, History> histories_;  // by dataset
  bool combined_ = false;
  bool among_job_ = false;
  // The last steps whose sampler draws with replacement or repeats: overall, and before this one.
  std::optional<std::uint64_t> by_design_;
  std::optional<std::uint64_t> by_design_before_;
};

}  // namespace

constinit const CheckInfo kDataCoverage{
    .id = "data-coverage",
    .severity = Severity::kWarning,
    .compares = "the samples drawn in a whole pass, against the length of the dataset",
    .fires = "at the end of the pass",
    .consequence =
        "The model never learns from samples that are never drawn, and an epoch is shorter than "
        "you think.",
    .cannot_see =
        "Passes that the program breaks off; samplers that draw with replacement or repeat; "
        "datasets without a length; per-rank shards whose datasets look alike; where indices are "
        "unknown, samples that are left out because others repeat. A pass is judged only if its "
        "last batch was seen at the model, so not where the program changes rows on the way "
        "(augmentation on a device). Batches that are cut before they reach the model leave "
        "samples out and are reported as such.",
    .mistake =
        "sampler = DistributedSampler(data)\n"
        "loader = accelerator.prepare(DataLoader(data, sampler=sampler))  # divides it again",
    .fix =
        "Divide the data once: pass Accelerate or the Trainer a loader without a "
        "DistributedSampler, over a dataset that is not already split by rank. A custom sampler "
        "has to deal every sample.",
    .resembles = "huggingface/accelerate#3520",
    .precedence = 140,
    .dates_finding = false,
    .make = make<DataCoverage>,
};

}  // namespace presum::checks
