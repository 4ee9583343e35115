// SPDX-License-Identifier: Apache-2.0
// **shared-rng.** Common launchers use equal seeds on all ranks, so this is information: advice
// where dropout is active, or where a generator moves identically at every step on several ranks
// (not torch's generator at the start of a pass over a loader, which draws a seed for itself). It
// is a warning if the forward pass itself draws from such a torch generator (noise of a diffusion
// model or a policy), the model neither has nor calls active dropout, and no framework
// seeded all ranks equally (fact `seeded_by`: Transformers' Trainer, Lightning's
// `seed_everything`).

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#include "base/hash.h"
#include "checks/engine/rules.h"

namespace presum::checks {
namespace {

struct Generator {
  FingerprintKind kind;
  const char* name;
  bool of_dropout;
};
constexpr std::array kGenerators = {
    Generator{FingerprintKind::kRngTorch, "torch", true},
    Generator{FingerprintKind::kRngDevice, "device", true},
    Generator{FingerprintKind::kRngNumpy, "numpy", false},
    Generator{FingerprintKind::kRngPython, "python", false},
};
constexpr const char* kNoiseRemedy =
    "The model draws noise itself, and the same noise on these ranks. Seed by rank after the model "
    "is built: torch.manual_seed(seed + rank). If equal noise is intended, nothing is wrong.";
constexpr std::size_t kTorchGenerators = 2;  // the first two
constexpr std::uint32_t kMoves = 2;          // before a generator counts as used at every step

struct SameNumbers {
  enum class DrawnBy : std::uint8_t { kUnknown, kDropout, kNoise };

  std::size_t generator = 0;  // index in kGenerators
  DrawnBy drawn_by = DrawnBy::kUnknown;
  std::string ranks_alike;
  std::size_t groups = 0;       // of ranks with one state
  std::uint64_t partition = 0;  // a hash of the groups

  std::string name() const { return kGenerators[generator].name; }
  std::string drawer() const {
    constexpr const char* kNames[] = {"unknown", "dropout", "noise within the forward pass"};
    return kNames[static_cast<std::size_t>(drawn_by)];
  }
  // Each partition of the ranks has a signal of its own: a title about all ranks must not cover
  // steps in which only some were alike.
  std::uint64_t key() const {
    return mix64(partition) + 2 * generator + (drawn_by == DrawnBy::kNoise ? 1 : 0);
  }
  static constexpr std::tuple kFields{field("generator", &SameNumbers::name),
                                      field("drawn_by", &SameNumbers::drawer),
                                      field("ranks_alike", &SameNumbers::ranks_alike)};
};

std::string sentence(const SameNumbers& seen, const Who& who) {
  constexpr const char* kHow[] = {"drew the same random numbers",
                                  "had equal random numbers for dropout",
                                  "drew the same random numbers within the forward pass"};
  const std::string groups = seen.groups > 1 ? fmt::format(", in {} groups", seen.groups) : "";
  return fmt::format("{} {}{} ({} generator)", who.words(),
                     kHow[static_cast<std::size_t>(seen.drawn_by)], groups, seen.name());
}

// If a rank has a generator on its device, dropout draws from that one.
bool drives_dropout(const WorkerRecord& worker, const Generator& generator) {
  if (!generator.of_dropout || !(real_of(worker, FingerprintKind::kDropout) > 0)) return false;
  const bool on_device = worker.fingerprint_of(FingerprintKind::kRngDevice) != nullptr;
  return on_device == (generator.kind == FingerprintKind::kRngDevice);
}

// The model itself draws, not only for dropout.
bool draws_in_forward(const WorkerRecord& worker, std::size_t generator) {
  const std::uint64_t drew = value_of(worker, FingerprintKind::kForwardDraws);
  return generator < kTorchGenerators && ((drew >> generator) & 1) != 0 &&
         real_of(worker, FingerprintKind::kDropout) == 0;
}

// At that point torch's loaders draw a seed for their worker processes, and nothing else may have
// been drawn.
bool begins_pass(const WorkerRecord& worker) {
  const std::uint64_t* batch = worker.fingerprint_of(FingerprintKind::kDataBatch);
  return batch != nullptr && *batch < worker.micro_batches &&
         value_of(worker, FingerprintKind::kForwardDraws) == 0;
}

bool all_draw_in_forward(const StepContext& context, const Ranks& ranks, std::size_t generator) {
  return context.roster.fact("seeded_by").empty() &&
         std::ranges::all_of(context.record.workers, [&](const WorkerRecord& w) {
           return !std::ranges::binary_search(ranks, w.rank) || draws_in_forward(w, generator);
         });
}

SameNumbers same_numbers(const Split& held, std::size_t generator, SameNumbers::DrawnBy drawn_by) {
  SameNumbers out{generator, drawn_by, shared_text(held), 0, 0};
  for (const Split::Group& group : held.groups) {
    if (group.ranks.size() < 2) continue;
    ++out.groups;
    for (const std::uint32_t rank : group.ranks) {
      out.partition = mix64(out.partition + (std::uint64_t{rank} << 32) + out.groups);
    }
  }
  return out;
}

// Equal seeds on all ranks are common. They matter if a generator is in use: it moves from step to
// step, or dropout is active.
class Rng final : public Rule {
 public:
  void update(const StepContext& context, SignalLog& log) override {
    log.cannot(&kSharedRng, "The ranks did not send the states of their generators.");
    for (const WorkerRecord& w : context.record.workers) follow(w);
    for (std::size_t g = 0; g < kGenerators.size(); ++g) {
      if (split(context.record, kGenerators[g].kind).known > 1) {
        log.waits(&kSharedRng, "No generator was in use at every step.");
      }
      const Split held = in_use(context, g);
      if (held.known < 2) continue;
      log.checked(&kSharedRng);
      const Ranks shared = held.shared();
      if (shared.empty()) continue;
      const bool noise = all_draw_in_forward(context, shared, g);
      const bool dropout = std::ranges::all_of(shared, [&](std::uint32_t rank) {
        return drives_dropout(worker_of(context.record, rank), kGenerators[g]);
      });
      using enum SameNumbers::DrawnBy;
      const SameNumbers seen = same_numbers(held, g,
                                            noise     ? kNoise
                                            : dropout ? kDropout
                                                      : kUnknown);
      Signal signal =
          sighting(&kSharedRng, context, {shared, shared.size() == context.workers()}, 0.7, seen);
      if (noise) {
        signal.severity = Severity::kWarning;
        signal.remedy = kNoiseRemedy;
      }
      log.add(std::move(signal), 1);
    }
  }

