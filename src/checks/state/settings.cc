// SPDX-License-Identifier: Apache-2.0
// **optimizer-mismatch, mode-mismatch, environment-mismatch.** Fingerprints that a worker did not
// send are not compared. Facts are judged by a list in `src/checks/state/settings.cc`. What is not
// on it may differ. An environment variable that only some workers have differs. Of facts that
// differ 32 are shown, and ranks are those of the shown ones; the title counts the rest. After n
// facts were compared the next comparison waits n / 2,048 records, whatever hellos come.
//
// **environment-mismatch.** Precision is compared as it is around the forward pass (parameters'
// dtypes, autocast) and inside it, for autocast may be entered there alone (Accelerate and the
// Trainer do) and FSDP2 casts parameters for the forward pass (`MixedPrecisionPolicy`). Inside, one
// layer is looked at when it has computed: evenly spaced ones in turn, the same on all ranks. Where
// torch compiles code of the program, and where no layer is called as a module, nothing is looked
// at, and the check is not possible unless something else differs. Precision that a layer chooses
// for a part of what it does is not seen.
//
// **mode-mismatch.** Also by the batches that the model's first BatchNorm has seen, before DDP
// sends the buffers of rank 0: a rank that validates in training mode has more than the others,
// until the next broadcast. Differences of up to two forward passes a micro-batch are left alone:
// layers that are left out at random look so.

#include "checks/state/settings.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/hash.h"
#include "checks/engine/rules.h"
#include "checks/engine/text.h"

namespace presum::checks {
namespace {

constexpr std::uint64_t kNormSlack = 2;  // forward passes a micro-batch
constexpr const char* kEvaluate =
    "Call `model.eval()` before validation on every rank that validates, and `model.train()` after "
    "it: else BatchNorm learns its statistics from validation data, and DDP gives those of rank 0 "
    "to all.";
constexpr const char* kComputes =
    "Use one dtype, one autocast and one set of determinism flags on all ranks: look at what each "
    "of them enters before the forward pass, and in it.";
constexpr const char* kDtypeName = "dtype of parameters or autocast";
constexpr const char* kInsideName = "precision inside the forward pass";
constexpr const char* kNotInside =
    "Precision inside the forward pass was not seen yet: it is looked at from the second step on.";
constexpr const char* kCompiled =
    "torch compiles code of this program, and precision inside such code is not seen.";
constexpr const char* kNoLayer =
    "No layer of the model is called as a module, so precision inside the forward pass is not "
    "seen.";
constexpr std::size_t kValueBytes = 64;  // of a fact shown as evidence
constexpr std::uint64_t kUnset = 0;
constexpr const char* kUneven =
    "Give every rank as many batches as the others: `drop_last=True`, a sampler that pads, or a "
    "schedule of a fixed number of steps. Where data stay uneven, train inside `model.join()`.";
constexpr std::size_t kKeysShown = 32;              // of the facts that differ
constexpr std::uint64_t kFactsPerRecord = 1 << 11;  // compared, on average at most

struct Words {
  Check check;
  const char* minority;  // of those that differ from the rest
  const char* everyone;  // where there is no minority
};

constexpr Words kWords[] = {
    {&kOptimizerMismatch, " had another optimiser: ", "The ranks differ in their optimiser: "},
    {&kModeMismatch, " ran in another mode: ", "The ranks differ in their mode: "},
    {&kEnvironmentMismatch, " computed in another way: ", "The ranks compute in different ways: "},
};

struct OtherSettings : Differing {
  Check check = nullptr;
  std::string data_lengths;  // by rank, where the learning rate alone differs, and as they do
  static constexpr auto kFields = std::tuple_cat(
      Differing::kFields, std::tuple{field("data_lengths", &OtherSettings::data_lengths)});
};

std::string sentence(const OtherSettings& seen, const Who& who) {
  if (!seen.data_lengths.empty()) {
    return who.everyone
               ? "The ranks differ in their learning rate, as in the number of their batches"
               : who.words() + " had another learning rate, and another number of batches";
  }
  const Words& words = *std::ranges::find(kWords, seen.check, &Words::check);
  return (who.everyone ? words.everyone : who.words() + words.minority) + listed(seen.differ);
}

struct OtherNormBatches {
  std::uint64_t batches_apart = 0;
  static constexpr std::tuple kFields{field("batches_apart", &OtherNormBatches::batches_apart)};
};

std::string sentence(const OtherNormBatches& /*seen*/, const Who& who) {
  return who.everyone
             ? "The ranks gave BatchNorm different numbers of batches in training mode"
             : who.words() + " gave BatchNorm batches in training mode that the others did not";
}

struct OtherEnvironment : Differing {
  std::uint64_t more_facts = 0;  // that differ, and are left out
  Severity severity = Severity::kInfo;

