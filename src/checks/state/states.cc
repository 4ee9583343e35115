// SPDX-License-Identifier: Apache-2.0
// **parameter-desync, buffer-desync.** One slice is hashed at each step, and all slices within 25
// steps. `first_step` is the step of the differing hash, and the evidence says when the same slice
// was last equal. The last parameters of a run are compared between ranks with equal counts of
// optimizer steps. Buffers are compared only before the forward pass, except those that
// `local_buffers=` names. Ranks that differ within 50 steps of each other belong to the same
// finding.
//
// **state-desync.** The optimizer's tensors for a parameter (moments, counters, higher-precision
// copies) are hashed once in 50 steps, part by part, and compared like parameters, except those
// that ZeRO shards. `monitor.watch("ema", module_or_tensors)` adds other values that must be equal
// on all ranks; values that only some ranks watch under a name are not compared, and reported as
// information.
//
// Under FSDP2 parameters are hashed shard by shard, and compared between the replicas of a shard
// (HSDP). If no two ranks hold the same shard, the check is not possible. Parameters that the
// optimizer holds but no watched model has, and those of an FSDP2 model outside every fully_shard
// group, are hashed as well: if they differ and were equal before, no-reduction reports them. Under
// local SGD (no-reduction) none of these differences are reported, as long as parameters are equal
// again at equal distances.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/hash.h"
#include "checks/engine/agree.h"
#include "checks/engine/rules.h"
#include "checks/engine/state_hashes.h"
#include "checks/engine/text.h"

namespace presum::checks {
namespace {

constexpr std::uint64_t kRound = 50;  // steps in which every slice is hashed twice
constexpr std::size_t kClocks = 64;
constexpr std::uint64_t kUnwatched = 3;  // records in a row
constexpr std::size_t kGroups = 65536;
constexpr std::size_t kNamesShown = 4;
constexpr const char* kBase =
    "Load the same checkpoint of the base model on every rank, before it is wrapped: frozen "
    "parameters never become equal again.";

constexpr const char* kWatchedRemedy =
    "Update watched values identically on every rank, from equal values, or broadcast them from "
    "one rank.";
constexpr const char* kOutsideRemedy =
    "Put the modules that they belong to into the model before it is wrapped or sharded, or wrap "
    "them too, or reduce their gradients by hand before every step.";
constexpr std::size_t kParts = 25;       // hashed in turn
constexpr std::uint64_t kJoined = 2;     // times, until it counts as a habit
constexpr std::uint64_t kEqualFor = 30;  // records, in which each part is hashed again
constexpr const char* kApartAtFirst =
    "Parameters differed at the first step, and not all of them have been compared since.";
constexpr const char* kOwnState =
    "Nothing, if the optimizer keeps separate values on each rank: parameters stayed equal.";
constexpr const char* kRejoined =
    "Nothing, if the program averages them before it evaluates or saves the model: they were equal "
    "again at times.";
constexpr const char* kOwnBuffers =
    "Nothing broadcasts buffers here: use synchronized BatchNorm, or average them before the model "
    "is evaluated or saved.";

using Kind = StateHash::Kind;

struct StateText {
  Kind kind;
  Check check;
  const char* thing;      // that ranks hold copies of
  const char* not_known;  // the reason if there is nothing to compare; null: absence is normal
};

constexpr std::array<StateText, 6> kStateTexts{{
    {Kind::kParameters, &kParameterDesync, "parameters", "No parameters were hashed."},
    {Kind::kFrozen, &kParameterDesync, "frozen parameters", "No parameters were hashed."},
    {Kind::kOutside, &kNoReduction, "parameters that are trained and not reduced", nullptr},
    {Kind::kBuffers, &kBufferDesync, "buffers",
     "The model has no shared buffers, or none were hashed."},
    {Kind::kOptimizer, &kStateDesync, "optimizer state",
     "No optimizer state was hashed, and nothing is watched."},
    {Kind::kWatched, &kStateDesync, "watched values",
     "No optimizer state was hashed, and nothing is watched."},
}};

// State that differs between two averages of local SGD.
constexpr std::array kAveraged = {Kind::kParameters, Kind::kBuffers, Kind::kOptimizer,
                                  Kind::kOutside};
constexpr const char* kApart = "Ranks take separate steps and average their parameters.";

const StateText& text_of(Kind kind) {
  return *std::ranges::find(kStateTexts, kind, &StateText::kind);
}

struct OtherCopies {
  Kind kind = Kind::kParameters;
  std::string groups;  // the first names
  std::uint64_t groups_different = 0;
  std::uint64_t distinct_copies = 0;
  std::string copies_alike;  // if no majority agrees, the groups of ranks that do

