// SPDX-License-Identifier: Apache-2.0
// A healthy run step by step, for tests to break, and what a Diagnoser reports about it.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <random>
#include <regex>
#include <source_location>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "checks/engine/diagnoser.h"
#include "checks/engine/signal_log.h"
#include "detect/detector.h"
#include "presum/step_record.h"

namespace presum::checks {

using Kind = FingerprintKind;

inline std::uint64_t scramble(std::uint64_t x) { return splitmix64(x); }

inline void unset(WorkerRecord& worker, Kind kind) {
  std::erase_if(worker.fingerprints, [&](const FingerprintValue& f) {
    return f.kind == static_cast<std::uint32_t>(kind);
  });
}
// A whole or real number.
template <class Number>
void set(WorkerRecord& worker, Kind kind, Number value) {
  unset(worker, kind);
  if constexpr (std::is_floating_point_v<Number>) {
    worker.fingerprints.push_back(
        {static_cast<std::uint32_t>(kind), std::bit_cast<std::uint64_t>(value)});
  } else {
    worker.fingerprints.push_back(
        {static_cast<std::uint32_t>(kind), static_cast<std::uint64_t>(value)});
  }
}

struct RunOptions {
  std::uint32_t workers = 8;
  std::uint64_t rows = 4;
  std::uint64_t data = 4096;
  std::uint32_t micro_batches = 1;
};

// The order of one epoch as torch's DistributedSampler deals it: shuffled by seed and epoch.
inline std::vector<std::uint64_t> shuffled(std::uint64_t data, std::uint64_t seed,
                                           std::uint64_t epoch) {
  std::vector<std::uint64_t> all(data);
  std::iota(all.begin(), all.end(), 0U);
  std::mt19937_64 random(seed + epoch);
  std::shuffle(all.begin(), all.end(), random);
  return all;
}

inline double loss_of(std::uint32_t replica) { return 2 + 0.1 * replica; }
inline double norm_of(std::uint32_t replica) { return 1 + 0.01 * replica; }

class HealthyRun {
 public:
  explicit HealthyRun(RunOptions options = {}) : options_(options) {}

  std::uint64_t steps_per_pass() const {
    const std::uint64_t own = (options_.data + options_.workers - 1) / options_.workers;
    return (own + options_.rows - 1) / options_.rows;
  }

  // The samples of rank `replica` in a step with this seed and epoch.
  std::vector<std::uint64_t> drawn(std::uint64_t step, std::uint64_t replica, std::uint64_t seed,
                                   std::uint64_t epoch) const {
    const auto& all = order(seed, epoch);
    const std::uint64_t own = (options_.data + options_.workers - 1) / options_.workers;
    const std::uint64_t first = step % steps_per_pass() * options_.rows;
    std::vector<std::uint64_t> out;  // padded with the first samples
    for (std::uint64_t i = first; i < std::min(first + options_.rows, own); ++i) {
      out.push_back(all[(i * options_.workers + replica) % options_.data]);
    }
    return out;
  }

  static void read(WorkerRecord& worker, std::vector<std::uint64_t> indices) {
    worker.samples.hashes.clear();
    std::uint64_t batch = 0;
    for (const std::uint64_t index : indices) {
      worker.samples.hashes.push_back(scramble(index));
      batch += worker.samples.hashes.back();
    }
    worker.samples.rows = indices.size();
    worker.indices = std::move(indices);
    set(worker, Kind::kBatch, batch);
  }

  StepRecord step(std::uint64_t step) const {
    StepRecord r;
    r.model.segment = 1;
    r.step = step;
    r.workers_expected = r.workers_seen = options_.workers;
    for (std::uint32_t i = 0; i < options_.workers; ++i) r.workers.push_back(worker(step, i));
    r.loss_mean = 2;
    r.tokens_cv = 0;
    r.mean_norm = 0.5;
    r.mean_norm_error = 0.01;
    r.reduced_norm = 0.5;
    r.distinct_gradients = options_.workers;
    return r;
  }

 private:
  WorkerRecord worker(std::uint64_t step, std::uint32_t i) const {
    WorkerRecord w;
    w.rank = w.replica = i;
    w.loss = loss_of(i);
    w.weight = options_.micro_batches;
    w.tokens = 100;
    w.grad_norm = norm_of(i);
    w.grad_max = 0.1;
    w.fingerprint = scramble(step * 4096 + i + 1) | 1;
    if (step % 25 == 0) {
      w.reduced_norm = 0.5;
      w.reduced_fingerprint = scramble(step ^ 0xABCD) | 1;
    }
    w.optimizer_step = step + 1;
    w.micro_batches = options_.micro_batches;
    settings(w, step);
    read(w, drawn(step, i, 42, step / steps_per_pass()));
    for (std::uint64_t group = 0; group < 3; ++group) {
      w.states.push_back({group + 1, StateHash::Kind::kParameters, scramble(step * 8 + group)});
      w.states.push_back({group + 1, StateHash::Kind::kBuffers, scramble(step * 8 + group + 77)});
    }
    return w;
  }

