// SPDX-License-Identifier: Apache-2.0
// **environment-mismatch.** Compares the facts on a list in
// `src/checks/state/environment_mismatch.cc`; other facts may differ. An environment variable that
// only some ranks have differs, and so does a check that only some ranks allow. The finding shows
// 32 differing facts and names their ranks; the title counts the rest. After comparing n facts, the
// next comparison waits n / 2,048 records, even if new hellos arrive.
//
// Precision is compared around the forward pass (parameter dtypes, autocast) and inside it, because
// a program may enter autocast only there (Accelerate and the Trainer do) and FSDP2 casts
// parameters for the forward pass (`MixedPrecisionPolicy`). Inside, presum looks at one layer right
// after it has computed: evenly spaced layers in turn, the same on all ranks. If torch compiles
// code of the program, or no layer is called as a module, presum cannot look inside, and the check
// is not possible unless something else differs. A precision that a layer chooses for a part of its
// work is not visible. Fingerprints that a rank did not send are not compared.

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "checks/engine/agree.h"
#include "checks/engine/rules.h"

namespace presum::checks {
namespace {

constexpr const char* kComputes =
    "Use one dtype, one autocast setting and one set of determinism flags on all ranks: check "
    "which of them each rank enters before and inside the forward pass.";
constexpr const char* kNotInside =
    "Precision inside the forward pass is not known yet: presum looks from the second step on.";
constexpr const char* kCompiled =
    "torch compiles code of this program, and precision inside compiled code is not visible.";
constexpr const char* kNoLayer =
    "No layer of the model is called as a module, so precision inside the forward pass is not "
    "visible.";
constexpr const char* kAllowed =
    "Allow a check with the same reason on every rank; on only some ranks it has no effect.";
constexpr std::size_t kKeysShown = 32;  // shown of the facts that differ

struct ComputesOtherwise : Differing {};

std::string sentence(const ComputesOtherwise& seen, const Who& who) {
  return (who.everyone ? who.the_ranks() + " compute in different ways: "
                       : who.words() + " computed in another way: ") +
         listed(seen.differ);
}

struct OtherEnvironment : Differing {
  std::uint64_t more_facts = 0;  // differing facts that are not shown
  Severity severity = Severity::kInfo;

  std::uint64_t key() const { return static_cast<std::uint64_t>(severity); }
  static constexpr auto kFields = std::tuple_cat(
      Differing::kFields, std::tuple{field("more_facts", &OtherEnvironment::more_facts)});
};

std::string sentence(const OtherEnvironment& seen, const Who& who) {
  return (who.everyone ? who.the_ranks() + " differ in their environment: "
                       : who.words() + " had another environment: ") +
         listed(seen.differ, seen.more_facts);
}

// Facts that ranks report and must share. All other facts may differ: host, pid, device, sampler,
// data, rank, and unknown ones. An entry that ends in a dot is a key prefix; an unset key then
// counts as a value.
constexpr std::string_view kChangeNumbers[] = {"torch",
                                               "cuda",
                                               "cudnn",
                                               "nccl",
                                               "backend",
                                               "dtypes",
                                               "model",
                                               "parameters",
                                               "elements",
                                               "world_size",
                                               "env.CUBLAS_WORKSPACE_CONFIG",
                                               "env.NVIDIA_TF32_OVERRIDE",
                                               "env.NCCL_ALGO",
                                               "env.NCCL_PROTO"};
constexpr std::string_view kSeldomDo[] = {
    "python",   "presum",     "numpy",         "transformers", "accelerate", "lightning",
    "datasets", "tokenizers", "threads",       "platform",     "driver",     "device_model",
    "sketch",   "every",      "reduced_every", "env.",         "allow."};

// The severity of a difference; none if the fact may differ.
std::optional<Severity> severity_of(std::string_view key) {
  const auto is = [&](std::string_view rule) {
    return rule == key || (rule.ends_with('.') && key.starts_with(rule));
  };
  if (std::ranges::any_of(kChangeNumbers, is)) return Severity::kWarning;
  if (std::ranges::any_of(kSeldomDo, is)) return Severity::kInfo;
  return std::nullopt;
}

using Mismatches = std::map<Severity, Mismatch>;

Mismatches differing(const Roster& roster, const std::map<std::string_view, FactCounts>& all) {
  Mismatches out;
  for (const auto& [key, fact] : all) {
    const auto severity = severity_of(key);
    if (!severity || !fact.differs) continue;
    Mismatch& mismatch = out[*severity];
    if (mismatch.seen.differ.size() < kKeysShown) {
      add_fact(roster, std::string(key), mismatch);
    } else {
      ++mismatch.more;
    }
  }
  return out;
}

class EnvironmentMismatch final : public Rule {
 public:
  void update(const StepContext& context, SignalLog& log) override {
    tells_dtypes_ = tells_dtypes_ || split(context.record, FingerprintKind::kDtype).known > 0;
    compare_fingerprints(context, log);
    if (pace_.due(context.roster)) compare_facts(context);
    look_inside(context, log);
    for (Signal signal : standing_) {
      signal.first_step = signal.last_step = context.record.step;
      log.add(std::move(signal));
    }
  }

