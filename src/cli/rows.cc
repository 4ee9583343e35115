// SPDX-License-Identifier: Apache-2.0
#include "cli/rows.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <variant>

namespace presum::cli {
namespace {

std::string quoted(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"') out += '"';
    out += c;
  }
  return out + '"';
}

struct ToCsv {
  std::string operator()(std::monostate) const { return ""; }
  std::string operator()(std::int64_t value) const { return fmt::format("{}", value); }
  std::string operator()(double value) const { return fmt::format("{}", value); }
  std::string operator()(const std::string& value) const { return quoted(value); }
};

struct ToJson {
  nlohmann::json operator()(std::monostate) const { return nullptr; }
  nlohmann::json operator()(double value) const {
    if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
    return value;
  }
  nlohmann::json operator()(std::int64_t value) const { return value; }
  nlohmann::json operator()(const std::string& value) const { return value; }
};

template <class Range, class Text>
std::string joined(const Range& range, Text&& text) {
  std::string out;
  for (const auto& item : range) {
    if (&item != &*range.begin()) out += ',';
    out += text(item);
  }
  return out + '\n';
}

}  // namespace

std::string csv_header(std::span<const std::string> columns) { return joined(columns, quoted); }

std::string csv_row(std::span<const RunLog::Cell> cells) {
  return joined(cells, [](const RunLog::Cell& cell) { return std::visit(ToCsv{}, cell); });
}

nlohmann::ordered_json row_json(std::span<const std::string> columns,
                                std::span<const RunLog::Cell> cells) {
  nlohmann::ordered_json row;
  for (std::size_t c = 0; c < cells.size(); ++c) row[columns[c]] = std::visit(ToJson{}, cells[c]);
  return row;
}

std::string json_line(const nlohmann::ordered_json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string json_text(const nlohmann::ordered_json& value) {
  constexpr int kIndent = 2;
  return value.dump(kIndent, ' ', false, nlohmann::json::error_handler_t::replace) + '\n';
}

std::string json_row(std::span<const std::string> columns, std::span<const RunLog::Cell> cells) {
  return json_line(row_json(columns, cells)) + '\n';
}

}  // namespace presum::cli