  std::uint64_t key() const { return static_cast<std::uint64_t>(severity); }
  static constexpr auto kFields = std::tuple_cat(
      Differing::kFields, std::tuple{field("more_facts", &OtherEnvironment::more_facts)});
};

std::string sentence(const OtherEnvironment& seen, const Who& who) {
  return (who.everyone ? "The ranks differ in their environment: "
                       : who.words() + " had another environment: ") +
         listed(seen.differ, seen.more_facts);
}

// What workers say about themselves and must share. All other facts may differ: host, pid, device,
// sampler, data, rank, and what nobody has thought of.
// One that ends in a dot is the beginning of keys; unset is a value then.
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
    "sketch",   "every",      "reduced_every", "env."};

bool is_variable(std::string_view key) { return key.starts_with("env."); }

// Of a difference; none where it may be.
std::optional<Severity> severity_of(std::string_view key) {
  const auto is = [&](std::string_view rule) {
    return rule == key || (rule.ends_with('.') && key.starts_with(rule));
  };
  if (std::ranges::any_of(kChangeNumbers, is)) return Severity::kWarning;
  if (std::ranges::any_of(kSeldomDo, is)) return Severity::kInfo;
  return std::nullopt;
}

// How often a fact is there, and whether all have the same value.
struct Told {
  std::uint64_t first = 0;
  std::size_t count = 0;
  bool differs = false;
};

using ToldByKey = std::map<std::string_view, Told>;

ToldByKey told(const Roster& roster) {
  ToldByKey out;
  for (const auto& [rank, facts] : roster.facts()) {
    for (const auto& [key, text] : facts) {
      Told& fact = out[key];
      const std::uint64_t value = name_hash(text);
      if (fact.count++ == 0) fact.first = value;
      fact.differs = fact.differs || value != fact.first;
    }
  }
  return out;
}

// A variable that only some workers have is unset on the others; another fact is unknown there.
Split split_fact(const Roster& roster, const std::string& key,
                 std::map<std::uint64_t, std::string>& names) {
  std::vector<RankValue> held;
  for (const auto& [rank, facts] : roster.facts()) {
    const auto found = facts.find(key);
    if (found == facts.end() && !is_variable(key)) continue;
    const std::uint64_t value = found == facts.end() ? kUnset : name_hash(found->second);
    names[value] = found == facts.end() ? "unset" : shortened(found->second, kValueBytes);
    held.push_back({value, rank});
  }
  return split(std::move(held));
}

void add_fact(const Roster& roster, const std::string& key, Mismatch& mismatch) {
  std::map<std::uint64_t, std::string> names;
  const Split held = split_fact(roster, key, names);
  mismatch.blame.add(held.blame());
  Differing& found = mismatch.seen;
  found.differ.push_back(shortened(key, kValueBytes));
  found.values.emplace_back(found.differ.back(),
                            held.text([&](std::uint64_t v) { return names[v]; }));
}

bool unset_somewhere(const Roster& roster, std::string_view key, const Told& fact) {
  return is_variable(key) && fact.count < roster.facts().size();
}

bool comparable(const Roster& roster, std::string_view key, const Told& fact) {
  return severity_of(key) && (fact.count > 1 || unset_somewhere(roster, key, fact));
}

std::map<Severity, Mismatch> differing(const Roster& roster, const ToldByKey& all) {
  std::map<Severity, Mismatch> out;
  for (const auto& [key, fact] : all) {
    const auto severity = severity_of(key);
    if (!severity || !(fact.differs || unset_somewhere(roster, key, fact))) continue;
    Mismatch& mismatch = out[*severity];
    if (mismatch.seen.differ.size() < kKeysShown) {
      add_fact(roster, std::string(key), mismatch);
    } else {
      ++mismatch.more;
    }
  }
  return out;
}

// Whether a setting differs is decided by all kinds; these are fit for a person's eye.
bool shown(FingerprintKind kind) {
  return kind != FingerprintKind::kOptimizerSettings && kind != FingerprintKind::kModes &&
         kind != FingerprintKind::kDropouts && kind != FingerprintKind::kDtype;
}

std::string plain_name(const FingerprintInfo& kind) {
  switch (kind.kind) {
    case FingerprintKind::kMode:
    case FingerprintKind::kModes:
      return "training or evaluation";
    case FingerprintKind::kDropout:
    case FingerprintKind::kDropouts:
      return "dropout";
    case FingerprintKind::kOptimizerClass:
      return "class";
    case FingerprintKind::kOptimizerSettings:
      return "settings";
    case FingerprintKind::kDtype:
      return kDtypeName;
    case FingerprintKind::kForwardPrecision:
      return kInsideName;
    default:
      break;
  }
  std::string name(kind.name);
  std::replace(name.begin(), name.end(), '_', ' ');
  return name;
}

// The fact that says what a kind's hashes are of; null where there is none.
const char* fact_for(FingerprintKind kind) {
  if (kind == FingerprintKind::kOptimizerClass) return "optimizer";
  return kind == FingerprintKind::kForwardPrecision ? "forward_precision" : nullptr;
}

// Values of a kind as text, by what their workers told.
std::string held_text(const StepContext& context, const FingerprintInfo& kind, const Split& held) {
  std::map<std::uint64_t, std::string> names;
  const char* fact = fact_for(kind.kind);
  for (const Split::Group& group : held.groups) {
    names[group.value] = value_text(kind, group.value);
    if (fact == nullptr) continue;
    const std::string name = context.roster.fact_of(group.ranks.front(), fact);
    if (!name.empty() && name != "unknown") names[group.value] = shortened(name, kValueBytes);
  }
  return held.text([&](std::uint64_t value) { return names[value]; });
}

// Where the learning rate alone differs, and as the lengths of the workers' data do, these lengths:
// a schedule whose length is that of the loader. Else empty.
std::string uneven_data(const StepContext& context, const Differing& found) {
  static constexpr const char* kRates[] = {"learning rate", "settings"};
  const bool rate = std::ranges::all_of(found.differ, [](const std::string& name) {
    return std::ranges::find(kRates, name) != std::end(kRates);
  });
  const auto ranks = [](const Split& held) {
    std::vector<Ranks> out;
    for (const Split::Group& group : held.groups) out.push_back(group.ranks);
    return out;
  };
  const auto rates = ranks(split(context.record, FingerprintKind::kLearningRate));
  for (const FingerprintKind length :
       {FingerprintKind::kSamplerLength, FingerprintKind::kDataLength}) {
    const Split lengths = split(context.record, length);
    if (rate && rates.size() > 1 && ranks(lengths) == rates) return lengths.text();
  }
  return "";
}

class Settings final : public Rule {
 public:
  void update(const StepContext& context, SignalLog& log) override {
    tells_dtypes_ = tells_dtypes_ || split(context.record, FingerprintKind::kDtype).known > 0;
    compare(context, &kOptimizerMismatch, log);
    compare(context, &kModeMismatch, log);
    compare_norm_batches(context, log);
    compare(context, &kEnvironmentMismatch, log);
    follow_facts(context);
    look_inside(context, log);
    for (Signal signal : standing_) {
      signal.first_step = signal.last_step = context.record.step;
      log.add(std::move(signal));
    }
  }

