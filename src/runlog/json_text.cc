// SPDX-License-Identifier: Apache-2.0
#include "runlog/json_text.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <variant>

#include "presum/records.h"

namespace presum::runlog {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kDepthMax = 16;  // presum writes lists and objects of plain values

std::string text_of(const Json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Json parse(const std::string& text) {
  const auto shallow = [](int depth, Json::parse_event_t, const Json&) {
    return depth <= kDepthMax;
  };
  Json value = Json::parse(text, shallow, false);
  return value.is_discarded() ? Json() : value;
}

Finding::Value value_of(const Json& item) {
  if (item.is_number_integer()) return item.get<std::int64_t>();
  if (item.is_number()) return item.get<double>();
  if (item.is_null()) return kNaN;
  return item.is_string() ? item.get<std::string>() : item.dump();
}

}  // namespace

std::string json_text(const std::vector<std::string>& list) { return text_of(list); }

std::string json_text(const std::vector<std::uint32_t>& list) { return text_of(list); }

std::string json_text(const Finding::Evidence& evidence) {
  Json out = Json::object();
  for (const auto& [name, value] : evidence) {
    std::visit([&, n = name](const auto& v) { out[n] = v; }, value);
  }
  return text_of(out);
}

std::vector<std::string> texts_of(const std::string& json) {
  std::vector<std::string> out;
  for (const Json& item : parse(json)) {
    if (item.is_string()) out.push_back(item.get<std::string>());
  }
  return out;
}

std::vector<std::uint32_t> numbers_of(const std::string& json) {
  std::vector<std::uint32_t> out;
  for (const Json& item : parse(json)) {
    if (!item.is_number_unsigned()) continue;
    const auto number = item.get<std::uint64_t>();
    if (number <= std::numeric_limits<std::uint32_t>::max()) {
      out.push_back(static_cast<std::uint32_t>(number));
    }
  }
  return out;
}

Finding::Evidence evidence_of(const std::string& json) {
  Finding::Evidence out;
  const Json all = parse(json);
  if (!all.is_object()) return out;
  for (const auto& [name, value] : all.items()) out.emplace_back(name, value_of(value));
  return out;
}

}  // namespace presum::runlog