 private:
  struct Worker {
    std::array<std::uint64_t, 4> state{};
    std::array<std::uint32_t, 4> moves{};  // records in a row in which it moved
  };

  void follow(const WorkerRecord& worker) {
    Worker& known = workers_[worker.replica];
    for (std::size_t g = 0; g < kGenerators.size(); ++g) {
      const std::uint64_t* state = worker.fingerprint_of(kGenerators[g].kind);
      const bool moved = state != nullptr && known.state[g] != 0 && *state != known.state[g];
      const bool by_loader = g == 0 && begins_pass(worker);
      if (!by_loader || !moved) known.moves[g] = moved ? known.moves[g] + 1 : 0;
      known.state[g] = state == nullptr ? 0 : *state;
    }
  }

  Split in_use(const StepContext& context, std::size_t generator) const {
    std::vector<RankValue> held;
    for (const WorkerRecord& w : context.record.workers) {
      const std::uint64_t* state = w.fingerprint_of(kGenerators[generator].kind);
      if (state == nullptr) continue;
      const Worker* known = workers_.find(w.replica);
      const bool moving = known != nullptr && known->moves[generator] >= kMoves;
      if (moving || drives_dropout(w, kGenerators[generator])) held.push_back({*state, w.rank});
    }
    return split(std::move(held));
  }

  PerWorker<Worker> workers_;
};

}  // namespace

constexpr FingerprintKind kSharedRngKinds[] = {
    FingerprintKind::kRngTorch, FingerprintKind::kRngDevice, FingerprintKind::kRngNumpy,
    FingerprintKind::kRngPython, FingerprintKind::kForwardDraws};
constinit const CheckInfo kSharedRng{
    .id = "shared-rng",
    .severity = Severity::kInfo,
    .compares = "the random generators of all ranks that are in use",
    .fires =
        "immediately under dropout, after 3 records without; a warning if the forward pass draws",
    .consequence =
        "Ranks draw the same noise, so dropout or augmentation is less random than it looks.",
    .cannot_see = "Generators that were not in use.",
    .mistake = "torch.manual_seed(42)  # without the rank, after the model was built",
    .fix =
        "Add the rank to the seed after the model is built, and seed loader workers by rank too.",
    .resembles = "huggingface/transformers#31412",
    .precedence = 310,
    .fingerprints = kSharedRngKinds,
    .compares_ranks = true,
    .make = make<Rng>,
};

}  // namespace presum::checks