 private:
  void compare(const StepContext& context, Check check, SignalLog& log) {
    Mismatch found = compare_kinds(context, check);
    if (!found.looked) return log.cannot(check, "The workers did not send these fingerprints.");
    if (check != &kEnvironmentMismatch || !tells_dtypes_) log.checked(check);
    if (found.seen.differ.empty()) return;
    if (std::ranges::find(found.seen.differ, "settings") != found.seen.differ.end()) {
      name_optimizer_settings(context, found.seen);
    }
    OtherSettings seen{std::move(found.seen), check, ""};
    if (check == &kOptimizerMismatch) seen.data_lengths = uneven_data(context, seen);
    const bool uneven = !seen.data_lengths.empty();
    Signal signal = sighting(check, context, std::move(found.blame), 0.95, std::move(seen));
    if (check == &kEnvironmentMismatch) signal.remedy = kComputes;
    if (uneven) signal.remedy = kUneven;
    // Rates that follow each rank's own loss part one after the other.
    log.add(std::move(signal), check == &kOptimizerMismatch ? kAllSteps : 1);
  }

  // Which settings of their optimisers workers have told otherwise.
  void name_optimizer_settings(const StepContext& context, Differing& found) {
    constexpr std::string_view kPrefix = "optimizer.";
    if (named_revision_ != context.roster.revision()) {
      named_revision_ = context.roster.revision();
      named_ = {};
      for (const auto& [key, fact] : told(context.roster)) {
        if (fact.differs && key.starts_with(kPrefix))
          add_fact(context.roster, std::string(key), named_);
      }
    }
    const auto& [names, values] = named_.seen;
    if (names.empty()) return;
    std::erase(found.differ, "settings");
    for (const std::string& name : names) found.differ.push_back(name.substr(kPrefix.size()));
    for (const auto& [name, value] : values) {
      found.values.emplace_back(name.substr(kPrefix.size()), value);
    }
  }

