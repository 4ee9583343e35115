// SPDX-License-Identifier: Apache-2.0
#include "cli/audit_text.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "audit/inference.h"
#include "cli/text.h"

namespace presum::cli {
namespace {

using audit::Measures;
using Json = nlohmann::ordered_json;

// "43.1 %"; "0" only for none.
std::string percent(std::uint64_t part, std::uint64_t whole) {
  if (whole == 0) return "-";
  if (part == 0) return "0";
  if (part == whole) return "100 %";
  const double share = 100 * static_cast<double>(part) / static_cast<double>(whole);
  if (share < 0.01) return "<0.01 %";
  return share > 99.99 ? ">99.99 %" : fmt::format("{:.{}f} %", share, share < 1 ? 2 : 1);
}

// "2^-24.1"; "0"; "-" for NaN.
std::string power(double value) {
  if (std::isnan(value)) return "-";
  if (value == 0) return "0";
  return std::isinf(value) ? "inf" : fmt::format("2^{:.1f}", std::log2(value));
}

// "4096"; "2^17.5" above 99,999.
std::string ulps(std::uint64_t count) {
  return count > 99'999 ? power(static_cast<double>(count)) : fmt::format("{}", count);
}

std::vector<std::string> measures_row(const std::string& name, const Measures& m) {
  return {name,
          percent(m.differing, m.elements),
          power(m.relative_l2()),
          power(m.error_max),
          ulps(m.ulps.percentile(0.5)),
          ulps(m.ulps.percentile(0.9)),
          ulps(m.ulps.percentile(0.99)),
          ulps(m.ulps.largest())};
}

std::string measures_text(const AuditReport& report) {
  std::vector<std::vector<std::string>> rows = {
      {"way", "differ", "relative L2", "error/sum|x|", "ulps 50%", "90%", "99%", "max"}};
  for (const auto& row : report.survey.rows) rows.push_back(measures_row(row.name, row.measures));
  return table(rows);
}

std::string pairs_text(const AuditReport& report) {
  std::vector<std::vector<std::string>> rows = {{"changes with", "elements"}};
  for (const auto& pair : report.survey.pairs) {
    rows.push_back({pair.name, percent(pair.differing, report.survey.elements)});
  }
  return table(rows);
}

std::string verdict(const AuditReport& report) {
  const auto& survey = report.survey;
  const std::uint64_t exact = survey.pairs.back().differing;
  const std::uint64_t any = survey.pairs[survey.pairs.size() - 2].differing;
  return fmt::format(
      "Over {} orders of the same numbers {} of the elements change; of the exact sum {}.",
      audit::kSurveyOrders, percent(any, survey.elements),
      exact == 0 ? "none" : percent(exact, survey.elements));
}

Json number_json(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json measures_json(const std::string& name, const Measures& m) {
  return {{"way", name},
          {"elements", m.elements},
          {"differing", m.differing},
          {"nonfinite", m.nonfinite},
          {"relative_l2", number_json(m.relative_l2())},
          {"error_mean", number_json(m.error_mean())},
          {"error_max", number_json(m.error_max)},
          {"ulps",
           {{"p50", m.ulps.percentile(0.5)},
            {"p90", m.ulps.percentile(0.9)},
            {"p99", m.ulps.percentile(0.99)},
            {"max", m.ulps.largest()}}}};
}

}  // namespace

std::string audit_text(const AuditReport& report) {
  return fmt::format("{}, {} elements\n\n{}\n{}\n{}\n", report.source,
                     counted(report.survey.elements), measures_text(report), pairs_text(report),
                     verdict(report));
}

std::string audit_json(const AuditReport& report) {
  Json out = {{"source", report.source},
              {"workers", report.workers},
              {"dtype", to_string(audit::accumulation_of(report.dtype))},
              {"elements", report.survey.elements},
              {"ways", Json::array()},
              {"changes", Json::array()}};
  for (const auto& row : report.survey.rows) {
    out["ways"].push_back(measures_json(row.name, row.measures));
  }
  for (const auto& pair : report.survey.pairs) {
    out["changes"].push_back({{"between", pair.name}, {"elements", pair.differing}});
  }
  return out.dump(2) + "\n";
}

}  // namespace presum::cli
