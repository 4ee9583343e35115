// SPDX-License-Identifier: Apache-2.0
// What was behind one step: samples, micro-batches and layers of each worker.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "presum/run_log.h"

namespace presum::blame {

// A number of a step, and what it usually was.
struct Compared {
  double value = kNaN;
  double usual = kNaN;  // median over the worker's steps before, at most kUsualSteps; NaN: none

  // NaN where either is not known, infinite where the value is not finite.
  double ratio() const;
};

// A worker's step in which a sample was drawn before.
struct EarlierDraw {
  std::uint64_t step = 0;
  std::uint32_t rank = 0;
  Compared loss;
};

struct Sample {
  std::optional<std::uint64_t> index;  // in the data set
  std::optional<std::uint64_t> hash;   // keyed, as the run log has it
  std::vector<std::uint32_t> others;   // ranks that drew it in the same step
  std::uint64_t draws_before = 0;
  std::vector<EarlierDraw> before;  // the last kEarlierKept of these, ascending
};

struct Layer {
  std::string name;
  Compared norm;
  double peak = kNaN;  // largest finite |g|
};

struct Worker {
  std::uint32_t rank = 0;
  std::string host = {};
  Compared loss;
  Compared norm;
  std::uint64_t nonfinite = 0;
  std::uint64_t tokens = 0;
  std::uint32_t micro_batches = 0;
  std::vector<MicroBatch> micro;                 // where there are several
  std::vector<std::size_t> without_target = {};  // of them, those without a single target token
  std::uint64_t rows = 0;                        // 0: not known
  std::vector<Sample> samples = {};              // those that were recorded
  std::vector<Layer> layers = {};                // the furthest from usual first

  // How far from usual it is: the larger of the two ratios; infinite with NaN or Inf.
  double distance() const;
};

struct Step {
  StepKey key;
  std::uint32_t workers_expected = 0;
  Compared loss;                     // mean over workers
  std::uint64_t compared_with = 0;   // steps before it that were read
  std::vector<Worker> workers = {};  // by rank
};

inline constexpr std::size_t kUsualSteps = 50;
inline constexpr std::size_t kEarlierKept = 8;

struct Question {
  std::uint64_t step = 0;
  std::optional<std::uint32_t> segment;  // none: the last one that has the step
};

// Called now and then with the steps read and those to read.
using Progress = std::function<void(std::uint64_t done, std::uint64_t all)>;

// One for each model that has the step. Reads the segment's steps up to it, one at a time.
// Errors: kNotFound (no such step), and those of reading.
Result<std::vector<Step>> blame(const RunLog& log, const Question& question,
                                const Progress& progress = {});

}  // namespace presum::blame