  // Where a rank evaluates in training mode, its BatchNorm counts those batches too, until the next
  // broadcast of the buffers. Layers that are left out at random differ by a forward pass or two.
  static void compare_norm_batches(const StepContext& context, SignalLog& log) {
    const Split held = split(context.record, FingerprintKind::kNormBatches);
    if (!held.differs()) return;
    std::uint64_t least = UINT64_MAX;
    std::uint64_t most = 0;
    std::uint64_t passes = 1;
    for (const Split::Group& group : held.groups) {
      least = std::min(least, group.value);
      most = std::max(most, group.value);
    }
    for (const WorkerRecord& w : context.record.workers) {
      passes = std::max<std::uint64_t>(passes, w.micro_batches);
    }
    if (most - least <= kNormSlack * passes) return;
    Signal signal = sighting(&kModeMismatch, context, held.blame(), 0.9,
                             OtherNormBatches{.batches_apart = most - least});
    signal.remedy = kEvaluate;
    log.add(std::move(signal), kAllSteps);
  }

  // Whether ranks that say their dtypes say them as they are inside the forward pass, too: autocast
  // may be entered there alone.
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
    const ToldByKey all = told(context.roster);
    standing_.clear();
    for (auto& [severity, mismatch] : differing(context.roster, all)) {
      OtherEnvironment seen{std::move(mismatch.seen), mismatch.more, severity};
      Signal signal = sighting(&kEnvironmentMismatch, context, std::move(mismatch.blame),
                               severity == Severity::kInfo ? 0.5 : 0.8, std::move(seen));
      signal.severity = severity;
      standing_.push_back(std::move(signal));
    }
    std::size_t compared = 0;
    for (const auto& [key, fact] : all) {
      compared += fact.count;
      facts_compared_ = facts_compared_ || comparable(context.roster, key, fact);
    }
    pause_ = compared / kFactsPerRecord;
  }

  // With many facts not at every hello, so that hostile ones cost no more than the steps do.
  void follow_facts(const StepContext& context) {
    if (pause_ > 0) --pause_;
    if (pause_ > 0 || revision_ == context.roster.revision()) return;
    revision_ = context.roster.revision();
    compare_facts(context);
  }

  std::uint64_t revision_ = 0;    // of the facts that were compared
  std::uint64_t pause_ = 0;       // records until they are compared again at the earliest
  std::vector<Signal> standing_;  // facts that do not match
  bool facts_compared_ = false;
  bool tells_dtypes_ = false;         // some worker does
  bool seen_inside_ = false;          // two workers' precision inside a forward pass
  std::uint64_t named_revision_ = 0;  // of the facts that `named_` is of
  Mismatch named_;                    // settings of optimisers that differ
};

}  // namespace

std::string listed(const std::vector<std::string>& names, std::size_t more) {
  std::vector<std::string> each = names;
  if (more > 0) each.push_back(std::to_string(more) + " more");
  std::string out;
  for (std::size_t i = 0; i < each.size(); ++i) {
    if (i > 0) out += i + 1 == each.size() ? " and " : ", ";
    out += each[i];
  }
  return out;
}

Mismatch compare_kinds(const StepContext& context, Check check, bool (*counts)(FingerprintKind)) {
  Mismatch out;
  std::vector<std::string>& names = out.seen.differ;
  const auto named = [&](const std::string& name) {
    return std::ranges::find(names, name) != names.end();
  };
  for (const FingerprintKind looked_at : check->fingerprints) {
    const FingerprintInfo& kind = *find_fingerprint_kind(static_cast<std::uint32_t>(looked_at));
    if (kind.expectation != Expectation::kMustMatch || !counts(kind.kind)) continue;
    const Split held = split(context.record, kind.kind);
    out.looked = out.looked || held.known > 1;
    if (!held.differs()) continue;
    out.blame.add(held.blame());
    if (!named(plain_name(kind))) names.push_back(plain_name(kind));
    if (shown(kind.kind)) out.seen.values.emplace_back(kind.name, held_text(context, kind, held));
  }
  // A learning rate is one of the settings; autocast around the forward pass is there inside.
  if (names.size() > 1) std::erase(names, "settings");
  if (named(kDtypeName)) std::erase(names, kInsideName);
  return out;
}

