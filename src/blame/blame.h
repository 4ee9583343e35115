// SPDX-License-Identifier: Apache-2.0
// What was behind one step: the samples, micro-batches and layers of each rank.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "presum/run_log.h"

namespace presum::blame {

// A value at a step, and its usual value.
struct Compared {
  double value = kNaN;
  // Median over at most kUsualSteps earlier steps of the rank; NaN: there are none.
  double usual = kNaN;

  // NaN if either is not known; infinite if the value is infinite.
  double ratio() const;
};

// A rank's step in which the sample was drawn before.
struct EarlierDraw {
  std::uint64_t step = 0;
  std::uint32_t rank = 0;
  Compared loss;
};

struct Sample {
  std::optional<std::uint64_t> index;  // in the dataset
  std::optional<std::uint64_t> hash;   // keyed, as in the run log
  std::vector<std::uint32_t> others;   // ranks that drew it in the same step
  std::uint64_t draws_before = 0;
  std::vector<EarlierDraw> before;  // the last kEarlierKept of these draws, ascending
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
  std::uint64_t targets = 0;   // of the loss function; 0 if unknown
  double token_weight = kNaN;  // of one of these in the rank's loss
  std::uint32_t micro_batches = 0;
  std::vector<MicroBatch> micro;                 // if there are several
  std::vector<std::size_t> without_target = {};  // those of them without any target token
  std::uint64_t rows = 0;                        // 0: not known
  std::vector<Sample> samples = {};              // those that were recorded
  std::vector<Layer> layers = {};                // the one furthest from usual first

  // How far the rank is from usual: the larger of the two ratios; infinite with NaN or Inf.
  double distance() const;
};

struct Step {
  StepKey key;
  std::uint32_t workers_expected = 0;
  Compared loss;                     // mean over ranks
  std::uint64_t compared_with = 0;   // number of earlier steps that were read
  std::vector<Worker> workers = {};  // in order of rank
};

inline constexpr std::size_t kUsualSteps = 50;
inline constexpr std::size_t kEarlierKept = 8;

struct Question {
  std::uint64_t step = 0;
  std::optional<std::uint32_t> segment;  // empty: the last one that has the step
};

// Called at intervals with the number of steps read and the total.
using Progress = std::function<void(std::uint64_t done, std::uint64_t all)>;

// One entry per model that has the step. Reads the segment's steps up to it, one at a time. Errors:
// kNotFound (no such step), and those of reading.
Result<std::vector<Step>> blame(const RunLog& log, const Question& question,
                                const Progress& progress = {});

}  // namespace presum::blame
