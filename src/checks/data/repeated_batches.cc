// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "checks/engine/rules.h"
#include "checks/engine/sampling.h"

namespace presum::checks {
namespace {

constexpr std::uint64_t kRepeats = 2;        // records in a row with a repeated micro-batch
constexpr std::uint64_t kRepeatsUnsure = 3;  // if indices are unknown, or one row is repeated
constexpr std::uint64_t kRareRepeats = 100;  // at most one in this many records of the other ranks
constexpr const char* kMeant = "Nothing, if the sampler repeats samples on purpose.";
constexpr const char* kStuck =
    "Check what deals the batches on these ranks: a loader that has ended or failed, or a batch "
    "that is kept and never replaced.";
constexpr std::uint64_t kEchoes = 12;  // batches before repeats count
constexpr std::uint64_t kChanges = 2;  // of the batch, in that time
constexpr const char* kEchoing =
    "Divide the stream among the loader's worker processes: call "
    "`torch.utils.data.get_worker_info()` in the dataset's `__iter__` to find out which one is "
    "running. Until then each rank reads every sample `num_workers` times.";

struct RepeatedRows {
  std::uint64_t rows = 0;
  std::uint64_t rows_distinct = 0;

  static constexpr std::tuple kFields{field("rows", &RepeatedRows::rows),
                                      field("rows_distinct", &RepeatedRows::rows_distinct)};
};

std::string sentence(const RepeatedRows& /*seen*/, const Who& who) {
  return who.words() + " computed on the same rows several times within a step";
}

struct StuckBatch {
  std::uint64_t times_in_a_row = 0;  // the maximum over the ranks

  static constexpr std::tuple kFields{field("times_in_a_row", &StuckBatch::times_in_a_row)};
};

std::string sentence(const StuckBatch& /*seen*/, const Who& who) {
  return who.words() + " computed on the same batch in several steps in a row";
}

// Loader batches that equal those of the previous step, over several ranks together.
struct EchoedBatches {
  double times_in_a_row = 0;  // mean over the batches before the last change
  std::uint64_t batches_again = 0;
  std::uint64_t of_batches = 0;

  bool is_each() const { return std::llround(times_in_a_row) > 1; }
  static constexpr std::tuple kFields{field("times_in_a_row", &EchoedBatches::times_in_a_row),
                                      field("batches_again", &EchoedBatches::batches_again),
                                      field("of_batches", &EchoedBatches::of_batches)};
};

std::string sentence(const EchoedBatches& seen, const Who& who) {
  if (!seen.is_each()) {
    return fmt::format(
        "{} got the batch that they had in the step before again from their loader, {} times of {}",
        who.words(), seen.batches_again, seen.of_batches);
  }
  return fmt::format("{} got every batch {} times in a row from their loader", who.words(),
                     std::llround(seen.times_in_a_row));
}

// Whether a large part of a rank's rows occurs more than once.
bool repeats_rows(const Batch& batch) {
  return batch.known && !batch.degenerate() && 4 * (batch.rows - batch.distinct) >= batch.rows;
}

enum class Places : std::uint8_t { kUnknown, kDifferent, kRepeated };

// Whether the rows come from different positions in the dataset.
Places places(const WorkerRecord& worker) {
  if (!aligned(worker)) return Places::kUnknown;
  std::vector<std::uint64_t> indices = worker.indices;
  std::sort(indices.begin(), indices.end());
  const bool repeated = std::adjacent_find(indices.begin(), indices.end()) != indices.end();
  return repeated ? Places::kRepeated : Places::kDifferent;
}

// Batches that repeat at once: fed twice in a step, kept by a stuck loader, or dealt by each worker
// process of a loader. Reports them as overlapping-data.
class RepeatedBatches final : public Rule {
 public:
  void update(const StepContext& context, SignalLog& log) override {
    watch_echoes(context, log);
    watch_stuck(context, log);
    watch_repeats(context, log);
  }

 private:
  struct Repeats {
    std::uint64_t length = 0;  // records in a row in which a rank's rows repeat
    std::uint64_t stuck = 0;   // records in a row with the previous record's batch
    std::uint64_t stuck_since = 0;
    std::uint64_t dealt_since = 0;
    std::uint64_t dealt = 0;   // records whose loader batch comes right after the previous record's
    std::uint64_t echoed = 0;  // of them, with the same rows
    std::uint64_t changed_first = 0;          // value of `dealt` at the first change of the rows
    std::uint64_t changed = 0;                // and at the last
    std::uint64_t place = ~std::uint64_t{0};  // of the last batch in its pass
    std::uint64_t data = 0;                   // and its dataset
    std::uint64_t batch = 0;
    std::uint64_t seen = 0;          // records with rows
    std::uint64_t repeated = 0;      // of them, with repeated rows
    std::uint64_t from_sampler = 0;  // of these, with repeated indices
  };