  std::string what() const { return text_of(kind).thing; }
  std::uint64_t key() const { return static_cast<std::uint64_t>(kind); }
  static constexpr std::tuple kFields{field("what", &OtherCopies::what),
                                      field("groups", &OtherCopies::groups),
                                      field("groups_different", &OtherCopies::groups_different),
                                      field("distinct_copies", &OtherCopies::distinct_copies),
                                      field("copies_alike", &OtherCopies::copies_alike)};
};

std::string sentence(const OtherCopies& seen, const Who& who) {
  const StateText& text = text_of(seen.kind);
  if (seen.kind == Kind::kOutside) {
    return fmt::format("{} held {} {}, trained outside of every watched reduction", who.words(),
                       who.everyone ? "different" : "another", seen.groups);
  }
  if (!who.everyone)
    return fmt::format("{} held other {} than the others", who.words(), text.thing);
  if (seen.copies_alike.empty())
    return fmt::format("{} held different {}", who.words(), text.thing);
  return fmt::format("{} held {} different copies of their {} (alike: ranks {})", who.words(),
                     seen.distinct_copies, text.thing, seen.copies_alike);
}

struct OtherSteps {
  std::string optimizer_steps;  // by rank
  static constexpr std::tuple kFields{field("optimizer_steps", &OtherSteps::optimizer_steps)};
};

std::string sentence(const OtherSteps& /*seen*/, const Who& who) {
  return who.words() + (who.everyone ? " took different numbers of optimizer steps"
                                     : " took another number of optimizer steps than the others");
}

struct NotWatched {
  std::string watched_by_some;  // the first names
  static constexpr std::tuple kFields{field("watched_by_some", &NotWatched::watched_by_some)};
};

std::string sentence(const NotWatched& /*seen*/, const Who& who) {
  return who.words() + (who.everyone
                            ? " watched values by different names, which are not compared"
                            : " did not watch what the other ranks do: it is not compared");
}

struct UnlikeParameters {
  std::string differ_from_parameters;
  static constexpr std::tuple kFields{
      field("differ_from_parameters", &UnlikeParameters::differ_from_parameters)};
};

std::string sentence(const UnlikeParameters& /*seen*/, const Who& who) {
  return who.words() + " held copies of parameters that are not equal to them";
}

std::string suspects_of_one_layer(std::span<const Signal* const> signals) {
  const Signal& own = *signals.front();
  const auto* seen = own.evidence.as<OtherCopies>();
  if (seen == nullptr || seen->groups_different != 1 || own.ranks.size() != 1) return "";
  return "that layer was written to, or not updated, on this rank alone, or its memory changed";
}

std::string names(const Groups& groups, const Roster& roster) {
  return first_names(groups, kNamesShown, [&](auto group) { return roster.layer_name(group); });
}

class States final : public Rule {
 public:
  void update(const StepContext& context, SignalLog& log) override {
    last_step_ = context.record.step;
    workers_ = context.workers();
    const bool averaged = context.averaging.interval() > 0;
    if (averaged && !averaged_) {
      for (const Kind kind : kAveraged) log.forget(text_of(kind).check, key_of(OtherCopies{kind}));
    }
    averaged_ = averaged;
    report_compared(context, log);
    if (context.alone()) {
      for (const Check check : {&kParameterDesync, &kBufferDesync, &kStateDesync}) {
        log.cannot(check, kOneWorker);
      }
      return;
    }
    compare_clocks(context, log);
    count_holders(context);
    if (const std::optional<std::size_t> part = part_of(context)) {
      follow_own_state(context.record, *part, log);
      follow_buffers(context.record, *part, log);
    }
    for (const StateText& text : kStateTexts) {
      const bool apart = averaged_ && std::ranges::find(kAveraged, text.kind) != kAveraged.end();
      apart ? log.cannot(text.check, kApart) : compare(context, text.kind, log);
    }
    if (context.complete()) compare_watched(context, log);
    looked_[looks_++ % looked_.size()] = context.record.step;
  }

