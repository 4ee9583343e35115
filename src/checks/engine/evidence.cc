// SPDX-License-Identifier: Apache-2.0
#include "checks/engine/evidence.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "checks/engine/text.h"

namespace presum::checks {
namespace {

using Json = nlohmann::ordered_json;

// Names come from a run: replaces invalid UTF-8.
std::string dumped(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::string Who::words() const { return rank_words(ranks, everyone && in_job); }

std::string Who::the_ranks() const { return in_job ? "The ranks" : words(); }

std::string Who::within() const {
  std::string out = words();
  out.front() = static_cast<char>(out.front() - 'A' + 'a');
  return out;
}

void JsonObject::put(std::string_view name, const std::string& json) {
  if (!text_.empty()) text_ += ',';
  text_ += dumped(name) + ':' + json;
}

void JsonObject::add(std::string_view name, double value) {
  if (!std::isnan(value))
    put(name, std::isinf(value) ? dumped(value > 0 ? "inf" : "-inf") : dumped(value));
}

void JsonObject::add(std::string_view name, const std::string& value) {
  if (!value.empty()) put(name, dumped(value));
}

void JsonObject::add(std::string_view name, const Ranks& value) {
  if (!value.empty()) put(name, dumped(value));
}

void JsonObject::add(std::string_view name, const std::vector<std::string>& value) {
  if (!value.empty()) put(name, dumped(value));
}

void JsonObject::add(std::string_view name,
                     const std::vector<std::pair<std::string, std::string>>& value) {
  Json object = Json::object();
  for (const auto& [key, each] : value) object[key] = each;
  if (!value.empty()) put(name, dumped(object));
}

}  // namespace presum::checks
