// SPDX-License-Identifier: Apache-2.0
#include "compare/numbers.h"

#include <cmath>
#include <set>
#include <utility>

#include "presum/audit.h"

namespace presum::compare {
namespace {

bool equal(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// Pairs of ranks that hold the same model.
template <class Has>
std::vector<WorkerPair> replica_pairs(const StepPair& pair, Has&& has) {
  return pair.same_world() ? pair.workers : pairs_across_runs(pair.a, pair.b, has);
}

// ---- parameters

bool has_states(const WorkerRecord& w) { return !w.states.empty(); }

// Collects the groups whose hashes differ.
class StateDifferences {
 public:
  explicit StateDifferences(const StepPair& pair) : pair_(pair) {}

  // Adds what differs in a pair of ranks. Returns whether nothing does.
  bool equal(const WorkerPair& workers) {
    std::size_t compared = 0;
    bool equal = true;
    for (const StateHash& s : workers.first->states) {
      const StateHash* const other = counterpart(s, workers.second->states);
      if (other == nullptr) continue;
      ++compared;
      if (other->value == s.value) continue;
      equal = false;
      (s.kind == StateHash::Kind::kParameters ? parameters_ : buffers_).insert(s.group);
    }
    compared_ = std::max(compared_, compared);
    return equal;
  }

  bool any_compared() const { return compared_ > 0; }

  StageResult finish(DifferenceBuilder difference) const {
    std::vector<std::uint64_t> all(parameters_.begin(), parameters_.end());
    all.insert(all.end(), buffers_.begin(), buffers_.end());
    difference.set_layers(all);
    return std::move(difference)
        .finish(OtherStates{.parameters = names_of(parameters_),
                            .buffers = names_of(buffers_),
                            .differing = all.size(),
                            .compared = compared_});
  }

 private:
  // The hash of the same tensors in the other run; null if they are not compared.
  const StateHash* counterpart(const StateHash& s, const std::vector<StateHash>& others) const {
    const bool parameters = s.kind == StateHash::Kind::kParameters;
    const bool buffers = s.kind == StateHash::Kind::kBuffers || s.kind == StateHash::Kind::kFrozen;
    if (!(parameters && pair_.same_parameters) && !(buffers && pair_.same_buffers)) return nullptr;
    const auto found = std::ranges::find_if(others, [&](const StateHash& o) {
      return o.group == s.group && o.kind_and_shard() == s.kind_and_shard();
    });
    return found == others.end() ? nullptr : &*found;
  }
  std::vector<std::string> names_of(const std::set<std::uint64_t>& groups) const {
    return pair_.groups.names_backward({groups.begin(), groups.end()});
  }

  const StepPair& pair_;
  std::set<std::uint64_t> parameters_;
  std::set<std::uint64_t> buffers_;
  std::size_t compared_ = 0;
};

// ---- token weights

constexpr double kRounding = 1e-6;

bool has_token_weight(const WorkerRecord& w) { return std::isfinite(w.token_weight); }

bool same_weight(double a, double b) {
  return equal(a, b) || std::abs(a - b) <= kRounding * std::abs(b);
}

bool same_micro_weight(const MicroBatch& a, const MicroBatch& b) {
  return same_weight(a.token_weight, b.token_weight);
}

bool token_weights_equal(const WorkerPair& workers) {
  const auto& [a, b] = workers;
  return same_weight(a->token_weight, b->token_weight) &&
         (a->micro.size() != b->micro.size() ||
          std::ranges::equal(a->micro, b->micro, same_micro_weight));
}

// The first micro-batch that differs, or the rank's mean.
TokenWeights token_weights_of(const WorkerRecord& a, const WorkerRecord& b) {
  if (a.micro.size() == b.micro.size()) {
    const auto [x, y] = std::ranges::mismatch(a.micro, b.micro, same_micro_weight);
    if (x != a.micro.end()) {
      const auto at = static_cast<std::size_t>(x - a.micro.begin()) + 1;
      return {x->token_weight, y->token_weight, at};
    }
  }
  return {a.token_weight, b.token_weight};
}

// ---- losses

LossValues losses_of(const WorkerRecord& a, const WorkerRecord& b) {
  LossValues out{.a = a.loss, .b = b.loss};
  if (a.micro.size() != b.micro.size()) return out;
  out.micro_batches = a.micro.size();
  for (std::size_t i = 0; i < a.micro.size(); ++i) {
    if (!equal(a.micro[i].loss, b.micro[i].loss)) out.at.push_back(i + 1);
  }
  return out;
}

bool losses_equal(const WorkerPair& workers) {
  const auto& [a, b] = workers;
  const auto same = [](const MicroBatch& x, const MicroBatch& y) {
    return equal(x.loss, y.loss) && equal(x.weight, y.weight);
  };
  return equal(a->loss, b->loss) && a->loss_nonfinite == b->loss_nonfinite &&
         equal(a->weight, b->weight) &&
         (a->micro.size() != b->micro.size() || std::ranges::equal(a->micro, b->micro, same));
}

bool has_loss(const WorkerRecord& w) { return !std::isnan(w.loss) || w.loss_nonfinite; }

// ---- gradients

// False if all gradients were skipped.
bool has_gradient(const WorkerRecord& w) {
  return w.skipped_parameters == 0 || w.fingerprint != 0 || !std::isnan(w.grad_norm);
}

// At a rank's index in each run: compares fingerprints if both runs have them, else norms. Empty:
// neither.
std::optional<bool> group_differs(const GroupRecord& a, std::size_t at_a, const GroupRecord& b,
                                  std::size_t at_b) {
  if (at_a < a.fingerprints.size() && at_b < b.fingerprints.size()) {
    return a.fingerprints[at_a] != b.fingerprints[at_b];
  }
  if (at_a >= a.norms.size() || at_b >= b.norms.size()) return std::nullopt;
  return !equal(a.norms[at_a], b.norms[at_b]);
}

// Layers of `run` without a gradient in the other run.
std::vector<std::string> layers_only_in(const StepRecord& run, const StepRecord& other,
                                        const GroupOrder& order) {
  std::vector<std::uint64_t> alone;
  for (const GroupRecord& g : run.groups) {
    if (std::ranges::find(other.groups, g.id, &GroupRecord::id) == other.groups.end()) {
      alone.push_back(g.id);
    }
  }
  return order.names_backward(alone);
}

// Adds the groups that differ to `differing`.
GradientValues gradients_of(const StepPair& pair, const WorkerPair& workers,
                            std::vector<std::uint64_t>& differing) {
  std::size_t compared = 0;
  std::vector<std::uint64_t> own;
  for (const GroupRecord& a : pair.a.groups) {
    const auto b = std::ranges::find(pair.b.groups, a.id, &GroupRecord::id);
    if (b == pair.b.groups.end()) continue;
    const auto differs = group_differs(a, pair.place_in_a(workers), *b, pair.place_in_b(workers));
    compared += differs.has_value();
    if (differs.value_or(false)) own.push_back(a.id);
  }
  differing.insert(differing.end(), own.begin(), own.end());
  return {.layers = pair.groups.names_backward(own),
          .compared = compared,
          .only_in_a = layers_only_in(pair.a, pair.b, pair.groups),
          .only_in_b = layers_only_in(pair.b, pair.a, pair.groups),
          .norm_a = workers.first->grad_norm,
          .norm_b = workers.second->grad_norm};
}

// ---- the reduced gradient

bool has_reduced(const WorkerRecord& w) {
  return !std::isnan(w.reduced_norm) || w.reduced_fingerprint != 0;
}

// Whether both audits found the same about the reduction.
bool same_audit(const std::optional<AuditRecord>& a, const std::optional<AuditRecord>& b) {
  if (!a || !b) return a.has_value() == b.has_value();
  return a->differing == b->differing && a->elements == b->elements &&
         a->accumulation == b->accumulation && a->order == b->order && a->division == b->division;
}

// Adds the audits of the reductions if they differ; an audit is valid until the next one.
void add_audits(const WorkerPair& workers, DifferenceBuilder& difference) {
  const auto& [a, b] = workers;
  if (!same_audit(a->audit, b->audit)) difference.add_evidence({}, LastAudits{a->audit, b->audit});
}

}  // namespace

StageResult compare_parameters(const StepPair& pair) {
  if (!pair.coverage.same_tensors) return not_recorded(pair, has_states);
  StateDifferences states(pair);
  DifferenceBuilder difference(pair);
  const bool known = difference.compare(
      replica_pairs(pair, has_states), has_states,
      [&](const WorkerPair& w) { return states.equal(w); }, [](const WorkerPair&) {});
  if (!known || !states.any_compared()) return not_recorded(pair, has_states);
  return states.finish(std::move(difference));
}

StageResult compare_token_weights(const StepPair& pair) {
  DifferenceBuilder difference(pair);
  const bool known = difference.compare(
      pair.workers, has_token_weight, token_weights_equal, [&](const WorkerPair& w) {
        difference.add_evidence({w.first->rank}, token_weights_of(*w.first, *w.second));
      });
  if (!known) return not_recorded(pair, has_token_weight);
  return std::move(difference).finish(OtherThing::kTokenWeight);
}

StageResult compare_losses(const StepPair& pair) {
  DifferenceBuilder difference(pair);
  const bool known =
      difference.compare(pair.workers, has_loss, losses_equal, [&](const WorkerPair& w) {
        difference.add_evidence({w.first->rank}, losses_of(*w.first, *w.second));
      });
  return known ? std::move(difference).finish(OtherThing::kLoss) : not_recorded(pair, has_loss);
}

StageResult compare_gradients(const StepPair& pair) {
  DifferenceBuilder difference(pair);
  std::vector<std::uint64_t> differing;
  const bool known = difference.compare(
      pair.workers, has_gradient,
      [](const WorkerPair& w) { return w.first->fingerprint == w.second->fingerprint; },
      [&](const WorkerPair& w) {
        difference.add_evidence({w.first->rank}, gradients_of(pair, w, differing));
      });
  if (!known) return not_compared(true, true);
  difference.set_layers(differing);
  const std::size_t layers = std::set(differing.begin(), differing.end()).size();
  return std::move(difference).finish(OtherGradient{layers, pair.a.groups.size()});
}

StageResult compare_reduction(const StepPair& pair) {
  DifferenceBuilder difference(pair);
  bool told = false;
  const bool known = difference.compare(
      replica_pairs(pair, has_reduced), has_reduced,
      [](const WorkerPair& w) {
        return w.first->reduced_fingerprint == w.second->reduced_fingerprint;
      },
      [&](const WorkerPair& w) {
        if (std::exchange(told, true)) return;
        difference.add_evidence({}, ReducedNorms{w.first->reduced_norm, w.second->reduced_norm});
        add_audits(w, difference);
      });
  return known ? std::move(difference).finish(OtherThing::kReducedGradient)
               : not_recorded(pair, has_reduced);
}

}  // namespace presum::compare
