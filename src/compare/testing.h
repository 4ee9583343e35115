// SPDX-License-Identifier: Apache-2.0
// Runs for this folder's tests: three ranks, four layers, every stage recorded. Also helpers to
// inspect a comparison.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "compare/compare.h"
#include "compare/wording.h"
#include "runlog/testing.h"
#include "runlog/writer.h"

namespace presum::compare {

using presum::testing::FakeClock;
using presum::testing::TempFolder;

inline const std::vector<std::string> kLayers = {"embed", "layers.2", "layers.10", "head"};

// A value that is the same in every run, and different for different arguments.
inline std::uint64_t value(std::uint64_t what, std::uint64_t step, std::uint64_t of = 0) {
  return splitmix64(splitmix64(what * 1000 + step) + of);
}

inline void set(WorkerRecord& w, FingerprintKind kind, std::uint64_t to) {
  for (FingerprintValue& f : w.fingerprints) {
    if (f.kind == static_cast<std::uint32_t>(kind)) f.value = to;
  }
}

inline void set(WorkerRecord& w, FingerprintKind kind, double to) {
  set(w, kind, std::bit_cast<std::uint64_t>(to));
}

inline WorkerRecord worker(std::uint64_t step, std::uint32_t replica) {
  WorkerRecord w;
  w.replica = replica;
  w.rank = 10 + replica;
  w.loss = 2 + 0.25 * replica;
  w.weight = 2;
  w.micro_batches = 2;
  w.micro = {{w.loss - 1, 1, 5, 5, 0.1}, {w.loss + 1, 1, 5, 5, 0.1}};
  w.targets = 10;
  w.token_weight = 0.1;
  w.tokens = 10;
  w.grad_norm = 1.5 + replica;
  w.grad_max = 0.5;
  w.fingerprint = value(1, step, replica);
  if (step % 5 == 0) {
    w.reduced_norm = 1.25;
    w.reduced_fingerprint = value(2, step);
  }
  w.optimizer_step = step + 1;
  w.samples.rows = 4;
  for (std::uint64_t row = 0; row < w.samples.rows; ++row) {
    w.samples.hashes.push_back(value(3, step, 10 * replica + row));
    w.indices.push_back(100 * step + 10 * replica + row);
  }
  using Kind = FingerprintKind;
  const auto kind = [&](Kind k, std::uint64_t v) {
    w.fingerprints.push_back({static_cast<std::uint32_t>(k), v});
  };
  kind(Kind::kRngTorch, value(4, step, replica));
  kind(Kind::kRngNumpy, value(5, step, replica));
  kind(Kind::kSamplerSeed, 40);
  kind(Kind::kSamplerRank, replica);
  kind(Kind::kDataAttributes, 41);
  kind(Kind::kDataBatch, step);
  kind(Kind::kLearningRate, std::bit_cast<std::uint64_t>(0.1));
  kind(Kind::kOptimizerSettings, 42);
  kind(Kind::kBatch, value(6, step, replica));
  kind(Kind::kLabels, value(9, step, replica));
  for (const std::string& layer : kLayers) {
    w.states.push_back(
        {name_hash(layer), StateHash::Kind::kParameters, value(7, step, name_hash(layer))});
  }
  w.states.push_back({name_hash("layers.2"), StateHash::Kind::kBuffers, value(8, step)});
  return w;
}

inline StepRecord step_of(std::uint64_t step, std::uint32_t workers) {
  StepRecord r;
  r.model.segment = 1;
  r.step = step;
  r.workers_expected = r.workers_seen = workers;
  for (std::uint32_t i = 0; i < workers; ++i) r.workers.push_back(worker(step, i));
  for (const std::string& layer : kLayers) {
    GroupRecord g{.id = name_hash(layer), .norm_mean = 1, .norm_std = 0};
    for (std::uint32_t i = 0; i < workers; ++i) {
      g.norms.push_back(1 + static_cast<float>(i));
      g.maxima.push_back(0.5F);
      g.fingerprints.push_back(static_cast<std::uint32_t>(value(9, step, g.id + i)));
    }
    r.groups.push_back(g);
  }
  return r;
}

inline std::vector<StepRecord> steps_of(std::uint64_t count, std::uint32_t workers = 3) {
  std::vector<StepRecord> out;
  for (std::uint64_t s = 0; s < count; ++s) out.push_back(step_of(s, workers));
  return out;
}

// Steps `from` to `to` of the training as a separate segment, numbered from 0.
inline std::vector<StepRecord> resumed(std::uint64_t from, std::uint64_t to) {
  std::vector<StepRecord> out;
  for (std::uint64_t s = from; s < to; ++s) {
    out.push_back(step_of(s, 3));
    out.back().step = s - from;
    for (WorkerRecord& w : out.back().workers) w.optimizer_step = s - from + 1;
  }
  return out;
}

inline void change_workers(std::vector<StepRecord>& steps,
                           const std::function<void(WorkerRecord&)>& change) {
  for (StepRecord& s : steps) std::ranges::for_each(s.workers, change);
}

inline GroupRecord& group_of(StepRecord& step, const std::string& layer) {
  return *std::ranges::find(step.groups, name_hash(layer), &GroupRecord::id);
}

// Changes a rank's gradient in `layers`, but not its norms.
inline void change_gradient(StepRecord& step, std::size_t worker,
                            const std::vector<std::string>& layers) {
  step.workers[worker].fingerprint ^= 1;
  for (const std::string& layer : layers) group_of(step, layer).fingerprints[worker] ^= 1;
}

// As presum.attach records them: one slice of each layer per step, everything at step 0; the
// reduced gradient at every step.
inline std::vector<StepRecord> steps_hashed_in_slices(std::uint64_t steps) {
  auto out = steps_of(steps);
  for (StepRecord& s : out) {
    for (WorkerRecord& w : s.workers) {
      w.reduced_norm = 1;
      w.reduced_fingerprint = value(2, s.step);
      if (s.step == 0) continue;
      const std::uint64_t slice = s.step % 25;
      const auto hashed = slice < 4 ? std::vector{w.states[slice]} : std::vector<StateHash>();
      w.states = hashed;
    }
  }
  return out;
}

inline void change_layer(std::vector<StepRecord>& steps, const std::string& layer,
                         std::uint64_t from) {
  for (StepRecord& s : steps) {
    for (WorkerRecord& w : s.workers) {
      for (StateHash& h : w.states) h.value ^= s.step >= from && h.group == name_hash(layer);
    }
  }
}

// The same rows over all ranks, regardless of their number.
inline std::vector<StepRecord> steps_sharing_rows(std::uint32_t workers, std::uint64_t steps = 6) {
  auto out = steps_of(steps, workers);
  for (StepRecord& s : out) {
    for (WorkerRecord& w : s.workers) {
      const std::uint64_t rows = 12 / workers;
      w.samples.rows = rows;
      w.samples.hashes.clear();
      for (std::uint64_t r = 0; r < rows; ++r) {
        w.samples.hashes.push_back(value(3, s.step, r * workers + w.replica));
      }
    }
  }
  return out;
}

// Removes a rank, as if its packets were missing.
inline void remove_worker(StepRecord& step, std::size_t worker) {
  const auto at = static_cast<std::ptrdiff_t>(worker);
  step.workers.erase(step.workers.begin() + at);
  for (GroupRecord& g : step.groups) {
    g.norms.erase(g.norms.begin() + at);
    g.maxima.erase(g.maxima.begin() + at);
    g.fingerprints.erase(g.fingerprints.begin() + at);
  }
}

struct RunOptions {
  std::vector<std::pair<std::string, std::string>> facts = {
      {"pid", "1"}, {"torch", "2.13.0"}, {"world_size", "3"}, {"every", "1"}, {"threads", "2"}};
  std::uint64_t salt = 5;
  bool final_states = true;
  bool closed = true;
  std::uint64_t unrecorded = 0;  // optimizer steps after the last recorded one
};

inline void add_hellos(runlog::Writer& writer, const std::vector<StepRecord>& steps,
                       const RunOptions& options) {
  for (const WorkerRecord& w : steps.front().workers) {
    packet::Hello hello;
    hello.header.segment = writer.segment();
    hello.header.identity = {.model_index = steps.front().model.model_index,
                             .replica = w.replica,
                             .rank = w.rank,
                             .replicas = steps.front().workers_expected};
    hello.facts.facts = options.facts;
    for (const std::string& layer : kLayers)
      hello.facts.groups.push_back({name_hash(layer), 8, layer});
    ASSERT_TRUE(writer.add(hello));
  }
}

inline void add_notes(runlog::Writer& writer, const std::vector<StepRecord>& steps,
                      const RunOptions& options) {
  for (const WorkerRecord& w : steps.back().workers) {
    packet::Note note;
    note.header.segment = writer.segment();
    note.header.identity = {.model_index = steps.front().model.model_index, .replica = w.replica};
    note.state.optimizer_steps = steps.back().step + 1 + options.unrecorded;
    note.state.states = w.states;
    ASSERT_TRUE(writer.add(note));
  }
}

// Adds a segment to the run. `end`: the step whose states are the final ones, if not the last.
inline void record(const std::filesystem::path& folder, std::vector<StepRecord> steps,
                   const RunOptions& options = {}, const StepRecord* end = nullptr) {
  FakeClock clock;
  auto writer = runlog::Writer::open(folder, clock.function(), runlog::Journal::kWal, options.salt);
  ASSERT_TRUE(writer) << writer.error().message;
  if (!steps.empty()) add_hellos(*writer, steps, options);
  for (StepRecord& s : steps) {
    s.model.segment = writer->segment();
    ASSERT_TRUE(writer->add(s));
  }
  if (end != nullptr) add_notes(*writer, {*end}, options);
  if (options.final_states && !steps.empty()) add_notes(*writer, steps, options);
  clock.advance(60);  // long enough for tick() to commit
  ASSERT_TRUE(options.closed ? writer->close() : writer->tick());
}

inline Comparison compare_folders(const std::filesystem::path& a, const std::filesystem::path& b) {
  const auto of_a = RunLog::open(a);
  const auto of_b = RunLog::open(b);
  EXPECT_TRUE(of_a && of_b);
  auto out = compare(*of_a, *of_b);
  EXPECT_TRUE(out) << out.error().message;
  return out.value_or(Comparison{});
}

inline Comparison compare_steps(std::vector<StepRecord> a, std::vector<StepRecord> b,
                                const RunOptions& options_a = {},
                                const RunOptions& options_b = {}) {
  const TempFolder folder;
  record(folder / "a", std::move(a), options_a);
  record(folder / "b", std::move(b), options_b);
  return compare_folders(folder / "a", folder / "b");
}

inline constexpr std::uint64_t kSteps = 12;
using Change = std::function<void(StepRecord&)>;

// Run B is run A with a change from some step on, or at a single step.
inline Comparison changed_from(std::uint64_t step, const Change& change) {
  auto b = steps_of(kSteps);
  for (StepRecord& s : b) {
    if (s.step >= step) change(s);
  }
  return compare_steps(steps_of(kSteps), b);
}

inline Comparison changed_at(std::uint64_t step, const Change& change) {
  return changed_from(step, [&](StepRecord& s) {
    if (s.step == step) change(s);
  });
}

// In run B, the layer of slice 2 differs from step 4 on. It is next hashed at step 27.
inline Comparison changed_late() {
  auto b = steps_hashed_in_slices(30);
  change_layer(b, "layers.10", 4);
  return compare_steps(steps_hashed_in_slices(30), b);
}

// ---- the result of a comparison

inline const Difference& first(const Comparison& c) {
  static const Difference none;
  const ModelComparison* m = c.first();
  return m == nullptr ? none : *m->at(*m->first).first;
}

inline void expect_first(const Comparison& c, Stage stage, std::uint64_t step,
                         const std::vector<std::uint32_t>& ranks) {
  EXPECT_EQ(c.outcome, Outcome::kDifferent);
  ASSERT_NE(c.first(), nullptr);
  EXPECT_EQ(to_string(*c.first()->first), to_string(stage));
  EXPECT_EQ(first(c).step, step);
  EXPECT_EQ(first(c).ranks, ranks);
}

// The evidence in words.
inline std::vector<std::string> texts(const Difference& d) {
  std::vector<std::string> out;
  for (const Evidence& e : d.evidence) out.push_back(evidence_text(e));
  return out;
}

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline bool contains(const std::vector<std::string>& lines, const std::string& part) {
  return std::ranges::any_of(lines, [&](const std::string& line) { return has(line, part); });
}

}  // namespace presum::compare
