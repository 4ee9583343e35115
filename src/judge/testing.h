// SPDX-License-Identifier: Apache-2.0
// Run folders for the tests of judgments and of the report.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "packet/packet.h"
#include "presum/run_log.h"
#include "runlog/testing.h"
#include "runlog/writer.h"

namespace presum::testing {

inline StepRecord step_record(std::uint32_t segment, std::uint64_t step, std::uint32_t workers) {
  StepRecord r;
  r.model.segment = segment;
  r.step = step;
  r.workers_expected = r.workers_seen = workers;
  r.distinct_gradients = workers;
  r.sketch_size = 64;
  r.cosine_source = CosineSource::kSketch;
  for (std::uint32_t i = 0; i < workers; ++i) {
    WorkerRecord w;
    w.rank = w.replica = i;
    w.loss = 2 + 0.125 * i;
    w.grad_norm = 1 + 0.25 * i;
    w.cosine_to_others = 0.5;
    w.fingerprint = step * workers + i + 1;
    r.workers.push_back(w);
  }
  r.loss_mean = 2 + 0.0625 * (workers - 1);
  r.loss_std = 0.25;
  r.grad_norm_mean = 2;
  r.grad_norm_std = 0.5;
  r.cosine_mean = 0.5;
  r.cosine_low = 0.4;
  r.cosine_high = 0.6;
  r.cosines.assign(std::size_t{workers} * (workers - 1) / 2, 0.5F);
  const std::vector<float> each(workers, 1);
  r.groups.push_back({.id = 7, .norm_mean = 2, .norm_std = 0.5, .norms = each, .maxima = each});
  return r;
}

// A closed run with the given steps and with text that a rank reported.
class RunOnDisk {
 public:
  RunOnDisk(const std::filesystem::path& folder, std::string text, std::uint32_t workers)
      : folder_(folder),
        writer_(*runlog::Writer::open(folder, clock_.function(), runlog::Journal::kWal)) {
    packet::Hello hello;
    hello.header = {writer_.run(), writer_.segment(), {0, 0, 0, 0, workers}, 0};
    hello.facts.host = text;
    hello.facts.facts = {{text, text}};
    hello.facts.groups = {{.id = 7, .elements = 10, .name = text}};
    EXPECT_TRUE(writer_.add(hello));
    packet::Note note;
    note.header = hello.header;
    note.text = std::move(text);
    EXPECT_TRUE(writer_.add(note));
  }

  std::uint32_t segment() const { return writer_.segment(); }
  void add(const StepRecord& step) { ASSERT_TRUE(writer_.add(step)); }
  // For model 0, data-parallel group 0.
  void replace(const std::vector<Finding>& findings, const std::vector<CheckRecord>& checks) {
    ASSERT_TRUE(writer_.replace({writer_.segment(), 0, 0}, findings, checks));
  }
  void preflight(int exit_code) { ASSERT_TRUE(writer_.preflight(exit_code)); }
  void add(Stall stall, std::uint32_t number) {
    stall.number = number;
    ASSERT_TRUE(writer_.add(stall));
  }
  void mark_incomplete(const std::string& why) { ASSERT_TRUE(writer_.mark_incomplete(why)); }
  RunLog log() {
    EXPECT_TRUE(writer_.close());
    return *RunLog::open(folder_);
  }

 private:
  std::filesystem::path folder_;
  FakeClock clock_;
  runlog::Writer writer_;
};

struct OwnFolder {
  TempFolder folder;
};

// A run with this many ranks and steps, in its own folder.
struct Recorded : OwnFolder, RunOnDisk {
  explicit Recorded(std::uint32_t workers, std::uint64_t steps = 0,
                    const std::string& text = "text")
      : RunOnDisk(folder / "run", text, workers) {
    for (std::uint64_t s = 0; s < steps; ++s) add(step_record(1, s, workers));
  }
};

}  // namespace presum::testing
