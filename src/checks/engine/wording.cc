// SPDX-License-Identifier: Apache-2.0
#include "checks/engine/wording.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "checks/engine/check.h"
#include "checks/engine/text.h"

namespace presum::checks {
namespace {

using Json = nlohmann::ordered_json;
using Texts = std::vector<std::string>;

constexpr int kDepthMax = 8;

// A value of any evidence, unchanged.
std::string text_of(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) return number(value.get<double>());
  if (!value.is_structured()) return value.dump();
  Texts each;
  for (const auto& [name, item] : value.items()) {
    each.push_back(value.is_object() ? fmt::format("{} {}", name, text_of(item)) : text_of(item));
  }
  return fmt::format("{}", fmt::join(each, value.is_object() ? "; " : ", "));
}

void add_values(const std::string& values, Texts& out) {
  const auto shallow = [](int depth, Json::parse_event_t, const Json&) {
    return depth <= kDepthMax;
  };
  const Json all = Json::parse(values, shallow, false);
  if (!all.is_object()) return;
  for (const auto& [name, value] : all.items()) {
    std::string words = name;
    std::ranges::replace(words, '_', ' ');
    out.push_back(fmt::format("{}: {}", words, text_of(value)));
  }
}

// Where a statistic's evidence began to grow is an estimate of where the difference began.
std::string since(const Finding& finding, bool estimated) {
  if (finding.first_step == finding.last_step)
    return fmt::format(", at step {}", finding.last_step);
  if (finding.equal_until && *finding.equal_until + 1 < finding.first_step) {
    return fmt::format(", began between steps {} and {}, last seen at {}", *finding.equal_until + 1,
                       finding.first_step, finding.last_step);
  }
  return fmt::format(", since {}step {}, last seen at {}", estimated ? "about " : "",
                     finding.first_step, finding.last_step);
}

std::string blame_of(const Finding& finding, bool estimated) {
  const std::uint64_t step = estimated ? *finding.certain_step : finding.first_step;
  const auto rank =
      finding.ranks.size() == 1 ? fmt::format(" --rank {}", finding.ranks.front()) : "";
  return fmt::format("; presum blame RUN --step {}{}", step, rank);
}

}  // namespace

Wording wording(const Finding& finding) {
  Wording out;
  const Check check = find_check(finding.check);
  out.sentence = finding.title;
  const bool statistic = check != nullptr && is_statistic(check);
  // A single step is exact.
  const bool estimated = statistic && finding.certain_step.value_or(0) > finding.first_step;
  if (check == nullptr || !check->dates_itself) out.sentence += since(finding, estimated);
  if (!finding.elsewhere.empty()) {
    out.sentence += fmt::format(", in {} models", finding.elsewhere.size() + 1);
  }
  Texts values;
  // For a statistic, the sentence already contains its values.
  if (!finding.evidence.empty() && !statistic) add_values(finding.evidence.front().values, values);
  if (finding.certain_step && *finding.certain_step > finding.first_step) {
    values.push_back(fmt::format("began at {}step {}, certain at {}", estimated ? "about " : "",
                                 finding.first_step, *finding.certain_step));
  }
  out.evidence = fmt::format("{}", fmt::join(values, "; "));
  if (check != nullptr) out.more = "presum explain " + finding.check;
  if (check != nullptr && check->of_a_step) out.more += blame_of(finding, estimated);
  if (finding.severity > Severity::kInfo && check != nullptr) out.consequence = check->consequence;
  return out;
}

}  // namespace presum::checks
