// SPDX-License-Identifier: Apache-2.0
// A run for Prometheus: the last step of each model of its current segment, what was found, and
// whether training stands still.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "presum/status.h"

namespace presum::cli {

inline constexpr std::string_view kPrometheusStart = "# HELP presum_";

// In version 0.0.4 of Prometheus's text format. Each metric is a gauge with the label `run`, the
// name of the folder; those of a step also have `model` and `group`. Unknown values (NaN) are left
// out. With more than 64 ranks, values by rank become the lowest and the highest.
struct PrometheusText {
  std::string text;  // begins with kPrometheusStart
  std::uint32_t segment = 0;
  bool closed = false;  // the segment has ended
};

// Reads a run again and again. Thread-safety: one thread at a time.
class PrometheusReader {
 public:
  explicit PrometheusReader(std::string run);
  // `now`: Unix time in seconds. Errors: those of RunLog::open and of reading the run.
  Result<PrometheusText> read(double now);

 private:
  std::string run_;
  std::optional<std::uint64_t> steps_;
  double last_step_;
};

}  // namespace presum::cli
