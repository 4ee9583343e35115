// SPDX-License-Identifier: Apache-2.0
#include "base/hash.h"
#include "checks/engine/rules.h"

namespace presum::checks {
namespace {

std::uint64_t batch_of(const WorkerRecord& worker, const Batch& batch) {
  const std::uint64_t* whole = worker.fingerprint_of(FingerprintKind::kBatch);
  if (whole != nullptr) return mix64(*whole) | 1;
  return batch.known ? batch.set | 1 : 0;
}

struct Repeated {
  std::uint64_t steps_frozen = 0;
  bool batch_known = false;

  std::string data_changed() const { return batch_known ? "yes" : "unknown"; }
  static constexpr std::tuple kFields{field("steps_frozen", &Repeated::steps_frozen),
                                      field("data_changed", &Repeated::data_changed)};
};

std::string sentence(const Repeated& /*seen*/, const Who& who) {
  return who.words() + " repeated the gradient of the step before, bit for bit";
}

class FrozenGradient final : public Rule {
 public:
  void update(const StepContext& context, SignalLog& log) override {
    const Found found = compare(context);
    remember(context);
    if (found.compared == 0) {
      return log.waits(&kFrozenGradient, "No rank has two gradients to compare yet.");
    }
    log.checked(&kFrozenGradient);
    Blame blame;
    blame.ranks = found.certain;
    if (2 * found.likely.size() <= found.compared) blame.ranks = unite(blame.ranks, found.likely);
    // The same data gives the same gradient while the parameters stay; other ranks show whether
    // they did.
    if (found.moved_on_same_data > 0) blame.ranks = unite(blame.ranks, found.same_data);
    if (blame.ranks.empty()) return;
    blame.everyone = blame.ranks.size() == context.workers();
    const bool certain = !found.certain.empty();
    log.add(sighting(&kFrozenGradient, context, std::move(blame), certain ? 0.99 : 0.9,
                     Repeated{++frozen_steps_, certain}),
            1);
  }

 private:
  struct Last {
    std::uint64_t fingerprint = 0;
    std::uint64_t batch = 0;  // 0: unknown
  };
  struct Found {
    Ranks certain;  // the data changed, the gradient did not
    Ranks likely;   // the data is unknown
    Ranks same_data;
    std::size_t moved_on_same_data = 0;
    std::size_t compared = 0;
  };

  Found compare(const StepContext& context) const {
    Found found;
    for (std::size_t i = 0; i < context.workers(); ++i) {
      const WorkerRecord& w = context.record.workers[i];
      const Last* last = last_.find(w.replica);
      if (last == nullptr || last->fingerprint == 0 || !has_gradient(w)) continue;
      ++found.compared;
      const bool same = w.fingerprint == last->fingerprint;
      const std::uint64_t batch = batch_of(w, context.batches[i]);
      const bool known = batch != 0 && last->batch != 0;
      if (known && batch == last->batch) {
        found.moved_on_same_data += !same;
        if (same) insert(found.same_data, w.rank);
      } else if (same) {
        insert(known ? found.certain : found.likely, w.rank);
      }
    }
    return found;
  }

  void remember(const StepContext& context) {
    for (std::size_t i = 0; i < context.workers(); ++i) {
      const WorkerRecord& w = context.record.workers[i];
      const bool usable = has_gradient(w) && w.fingerprint != 0;
      last_[w.replica] = {usable ? w.fingerprint : 0, batch_of(w, context.batches[i])};
    }
  }

  PerWorker<Last> last_;
  std::uint64_t frozen_steps_ = 0;
};

}  // namespace

constexpr Check kFrozenGradientExplains[] = {&kRankOutlier, &kPairTooSimilar, &kTooConsistent,
                                             &kLossEvent};
constinit const CheckInfo kFrozenGradient{
    .id = "frozen-gradient",
    .severity = Severity::kCritical,
    .compares = "gradients that repeat the previous step's bit for bit",
    .fires = "immediately",
    .consequence = "The rank contributes the gradient of an old batch to the sum.",
    .cannot_see = "A gradient that is one step old but changes.",
    .mistake = "batch = next(iter(loader))  # in every step: always the first batch",
    .fix =
        "Look for gradients that are not cleared and recomputed, a batch that is fed again, or a "
        "backward pass that the named ranks skip.",
    .precedence = 280,
    .explains = kFrozenGradientExplains,
    .sets_apart = true,
    .make = make<FrozenGradient>,
};

}  // namespace presum::checks