constexpr FingerprintKind kOptimizerMismatchKinds[] = {
    FingerprintKind::kOptimizerClass, FingerprintKind::kOptimizerSettings,
    FingerprintKind::kLearningRate, FingerprintKind::kWeightDecay};
constexpr Check kOptimizerMismatchExplains[] = {&kParameterDesync, &kBufferDesync,   &kStateDesync,
                                                &kRankOutlier,     &kPairTooSimilar, &kLossEvent};
constinit const CheckInfo kOptimizerMismatch{
    .id = "optimizer-mismatch",
    .severity = Severity::kCritical,
    .compares = "optimiser class and hyper-parameters of all workers",
    .fires = "now; of more than 64 parameter groups 64 a step, in turn",
    .consequence =
        "Workers take different steps from the same gradient, so their parameters drift apart.",
    .cannot_see = "Settings of an optimiser that are not in its parameter groups.",
    .mistake =
        "scheduler = OneCycleLR(optimizer, 1e-3, total_steps=len(loader))  # lengths differ by "
        "rank",
    .fix =
        "Build the optimiser and its schedule from the same configuration on every rank, and load "
        "the same checkpoint of them.",
    .precedence = 60,
    .explains = kOptimizerMismatchExplains,
    .fingerprints = kOptimizerMismatchKinds,
    .compares_ranks = true,
    .sets_apart = true,
    .make = make<Settings>,
};

constexpr FingerprintKind kEnvironmentMismatchKinds[] = {
    FingerprintKind::kDtype, FingerprintKind::kDeterminism, FingerprintKind::kForwardPrecision};
constexpr Check kEnvironmentMismatchExplains[] = {&kParameterDesync, &kBufferDesync, &kStateDesync,
                                                  &kReducedGradientMismatch, &kRankOutlier};
constinit const CheckInfo kEnvironmentMismatch{
    .id = "environment-mismatch",
    .severity = Severity::kWarning,
    .compares = "versions, device, precision, determinism and environment variables of all workers",
    .fires =
        "now; determinism within 5 steps; precision inside the forward pass at the second step, "
        "then one in 5; what changes no number is information",
    .consequence = "The same program may compute other numbers on some ranks.",
    .cannot_see =
        "Libraries that are not on presum's list of facts; precision inside code that torch "
        "compiles.",
    .mistake = "torch.set_float32_matmul_precision(\"high\")  # on some hosts only",
    .fix = "Use the same image and launch environment on every host.",
    .precedence = 70,
    .explains = kEnvironmentMismatchExplains,
    .fingerprints = kEnvironmentMismatchKinds,
    .compares_ranks = true,
    .sets_apart = true,
    .info_explains = false,
    .make = make<Settings>,
};

constexpr FingerprintKind kModeMismatchKinds[] = {
    FingerprintKind::kMode, FingerprintKind::kModes, FingerprintKind::kDropout,
    FingerprintKind::kDropouts, FingerprintKind::kNormBatches};
constexpr Check kModeMismatchExplains[] = {&kBufferDesync, &kRankOutlier, &kPairTooSimilar,
                                           &kLossEvent};
constinit const CheckInfo kModeMismatch{
    .id = "mode-mismatch",
    .severity = Severity::kWarning,
    .compares = "training or evaluation mode and dropout rates of all workers",
    .fires = "now; parts of the model, and rates below the largest, within 5 steps",
    .consequence =
        "Some workers train with dropout or with moving batch statistics and others without.",
    .cannot_see = "Behaviour that does not follow `training` or a dropout rate.",
    .mistake =
        "if rank == 0:\n    model.eval()\n    evaluate(model)  # and no model.train() after it",
    .fix =
        "Call `model.train()` on every rank after validation, and build the model from one "
        "configuration.",
    .precedence = 80,
    .explains = kModeMismatchExplains,
    .fingerprints = kModeMismatchKinds,
    .compares_ranks = true,
    .sets_apart = true,
    .make = make<Settings>,
};

}  // namespace presum::checks
