// SPDX-License-Identifier: Apache-2.0
// Rows for other programs: RFC 4180 CSV and JSON lines. Numbers keep every bit. An undefined or
// unmeasured value is an empty field in CSV and null in JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "presum/run_log.h"

namespace presum::cli {

std::string csv_header(std::span<const std::string> columns);
std::string csv_row(std::span<const RunLog::Cell> cells);
// One JSON object. Infinities, which JSON lacks, are strings.
nlohmann::ordered_json row_json(std::span<const std::string> columns,
                                std::span<const RunLog::Cell> cells);
// Any JSON on one line, without a newline; invalid UTF-8 is replaced.
std::string json_line(const nlohmann::ordered_json& value);
// Any JSON as indented lines; invalid UTF-8 is replaced.
std::string json_text(const nlohmann::ordered_json& value);
// row_json() as a complete line.
std::string json_row(std::span<const std::string> columns, std::span<const RunLog::Cell> cells);

}  // namespace presum::cli
