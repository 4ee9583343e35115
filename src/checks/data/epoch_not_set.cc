// SPDX-License-Identifier: Apache-2.0
// **epoch-not-set.** Needs a sampler that says it shuffles. Known samples decide; without them the
// sampler's epoch decides (confidence 0.8). A shuffling sampler without `set_epoch` has to repeat 8
// batches. A pass that resumes in the middle after an interruption keeps its epoch. The order is
// that of the indices; if these are unknown, that of the rows and whole batches. If the indices
// repeat in the same order but the rows differ, the finding says so (confidence 0.8): augmentation
// and noise do that, and so does a dataset that reorders itself in each pass, which is fine.
// Sequential data repeats on purpose. The first pass that a rank leaves before its end is not
// compared with the next, because a program may search for a learning rate in it. If the index
// order changes by other means, that is fine, whatever the sampler's epoch says.

#include <algorithm>
#include <string>
#include <utility>

#include "base/hash.h"
#include "checks/engine/rules.h"

namespace presum::checks {
namespace {

constexpr std::size_t kCompared = 8;  // batches at the beginning of a pass
constexpr const char* kOnePass = "There was no second pass over the data.";
constexpr const char* kTooFew =
    "Too few batches of a second pass could be compared with the pass before.";

struct SameOrder {
  std::uint64_t data_pass = 0;
  std::uint64_t batches_repeated = 0;  // 0: none could be compared
  bool sampler_epoch_kept = false;     // since the previous pass
  bool rows_differ = false;            // although their indices are equal

  static constexpr std::tuple kFields{field("data_pass", &SameOrder::data_pass),
                                      field("batches_repeated", &SameOrder::batches_repeated),
                                      field("sampler_epoch_kept", &SameOrder::sampler_epoch_kept),
                                      field("rows_differ", &SameOrder::rows_differ)};
};

std::string sentence(const SameOrder& seen, const Who& who) {
  if (seen.batches_repeated == 0) {
    return who.words() + " shuffled the data by the same epoch as in the pass before";
  }
  return who.words() + (seen.rows_differ
                            ? " drew the same indices in the same order as in the pass before, and "
                              "other rows by them"
                            : " read the data in the same order as in the pass before");
}

// The order of a step's samples, and its source.
struct Order {
  enum class By : std::uint8_t { kNothing, kContents, kIndices };
  By by = By::kNothing;
  std::uint64_t hash = 0;
  std::uint64_t contents = 0;  // hash of the rows and the whole batch; 0: unknown

  bool known() const { return by != By::kNothing; }
};

Order order_of(const WorkerRecord& worker, const Batch& batch) {
  const std::uint64_t contents =
      batch.known ? batch.order + mix64(value_of(worker, FingerprintKind::kBatch)) : 0;
  if (worker.indices.empty()) {
    return {batch.known ? Order::By::kContents : Order::By::kNothing, contents, contents};
  }
  Order out{Order::By::kIndices, 0, contents};
  for (const std::uint64_t index : worker.indices) out.hash = mix64(out.hash + index + 1);
  return out;
}

bool is_one(const WorkerRecord& worker, FingerprintKind kind) {
  return value_of(worker, kind) == 1;
}

// Compares the beginning of every pass over the data with the previous pass, per rank.
class DataOrder final : public Rule {
 public:
  void update(const StepContext& context, SignalLog& log) override {
    Blame blame;
    SameOrder seen;
    const std::uint64_t before = std::exchange(step_, context.record.step);
    const std::uint64_t steps = std::max<std::uint64_t>(context.record.step - before, 1);
    for (std::size_t i = 0; i < context.workers(); ++i) {
      const WorkerRecord& w = context.record.workers[i];
      const std::uint64_t* pass = w.fingerprint_of(FingerprintKind::kDataPass);
      const std::uint64_t* epoch = w.fingerprint_of(FingerprintKind::kSamplerEpoch);
      if (pass == nullptr || w.fingerprint_of(FingerprintKind::kSamplerShuffle) == nullptr) {
        log.cannot(&kEpochNotSet, "No sampler was found that says whether it shuffles.");
        continue;
      }
      Worker& worker = workers_[w.replica];
      follow(worker, w, *pass, epoch);
      if (epoch != nullptr) worker.epoch = *epoch;
      const Order order = order_of(w, context.batches[i]);
      compare(worker, w, order, steps);
      log.waits(&kEpochNotSet, *pass == 0 ? kOnePass : kTooFew);
      if (*pass > 0 && is_decided(worker, w, order)) log.checked(&kEpochNotSet);
      if (!repeats_order(worker, w, order)) continue;
      insert(blame.ranks, w.rank);
      seen.data_pass = std::max(seen.data_pass, *pass);
      seen.batches_repeated = std::max(seen.batches_repeated, worker.repeats);
      seen.sampler_epoch_kept = seen.sampler_epoch_kept || worker.epoch_stayed;
      seen.rows_differ = seen.rows_differ || worker.rows_differ;
    }
    if (!blame.ranks.empty()) report(context, std::move(blame), seen, log);
  }