 private:
  void compare_fingerprints(const StepContext& context, SignalLog& log) const {
    Mismatch found = compare_kinds(context, &kEnvironmentMismatch);
    if (!found.looked) return log.cannot(&kEnvironmentMismatch, kNotSent);
    if (!tells_dtypes_) log.checked(&kEnvironmentMismatch);
    if (found.seen.differ.empty()) return;
    Signal signal = sighting(&kEnvironmentMismatch, context, std::move(found.blame), 0.95,
                             ComputesOtherwise{std::move(found.seen)});
    signal.remedy = kComputes;
    log.add(std::move(signal), 1);
  }

  // Whether ranks that report their dtypes also report them inside the forward pass: a program may
  // enter autocast only there.
  void look_inside(const StepContext& context, SignalLog& log) {
    constexpr Check kHere = &kEnvironmentMismatch;
    if (!tells_dtypes_) {
      if (facts_compared_) log.checked(kHere);
      return;
    }
    seen_inside_ =
        seen_inside_ || split(context.record, FingerprintKind::kForwardPrecision).known > 1;
    if (seen_inside_) return log.checked(kHere);
    const std::string why = context.roster.fact("forward_unseen");
    if (why.empty()) return log.waits(kHere, kNotInside);
    log.waits(kHere, {});
    log.cannot(kHere, why.starts_with("torch compiles") ? kCompiled : kNoLayer);
  }

  void compare_facts(const StepContext& context) {
    const auto all = count_facts(context.roster);
    standing_.clear();
    for (auto& [severity, mismatch] : differing(context.roster, all)) {
      const bool allows = std::ranges::all_of(
          mismatch.seen.differ, [](const auto& key) { return key.starts_with("allow."); });
      OtherEnvironment seen{std::move(mismatch.seen), mismatch.more, severity};
      Signal signal = sighting(&kEnvironmentMismatch, context, std::move(mismatch.blame),
                               severity == Severity::kInfo ? 0.5 : 0.8, std::move(seen));
      signal.severity = severity;
      if (allows) signal.remedy = kAllowed;
      standing_.push_back(std::move(signal));
    }
    std::size_t compared = 0;
    for (const auto& [key, fact] : all) {
      compared += fact.count;
      facts_compared_ = facts_compared_ || (severity_of(key) && (fact.count > 1 || fact.differs));
    }
    pace_.compared(compared);
  }

  FactPace pace_;
  std::vector<Signal> standing_;  // facts that differ
  bool facts_compared_ = false;
  bool tells_dtypes_ = false;  // some rank reports dtypes
  bool seen_inside_ = false;   // precision inside a forward pass is known on two ranks
};

}  // namespace

constexpr FingerprintKind kEnvironmentMismatchKinds[] = {
    FingerprintKind::kDtype, FingerprintKind::kDeterminism, FingerprintKind::kForwardPrecision};
constexpr Check kEnvironmentMismatchExplains[] = {&kParameterDesync, &kBufferDesync, &kStateDesync,
                                                  &kReducedGradientMismatch, &kRankOutlier};
constinit const CheckInfo kEnvironmentMismatch{
    .id = "environment-mismatch",
    .severity = Severity::kWarning,
    .compares =
        "the versions, device, precision, determinism and environment variables of all ranks",
    .fires =
        "immediately; determinism within 5 steps; precision inside the forward pass at the second "
        "step, then one in 5; facts that do not change numbers are information",
    .consequence = "The same program may compute different numbers on some ranks.",
    .cannot_see =
        "Libraries that are not on presum's list of facts; precision inside code that torch "
        "compiles.",
    .mistake = "torch.set_float32_matmul_precision(\"high\")  # only on some hosts",
    .fix = "Use the same image and launch environment on every host.",
    .precedence = 70,
    .explains = kEnvironmentMismatchExplains,
    .fingerprints = kEnvironmentMismatchKinds,
    .compares_ranks = true,
    .sets_apart = true,
    .info_explains = false,
    .make = make<EnvironmentMismatch>,
};

}  // namespace presum::checks