  // Compares last hashes between ranks that took the same number of optimizer steps, if they took
  // any, as soon as more than half of all agree or all have left.
  void farewell(std::uint32_t rank, const FinalState& last, const Roster& roster,
                SignalLog& log) override {
    const std::uint64_t steps = last.optimizer_steps;
    if (steps == 0 || last.states.empty() || averaged_) return;
    if (farewells_.size() >= kClocks && !farewells_.contains(steps)) return;
    Farewells& all = farewells_[steps];
    if (!all.ranks.insert(rank).second) return;
    for (const auto& [shard, difference] : all.differences(last.states)) {
      Farewells::Holders& of = all.holders[shard];
      of.held.push_back({difference, rank});
      if (of.held.size() > 1) log.checked(&kParameterDesync);
      const Split held = split(of.held);
      const auto sharing = holders_.find(shard);
      const std::size_t ranks = sharing == holders_.end() ? workers_ : sharing->second;
      const bool decided = 2 * held.groups.front().ranks.size() > ranks || held.known >= ranks;
      if (!of.differ.empty() && decided) {
        report(Kind::kParameters, last_step_, held, of.differ, roster, log);
      }
    }
  }

 private:
  void compare(const StepContext& context, Kind kind, SignalLog& log) {
    const auto shards = shards_of(context.record, kind);
    const StateText& text = text_of(kind);
    if (shards.empty() && text.not_known == nullptr) return;
    if (shards.empty()) return log.cannot(text.check, text.not_known);
    if (shards.size() == context.workers()) {
      return log.cannot(text.check, "No two ranks hold the same shard.");
    }
    log.checked(text.check);
    if (kind == Kind::kParameters && looks_ < kParts && apart_at_first_) {
      log.needs(&kParameterDesync, kParts - looks_, kApartAtFirst);
    }
    if (kind == Kind::kParameters && left_alike(context.record)) {
      if (looks_ == 1) forget_first(log);
      return;
    }
    if (kind == Kind::kOutside) follow_copies(context.record);
    if (all_equal(context.record)) return;
    for (const std::uint32_t shard : shards) {
      Groups differ = differing(context.record, kind, shard);
      if (kind == Kind::kOutside) {
        std::erase_if(differ, [&](std::uint64_t group) { return !copies_.contains(group); });
      }
      if (kind == Kind::kBuffers) leave_rejoining(differ);
      if (differ.empty()) continue;
      report(kind, context.record.step, split_states(context.record, kind, shard, differ), differ,
             context.roster, log);
    }
  }

  static std::size_t place(Kind kind) { return static_cast<std::size_t>(kind); }

  // The part of the state that a record of all ranks has hashes of; none if it has all of it, or if
  // some rank is missing.
  static std::optional<std::size_t> part_of(const StepContext& context) {
    if (!context.complete() || context.record.step == 0) return std::nullopt;
    const std::string told = context.roster.fact("every");
    std::uint64_t every = 1;
    std::from_chars(told.data(), told.data() + told.size(), every);
    return context.record.step / std::max<std::uint64_t>(every, 1) % kParts;
  }

  // Parameters that the first step moved looked different: no optimizer step had finished yet.
  void forget_first(SignalLog& log) {
    Groups& apart = differ_[place(Kind::kParameters)];
    apart_at_first_ = !apart.empty();
    apart.clear();
    log.forget(&kParameterDesync, key_of(OtherCopies{Kind::kParameters}));
  }

