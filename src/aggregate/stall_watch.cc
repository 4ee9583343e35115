// SPDX-License-Identifier: Apache-2.0
#include "aggregate/stall_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <string_view>
#include <tuple>
#include <utility>

#include "aggregate/stack_partings.h"
#include "checks/engine/text.h"

namespace presum::aggregate {
namespace {

constexpr std::size_t kRanksMax = 65'536;
constexpr std::size_t kLayersMax = 65'536;
constexpr double kPeriodsSilent = 5;
constexpr double kSilentAtLeast = 1;  // seconds
constexpr double kTimesLongest = 2;   // times the longest time without an event that ended well
constexpr double kPatience = 10;      // times the limit, for stalls that may be intended
// times the limit: a collective ends sooner once all ranks are there
constexpr double kTogether = 0.5;
constexpr double kBusy = 0.2;  // share of a processor

enum class Doing : std::uint8_t { kGone, kLeft, kWaits, kElsewhere };

// The collective of a rank that does not respond is only its last known one.
bool waits(const Heartbeat& beat) {
  return beat.waiting || (!beat.lock_held && !beat.collective.empty());
}

// Returns whether the rank waits on purpose while another rank saves or evaluates: in a barrier, in
// an exchange of objects as distributed checkpoints do, or at the end.
bool lets_others_work(const Heartbeat& beat) {
  constexpr std::array<std::string_view, 5> kPatient = {
      "barrier", "gather_object", "broadcast_object_list", "scatter_object_list",
      "destroy_process_group"};
  return std::ranges::any_of(
      kPatient, [&](std::string_view name) { return beat.collective.ends_with(name); });
}

Doing doing_of(const StalledRank& rank) {
  if (rank.left) return Doing::kLeft;
  if (!rank.answers) return Doing::kGone;
  return waits(rank.last) ? Doing::kWaits : Doing::kElsewhere;
}

// Where it waits. Ranks that wait at different places never meet.
auto waiting_place(const StalledRank& rank) {
  const Heartbeat& b = rank.last;
  const bool reduces = b.collective.empty();
  return std::tuple(b.collective, reduces ? std::string() : rank.where, reduces ? b.step : 0);
}

std::string at_site(const std::string& site, const char* before) {
  return site.empty() ? "" : fmt::format("{}{}", before, site);
}

std::string where_of(const StalledRank& r, const std::string& site) {
  const Heartbeat& b = r.last;
  const std::string host = b.host.empty() ? "" : fmt::format(" (host {})", b.host);
  switch (doing_of(r)) {
    case Doing::kGone:
      return fmt::format("stopped answering {:.0f} s ago{}", r.unheard, host);
    case Doing::kLeft:
      return "has left the training";
    case Doing::kWaits:
      if (b.collective.empty()) {
        const bool reduces = b.phase == Phase::kReduction;
        return fmt::format("waits in {} of step {}", reduces ? "the all-reduce" : "a collective",
                           b.step);
      }
      return fmt::format("waits in {}(){}", b.collective, at_site(site, " in "));
    case Doing::kElsewhere:
      break;
  }
  if (b.lock_held) {
    return fmt::format("is in a call that holds the interpreter's lock{}",
                       at_site(site, ", last seen in "));
  }
  std::string out =
      site.empty() ? fmt::format("is in step {}", b.step) : fmt::format("is in {}", site);
  if (b.phase == Phase::kBackward) {
    out += fmt::format(", in the backward pass of step {}", b.step);
    if (!r.layer.empty()) out += fmt::format(" after {}", r.layer);
  }
  return out;
}

// If the system does not report processor time, the thread's state decides.
bool runs(const Heartbeat& b) {
  return std::isnan(b.processor) ? b.thread == 'R' || b.thread == '?' : b.processor >= kBusy;
}

// Ranks whose phrase has no site, or only a last known one, get no stack to compare.
ThreadPlace place_of_thread(const StalledRank& r) {
  const Heartbeat& b = r.last;
  const Doing doing = doing_of(r);
  const bool named =
      doing == Doing::kElsewhere || (doing == Doing::kWaits && !b.collective.empty());
  ThreadPlace out{.doing = fmt::format("{} {}", static_cast<int>(doing), b.collective),
                  .site = b.site,
                  .asleep = !runs(b)};
  // Inside a collective, ranks that meet may be at different lines, so its frames are removed.
  if (named && !b.lock_held) out.stack = without_call(b.stack, b.collective, b.site);
  return out;
}

void say_where(std::vector<StalledRank>& ranks) {
  std::vector<ThreadPlace> places;
  places.reserve(ranks.size());
  for (const StalledRank& r : ranks) places.push_back(place_of_thread(r));
  const auto sites = sites_apart(places);
  for (std::size_t i = 0; i < ranks.size(); ++i) ranks[i].where = where_of(ranks[i], sites[i]);
}

using Some = std::vector<const StalledRank*>;

std::vector<std::uint32_t> numbers_of(const Some& some) {
  std::vector<std::uint32_t> out;
  for (const StalledRank* r : some) out.push_back(r->rank);
  return out;
}

// "rank 3 waits in ..." for one, "ranks 0-2 wait in ..." for several at the same place.
std::string clause(const Some& some, bool capital) {
  const auto ranks = checks::rank_ranges(numbers_of(some));
  std::string where = some.front()->where;
  const bool one = some.size() == 1;
  if (!one) {
    for (const auto& [singular, plural] :
         {std::pair("waits", "wait"), std::pair("is", "are"), std::pair("has", "have")}) {
      const std::string verb = std::string(singular) + " ";
      if (where.starts_with(verb)) where = plural + where.substr(verb.size() - 1);
    }
  }
  return fmt::format("{}{} {} {}", capital ? 'R' : 'r', one ? "ank" : "anks", ranks, where);
}

// Groups the ranks by equal `of`, largest group first.
template <class Of>
std::vector<Some> grouped(const Some& some, Of of) {
  std::vector<Some> out;
  for (const StalledRank* r : some) {
    const auto at = std::ranges::find_if(out, [&](const Some& group) {
      return std::invoke(of, *group.front()) == std::invoke(of, *r);
    });
    at == out.end() ? out.push_back({r}) : at->push_back(r);
  }
  std::ranges::stable_sort(out, std::ranges::greater{}, &Some::size);
  return out;
}

std::string clauses(const Some& some, bool capital) {
  constexpr std::size_t kTold = 4;
  std::string out;
  const auto groups = grouped(some, &StalledRank::where);
  for (std::size_t i = 0; i < groups.size() && i < kTold; ++i) {
    out += fmt::format("{}{}", i == 0 ? "" : ", ", clause(groups[i], capital && i == 0));
  }
  if (groups.size() > kTold) out += ", ...";
  return out;
}

bool busy(const StalledRank* r, double limit) {
  const Heartbeat& b = r->last;
  if (b.lock_held) return false;
  if (b.still + r->unheard < limit) return true;
  return runs(b);
}

using Doings = std::map<Doing, Some>;

Doings doings_of(const Stall& stall) {
  Doings out = {
      {Doing::kGone, {}}, {Doing::kLeft, {}}, {Doing::kWaits, {}}, {Doing::kElsewhere, {}}};
  for (const StalledRank& r : stall.all) out.at(doing_of(r)).push_back(&r);
  return out;
}

// How long all waiting ranks have been at their places: a rank that has just arrived keeps no rank
// waiting.
double waiting_together(const Some& waiting) {
  return (*std::ranges::min_element(waiting, {}, &StalledRank::there))->there;
}

// All ranks wait for the same thing, and no rank that was heard is missing.
void judge_one_place(Stall& stall, const Some& waiting, const std::vector<std::uint32_t>& unheard,
                     double limit) {
  const bool others_may_compile = stall.step == 0 && stall.seconds < kPatience * limit;
  stall.harmless = stall.harmless || others_may_compile;
  if (unheard.empty()) {
    stall.sentence = clauses(waiting, true) +
                     ": none is missing, so what they exchange there differs in shape, dtype or "
                     "order, or the network is blocked";
    return;
  }
  stall.ranks = unheard;
  stall.sentence = fmt::format("{} {} {} not been heard from while {}",
                               unheard.size() == 1 ? "Rank" : "Ranks", checks::rank_ranges(unheard),
                               unheard.size() == 1 ? "has" : "have", clauses(waiting, false));
}

// All ranks wait. If they wait for different things, the smaller groups keep the largest one
// waiting.
void judge_waiting(Stall& stall, const Some& waiting, const std::vector<std::uint32_t>& unheard,
                   double limit) {
  const auto groups = grouped(waiting, waiting_place);
  stall.awaited = true;
  stall.harmless = waiting_together(waiting) < kTogether * limit;
  if (groups.size() == 1) return judge_one_place(stall, waiting, unheard, limit);
  Some others;
  for (std::size_t g = 1; g < groups.size(); ++g) {
    others.insert(others.end(), groups[g].begin(), groups[g].end());
  }
  if (groups.front().size() > others.size()) stall.ranks = numbers_of(others);
  stall.sentence = clauses(others, true) + " while " + clauses(groups.front(), false);
}

// No rank waits, or the others wait on purpose while a rank works, or the first step is being
// compiled.
bool may_be_meant(const Stall& stall, const Doings& doings, double limit) {
  const Some& waiting = doings.at(Doing::kWaits);
  const bool alone = waiting.empty();
  const bool let = !alone && std::ranges::all_of(waiting, [](const StalledRank* r) {
    return lets_others_work(r->last);
  });
  const bool first_step = std::ranges::all_of(
      doings.at(Doing::kElsewhere),
      [](const StalledRank* r) { return r->last.step == 0 && r->last.phase != Phase::kRest; });
  if (alone && (!doings.at(Doing::kLeft).empty() || stall.all.size() == 1)) return true;
  if (let && stall.busy) return true;
  return stall.seconds < kPatience * limit && (alone || let || first_step);
}

void judge(Stall& stall, double limit, const std::vector<std::uint32_t>& unheard) {
  const Doings doings = doings_of(stall);
  const Some& waiting = doings.at(Doing::kWaits);
  const Some& elsewhere = doings.at(Doing::kElsewhere);
  Some culprits = doings.at(Doing::kGone);
  if (culprits.empty() && !waiting.empty()) culprits = doings.at(Doing::kLeft);
  if (culprits.empty() && elsewhere.empty()) {
    return judge_waiting(stall, waiting, unheard, limit);
  }
  stall.awaited = !waiting.empty();
  if (culprits.empty()) {
    culprits = elsewhere;
    stall.busy =
        std::ranges::all_of(culprits, [&](const StalledRank* r) { return busy(r, limit); });
    stall.harmless = may_be_meant(stall, doings, limit);
  }
  stall.ranks = numbers_of(culprits);
  stall.sentence = clauses(culprits, true);
  if (!waiting.empty()) {
    stall.sentence += " while " + clauses(waiting, false);
  } else if (culprits != elsewhere && !elsewhere.empty()) {
    stall.sentence += " while " + clauses(elsewhere, false);
  }
}

}  // namespace

void StallWatch::hello(std::uint32_t rank, const std::vector<GroupName>& groups) {
  if (const auto at = ranks_.find(rank); at != ranks_.end()) at->second.left = false;
  for (const GroupName& g : groups) {
    if (layers_.size() < kLayersMax) layers_.try_emplace(g.id, g.name);
  }
}

void StallWatch::beat(std::uint32_t rank, Heartbeat beat, Seconds now) {
  if (ranks_.size() >= kRanksMax && !ranks_.contains(rank)) return;
  Rank& r = ranks_[rank];
  if (beat.lock_held && beat.site.empty()) {
    beat.site = r.last.site;
    beat.stack = r.last.stack;
  }
  const auto place = [](const Heartbeat& b) {
    return std::tie(b.collective, b.site, b.waiting, b.step);
  };
  if (place(beat) != place(r.last)) r.came = now;
  r.last = std::move(beat);
  r.heard = r.beaten = now;
}

void StallWatch::heard(std::uint32_t rank, Seconds now) {
  if (const auto at = ranks_.find(rank); at != ranks_.end()) at->second.heard = now;
}

void StallWatch::left(std::uint32_t rank, const std::string& why) {
  if (const auto at = ranks_.find(rank); at != ranks_.end()) {
    at->second.left = true;
    at->second.why = why;
  }
}

double StallWatch::limit() const {
  double out = 0;
  for (const auto& [number, rank] : ranks_) {
    out = std::max({out, rank.last.stall_seconds, kTimesLongest * rank.last.longest});
  }
  return out;
}

// Before its first event, nothing is known about a rank's training.
bool StallWatch::stands(const Rank& rank) const {
  return !rank.left && rank.last.events > 0 && rank.last.still >= limit();
}

bool StallWatch::silent(const Rank& rank, Seconds now) {
  const double patience = std::max(kSilentAtLeast, kPeriodsSilent * rank.last.period);
  return !rank.left && (now - rank.heard).count() > patience;
}

std::vector<std::pair<std::uint32_t, std::string>> StallWatch::silent(Seconds now) const {
  std::vector<std::pair<std::uint32_t, std::string>> out;
  for (const auto& [number, rank] : ranks_) {
    if (silent(rank, now)) out.emplace_back(number, rank.last.site);
  }
  return out;
}

bool StallWatch::in_step(Seconds now) const {
  constexpr Seconds kJustNow{0.5};
  return std::ranges::any_of(ranks_, [&](const auto& entry) {
    const Rank& rank = entry.second;
    const Phase phase = rank.last.phase;
    const bool computes =
        phase == Phase::kForward || phase == Phase::kBackward || phase == Phase::kReduction;
    return !rank.left && now - rank.beaten < kJustNow && (computes || waits(rank.last));
  });
}

// Some ranks may be idle while the others train, if they wait for no rank.
bool StallWatch::anybody_stands(Seconds now) const {
  bool in_vain = false;
  bool any = false;
  bool all = true;
  for (const auto& [number, rank] : ranks_) {
    if (rank.left) continue;
    const bool standing = stands(rank);
    any = any || standing;
    all = all && (standing || silent(rank, now));
    in_vain = in_vain || (standing && waits(rank.last));
  }
  return in_vain || (any && all);
}

std::vector<std::uint32_t> StallWatch::unheard() const {
  std::vector<std::uint32_t> out;
  for (std::uint32_t rank = 0; rank < world_size_ && rank < kRanksMax; ++rank) {
    if (!ranks_.contains(rank)) out.push_back(rank);
  }
  return out;
}

StalledRank StallWatch::describe(std::uint32_t number, const Rank& rank, Seconds now) const {
  StalledRank out{.rank = number,
                  .answers = !silent(rank, now),
                  .left = rank.left,
                  .unheard = (now - rank.heard).count(),
                  .there = (now - rank.came).count(),
                  .last = rank.last};
  if (const auto layer = layers_.find(rank.last.layer); layer != layers_.end()) {
    out.layer = layer->second;
  }
  return out;
}

Stall StallWatch::make(Seconds now) const {
  Stall stall;
  double longest = 0;
  double shortest = INFINITY;
  for (const auto& [number, rank] : ranks_) {
    const StalledRank& r = stall.all.emplace_back(describe(number, rank, now));
    stall.step = std::max(stall.step, rank.last.step);
    if (!stands(rank)) continue;
    longest = std::max(longest, rank.last.still);
    if (r.answers) shortest = std::min(shortest, rank.last.still);
  }
  stall.seconds = std::isfinite(shortest) ? shortest : longest;
  say_where(stall.all);
  for (StalledRank& r : stall.all) {
    const Rank& rank = ranks_.at(r.rank);
    if (rank.left && !rank.why.empty()) r.where += fmt::format(" ({})", rank.why);
  }
  judge(stall, limit(), unheard());
  return stall;
}

bool StallWatch::goes_on() const {
  return std::ranges::any_of(events_, [&](const auto& stood) {
    const auto at = ranks_.find(stood.first);
    return at != ranks_.end() && at->second.last.events > stood.second;
  });
}

bool StallWatch::all_left() const {
  return std::ranges::all_of(ranks_, [](const auto& r) { return r.second.left; });
}

bool StallWatch::by_exceptions() const {
  return std::ranges::any_of(ranks_, [](const auto& r) { return !r.second.why.empty(); });
}

std::optional<Stall> StallWatch::look(Seconds now) {
  if (open_ && (goes_on() || all_left())) {
    const bool over = goes_on() || !by_exceptions();  // if false, the job ended during the stall
    Stall ended = *std::exchange(open_, std::nullopt);
    ended.over = over;
    ended.seconds += (now - looked_).count();
    return over ? std::optional(std::move(ended)) : std::nullopt;
  }
  if (!anybody_stands(now)) return std::nullopt;
  Stall stall = make(now);
  if (open_) {
    const bool graver = !stall.harmless && (open_->harmless || (open_->busy && !stall.busy));
    const bool longer = !open_->harmless && stall.seconds >= 2 * told_seconds_;
    open_->seconds = stall.seconds;
    looked_ = now;
    if (!graver && !longer) return std::nullopt;
    stall.number = open_->number;
    if (longer && !graver) {  // the same stall, twice as long
      told_seconds_ = stall.seconds;
      return open_;
    }
  } else {
    stall.number = ++stalls_;
    events_.clear();
    for (const auto& [number, rank] : ranks_) {
      if (stands(rank)) events_[number] = rank.last.events;
    }
  }
  open_ = stall;
  looked_ = now;
  told_seconds_ = stall.seconds;
  return stall;
}

}  // namespace presum::aggregate