  // A micro-batch that is fed twice in one step. Equal rows at different dataset positions do not
  // count.
  void watch_repeats(const StepContext& context, SignalLog& log) {
    std::vector<Signal> repeated;
    for (std::size_t i = 0; i < context.workers(); ++i) {
      const WorkerRecord& w = context.record.workers[i];
      const Batch& batch = context.batches[i];
      if (!batch.known) continue;
      Repeats& own = repeats_[w.replica];
      const bool repeating = repeats_rows(batch);
      for (Repeats* count : {&own, &all_repeats_}) {
        ++count->seen;
        count->repeated += repeating;
      }
      const Places at = repeating ? places(w) : Places::kDifferent;
      own.from_sampler += at == Places::kRepeated;
      const bool again =
          batch.set != own.batch &&
          (at == Places::kRepeated || (at == Places::kUnknown && rare_elsewhere(own)));
      own.length = again ? own.length + 1 : 0;
      own.batch = batch.set;
      const bool sure = at == Places::kRepeated && batch.repeated > 1;
      if (own.length < (sure ? kRepeats : kRepeatsUnsure)) continue;
      Signal signal = sighting(&kOverlappingData, context, {{w.rank}, false}, 0.95,
                               RepeatedRows{.rows = batch.rows, .rows_distinct = batch.distinct});
      signal.first_step -= std::min(signal.first_step, own.length - 1);
      repeated.push_back(std::move(signal));
    }
    // A custom sampler that repeats samples on every rank may do so on purpose.
    const bool meant = !deals_each_once(context.roster) &&
                       std::ranges::all_of(context.record.workers, [&](const WorkerRecord& w) {
                         return repeats_[w.replica].from_sampler > 0;
                       });
    for (Signal& signal : repeated) {
      if (meant) {
        signal.severity = Severity::kInfo;
        signal.remedy = kMeant;
      }
      log.add(std::move(signal), 1);
    }
  }

  // A dataset that contains equal rows shows them on all ranks.
  bool rare_elsewhere(const Repeats& own) const {
    return kRareRepeats * (all_repeats_.repeated - own.repeated) <= all_repeats_.seen - own.seen;
  }

  // Worker processes of a loader that all read the whole stream: each batch arrives once from every
  // process.
  void watch_echoes(const StepContext& context, SignalLog& log) {
    Blame blame;
    EchoedBatches seen;
    std::uint64_t first = context.record.step;
    for (std::size_t i = 0; i < context.workers(); ++i) {
      const WorkerRecord& w = context.record.workers[i];
      const Batch& batch = context.batches[i];
      const std::uint64_t* place = w.fingerprint_of(FingerprintKind::kDataBatch);
      Repeats& own = repeats_[w.replica];
      if (place == nullptr || !batch.known || batch.distinct < 2) continue;
      const std::uint64_t data = data_of(w);
      const bool same_data = std::exchange(own.data, data) == data;
      const bool moved =
          std::exchange(own.place, *place) + 1 == *place && same_data && w.micro_batches == 1;
      if (moved && own.dealt++ == 0) own.dealt_since = context.record.step;
      own.echoed += moved && batch.set == own.batch;
      if (moved && batch.set != own.batch) {
        own.changed = own.dealt;
        if (own.dealt - own.echoed == 1) own.changed_first = own.dealt;
      }
      if (own.dealt < kEchoes || 5 * own.echoed < 2 * own.dealt) continue;
      if (own.dealt - own.echoed < kChanges) continue;  // perhaps always the same batch
      insert(blame.ranks, w.rank);
      first = std::min(first, own.dealt_since);
      seen.times_in_a_row = static_cast<double>(own.changed - own.changed_first) /
                            static_cast<double>(own.dealt - own.echoed - 1);
      seen.batches_again += own.echoed;
      seen.of_batches += own.dealt;
    }
    if (blame.ranks.empty()) return;
    blame.everyone = blame.ranks.size() == context.workers();
    Signal signal = sighting(&kOverlappingData, context, std::move(blame), 0.95, seen);
    signal.first_step = first;
    signal.remedy = seen.is_each() ? kEchoing : kStuck;
    log.add(std::move(signal), kAllSteps);
  }

  // A rank that gets the previous step's batch while most of the others do not.
  void watch_stuck(const StepContext& context, SignalLog& log) {
    Ranks stuck;
    StuckBatch seen;
    std::uint64_t first = context.record.step;
    for (std::size_t i = 0; i < context.workers(); ++i) {
      const Batch& batch = context.batches[i];
      Repeats& own = repeats_[context.record.workers[i].replica];
      const bool again = batch.known && batch.distinct > 1 && batch.set == own.batch;
      if (!again) own.stuck_since = context.record.step;  // the last new batch
      own.stuck = again ? own.stuck + 1 : 0;
      if (own.stuck < kRepeatsUnsure) continue;
      insert(stuck, context.record.workers[i].rank);
      seen.times_in_a_row = std::max(seen.times_in_a_row, own.stuck + 1);
      first = std::min(first, own.stuck_since);
    }
    if (stuck.empty() || 2 * stuck.size() > context.workers()) return;
    Signal signal = sighting(&kOverlappingData, context, {stuck, false}, 0.95, seen);
    signal.first_step = first;
    signal.remedy = kStuck;
    log.add(std::move(signal), 1);
  }

  PerWorker<Repeats> repeats_;
  Repeats all_repeats_;  // over all ranks together; `length` is unused
};

}  // namespace

std::unique_ptr<Rule> make_repeated_batches() { return std::make_unique<RepeatedBatches>(); }

}  // namespace presum::checks
