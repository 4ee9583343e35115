// SPDX-License-Identifier: Apache-2.0
#include "cli/times.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <iterator>
#include <system_error>
#include <vector>

#include "base/others_median.h"
#include "base/try.h"
#include "cli/findings_text.h"
#include "cli/text.h"

namespace presum::cli {
namespace {

using Json = nlohmann::ordered_json;
using Line = std::pair<std::uint32_t, MeanTimes>;

constexpr double kMillisecond = 1e-3;
constexpr std::array kOwnPhases = {Phase::kData, Phase::kForward, Phase::kBackward,
                                   Phase::kOptimizer, Phase::kRest};

// The index of the largest value, and its ratio to the median of the others.
std::pair<std::size_t, double> longest(std::span<const double> values) {
  const auto at = static_cast<std::size_t>(std::ranges::max_element(values) - values.begin());
  return {at, values[at] / base::OthersMedian({values.begin(), values.end()}).of(values[at])};
}

std::string milliseconds(double seconds) { return fmt::format("{:.2f}", seconds / kMillisecond); }

std::vector<std::string> row(std::string name, const MeanTimes& means) {
  std::vector<std::string> out = {std::move(name)};
  for (const Phase phase : kOwnPhases) out.push_back(milliseconds(means.of(phase)));
  out.push_back(milliseconds(means.of(Phase::kReduction)));
  out.push_back(milliseconds(means.own()));
  const double share = means.on_processor();
  out.push_back(std::isnan(share) ? "-" : fmt::format("{:.0f} %", 100 * share));
  return out;
}

// With many ranks, the slowest and the fastest by own time; with few, all of them by rank.
std::vector<Line> shown(const TimeTable& table) {
  constexpr std::size_t kAllShown = 16;
  constexpr std::ptrdiff_t kSlowest = 8;
  std::vector<Line> out(table.ranks.begin(), table.ranks.end());
  if (out.size() <= kAllShown) return out;
  std::ranges::stable_sort(out, std::ranges::greater{},
                           [](const Line& line) { return line.second.own(); });
  out.erase(out.begin() + kSlowest, out.end() - 1);
  return out;
}

// "3.2 rank-hours".
std::string rank_time(double seconds) {
  constexpr double kMinute = 60;
  constexpr double kHour = 3600;
  if (seconds >= kHour) return number(seconds / kHour) + " rank-hours";
  if (seconds >= kMinute) return number(seconds / kMinute) + " rank-minutes";
  return number(seconds) + " rank-seconds";
}

// Values that are not finite are written as null.
Json means_json(const MeanTimes& means) {
  Json out = {{"steps", means.count()}};
  for (std::size_t p = 0; p < kPhaseCount; ++p) {
    const auto phase = static_cast<Phase>(p);
    out[to_string(phase)] = means.of(phase);
  }
  out["own"] = means.own();
  out["on_processor"] = means.on_processor();
  return out;
}

constexpr double kAsked = 0.01;  // least share for which the text gives advice

double positive_number(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && std::isfinite(value) && value > 0 ? value : 0;
}

struct Told {
  std::uint32_t segment = 0;
  std::map<std::uint32_t, Overhead> ranks;
};

}  // namespace

void MeanTimes::add(const StepTimes& times) {
  ++count_;
  for (std::size_t p = 0; p < kPhaseCount; ++p) sums_.seconds[p] += times.seconds[p];
  if (times.on_device || !std::isfinite(times.processor) || times.own() <= 0) return;
  ++processor_count_;
  processor_sum_ += std::min(1.0, times.processor / times.own());
}

double MeanTimes::of(Phase phase) const {
  return count_ == 0 ? kNaN : sums_.of(phase) / static_cast<double>(count_);
}

double MeanTimes::own() const {
  return count_ == 0 ? kNaN : sums_.own() / static_cast<double>(count_);
}

double MeanTimes::on_processor() const {
  return processor_count_ == 0 ? kNaN : processor_sum_ / static_cast<double>(processor_count_);
}

void TimeTable::add(std::span<const WorkerRecord> workers) {
  const double least = least_waited(workers);
  for (const WorkerRecord& w : workers) {
    if (!w.times.known()) continue;
    ranks[w.rank].add(w.times);
    all.add(w.times);
    waited += w.times.of(Phase::kReduction) - least;
    recorded += w.times.total();
  }
  if (std::isfinite(least)) ++steps;
}

std::optional<std::pair<std::uint32_t, double>> TimeTable::slowest() const {
  if (ranks.size() < 2) return std::nullopt;
  std::vector<double> own;
  for (const auto& [rank, means] : ranks) own.push_back(means.own());
  const auto [at, factor] = longest(own);
  return std::pair(std::next(ranks.begin(), static_cast<std::ptrdiff_t>(at))->first, factor);
}

Result<std::map<ModelPart, TimeTable>> time_tables(const RunLog& log) {
  std::map<ModelPart, TimeTable> out;
  PRESUM_TRY(log.for_each_workers([&](const StepKey& step, std::span<const WorkerRecord> workers) {
    out[{step.model.model_index, step.model.dp_group}].add(workers);
  }));
  std::erase_if(out, [](const auto& model) { return model.second.steps == 0; });
  return out;
}

std::string times_text(const TimeTable& table) {
  const auto slowest = table.slowest();
  const auto lines = shown(table);
  std::vector<std::vector<std::string>> rows = {{"rank", "data", "forward", "backward", "optimizer",
                                                 "rest", "waiting", "own", "on processor"}};
  for (const auto& [rank, means] : lines) {
    const bool marked = slowest && slowest->first == rank;
    rows.push_back(row(fmt::format("{}{}", rank, marked ? " slowest" : ""), means));
  }
  const auto left_out = table.ranks.size() - lines.size();
  if (left_out > 0) rows.back().front() += " fastest";
  if (lines.size() > 1) rows.push_back(row("mean", table.all));
  std::string out = cli::table(rows);
  if (left_out > 0) {
    out += fmt::format("{} between these are in the mean only\n", count(left_out, "rank"));
  }
  if (slowest) {
    out += fmt::format("rank {} is the slowest: its own time is {:.2f} times the others' median\n",
                       slowest->first, slowest->second);
  }
  return out + fmt::format("waiting for slower ranks: {}, {:.1f} % of all recorded time\n",
                           rank_time(table.waited),
                           table.recorded > 0 ? 100 * table.waited / table.recorded : 0);
}

Json times_json(const TimeTable& table) {
  Json ranks = Json::array();
  for (const auto& [rank, means] : table.ranks) {
    Json line = {{"rank", rank}};
    line.update(means_json(means));
    ranks.push_back(std::move(line));
  }
  const auto slowest = table.slowest();
  return {{"steps", table.steps},
          {"ranks", ranks},
          {"mean", means_json(table.all)},
          {"slowest", slowest ? Json(slowest->first) : Json()},
          {"slowest_factor", slowest ? Json(slowest->second) : Json()},
          {"waited", table.waited},
          {"recorded", table.recorded}};
}

std::optional<SlowRank> slow_rank(std::span<const WorkerRecord> workers) {
  constexpr double kFactor = 1.04;
  std::vector<double> own;
  std::vector<std::uint32_t> ranks;
  for (const WorkerRecord& w : workers) {
    if (!w.times.known()) continue;
    own.push_back(w.times.own());
    ranks.push_back(w.rank);
  }
  if (own.size() < 2) return std::nullopt;
  const auto [at, factor] = longest(own);
  const double longer = own[at] - base::OthersMedian(own).of(own[at]);
  if (factor < kFactor || longer < kMillisecond) return std::nullopt;
  return SlowRank{ranks[at], factor};
}

std::string stall_text(const Stall& stall) {
  return printable(fmt::format("the job stalled for {:.0f} s at step {}{}: {}", stall.seconds,
                               stall.step, stall.over ? ", then continued" : "", stall.sentence));
}

std::map<std::uint32_t, Overhead> overheads(std::span<const Fact> facts) {
  std::map<std::uint32_t, Told> modules;
  for (const Fact& fact : facts) {
    double Overhead::*const field = fact.key == "overhead_ms" ? &Overhead::overhead_ms
                                    : fact.key == "step_ms"   ? &Overhead::step_ms
                                                              : nullptr;
    if (field == nullptr) continue;
    Told& told = modules[fact.model_index];
    if (fact.segment < told.segment) continue;
    if (fact.segment > told.segment) told = {.segment = fact.segment, .ranks = {}};
    Overhead& time = told.ranks[fact.rank];
    time.rank = fact.rank;
    time.*field = positive_number(fact.value);
  }
  std::map<std::uint32_t, Overhead> out;
  for (const auto& [model_index, told] : modules) {
    for (const auto& [rank, time] : told.ranks) {
      if (time.overhead_ms <= 0 || time.step_ms <= 0) continue;
      const auto [largest, first] = out.try_emplace(model_index, time);
      if (!first && time.share() > largest->second.share()) largest->second = time;
    }
  }
  return out;
}

std::string overhead_text(const Overhead& time) {
  const auto advice =
      time.share() < kAsked ? "" : "; Record(every=n) reads the gradients of one step in n";
  return fmt::format("presum took {:.2f} ms of a step of {:.1f} ms on rank {}: {:.2f} %{}",
                     time.overhead_ms, time.step_ms, time.rank, 100 * time.share(), advice);
}

nlohmann::ordered_json overhead_json(const Overhead& time) {
  return {{"rank", time.rank},
          {"seconds", time.overhead_ms / 1e3},
          {"step", time.step_ms / 1e3},
          {"share", time.share()}};
}

}  // namespace presum::cli
