// SPDX-License-Identifier: Apache-2.0
// A run for Prometheus: the last step of each model of its current segment, what was found, and
// whether training stands still.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "presum/run_log.h"
#include "presum/status.h"

namespace presum::cli {

// Each metric is a gauge with the label `run`; those of a step also have `model` and `group`.
// Unknown values (NaN) are left out. With more than 64 ranks, values by rank become the lowest and
// the highest. `last_step`: Unix time in seconds, if there is a step. Format: version 0.0.4 of
// Prometheus's text format. Errors: those of reading the run.
Result<std::string> prometheus_text(const RunLog& log, std::optional<double> last_step);

// Keeps a file for the textfile collector of Prometheus's node exporter up to date.
class PrometheusFile {
 public:
  PrometheusFile(std::string run, std::filesystem::path file);

  // Writes what is new. Returns whether the run is closed. Errors: those of RunLog::open and of
  // replace_file().
  Result<bool> update();
  // Deletes the file if update() wrote it: Prometheus then knows that the values have ended.
  void remove() const;

 private:
  std::string run_;
  std::filesystem::path file_;
  std::uint64_t steps_ = 0;
  std::optional<double> last_step_;
  std::string written_;
};

}  // namespace presum::cli
