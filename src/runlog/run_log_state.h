// SPDX-License-Identifier: Apache-2.0
// What the parts of RunLog share.
#pragma once

#include <filesystem>

#include "presum/run_log.h"
#include "runlog/sqlite.h"
#include "runlog/tables.h"

namespace presum {

struct RunLog::State {
  std::filesystem::path file;
  mutable runlog::Database db;
};

namespace runlog {

inline StepKey key_of(const StepRecord& step) { return {step.model, step.step}; }

inline constexpr const char* kStepOrder = "ORDER BY segment, model_index, dp_group, step";

// Converts table rows to their base type.
template <class Record, class Row>
std::vector<Record> records_of(std::vector<Row> rows) {
  return {std::make_move_iterator(rows.begin()), std::make_move_iterator(rows.end())};
}

}  // namespace runlog
}  // namespace presum