  void settings(WorkerRecord& w, std::uint64_t step) const {
    const std::uint64_t pass = step / steps_per_pass();
    set(w, Kind::kRngTorch, 5);
    set(w, Kind::kRngNumpy, 6);
    set(w, Kind::kSamplerClass, 0xD157);
    set(w, Kind::kSamplerSeed, 42);
    set(w, Kind::kSamplerEpoch, pass);
    set(w, Kind::kSamplerRank, w.replica);
    set(w, Kind::kSamplerReplicas, options_.workers);
    set(w, Kind::kSamplerLength, (options_.data + options_.workers - 1) / options_.workers);
    set(w, Kind::kSamplerShuffle, 1);
    set(w, Kind::kSamplerDropLast, 0);
    set(w, Kind::kSamplerSetsEpoch, 1);
    set(w, Kind::kDataClass, 0xDA7A);
    set(w, Kind::kDataLength, options_.data);
    set(w, Kind::kDataAttributes, 0xA77);
    set(w, Kind::kDataPass, pass);
    set(w, Kind::kDataBatch, step % steps_per_pass());
    set(w, Kind::kMode, 1);
    set(w, Kind::kModes, 0x30DE);
    set(w, Kind::kDropout, 0.0);
    set(w, Kind::kDropouts, 0xD0);
    set(w, Kind::kOptimizerClass, 0xADA);
    set(w, Kind::kOptimizerSettings, 0x5E7);
    set(w, Kind::kLearningRate, 1e-3);
    set(w, Kind::kWeightDecay, 0.01);
    set(w, Kind::kDtype, 0xF32);
    if (step % 5 == 1) set(w, Kind::kForwardPrecision, 0xF32);
    set(w, Kind::kDeterminism, 0);
    set(w, Kind::kWrapperForward, 1);
  }

  const std::vector<std::uint64_t>& order(std::uint64_t seed, std::uint64_t epoch) const {
    auto& known = orders_[{seed, epoch}];
    if (known.empty()) known = shuffled(options_.data, seed, epoch);
    return known;
  }

  RunOptions options_;
  mutable std::map<std::pair<std::uint64_t, std::uint64_t>, std::vector<std::uint64_t>> orders_;
};

// Keeps only gradients, losses and norms.
inline void drop_fingerprints(StepRecord& record) {
  for (WorkerRecord& w : record.workers) {
    w.fingerprints.clear();
    w.samples.hashes.clear();
    w.indices.clear();
    w.states.clear();
    w.samples.rows = 0;
  }
}

inline void forget_sampler(StepRecord& r) {
  for (WorkerRecord& w : r.workers) {
    std::erase_if(w.fingerprints, [](const FingerprintValue& f) {
      return f.kind >= static_cast<std::uint32_t>(Kind::kSamplerClass) &&
             f.kind <= static_cast<std::uint32_t>(Kind::kSamplerSetsEpoch);
    });
  }
}

inline void forget_indices(StepRecord& r) {
  for (WorkerRecord& w : r.workers) w.indices.clear();
}

// The hash of row i is that of `sample_of(i)`.
inline void hash_rows(WorkerRecord& worker, const auto& sample_of) {
  auto& rows = worker.samples.hashes;
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = scramble(sample_of(i));
}

// A rank's last packet: the pass, its last batch, and the loader pass that has ended.
inline FinalState last_words(std::uint64_t pass, std::uint64_t batch, std::uint64_t ended) {
  FinalState last;
  for (const auto& [kind, value] :
       {std::pair{Kind::kDataPass, pass}, std::pair{Kind::kDataBatch, batch},
        std::pair{Kind::kDataEnded, ended}}) {
    last.fingerprints.push_back({static_cast<std::uint32_t>(kind), value});
  }
  return last;
}

inline Identity who(std::uint32_t rank, std::uint32_t replica) {
  return {.replica = replica, .rank = rank};
}

// A change to a step, or to each rank of it, before the diagnoser sees it.
class Break {
 public:
  template <class Change>
  Break(Change change) {
    if constexpr (std::is_invocable_v<Change&, StepRecord&>) {
      broken_ = change;
    } else {
      broken_ = [change](StepRecord& r) {
        for (WorkerRecord& w : r.workers) {
          if constexpr (std::is_invocable_v<const Change&, WorkerRecord&>) {
            change(w);
          } else {
            change(w, r);
          }
        }
      };
    }
  }
  void operator()(StepRecord& record) const { broken_(record); }