  // If state differs for parameters that move, and no two ranks' parameters move apart, it is
  // separate by design: SAM keeps the gradients of its ascent.
  void follow_own_state(const StepRecord& record, std::size_t part, SignalLog& log) {
    const Groups& of = differ_[place(Kind::kOptimizer)];
    if (of.empty()) return;
    const auto shards = shards_of(record, Kind::kParameters);
    if (shards.empty() || shards.size() == record.workers.size()) return;
    const bool apart = std::ranges::any_of(
        shards, [&](auto shard) { return !differing(record, Kind::kParameters, shard).empty(); });
    if (apart && !left_alike(record)) parameters_differ_ = true;
    if (parameters_differ_) own_state_ = false;
    if (apart || parameters_differ_ || own_state_) return;
    follow_moves(record, part);
    const bool moved = std::ranges::all_of(
        of, [&](std::uint64_t group) { return moved_with_state_.contains(group); });
    if (++equal_since_ < kEqualFor || !moved) return;
    own_state_ = true;
    log.soften(&kStateDesync, key_of(OtherCopies{Kind::kOptimizer}), kOwnState);
  }

  // Layers whose parameters changed since the same part of them was last hashed.
  void follow_moves(const StepRecord& record, std::size_t part) {
    for (const StateHash& s : record.workers.front().states) {
      if (s.kind != Kind::kParameters) continue;
      const auto [at, fresh] = parameters_[part].try_emplace(s.group, s.value);
      if (!fresh && std::exchange(at->second, s.value) != s.value) {
        moved_with_state_.insert(s.group);
      }
    }
  }

  // Buffers that a program averages now and then, as timm does before it evaluates: the same part
  // of them differed and is equal again.
  void follow_buffers(const StepRecord& record, std::size_t part, SignalLog& log) {
    Groups& apart = buffers_apart_[part];
    const Groups differ = differing(record, Kind::kBuffers, 0);
    bool joined = false;
    for (const StateHash& s : record.workers.front().states) {
      if (s.kind != Kind::kBuffers) continue;
      if (!differ.contains(s.group)) {
        if (apart.erase(s.group) == 0) continue;
        joined = true;
        if (joined_groups_.size() < kGroups) joined_groups_.insert(s.group);
      } else if (apart.size() < kGroups) {
        apart.insert(s.group);
      }
    }
    if (!joined) return;
    some_stay_ = some_stay_ || std::ranges::any_of(differ, [&](std::uint64_t group) {
                   return !joined_groups_.contains(group);
                 });
    if (++rejoined_ < kJoined) return;
    Groups& all = differ_[place(Kind::kBuffers)];
    const bool some = !all.empty();
    std::erase_if(all, [&](std::uint64_t group) { return rejoins(group); });
    if (!some || !all.empty()) return;
    log.soften(&kBufferDesync, key_of(OtherCopies{Kind::kBuffers}), kRejoined);
  }

  // Buffers that are never averaged are reported without the others.
  void leave_rejoining(Groups& differ) const {
    Groups stay = differ;
    std::erase_if(stay, [&](std::uint64_t group) { return rejoins(group); });
    if (!stay.empty()) differ = std::move(stay);
  }

  bool rejoins(std::uint64_t group) const {
    return rejoined_ >= kJoined && (!some_stay_ || joined_groups_.contains(group));
  }

  // A program may move parameters for a forward pass, differently on each rank, and undo that
  // before the optimizer step; the parameters are then equal.
  static bool left_alike(const StepRecord& record) {
    const Split left = split(record, FingerprintKind::kAsStepped);
    return left.known == record.workers.size() && !left.differs();
  }

  // State outside every reduction may be separate by design (shards of an embedding, experts),
  // unless it was equal on all ranks before.
  void follow_copies(const StepRecord& record) {
    const Groups differ = differing(record, Kind::kOutside, 0);
    for (const StateHash& s : record.workers.front().states) {
      const bool equal = s.kind == Kind::kOutside && !differ.contains(s.group);
      if (equal && copies_.size() < kGroups) copies_.insert(s.group);
    }
  }

