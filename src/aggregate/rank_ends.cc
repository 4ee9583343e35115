// SPDX-License-Identifier: Apache-2.0
#include "aggregate/rank_ends.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <span>
#include <string_view>
#include <utility>

#include "checks/engine/text.h"

namespace presum::aggregate {
namespace {

constexpr std::size_t kRanksEndedMax = 65'536;
// steps for which others may continue after a rank has left
constexpr std::uint64_t kStepsAfter = 2;
constexpr std::size_t kOthersTold = 4;  // maximum number of other ranks to name
constexpr std::size_t kTextBytes = 300;

bool has_any(std::string_view text, std::span<const std::string_view> words) {
  return std::ranges::any_of(
      words, [&](std::string_view word) { return text.find(word) != std::string_view::npos; });
}

// What torch raises if the other side of a collective is gone, or never arrives.
bool is_of_exchange(std::string_view why) {
  constexpr std::array<std::string_view, 13> kWords = {"Connection closed by peer",
                                                       "Connection reset by peer",
                                                       "Broken pipe",
                                                       "gloo/transport",
                                                       "NCCL error",
                                                       "DistBackendError",
                                                       "DistNetworkError",
                                                       "DistStoreError",
                                                       "Connection refused",
                                                       "monitoredBarrier",
                                                       "Timed out",
                                                       "timed out",
                                                       "remote process exited"};
  return has_any(why, kWords);
}

bool is_of_a_person(std::string_view text) {
  constexpr std::array<std::string_view, 2> kWords = {"KeyboardInterrupt", "SIGINT"};
  return has_any(text, kWords);
}

bool is_from_outside(std::string_view why) {
  return is_of_a_person(why) || why.find("SignalException") != std::string_view::npos;
}

bool is_from_outside(int signal) {
  return signal == SIGTERM || signal == SIGINT || signal == SIGHUP;
}

std::string signal_name(int signal) {
  constexpr std::array<std::pair<int, std::string_view>, 10> kNames{{{SIGKILL, "SIGKILL"},
                                                                     {SIGSEGV, "SIGSEGV"},
                                                                     {SIGABRT, "SIGABRT"},
                                                                     {SIGBUS, "SIGBUS"},
                                                                     {SIGFPE, "SIGFPE"},
                                                                     {SIGILL, "SIGILL"},
                                                                     {SIGPIPE, "SIGPIPE"},
                                                                     {SIGTERM, "SIGTERM"},
                                                                     {SIGINT, "SIGINT"},
                                                                     {SIGHUP, "SIGHUP"}}};
  const auto known = std::ranges::find(kNames, signal, &std::pair<int, std::string_view>::first);
  return known == kNames.end() ? fmt::format("signal {}", signal) : std::string(known->second);
}

// Removes the numbers, because they differ between ranks: addresses, ports, sizes.
std::string without_digits(std::string_view text) {
  std::string out(text);
  std::erase_if(out, [](char c) { return c >= '0' && c <= '9'; });
  return out;
}

}  // namespace

void RankEnds::hello(std::uint32_t rank) {
  if (ranks_.size() >= kRanksEndedMax && !ranks_.contains(rank)) return;
  Rank& r = ranks_[rank];
  r.how = How::kRuns;
  r.late = false;
  r.text.clear();
}

void RankEnds::step(std::uint32_t rank, std::uint64_t step) {
  const auto at = ranks_.find(rank);
  if (at == ranks_.end()) return;
  at->second.step = std::max(at->second.step.value_or(0), step);
}

void RankEnds::end(Rank& rank, How how, std::string text) {
  rank.how = how;
  rank.text = checks::shortened(text, kTextBytes);
  rank.order = ++ends_;
}

void RankEnds::left(std::uint32_t rank, const std::string& why) {
  const auto at = ranks_.find(rank);
  if (at == ranks_.end() || at->second.how != How::kRuns) return;
  const How how = why.empty()            ? How::kLeft
                  : is_from_outside(why) ? How::kStopped
                  : is_of_exchange(why)  ? How::kExchange
                                         : How::kException;
  end(at->second, how, why.empty() ? "left the training" : why);
}

void RankEnds::process_ended(std::uint32_t rank, const ProcessEnd& ended, bool missed) {
  const auto at = ranks_.find(rank);
  if (at == ranks_.end()) return;
  Rank& r = at->second;
  const bool unknown = ended.exit_code == ProcessEnd::kUnknown;
  const bool in_order = ended.signal == 0 && (ended.exit_code == 0 || unknown);
  r.late = r.how == How::kLeft;
  r.missed = missed;
  if ((r.late && in_order) || (r.how != How::kRuns && r.how != How::kLeft)) return;
  if (ended.signal != 0) {
    const How how = is_from_outside(ended.signal) ? How::kStopped
                    : ended.signal == SIGABRT     ? How::kAborted
                                                  : How::kKilled;
    end(r, how, "was killed by " + signal_name(ended.signal));
  } else if (unknown) {
    end(r, How::kVanished, "is gone without a word: killed, crashed, or ended by os._exit()");
  } else if (ended.exit_code == 0) {
    end(r, How::kLeft, "ended with exit code 0");
  } else {
    end(r, How::kKilled, fmt::format("ended with exit code {}", ended.exit_code));
  }
}

void RankEnds::silent(std::uint32_t rank, const std::string& last_place) {
  const auto at = ranks_.find(rank);
  if (at == ranks_.end() || at->second.how != How::kRuns) return;
  at->second.place = last_place;
  end(at->second, How::kSilent, "does not answer");
}

void RankEnds::close() {
  if (of(How::kExchange).empty()) return;
  for (auto& [number, rank] : ranks_) {
    if (rank.how == How::kRuns) end(rank, How::kSilent, "has not said goodbye");
  }
}

RankEnds::Group RankEnds::of(How how) const {
  Group out;
  for (const auto& [number, rank] : ranks_) {
    if (rank.how == how) out.push_back(number);
  }
  return out;
}

// The ranks that ended in the same way.
RankEnds::Group RankEnds::alike(std::uint32_t first) const {
  const Rank& model = ranks_.at(first);
  Group out;
  for (const auto& [number, rank] : ranks_) {
    const bool same =
        rank.how == model.how && without_digits(rank.text) == without_digits(model.text);
    if (same) out.push_back(number);
  }
  return out;
}

std::uint64_t RankEnds::steps_behind(const Group& group) const {
  std::uint64_t last = 0;
  std::uint64_t latest = 0;
  for (const std::uint32_t number : group)
    last = std::max(last, ranks_.at(number).step.value_or(0));
  for (const auto& [number, rank] : ranks_) latest = std::max(latest, rank.step.value_or(0));
  return latest - last;
}

// Returns whether a collective has failed, so that an absent rank is missed.
bool RankEnds::some_suffer() const {
  return std::ranges::any_of(ranks_, [](const auto& entry) {
    const Rank& rank = entry.second;
    return !rank.late && (rank.how == How::kExchange || rank.how == How::kAborted);
  });
}

// The first rank that ended in one of these ways, and the ranks that ended in the same way.
RankEnds::Group RankEnds::first_of(std::initializer_list<How> ways) const {
  const Rank* first = nullptr;
  std::uint32_t number_of_first = 0;
  for (const auto& [number, rank] : ranks_) {
    const bool among = std::ranges::find(ways, rank.how) != ways.end();
    if (!among || (rank.late && !some_suffer())) continue;
    if (first != nullptr && rank.order > first->order) continue;
    first = &rank;
    number_of_first = number;
  }
  return first == nullptr ? Group() : alike(number_of_first);
}

RankEnds::Group RankEnds::culprits() const {
  Group causes = first_of({How::kException, How::kKilled});
  if (causes.empty()) causes = first_of({How::kVanished});
  if (!causes.empty()) return causes;
  if (!some_suffer()) {
    Group silent = of(How::kSilent);
    return !silent.empty() && steps_behind(silent) > 0 ? silent : first_of({How::kStopped});
  }
  const Group failed = first_of({How::kExchange, How::kAborted});
  Group before = first_of({How::kStopped, How::kLeft});
  const bool in_time = !before.empty() && steps_behind(before) <= kStepsAfter &&
                       ranks_.at(before.front()).order < ranks_.at(failed.front()).order;
  if (in_time) return before;
  Group silent = of(How::kSilent);
  if (!silent.empty()) return silent;
  Group aborted = of(How::kAborted);
  return aborted.empty() ? failed : aborted;
}

Severity RankEnds::severity_of(const Group& group, bool everyone) const {
  const Rank& first = ranks_.at(group.front());
  const bool suffer = some_suffer();
  if (first.how == How::kStopped) {
    return suffer && !is_of_a_person(first.text) ? Severity::kWarning : Severity::kInfo;
  }
  if (everyone && first.how != How::kExchange) return Severity::kInfo;
  const bool counts = first.how != How::kVanished || first.missed || suffer;
  return counts ? Severity::kCritical : Severity::kInfo;
}

std::optional<checks::RankEnd> RankEnds::first() const {
  if (ranks_.size() < 2) return std::nullopt;
  const Group group = culprits();
  if (group.empty()) return std::nullopt;
  const Rank& model = ranks_.at(group.front());
  checks::RankEnd out{.ranks = group, .how = model.text, .left_in_order = model.how == How::kLeft};
  out.everyone = group.size() == ranks_.size();
  out.severity = severity_of(group, out.everyone);
  std::size_t told = 0;
  for (const auto& [number, rank] : ranks_) {
    const bool named = std::ranges::find(group, number) != group.end();
    if (named) out.last_step = std::max(out.last_step, rank.step);
    if (named && !rank.place.empty() && told++ < kOthersTold) {
      out.last_seen.emplace_back(fmt::format("rank {}", number), "in " + rank.place);
    }
    const bool in_order = rank.how == How::kRuns || rank.how == How::kLeft;
    if (named || in_order || told++ >= kOthersTold) continue;
    out.then.emplace_back(fmt::format("rank {}", number), rank.text);
  }
  return out;
}

}  // namespace presum::aggregate