 private:
  std::function<void(StepRecord&)> broken_;
};

inline void nothing(StepRecord& /*record*/) {}

// Evidence for any check, for tests that do not look at it.
struct Text {
  std::string text;
  std::uint64_t which = 0;

  std::uint64_t key() const { return which; }
  static constexpr std::tuple kFields{field("text", &Text::text)};
};

inline std::string sentence(const Text& seen, const Who& who) { return who.words() + seen.text; }

using RankList = std::vector<std::uint32_t>;
using Ids = std::vector<std::string>;

// Every number in a value, including its texts.
inline void numbers_in(const nlohmann::json& value, std::vector<double>& out);

inline void numbers_in(const std::string& text, std::vector<double>& out) {
  // Skips numbers in names such as bf16, layers.3 or env.KEY_2.
  static const std::regex kNumber(R"((^|[^\w.])(\d+(?:\.\d+)?(?:e[+-]?\d+)?))");
  for (std::sregex_iterator at(text.begin(), text.end(), kNumber), end; at != end; ++at) {
    out.push_back(std::strtod(at->str(2).c_str(), nullptr));
  }
}

inline void numbers_in(const nlohmann::json& value, std::vector<double>& out) {
  if (value.is_number()) out.push_back(std::abs(value.get<double>()));
  if (value.is_string()) numbers_in(value.get<std::string>(), out);
  if (!value.is_structured()) return;
  for (const auto& [name, item] : value.items()) {
    if (value.is_object()) numbers_in(name, out);
    numbers_in(item, out);
  }
}

// Numbers that a sentence may give in percent.
inline void shares_in(const nlohmann::json& value, std::vector<double>& out) {
  if (!value.is_object()) return;
  for (const auto& [name, item] : value.items()) {
    if (name.ends_with("_share")) numbers_in(item, out);
  }
}

// A sentence contains only numbers from its ranks and values: as they are, rounded, in percent, or
// after "over".
inline void expect_supported(const Finding::Evidence& seen) {
  const auto values = nlohmann::json::parse(seen.values);
  std::vector<double> known{static_cast<double>(seen.ranks.size())};
  for (const std::uint32_t rank : seen.ranks) known.push_back(rank);
  numbers_in(values, known);
  std::vector<double> shares;
  shares_in(values, shares);
  std::vector<double> claimed;
  numbers_in(seen.sentence, claimed);
  for (const double number : claimed) {
    const bool over = seen.sentence.find(fmt::format("over {}", number)) != std::string::npos;
    const auto holds = [&](double of) {
      return over ? of > number : std::abs(of - number) <= 0.006 * of;
    };
    const auto in_percent = [&](double share) { return std::abs(100 * share - number) <= 0.51; };
    EXPECT_TRUE(std::ranges::any_of(known, holds) || std::ranges::any_of(shares, in_percent))
        << number << " of: " << seen.sentence << "\n"
        << seen.values;
  }
}

// Gives ranks with equal data equal losses and norms, unless a test has set them.
inline void equalize_of_equal_data(StepRecord& record) {
  std::map<std::vector<std::uint64_t>, const WorkerRecord*> firsts;
  for (std::uint32_t i = 0; i < record.workers.size(); ++i) {
    WorkerRecord& w = record.workers[i];
    auto rows = w.samples.hashes;
    std::ranges::sort(rows);
    const std::uint64_t* batch = w.fingerprint_of(Kind::kBatch);
    rows.push_back(batch == nullptr ? 0 : *batch);
    const auto [first, fresh] = firsts.try_emplace(std::move(rows), &w);
    if (fresh) continue;
    if (w.grad_norm == norm_of(w.replica)) w.grad_norm = first->second->grad_norm;
    if (w.loss == loss_of(w.replica)) w.loss = first->second->loss;
  }
}

class Watched {
 public:
  explicit Watched(RunOptions options = {}) : run(options) {}

  void feed(const StepRecord& record, std::vector<detect::Alarm> alarms = {}) {
    diagnoser.update(record, {.raised = std::move(alarms)});
  }
  // Steps from first to last, each changed by `broken`.
  void play(std::uint64_t first, std::uint64_t last, const Break& broken = nothing) {
    for (std::uint64_t step = first; step <= last; ++step) {
      StepRecord record = run.step(step);
      broken(record);
      equalize_of_equal_data(record);
      feed(record);
    }
  }

