// SPDX-License-Identifier: Apache-2.0
// Runs the command line on folders that these tests create.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "cli/cli.h"
#include "runlog/testing.h"
#include "runlog/writer.h"

namespace presum::cli {

using presum::testing::FakeClock;
using presum::testing::read_file;
using presum::testing::TempFolder;
using presum::testing::write_file;
using Path = std::filesystem::path;

struct CommandResult {
  int code;
  std::string out;
  std::string err;
};

inline CommandResult run(const std::vector<std::string>& args) {
  std::ostringstream out;
  std::ostringstream err;
  const int code = main(args, out, err);
  return {code, out.str(), err.str()};
}

inline std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

inline std::vector<std::string> words(const std::string& line) {
  std::istringstream in(line);
  std::vector<std::string> out;
  for (std::string word; in >> word;) out.push_back(word);
  return out;
}

inline std::vector<std::string> keys(const nlohmann::ordered_json& object) {
  std::vector<std::string> out;
  for (const auto& [key, value] : object.items()) out.push_back(key);
  return out;
}

// In milliseconds; half of the rank's own time is on a processor.
inline StepTimes times_of(double own, double waiting) {
  StepTimes times;
  times.seconds = {0.0001 * own, 0.00025 * own, 0.0004 * own,
                   0.0001 * own, 0.00015 * own, 0.001 * waiting};
  times.processor = 0.0005 * own;
  return times;
}

inline StepRecord step_of(std::uint64_t step, double loss) {
  StepRecord r;
  r.model.segment = 1;
  r.step = step;
  r.workers_expected = 2;
  r.loss_mean = loss;
  r.loss_std = 0.25;
  r.loss_range = 0.5;
  r.grad_norm_std = 3;
  r.grad_norm_cv = 0.125;
  r.cosine_mean = 0.0625;
  r.effective_workers = 1.75;
  r.noise_scale = static_cast<double>(step);
  r.distinct_gradients = 2;
  for (std::uint32_t i = 0; i < 2; ++i) {
    WorkerRecord w;
    w.rank = 4 + i;
    w.replica = i;
    w.loss = loss;
    w.grad_norm = 1;
    w.fingerprint = i + 1;
    r.workers.push_back(w);
  }
  return r;
}

inline std::vector<StepRecord> steps_of(std::uint64_t count, double loss) {
  std::vector<StepRecord> out;
  for (std::uint64_t s = 0; s < count; ++s) out.push_back(step_of(s, loss));
  return out;
}

inline const std::vector<CheckRecord> kCheckRecords = {
    {"nonfinite-gradient", CheckRecord::State::kPassed, "every gradient was finite"},
    {"missing-rank", CheckRecord::State::kPassed, ""},
    {"epoch-not-set", CheckRecord::State::kNotTriggered, "no epoch has ended"},
    {"sampler-mismatch", CheckRecord::State::kNotPossible, "no sampler was found"},
    {"overlapping-data", CheckRecord::State::kNotPossible, "no sampler was found."}};

// What a run holds besides its steps.
struct RunExtras {
  std::string note;
  std::vector<Finding> findings;
  std::vector<CheckRecord> checks = kCheckRecords;
  std::optional<int> preflight = {};
  std::vector<Stall> stalls = {};
  std::vector<std::pair<std::string, std::string>> facts = {};
};

inline Finding finding(const std::string& check, Severity severity) {
  Finding f;
  f.check = check;
  f.severity = severity;
  f.ranks = {4};
  f.first_step = f.last_step = 1;
  f.confidence = 0.5;
  f.title = "Title of " + check;
  return f;
}

inline void make_run(const Path& folder, const std::vector<StepRecord>& records,
                     const RunExtras& extras = {}) {
  FakeClock clock;
  auto writer = runlog::Writer::open(folder, clock.function(), runlog::Journal::kWal);
  ASSERT_TRUE(writer) << writer.error().message;
  for (const StepRecord& r : records) ASSERT_TRUE(writer->add(r));
  ASSERT_TRUE(writer->replace({writer->segment(), 0, 0}, extras.findings, extras.checks));
  if (!extras.note.empty()) {
    packet::Note message;
    message.header.segment = 1;
    message.header.identity.rank = 5;
    message.text = extras.note;
    ASSERT_TRUE(writer->add(message));
  }
  if (!extras.facts.empty()) {
    packet::Hello hello;
    hello.header.segment = 1;
    hello.header.identity.rank = 5;
    hello.facts.facts = extras.facts;
    ASSERT_TRUE(writer->add(hello));
  }
  std::uint32_t number = 0;
  for (Stall stall : extras.stalls) {
    stall.number = ++number;
    ASSERT_TRUE(writer->add(stall));
  }
  if (extras.preflight) {
    ASSERT_TRUE(writer->preflight(*extras.preflight));
  }
  ASSERT_TRUE(writer->close());
}

// The output of a verb for such a run, named "run".
inline CommandResult run_on(const std::string& verb, const std::vector<StepRecord>& records,
                            const RunExtras& extras = {},
                            const std::vector<std::string>& more = {}) {
  const TempFolder folder;
  make_run(folder / "run", records, extras);
  std::vector<std::string> args = {verb, (folder / "run").string()};
  args.insert(args.end(), more.begin(), more.end());
  return run(args);
}

inline void expect_refusal(const std::vector<std::string>& args, const std::string& says) {
  const CommandResult ran = run(args);
  EXPECT_EQ(ran.code, 2);
  EXPECT_EQ(ran.out, "");
  EXPECT_EQ(lines(ran.err).size(), 1U) << ran.err;
  EXPECT_EQ(ran.err.find("presum"), 0U) << ran.err;
  EXPECT_NE(ran.err.find(says), std::string::npos) << ran.err;
  const bool clean = std::none_of(ran.err.begin(), ran.err.end() - 1,
                                  [](unsigned char c) { return c < 0x20 || c == 0x7F; });
  EXPECT_TRUE(clean) << ran.err;
}

// The first finding has everything that the text shows; the second lacks everything optional.
inline RunExtras two_findings() {
  Finding full = finding("duplicate-data", Severity::kCritical);
  full.also = {"pair-too-similar", "too-consistent"};
  full.ranks = {0, 1, 5};
  full.hosts = {"node08", "node09", "login"};
  full.first_step = 2;
  full.last_step = 8;
  full.confidence = 0.999;
  full.title = "Ranks 0, 1 and 5 read the same samples";
  full.evidence = {
      {full.check, full.ranks, full.title,
       R"({"shared_samples":9007199254740993,"share":0.123456})"},
      {"too-consistent", {0, 1}, "Ranks 0-1 differed less than their micro-batches allow", "{}"}};
  full.suspects = "one seed";
  full.remedy = "Give each rank its own shard.";
  full.resembles = "pytorch/pytorch#31771";
  RunExtras out{.note = "sparse", .findings = {full, finding("loss-event", Severity::kInfo)}};
  out.checks.insert(out.checks.begin(), {"duplicate-data", CheckRecord::State::kFound, ""});
  return out;
}

}  // namespace presum::cli
