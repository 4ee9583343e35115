// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <nlohmann/json.hpp>

#include "runlog/reading.h"

namespace presum {
namespace {

using runlog::read_all;
using runlog::Statement;
using Json = nlohmann::ordered_json;

constexpr int kDepthMax = 16;  // presum writes lists and objects of plain values

// What a stranger wrote into the file must not end the reader: what is nested deeper is left out.
Json parse(const std::string& text) {
  const auto shallow = [](int depth, Json::parse_event_t, const Json&) {
    return depth <= kDepthMax;
  };
  Json value = Json::parse(text, shallow, false);
  return value.is_discarded() ? Json() : value;
}

std::vector<std::uint32_t> numbers(const std::string& text) {
  std::vector<std::uint32_t> out;
  for (const Json& item : parse(text)) {
    if (item.is_number_unsigned()) out.push_back(item.get<std::uint32_t>());
  }
  return out;
}

std::vector<std::string> strings(const std::string& text) {
  std::vector<std::string> out;
  for (const Json& item : parse(text)) {
    if (item.is_string()) out.push_back(item.get<std::string>());
  }
  return out;
}

Finding::Value value_of(const Json& item) {
  if (item.is_number_integer()) return item.get<std::int64_t>();
  if (item.is_number()) return item.get<double>();
  if (item.is_null()) return kNaN;
  return item.is_string() ? item.get<std::string>() : item.dump();
}

std::vector<std::pair<std::string, Finding::Value>> evidence(const std::string& text) {
  std::vector<std::pair<std::string, Finding::Value>> out;
  const Json all = parse(text);
  if (!all.is_object()) return out;
  for (const auto& [name, value] : all.items()) out.emplace_back(name, value_of(value));
  return out;
}

Finding read_finding(const Statement& row) {
  Finding f;
  f.segment = row.small(0);
  f.module = row.small(1);
  f.shard = row.small(2);
  f.check = row.text(3);
  f.also = strings(row.text(4));
  f.severity = static_cast<Severity>(std::min(row.integer(5), std::uint64_t{2}));
  f.ranks = numbers(row.text(6));
  f.hosts = strings(row.text(7));
  f.first_step = row.integer(8);
  f.last_step = row.integer(9);
  f.confidence = row.number(10);
  f.title = row.text(11);
  f.evidence = evidence(row.text(12));
  f.remedy = row.text(13);
  f.resembles = row.text(14);
  return f;
}

RunLog::Check read_check(const Statement& row) {
  const auto state = static_cast<CheckRecord::State>(std::min(row.integer(4), std::uint64_t{3}));
  return {.segment = row.small(0),
          .module = row.small(1),
          .shard = row.small(2),
          .record = {.check = row.text(3), .state = state, .reason = row.text(5)}};
}

}  // namespace

Result<std::vector<Finding>> RunLog::findings() const {
  return read_all<Finding>(
      state_->db,
      "SELECT segment, module, shard, check_id, also, severity, ranks, hosts, first_step, "
      "last_step, confidence, title, evidence, remedy, resembles FROM finding "
      "ORDER BY severity DESC, first_step, segment, module, shard, id",
      read_finding);
}

Result<std::vector<RunLog::Check>> RunLog::checks() const {
  return read_all<Check>(state_->db,
                         "SELECT segment, module, shard, check_id, state, reason FROM check_state "
                         "ORDER BY segment, module, shard, position",
                         read_check);
}

}  // namespace presum