 private:
  struct Place {
    std::uint64_t batch = 0;  // its position in the pass
    Order order{};
  };
  struct Worker {
    std::uint64_t pass = 0;
    std::uint64_t epoch = 0;
    bool started = false;
    std::uint64_t left = 0;     // passes left before their end
    bool epoch_stayed = false;  // the sampler's epoch is that of the previous pass
    bool skipped = false;       // the pass did not begin with its first batch
    bool differs = false;       // some batch of this pass differs from the previous pass
    bool rows_differ = false;   // or has the same indices and different rows
    std::size_t seen = 0;       // recorded steps of this pass
    std::uint64_t repeats = 0;  // of these, with the batch of the previous pass
    std::vector<Place> before;  // the first batches of the previous pass
    std::vector<Place> now;
  };

  // A program may read the first batches once (to find a learning rate, to warm up) and then start
  // over: the first pass that was left before its end is not compared with the next one.
  static bool is_first_left(Worker& worker, const WorkerRecord& record, std::uint64_t pass) {
    const std::uint64_t* ended = record.fingerprint_of(FingerprintKind::kDataEnded);
    return ended != nullptr && *ended < pass && worker.left++ == 0;
  }

  static void follow(Worker& worker, const WorkerRecord& record, std::uint64_t pass,
                     const std::uint64_t* epoch) {
    if (worker.started && pass == worker.pass) return;
    const bool next =
        worker.started && pass == worker.pass + 1 && !is_first_left(worker, record, pass);
    worker.epoch_stayed = next && epoch != nullptr && *epoch == worker.epoch;
    worker.before = next ? std::move(worker.now) : std::vector<Place>{};
    worker.now.clear();
    worker.seen = worker.repeats = 0;
    worker.differs = worker.skipped = worker.rows_differ = false;
    worker.started = true;
    worker.pass = pass;
  }

  static void compare(Worker& worker, const WorkerRecord& record, const Order& order,
                      std::uint64_t steps) {
    const std::uint64_t* place = record.fingerprint_of(FingerprintKind::kDataBatch);
    const Place now{place == nullptr ? worker.seen : *place, order};
    if (worker.seen == 0)
      worker.skipped = place != nullptr && *place >= record.micro_batches * steps;
    if (worker.seen++ >= kCompared || !order.known()) return;
    worker.now.push_back(now);
    for (const Place& before : worker.before) {
      if (before.batch != now.batch || before.order.by != order.by) continue;
      worker.differs = worker.differs || before.order.hash != order.hash;
      worker.repeats += before.order.hash == order.hash;
      const bool known = before.order.contents != 0 && order.contents != 0;
      worker.rows_differ = worker.rows_differ || (known && before.order.contents != order.contents);
    }
  }

  // Whether the order is known to have changed, or a repeat would have been found by now.
  static bool is_decided(const Worker& worker, const WorkerRecord& record, const Order& order) {
    if (worker.differs || !is_one(record, FingerprintKind::kSamplerShuffle)) return true;
    if (worker.repeats >= kCompared) return true;
    return is_one(record, FingerprintKind::kSamplerSetsEpoch) &&
           (!order.known() || worker.seen > kCompared);
  }

  // Samples decide if they can be compared. Without them the sampler's epoch is enough, except for
  // a pass that resumes in the middle, which keeps its epoch. A shuffling sampler without set_epoch
  // is judged by its order alone.
  static bool repeats_order(const Worker& worker, const WorkerRecord& record, const Order& order) {
    if (worker.differs || !is_one(record, FingerprintKind::kSamplerShuffle)) return false;
    if (worker.repeats >= kCompared) return true;
    if (worker.skipped && worker.repeats == 0) return false;
    const bool settable = is_one(record, FingerprintKind::kSamplerSetsEpoch);
    return settable && worker.epoch_stayed &&
           (worker.repeats > 0 || !order.known() || worker.seen > kCompared);
  }

  static void report(const StepContext& context, Blame blame, const SameOrder& seen,
                     SignalLog& log) {
    blame.everyone = blame.ranks.size() == context.workers();
    const double confidence = seen.batches_repeated > 0 && !seen.rows_differ ? 0.99 : 0.8;
    log.add(sighting(&kEpochNotSet, context, std::move(blame), confidence, seen), 1);
  }

  std::uint64_t step_ = 0;  // of the previous record
  PerWorker<Worker> workers_;
};

}  // namespace

constexpr FingerprintKind kEpochNotSetKinds[] = {FingerprintKind::kSamplerSetsEpoch};
constexpr Check kEpochNotSetExplains[] = {&kOverlappingData};
constinit const CheckInfo kEpochNotSet{
    .id = "epoch-not-set",
    .severity = Severity::kWarning,
    .compares = "whether the sample order changes from pass to pass",
    .fires = "at the second pass's first step",
    .consequence = "Every pass over the data has the same order and the same batches.",
    .cannot_see = "The first pass: the finding needs a second pass to compare it with.",
    .mistake =
        "for epoch in range(epochs):\n    for batch in loader:  # no sampler.set_epoch(epoch)",
    .fix = "Call `sampler.set_epoch(epoch)` before every pass over the data.",
    .resembles = "pytorch/pytorch#31771",
    .precedence = 110,
    .explains = kEpochNotSetExplains,
    .fingerprints = kEpochNotSetKinds,
    .make = make<DataOrder>,
};

}  // namespace presum::checks