  // Values that only some ranks watch under a name are not compared.
  void compare_watched(const StepContext& context, SignalLog& log) {
    const auto watched = [](const WorkerRecord& w) {
      Groups out;
      for (const StateHash& s : w.states) {
        if (s.kind == Kind::kWatched) out.insert(s.group);
      }
      return out;
    };
    Groups all;
    for (const WorkerRecord& w : context.record.workers) all.merge(watched(w));
    Groups missing;
    Blame blame = blame_where(context, [&](const WorkerRecord& w) {
      const Groups own = watched(w);
      std::ranges::set_difference(all, own, std::inserter(missing, missing.end()));
      return own.size() < all.size();
    });
    auto broken = watched_.see(std::move(blame), context.record.step);
    if (!broken) return;
    Signal signal = sighting(&kStateDesync, context.record.step, std::move(*broken), 0,
                             NotWatched{names(missing, context.roster)});
    signal.severity = Severity::kInfo;
    signal.remedy = "Call `monitor.watch` on every rank, with the same name.";
    log.add(std::move(signal), kRound);
  }

  static void report_compared(const StepContext& context, SignalLog& log) {
    constexpr auto kKind = FingerprintKind::kComparedDifferent;
    const bool compared = std::ranges::any_of(
        context.record.workers, [](const auto& w) { return w.fingerprint_of(kKind); });
    if (compared) log.checked(&kStateDesync);
    Blame blame = blame_where(context, [](const auto& w) { return value_of(w, kKind) > 0; });
    if (blame.ranks.empty()) return;
    const std::string what = context.roster.fact_of(blame.ranks.front(), "compared_different");
    Signal signal = sighting(&kStateDesync, context, std::move(blame), 0.99,
                             UnlikeParameters{shortened(what, 200)});
    signal.remedy =
        "Copy all parameters again after the optimizer step, cast once; check for names that "
        "differ in the copy.";
    log.add(std::move(signal), kRound);
  }

  // A rank that skips an optimizer step stays behind, which a packet that was made a moment earlier
  // does not. A rank without input under join() is behind for good reason: it receives the
  // parameters in the end.
  void compare_clocks(const StepContext& context, SignalLog& log) {
    joined_ = joined_ || std::ranges::any_of(context.record.workers,
                                             [](const auto& w) { return w.micro_batches == 0; });
    if (joined_) return;
    std::vector<RankValue> held;
    for (const WorkerRecord& w : context.record.workers) held.push_back({w.optimizer_step, w.rank});
    const Split clocks = split(std::move(held));
    const bool counted =
        std::ranges::all_of(clocks.groups, [](const auto& g) { return g.value > 0; });
    const bool differ = clocks.differs() && counted;
    lags_ = differ;
    if (!counted) return;
    auto broken = steps_.see(differ ? clocks.blame() : Blame{}, context.record.step);
    lagged_ = lagged_ || broken;
    if (!broken) return;
    Signal signal = sighting(&kParameterDesync, context.record.step, std::move(*broken), 0.95,
                             OtherSteps{clocks.text()});
    log.add(std::move(signal), kRound);
  }

  void report(Kind kind, std::uint64_t step, const Split& held, const Groups& differ,
              const Roster& roster, SignalLog& log) {
    // After different numbers of steps, optimizer states differ.
    if (!held.differs() || (kind == Kind::kOptimizer && (lagged_ || lags_))) return;
    Groups& all = differ_[place(kind)];
    const bool rejoin =
        kind == Kind::kBuffers &&
        std::ranges::all_of(differ, [&](std::uint64_t group) { return rejoins(group); });
    if (rejoin && !all.empty()) return;  // others never rejoin
    for (const std::uint64_t group : differ) {
      if (!rejoin && all.size() < kGroups) all.insert(group);
    }
    Blame blame = held.blame();
    const Groups& shown = rejoin ? differ : all;
    OtherCopies seen{.kind = kind,
                     .groups = names(shown, roster),
                     .groups_different = shown.size(),
                     .distinct_copies = held.groups.size(),
                     .copies_alike = blame.everyone ? shared_text(held) : ""};
    Signal signal = sighting(text_of(kind).check, step, std::move(blame),
                             kind == Kind::kParameters ? 0.99 : 0.95, std::move(seen));
    if (kind == Kind::kFrozen) signal.remedy = kBase;
    if (kind == Kind::kOptimizer && own_state_) {
      signal.severity = Severity::kInfo;
      signal.remedy = kOwnState;
    }
    if (kind == Kind::kWatched) signal.remedy = kWatchedRemedy;
    if (kind == Kind::kOutside) signal.remedy = kOutsideRemedy;
    const bool own = roster.fact("wrapper") == "FSDP2";  // FSDP2 does not broadcast buffers
    if (kind == Kind::kBuffers && (own || rejoin)) {
      signal.severity = Severity::kInfo;
      signal.remedy = rejoin ? kRejoined : kOwnBuffers;
    }
    // All of it is hashed at step 0, and then within a round; half of the optimizer state within a
    // round, and watched values from some step on.
    const bool by_rounds = kind != Kind::kOptimizer && kind != Kind::kWatched;
    const bool seen_first =
        looks_ > 0 && looked_[0] == 0 && !(kind == Kind::kParameters && apart_at_first_);
    if (by_rounds && (looks_ >= looked_.size() || seen_first)) {
      const std::uint64_t before = looked_[looks_ < looked_.size() ? 0 : looks_ % looked_.size()];
      signal.equal_until = before;
    }
    log.add(std::move(signal), kRound);
  }