  // Every rank sends the facts that `facts_of` returns.
  template <class FactsOf>
  void hello(const FactsOf& facts_of) {
    for (const WorkerRecord& w : run.step(0).workers) {
      diagnoser.hello(who(w.rank, w.replica), facts_of(w.rank));
    }
  }

  std::vector<Finding> findings() const {
    std::vector<Finding> out;
    for (auto& numbered : diagnoser.findings()) {
      for (const Finding::Evidence& e : numbered.finding.evidence) expect_supported(e);
      out.push_back(std::move(numbered.finding));
    }
    return out;
  }
  Ids ids() const {
    Ids out;
    for (const Finding& f : findings()) out.push_back(f.check);
    return out;
  }
  Finding first() const {
    const auto all = findings();
    return all.empty() ? Finding{} : all.front();
  }
  CheckRecord check(const std::string& id) const {
    for (CheckRecord& record : diagnoser.checks()) {
      if (record.check == id) return record;
    }
    return {};
  }

  HealthyRun run;
  Diagnoser diagnoser{{1, 0, 0}};
};

// Steps 0 to `last` of a run.
inline Watched played(const RunOptions& options, std::uint64_t last,
                      const Break& broken = nothing) {
  Watched out(options);
  out.play(0, last, broken);
  return out;
}
inline Watched played(std::uint64_t last, const Break& broken = nothing) {
  return played(RunOptions{}, last, broken);
}

// The expected parts of a finding; unset parts are not compared.
struct Expected {
  RankList ranks{};
  std::size_t count = 0;  // number of ranks
  std::optional<Severity> severity{};
  std::optional<std::uint64_t> first_step{};
  std::optional<std::uint64_t> last_step{};
  Ids also{};
  const char* title = "";  // a part of the title
  const char* remedy = "";
};

// Expects exactly one finding, equal to this one.
inline void expect(const Watched& w, const char* check, const Expected& expected,
                   const std::source_location& at = std::source_location::current()) {
  const ::testing::ScopedTrace trace(at.file_name(), static_cast<int>(at.line()), check);
  EXPECT_EQ(w.ids(), Ids{check});
  const Finding f = w.first();
  EXPECT_EQ(f.ranks, expected.ranks.empty() ? f.ranks : expected.ranks);
  EXPECT_EQ(f.ranks.size(), expected.count > 0 ? expected.count : f.ranks.size());
  EXPECT_EQ(f.severity, expected.severity.value_or(f.severity));
  EXPECT_EQ(f.first_step, expected.first_step.value_or(f.first_step));
  EXPECT_EQ(f.last_step, expected.last_step.value_or(f.last_step));
  EXPECT_EQ(f.also, expected.also.empty() ? f.also : expected.also);
  EXPECT_NE(f.title.find(expected.title), std::string::npos) << f.title;
  EXPECT_NE(f.remedy.find(expected.remedy), std::string::npos) << f.remedy;
}

inline void expect_quiet(const Watched& w,
                         const std::source_location& at = std::source_location::current()) {
  const ::testing::ScopedTrace trace(at.file_name(), static_cast<int>(at.line()), "");
  EXPECT_EQ(w.ids(), Ids{}) << w.first().title;
}

// A value of a finding's or a signal's evidence by name; null if there is none.
inline nlohmann::json value_in(const Finding& finding, std::string_view name) {
  for (const Finding::Evidence& e : finding.evidence) {
    const auto values = nlohmann::json::parse(e.values);
    if (values.contains(name)) return values[std::string(name)];
  }
  return nullptr;
}
inline nlohmann::json value_in(const Signal& signal, std::string_view name) {
  const auto values = nlohmann::json::parse(signal.evidence.json());
  return values.contains(name) ? values[std::string(name)] : nullptr;
}
// The signal's sentence.
inline std::string sentence_of(const Signal& signal) {
  return signal.evidence.sentence({signal.ranks, signal.everyone});
}
// NaN if there is no such number.
inline double number_of(const auto& finding, std::string_view name) {
  const nlohmann::json value = value_in(finding, name);
  return value.is_number() ? value.get<double>() : kNaN;
}
inline std::string text_of(const auto& finding, std::string_view name) {
  const nlohmann::json value = value_in(finding, name);
  return value.is_string() ? value.get<std::string>() : "";
}

}  // namespace presum::checks
