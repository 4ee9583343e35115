// SPDX-License-Identifier: Apache-2.0
#include "cli/audit_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "cli/tensor_file.h"
#include "cli/text.h"

namespace presum::cli {
namespace {

using audit::Hypothesis;
using audit::Inferred;
using audit::Measures;
using Json = nlohmann::ordered_json;

constexpr std::size_t kHypothesesShown = 6;
constexpr std::size_t kPiecesShown = 8;
constexpr int kFp32Bits = 24;

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
  if (report.actual) {
    rows.push_back(measures_row("RESULT", report.actual->comparison.measures));
  }
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

std::string describe(const Hypothesis& h) {
  const bool exact = h.order == SumOrder::kExact;
  std::string text = to_string(h.order);
  if (!exact) text += fmt::format(" in {}", dtype_name(h.scheme.accumulation));
  if (h.scheme.wire != h.scheme.accumulation) {
    text += fmt::format(", {} values", dtype_name(h.scheme.wire));
  }
  if (h.division != Division::kNone) text += fmt::format(", {}", to_string(h.division));
  return text;
}

std::string hypotheses_table(const Inferred& inferred) {
  std::vector<std::vector<std::string>> rows = {{"arithmetic", "reproduces"}};
  for (auto& [arithmetic, share, text] : hypothesis_lines(inferred)) {
    rows.push_back({std::move(arithmetic), std::move(text)});
  }
  return table(rows);
}

std::string order_words(const Inferred& inferred, std::uint32_t workers) {
  if (inferred.order == SumOrder::kAny && workers == 2) {
    return "in the only order that there is for two workers";
  }
  if (inferred.order == SumOrder::kUnknown) return "in an order that was not recognised";
  if (inferred.order == SumOrder::kAny)
    return "in an order that cannot be told (all give the same, or nearly)";
  return fmt::format("in the order \"{}\"", to_string(inferred.order));
}

std::string accumulation_words(const Inferred& inferred) {
  if (inferred.accumulation == Accumulation::kUnknown) return "in a format that cannot be told";
  return fmt::format("in {}", to_string(inferred.accumulation));
}

// Why a result is no sum and no mean.
std::string unrelated_finding(const ActualResult& actual) {
  const auto& [measures, inferred] = actual.comparison;
  if (inferred.copy_of) return "nothing was reduced: every worker may have kept its own gradients";
  if (2 * measures.nonfinite > measures.elements) {
    return percent(measures.nonfinite, measures.elements) + " of the elements are NaN or infinite";
  }
  return percent(inferred.wrong, measures.elements) +
         " of the elements are further off than any order or format explains";
}

std::string actual_text(const AuditReport& report) {
  const Inferred& inferred = report.actual->comparison.inferred;
  std::string text = audit_answer(report) + "\n";
  if (const std::string pieces = pieces_line(inferred); !pieces.empty()) text += pieces + "\n";
  for (const std::string& finding : audit_findings(report)) text += "FINDING: " + finding + "\n";
  if (inferred.unrelated || report.actual->either()) return text + "\n";
  return text + "\n" + hypotheses_table(inferred) + "\n";
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

Json hypotheses_json(const Inferred& inferred) {
  Json list = Json::array();
  for (const Hypothesis& h : inferred.hypotheses) {
    list.push_back({{"order", to_string(h.order)},
                    {"wire", dtype_name(h.scheme.wire)},
                    {"accumulation", dtype_name(h.scheme.accumulation)},
                    {"division", to_string(h.division)},
                    {"examined", h.examined},
                    {"reproduced", h.reproduced}});
  }
  return list;
}

const char* operation(const ActualResult& actual) {
  if (actual.comparison.inferred.unrelated || actual.either()) return "unknown";
  return actual.mean() ? "mean" : "sum";
}

Json actual_json(const AuditReport& report) {
  const auto& actual = *report.actual;
  const Inferred& inferred = actual.comparison.inferred;
  Json out = measures_json("result", actual.comparison.measures);
  out["operation"] = operation(actual);
  out["copy_of"] = inferred.copy_of ? Json(*inferred.copy_of) : Json(nullptr);
  out["accumulation"] = to_string(inferred.accumulation);
  out["order"] = to_string(inferred.order);
  out["division"] = to_string(inferred.division);
  out["wrong"] = inferred.wrong;
  out["beyond"] = Json::object();
  for (const auto& [format, count] : inferred.beyond) out["beyond"][to_string(format)] = count;
  out["hypotheses"] = hypotheses_json(inferred);
  out["pieces"] = Json::array();
  for (const auto& p : inferred.pieces) {
    out["pieces"].push_back({{"first", p.first}, {"end", p.end}, {"start", p.start}});
  }
  out["findings"] = audit_findings(report);
  return out;
}

}  // namespace

std::string percent(std::uint64_t part, std::uint64_t whole) {
  if (whole == 0) return "-";
  if (part == 0) return "0";
  if (part == whole) return "100 %";
  const double share = 100 * static_cast<double>(part) / static_cast<double>(whole);
  if (share < 0.01) return "<0.01 %";
  return share > 99.99 ? ">99.99 %" : fmt::format("{:.{}f} %", share, share < 1 ? 2 : 1);
}

std::string power(double value) {
  if (std::isnan(value)) return "-";
  if (value == 0) return "0";
  return std::isinf(value) ? "inf" : fmt::format("2^{:.1f}", std::log2(value));
}

std::string ulps(std::uint64_t count) {
  return count > 99'999 ? power(static_cast<double>(count)) : fmt::format("{}", count);
}

std::string counted(std::uint64_t value) {
  const std::string digits = fmt::format("{}", value);
  std::string out;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

std::string audit_answer(const AuditReport& report) {
  const ActualResult& actual = *report.actual;
  const Inferred& inferred = actual.comparison.inferred;
  const std::string file = printable(actual.file) + ": ";
  if (inferred.copy_of) {
    return file + fmt::format("the gradients of worker {} alone, not the sum or mean of all",
                              *inferred.copy_of);
  }
  if (inferred.unrelated) return file + "not the sum or mean of these gradients";
  if (actual.either()) return file + "a sum or a mean: these elements do not tell which, nor how";
  return file + fmt::format("a {}, added {}, {}", actual.mean() ? "mean" : "sum",
                            accumulation_words(inferred), order_words(inferred, report.workers));
}

std::vector<HypothesisLine> hypothesis_lines(const Inferred& inferred) {
  std::vector<HypothesisLine> lines;
  for (const Hypothesis& h : inferred.hypotheses) {
    if (h.reproduced == 0 && !lines.empty()) continue;
    lines.push_back({describe(h), h.share(), percent(h.reproduced, h.examined)});
  }
  // Those that were tried on few elements are not last here.
  std::ranges::stable_sort(lines, std::greater(), &HypothesisLine::share);
  if (lines.size() > kHypothesesShown) lines.resize(kHypothesesShown);
  return lines;
}

std::string pieces_line(const Inferred& inferred) {
  if (inferred.pieces.empty()) return {};
  std::string text = "pieces:";
  for (std::size_t i = 0; i < inferred.pieces.size() && i < kPiecesShown; ++i) {
    const auto& piece = inferred.pieces[i];
    text += fmt::format(" {}-{} from worker {};", piece.first, piece.end, piece.start);
  }
  if (inferred.pieces.size() > kPiecesShown) {
    return text + fmt::format(" and {} more", inferred.pieces.size() - kPiecesShown);
  }
  text.pop_back();
  return text;
}

std::vector<std::string> audit_findings(const AuditReport& report) {
  std::vector<std::string> out;
  if (!report.actual) return out;
  const Inferred& inferred = report.actual->comparison.inferred;
  if (inferred.unrelated) return {unrelated_finding(*report.actual)};
  const int bits = significand_bits(inferred.accumulation);
  const int own = audit::significand_bits(report.dtype);
  if (bits != 0 && (bits < kFp32Bits || bits < own)) {
    out.push_back(fmt::format("sums were accumulated in {}: {} significant bits",
                              to_string(inferred.accumulation), bits));
  }
  if (inferred.wrong > 0) {
    out.push_back(fmt::format("{} of {} elements are further off than rounding explains",
                              counted(inferred.wrong),
                              counted(report.actual->comparison.measures.elements)));
  }
  return out;
}

std::string audit_verdict(const AuditReport& report) {
  const auto& survey = report.survey;
  const std::uint64_t exact = survey.pairs.back().differing;
  const std::uint64_t any = survey.pairs[survey.pairs.size() - 2].differing;
  return fmt::format(
      "Over {} orders of the same numbers {} of the elements change; of the exact sum {}.",
      audit::kSurveyOrders, percent(any, survey.elements),
      exact == 0 ? "none" : percent(exact, survey.elements));
}

std::string audit_text(const AuditReport& report) {
  std::string text =
      fmt::format("{}, {} elements\n\n", printable(report.source), counted(report.survey.elements));
  if (report.actual) text += actual_text(report);
  text += measures_text(report) + "\n" + pairs_text(report) + "\n";
  return text + audit_verdict(report) + "\n";
}

std::string audit_json(const AuditReport& report) {
  Json out = {{"source", report.source},
              {"workers", report.workers},
              {"dtype", dtype_name(report.dtype)},
              {"elements", report.survey.elements},
              {"ways", Json::array()},
              {"changes", Json::array()}};
  for (const auto& row : report.survey.rows) {
    out["ways"].push_back(measures_json(row.name, row.measures));
  }
  for (const auto& pair : report.survey.pairs) {
    out["changes"].push_back({{"between", pair.name}, {"elements", pair.differing}});
  }
  if (report.actual) out["result"] = actual_json(report);
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace presum::cli