  struct Farewells {
    struct Holders {                // of one shard
      std::vector<RankValue> held;  // a hash of the differences from the reference; 0: none
      Groups differ;
    };
    std::set<std::uint32_t> ranks;
    std::unordered_map<std::uint64_t, std::uint64_t> reference;  // value by group and shard
    std::map<std::uint32_t, Holders> holders;

    // By shard, the difference from the reference; adds missing values to it.
    std::map<std::uint32_t, std::uint64_t> differences(const std::vector<StateHash>& states) {
      std::map<std::uint32_t, std::uint64_t> out;
      for (const StateHash& s : states) {
        if (s.kind != Kind::kParameters || reference.size() >= kGroups) continue;
        std::uint64_t& difference = out[s.shard];
        const std::uint64_t part = s.shard == 0 ? s.group : mix64(s.group ^ s.shard);
        if (reference.try_emplace(part, s.value).first->second == s.value) continue;
        difference += mix64(s.value ^ mix64(s.group));
        holders[s.shard].differ.insert(s.group);
      }
      return out;
    }
  };

  // The number of ranks that hold each shard: the whole model is hashed in a round.
  void count_holders(const StepContext& context) {
    if (looks_ >= kParts || !context.complete()) return;
    std::map<std::uint32_t, std::size_t> here;
    for (const WorkerRecord& w : context.record.workers) {
      std::set<std::uint32_t> own;
      for (const StateHash& s : w.states) {
        if (s.kind == Kind::kParameters && own.insert(s.shard).second) ++here[s.shard];
      }
    }
    for (const auto& [shard, ranks] : here) holders_[shard] = std::max(holders_[shard], ranks);
  }

