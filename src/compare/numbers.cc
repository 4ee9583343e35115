// SPDX-License-Identifier: Apache-2.0
#include "compare/numbers.h"

#include <cmath>
#include <set>

#include "presum/audit.h"

namespace presum::compare {
namespace {

bool equal(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// ---- who holds what all workers share

// Pairs of workers that hold the same model.
template <class Has>
std::vector<WorkerPair> replica_pairs(const StepPair& pair, Has&& has) {
  return pair.same_world() ? pair.workers : pairs_across_runs(pair.a, pair.b, has);
}

// Other numbers of workers: who differs although the first workers of both runs are equal.
class DissentingWorkers {
 public:
  DissentingWorkers(const StepPair& pair, const std::vector<WorkerPair>& pairs)
      : crossed_(!pair.same_world()), pairs_(pairs) {}
  void add(const WorkerPair& workers, DifferenceBuilder& difference) {
    if (!crossed_) return;
    if (workers == pairs_.front()) first_differs_ = true;
    if (first_differs_) return;
    const bool of_a = workers.first != pairs_.front().first;
    difference.add_evidence({}, of_a ? DissentingWorker{workers.first->rank, Side::kA}
                                     : DissentingWorker{workers.second->rank, Side::kB});
  }

 private:
  bool crossed_;
  bool first_differs_ = false;
  const std::vector<WorkerPair>& pairs_;
};

// ---- parameters

struct StateDifferences {
  std::vector<std::uint64_t> parameters;  // groups that differ
  std::vector<std::uint64_t> buffers;
  std::size_t compared = 0;
};

bool is_like(const StateHash& a, const StateHash& b) {
  return a.kind_and_shard() == b.kind_and_shard();
}

StateDifferences differing_states(const StepPair& pair, const std::vector<StateHash>& a,
                                  const std::vector<StateHash>& b) {
  StateDifferences out;
  for (const StateHash& s : a) {
    const bool parameters = s.kind == StateHash::Kind::kParameters;
    const bool buffers = s.kind == StateHash::Kind::kBuffers || s.kind == StateHash::Kind::kFrozen;
    if (!parameters && !buffers) continue;
    if (!(parameters ? pair.same_parameters : pair.same_buffers)) continue;
    const auto same = std::ranges::find_if(
        b, [&](const StateHash& o) { return o.group == s.group && is_like(o, s); });
    if (same == b.end()) continue;
    ++out.compared;
    if (same->value == s.value) continue;
    (parameters ? out.parameters : out.buffers).push_back(s.group);
  }
  return out;
}

class StateComparison {
 public:
  StateComparison(const StepPair& pair, const std::vector<WorkerPair>& pairs)
      : pair_(pair), difference_(pair), dissenting_(pair, pairs) {}

  void add(const WorkerPair& workers, const std::vector<StateHash>& a,
           const std::vector<StateHash>& b) {
    const StateDifferences result = differing_states(pair_, a, b);
    compared_ = std::max(compared_, result.compared);
    if (result.parameters.empty() && result.buffers.empty()) return;
    if (pair_.same_world()) difference_.add_rank(workers);
    dissenting_.add(workers, difference_);
    parameters_.insert(result.parameters.begin(), result.parameters.end());
    buffers_.insert(result.buffers.begin(), result.buffers.end());
  }

  bool any() const { return compared_ > 0; }

  StageResult finish() && {
    if (parameters_.empty() && buffers_.empty()) return {};
    std::vector<std::uint64_t> all(parameters_.begin(), parameters_.end());
    all.insert(all.end(), buffers_.begin(), buffers_.end());
    difference_.set_layers(all);
    return std::move(difference_)
        .finish(OtherStates{.parameters = names_of(parameters_),
                            .buffers = names_of(buffers_),
                            .differing = all.size(),
                            .compared = compared_});
  }

 private:
  std::vector<std::string> names_of(const std::set<std::uint64_t>& groups) const {
    return pair_.groups.names_backward({groups.begin(), groups.end()});
  }

  const StepPair& pair_;
  DifferenceBuilder difference_;
  DissentingWorkers dissenting_;
  std::set<std::uint64_t> parameters_;
  std::set<std::uint64_t> buffers_;
  std::size_t compared_ = 0;
};

bool has_states_of(const WorkerRecord& w) { return !w.states.empty(); }

bool has_states(const StepRecord& step) { return std::ranges::any_of(step.workers, has_states_of); }

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

bool losses_equal(const WorkerRecord& a, const WorkerRecord& b) {
  const auto same = [](const MicroBatch& x, const MicroBatch& y) {
    return equal(x.loss, y.loss) && equal(x.weight, y.weight);
  };
  return equal(a.loss, b.loss) && a.loss_nonfinite == b.loss_nonfinite &&
         equal(a.weight, b.weight) &&
         (a.micro.size() != b.micro.size() || std::ranges::equal(a.micro, b.micro, same));
}

bool has_loss(const WorkerRecord& w) { return !std::isnan(w.loss) || w.loss_nonfinite; }

// ---- gradients

// Whether every gradient was left out.
bool none_read(const WorkerRecord& w) {
  return w.skipped_parameters > 0 && w.fingerprint == 0 && std::isnan(w.grad_norm);
}

// A worker's value in a group: of its fingerprint where both runs have it, else of its norm.
struct GroupComparison {
  std::uint64_t group = 0;
  bool differs = false;
};

std::vector<GroupComparison> compare_groups(const StepPair& pair, const WorkerPair& workers) {
  const std::size_t i = pair.place_in_a(workers);
  const std::size_t j = pair.place_in_b(workers);
  std::vector<GroupComparison> out;
  for (const GroupRecord& a : pair.a.groups) {
    const auto b = std::ranges::find(pair.b.groups, a.id, &GroupRecord::id);
    if (b == pair.b.groups.end()) continue;
    if (i < a.fingerprints.size() && j < b->fingerprints.size()) {
      out.push_back({a.id, a.fingerprints[i] != b->fingerprints[j]});
    } else if (i < a.norms.size() && j < b->norms.size()) {
      out.push_back({a.id, !equal(a.norms[i], b->norms[j])});
    }
  }
  return out;
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

// Adds to `differing` the groups that do.
GradientValues gradients_of(const StepPair& pair, const WorkerPair& workers,
                            std::vector<std::uint64_t>& differing) {
  const auto groups = compare_groups(pair, workers);
  std::vector<std::uint64_t> own;
  for (const GroupComparison& g : groups) {
    if (g.differs) own.push_back(g.group);
  }
  differing.insert(differing.end(), own.begin(), own.end());
  return {.layers = pair.groups.names_backward(own),
          .compared = groups.size(),
          .only_in_a = layers_only_in(pair.a, pair.b, pair.groups),
          .only_in_b = layers_only_in(pair.b, pair.a, pair.groups),
          .norm_a = workers.first->grad_norm,
          .norm_b = workers.second->grad_norm};
}

// ---- the reduced gradient

bool has_reduced(const WorkerRecord& w) {
  return !std::isnan(w.reduced_norm) || w.reduced_fingerprint != 0;
}

// Whether they found the same of the reduction.
bool same_audit(const std::optional<AuditRecord>& a, const std::optional<AuditRecord>& b) {
  if (!a || !b) return a.has_value() == b.has_value();
  return a->differing == b->differing && a->elements == b->elements &&
         a->accumulation == b->accumulation && a->order == b->order && a->division == b->division;
}

// What audits say of the reductions; an audit holds until the next one.
void add_audits(const WorkerPair& workers, DifferenceBuilder& difference) {
  const auto& [a, b] = workers;
  if (!same_audit(a->audit, b->audit)) difference.add_evidence({}, LastAudits{a->audit, b->audit});
}

}  // namespace

StageResult compare_parameters(const StepPair& pair) {
  const bool in_a = has_states(pair.a);
  const bool in_b = has_states(pair.b);
  if (!in_a || !in_b || !pair.coverage.same_tensors) return not_compared(in_a, in_b);
  const auto pairs = replica_pairs(pair, has_states_of);
  StateComparison comparison(pair, pairs);
  for (const WorkerPair& w : pairs) comparison.add(w, w.first->states, w.second->states);
  return comparison.any() ? std::move(comparison).finish() : not_compared(true, true);
}

StageResult compare_losses(const StepPair& pair) {
  DifferenceBuilder difference(pair);
  bool known = false;
  bool differ = false;
  for (const WorkerPair& w : pair.workers) {
    if (!has_loss(*w.first) || !has_loss(*w.second)) continue;
    known = true;
    if (losses_equal(*w.first, *w.second)) {
      difference.add_equal(w);
      continue;
    }
    differ = true;
    difference.add_rank(w);
    difference.add_evidence({w.first->rank}, losses_of(*w.first, *w.second));
  }
  if (!known) {
    return not_compared(std::ranges::any_of(pair.a.workers, has_loss),
                        std::ranges::any_of(pair.b.workers, has_loss));
  }
  return differ ? std::move(difference).finish(OtherLoss{}) : std::move(difference).none();
}

StageResult compare_gradients(const StepPair& pair) {
  const bool read = std::ranges::any_of(pair.workers, [](const WorkerPair& w) {
    return !none_read(*w.first) && !none_read(*w.second);
  });
  if (!read) return not_compared(true, true);
  DifferenceBuilder difference(pair);
  std::vector<std::uint64_t> differing;
  bool differ = false;
  for (const WorkerPair& w : pair.workers) {
    if (none_read(*w.first) || none_read(*w.second)) continue;
    if (w.first->fingerprint == w.second->fingerprint) {
      difference.add_equal(w);
      continue;
    }
    differ = true;
    difference.add_rank(w);
    difference.add_evidence({w.first->rank}, gradients_of(pair, w, differing));
  }
  if (!differ) return std::move(difference).none();
  difference.set_layers(differing);
  const std::size_t layers = std::set(differing.begin(), differing.end()).size();
  return std::move(difference).finish(OtherGradient{layers, pair.a.groups.size()});
}

StageResult compare_reduction(const StepPair& pair) {
  DifferenceBuilder difference(pair);
  const auto pairs = replica_pairs(pair, has_reduced);
  DissentingWorkers dissenting(pair, pairs);
  bool known = false;
  bool differ = false;
  for (const WorkerPair& w : pairs) {
    if (!has_reduced(*w.first) || !has_reduced(*w.second)) continue;
    known = true;
    if (w.first->reduced_fingerprint == w.second->reduced_fingerprint) {
      difference.add_equal(w);
      continue;
    }
    if (pair.same_world()) difference.add_rank(w);
    dissenting.add(w, difference);
    if (!differ) {
      difference.add_evidence({}, ReducedNorms{w.first->reduced_norm, w.second->reduced_norm});
      add_audits(w, difference);
    }
    differ = true;
  }
  if (!known) {
    return not_compared(std::ranges::any_of(pair.a.workers, has_reduced),
                        std::ranges::any_of(pair.b.workers, has_reduced));
  }
  return differ ? std::move(difference).finish(OtherReducedGradient{})
                : std::move(difference).none();
}

StageResult compare_final_parameters(const StepPair& pair, std::span<const FinalStateRecord> a,
                                     std::span<const FinalStateRecord> b) {
  const auto in = [](std::span<const FinalStateRecord> of, std::uint32_t replica) {
    return std::ranges::find(of, replica, &FinalStateRecord::replica) != of.end();
  };
  const auto pairs = replica_pairs(pair, [&](const WorkerRecord& w) {
    const auto* const end = pair.a.workers.data() + pair.a.workers.size();
    const bool of_a = &w >= pair.a.workers.data() && &w < end;
    return in(of_a ? a : b, w.replica);
  });
  StateComparison comparison(pair, pairs);
  for (const WorkerPair& w : pairs) {
    const auto of_a = std::ranges::find(a, w.first->replica, &FinalStateRecord::replica);
    const auto of_b = std::ranges::find(b, w.second->replica, &FinalStateRecord::replica);
    if (of_a != a.end() && of_b != b.end()) comparison.add(w, of_a->states, of_b->states);
  }
  return comparison.any() ? std::move(comparison).finish() : not_compared(!a.empty(), !b.empty());
}

}  // namespace presum::compare