  std::map<std::uint32_t, std::size_t> holders_;            // ranks, by shard
  std::unordered_map<std::uint64_t, Farewells> farewells_;  // by optimizer steps; at most 64
  // Steps of the last records, as a ring: the same part of the model is hashed again after that
  // many.
  std::array<std::uint64_t, 25> looked_{};
  std::uint64_t looks_ = 0;
  Groups copies_;                 // outside of every reduction, and once equal on all ranks
  std::array<Groups, 7> differ_;  // everything that differed, by StateHash::Kind
  bool averaged_ = false;         // parameters are averaged, at equal distances
  bool joined_ = false;           // some rank had no input at some step
  Agreement watched_{kUnwatched};
  Agreement steps_{2};   // numbers of optimizer steps
  bool lags_ = false;    // they differ now
  bool lagged_ = false;  // or differed before, in two records in a row
  std::array<Groups, kParts> buffers_apart_;
  std::uint64_t rejoined_ = 0;      // times that some buffers were equal again
  Groups joined_groups_;            // these buffers
  bool some_stay_ = false;          // and others were not
  bool apart_at_first_ = false;     // parameters differed after the first step
  bool parameters_differ_ = false;  // since optimizer state does
  std::uint64_t equal_since_ = 0;   // records since then in which parameters did not differ
  // Hashes by part and layer, and layers that moved since then.
  std::array<std::unordered_map<std::uint64_t, std::uint64_t>, kParts> parameters_;
  Groups moved_with_state_;
  bool own_state_ = false;  // optimizer state is separate by design
  std::uint64_t last_step_ = 0;
  std::size_t workers_ = 0;  // in the last record
};

}  // namespace

constexpr FingerprintKind kStateDesyncKinds[] = {FingerprintKind::kComparedDifferent};
constexpr Check kStateDesyncExplains[] = {&kParameterDesync, &kBufferDesync,  &kRankOutlier,
                                          &kPairTooSimilar,  &kTooConsistent, &kLossEvent};
constinit const CheckInfo kStateDesync{
    .id = "state-desync",
    .severity = Severity::kCritical,
    .compares = "the optimizer's moments and counters, and the values of `monitor.watch`",
    .fires = "within 50 steps; watched values within 25",
    .consequence = "The next step differs between ranks although their gradients agree.",
    .cannot_see =
        "Sharded state (ZeRO, FSDP2), except between replicas of one shard; values that only some "
        "ranks watch.",
    .mistake =
        "if rank == 0: optimizer.load_state_dict(torch.load(\"optimizer.pt\"))\n"
        "monitor.watch(\"ema\", ema_model)  # must be equal everywhere",
    .fix =
        "Load the same optimizer checkpoint on every rank, after the optimizer holds its "
        "parameters, and change its state identically on all ranks; broadcast watched values from "
        "one rank.",
    .precedence = 240,
    .explains = kStateDesyncExplains,
    .fingerprints = kStateDesyncKinds,
    .make = make<States>,
};

constexpr Check kBufferDesyncExplains[] = {&kRankOutlier, &kLossEvent};
constinit const CheckInfo kBufferDesync{
    .id = "buffer-desync",
    .severity = Severity::kWarning,
    .compares = "the buffers (such as BatchNorm statistics) of all ranks",
    .fires = "within 25 steps",
    .consequence = "Evaluation and checkpoints depend on the rank that makes them.",
    .cannot_see = "Buffers that `local_buffers=` declares, and changes after the forward pass.",
    .mistake = "ddp = DistributedDataParallel(model, broadcast_buffers=False)  # with BatchNorm",
    .fix =
        "Leave `broadcast_buffers` on, use synchronized BatchNorm, or declare the buffers with "
        "`local_buffers=`.",
    .resembles = "mmdetection#2539",
    .precedence = 250,
    .explains = kBufferDesyncExplains,
    .sets_apart = true,
    .make = make<States>,
};

constexpr FingerprintKind kParameterDesyncKinds[] = {FingerprintKind::kAsStepped};
constexpr Check kParameterDesyncExplains[] = {&kNonfiniteGradient, &kNonfiniteLoss, &kRankOutlier,
                                              &kPairTooSimilar,    &kTooConsistent, &kLossEvent,
                                              &kBufferDesync};
constinit const CheckInfo kParameterDesync{
    .id = "parameter-desync",
    .severity = Severity::kCritical,
    .compares = "the parameters and optimizer-step counts of all ranks",
    .fires = "within 25 steps; counts after 2 records",
    .consequence =
        "The ranks compute gradients of different models, and their mean is the gradient of none "
        "of them.",
    .cannot_see =
        "The exact step: a difference is dated by the step of its hash, at most 25 steps late. If "
        "all ranks move their parameters for the forward pass and back: the values during it.",
    .mistake =
        "model.apply(init_weights)       # after DDP broadcast the parameters\nif loss.item() < "
        "10:            # each rank decides alone\n    optimizer.step()",
    .fix =
        "Broadcast the parameters from one rank, and make every decision to step or skip on all "
        "ranks together. Initialize before the model is wrapped, and restart from a checkpoint "
        "from before the difference.",
    .resembles = "pytorch/pytorch#69031",
    .precedence = 260,
    .explains = kParameterDesyncExplains,
    .fingerprints = kParameterDesyncKinds,
    .sets_apart = true,
    .suspects = suspects_of_one_layer,
    .make = make<States>,
};

}  // namespace presum::checks
