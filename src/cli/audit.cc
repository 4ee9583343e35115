// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "audit/audit.h"
#include "audit/inference.h"
#include "audit/orders.h"
#include "audit/survey.h"
#include "audit/synthetic.h"
#include "base/try.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/findings_text.h"
#include "cli/progress.h"
#include "cli/rows.h"
#include "cli/text.h"
#include "cli/verb.h"

namespace presum::cli {
namespace {

using audit::Measures;
using Json = nlohmann::ordered_json;

constexpr const char* kAuditHelp =
    "Synthetic gradients are added in many orders and formats, and each sum is compared with the\n"
    "exact one. In Python, presum.reduce.audit(arrays) does it with your own gradients, and\n"
    "presum.reduce.audit(arrays, result) says in which format and order an all-reduce made its\n"
    "result.\n\n"
    "Examples:\n"
    "  presum audit                                          16 ranks, fp32, seed 1\n"
    "  presum audit --ranks 8 --dtype bf16 --elements 1e7";

constexpr double kElementsMax = 1e12;
// An input of -1 becomes larger than this.
constexpr std::uint64_t kSeedMax = (std::uint64_t{1} << 63) - 1;
constexpr std::uint64_t kChunk = 65'536;
constexpr std::uint64_t kChunkOfAll = 1 << 22;  // over all ranks

struct AuditArguments {
  std::uint32_t workers = 16;
  std::string dtype = "fp32";
  double elements = 1e6;
  std::string distribution = "gradients";
  std::uint64_t seed = 1;
  std::string format = "text";
};

std::optional<Dtype> dtype_of(const std::string& name) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF64, Dtype::kBF16, Dtype::kF16}) {
    if (name == to_string(audit::accumulation_of(dtype))) return dtype;
  }
  return std::nullopt;
}

// The values of one rank, from element `first` on.
void generate(const AuditArguments& arguments, audit::Distribution distribution, Dtype dtype,
              std::uint32_t worker, std::uint64_t first, std::uint64_t count, std::byte* out) {
  std::vector<double> values(count);
  audit::generate(distribution, arguments.seed, worker, first, values);
  if (dtype == Dtype::kF64) return audit::pack(std::span<const double>(values), dtype, out);
  std::vector<float> narrow(values.begin(), values.end());
  audit::round_to(dtype, std::span(narrow));
  audit::pack(std::span<const float>(narrow), dtype, out);
}

struct AuditReport {
  std::string source;  // "gradients fp32 values of 16 ranks, seed 1"
  std::uint32_t workers = 0;
  Dtype dtype = Dtype::kF32;
  audit::SurveyResult survey;
};

Result<AuditReport> survey(const AuditArguments& arguments, std::ostream& err) {
  const auto invalid = [](const char* why) { return fail(ErrorCode::kInvalidArgument, why); };
  const auto dtype = dtype_of(arguments.dtype);
  if (!dtype) return invalid("--dtype is fp32, fp64, bf16 or fp16");
  const auto distribution = audit::distribution_of(arguments.distribution);
  if (!distribution) return invalid("--distribution is gradients, gaussian, lognormal or wide");
  const double wanted = arguments.elements;
  if (!(wanted >= 1 && wanted <= kElementsMax) || wanted != std::floor(wanted)) {
    return invalid("--elements is a whole number from 1 to 1e12");
  }
  const auto elements = static_cast<std::uint64_t>(wanted);
  const std::uint32_t workers = arguments.workers;
  PRESUM_ASSIGN(auto survey, audit::Survey::create({workers, *dtype, elements, arguments.seed}));
  const std::uint64_t most = std::clamp(kChunkOfAll / workers, std::uint64_t{2048}, kChunk);
  std::vector<std::vector<std::byte>> buffers(workers);
  std::vector<const void*> leaves;
  for (auto& buffer : buffers) {
    buffer.resize(most * element_bytes(*dtype));
    leaves.push_back(buffer.data());
  }
  ProgressBar bar(err, "elements");
  for (std::uint64_t first = 0; first < elements; first += most) {
    const std::uint64_t count = std::min(most, elements - first);
    for (std::uint32_t worker = 0; worker < workers; ++worker) {
      generate(arguments, *distribution, *dtype, worker, first, count, buffers[worker].data());
    }
    survey->add(leaves, count);
    bar.show(first + count, elements);
  }
  return AuditReport{fmt::format("{} {} values of {}, seed {}", arguments.distribution,
                                 arguments.dtype, count(workers, "rank"), arguments.seed),
                     workers, *dtype, survey->result()};
}

// "43.1 %"; "0" only if `part` is 0.
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
  const UlpPercentiles of = m.ulps.percentiles();
  return {name,
          percent(m.differing, m.elements),
          power(m.relative_l2()),
          power(m.error_max),
          ulps(of.p50),
          ulps(of.p90),
          ulps(of.p99),
          ulps(of.max)};
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

// Values that are not finite are written as null.
Json measures_json(const std::string& name, const Measures& m) {
  const UlpPercentiles of = m.ulps.percentiles();
  return {{"way", name},
          {"elements", m.elements},
          {"differing", m.differing},
          {"nonfinite", m.nonfinite},
          {"relative_l2", m.relative_l2()},
          {"error_mean", m.error_mean()},
          {"error_max", m.error_max},
          {"ulps", {{"p50", of.p50}, {"p90", of.p90}, {"p99", of.p99}, {"max", of.max}}}};
}

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
  return json_text(out);
}

int audit_verb(const AuditArguments& arguments, const Streams& io) {
  const auto report = survey(arguments, io.err);
  if (!report) return complain(io, "audit", report.error());
  io.out << (arguments.format == "json" ? audit_json(*report) : audit_text(*report));
  return kOk;
}

}  // namespace

void add_audit(CLI::App& program, Command& chosen) {
  const auto [command, arguments] = add_verb<AuditArguments>(
      program, chosen, "audit", "what adding in another order or format changes", kAuditHelp,
      audit_verb);
  command->add_option("--ranks", arguments->workers, "number of synthetic ranks")
      ->capture_default_str();
  command->add_option("--elements", arguments->elements, "elements per rank")
      ->capture_default_str();
  command
      ->add_option("--distribution", arguments->distribution,
                   "gradients, gaussian, lognormal or wide")
      ->capture_default_str();
  command->add_option("--dtype", arguments->dtype, "fp32, fp64, bf16 or fp16")
      ->capture_default_str();
  command->add_option("--seed", arguments->seed, "random seed, of values and orders of arrival")
      ->check(CLI::Range(std::uint64_t{0}, kSeedMax))
      ->capture_default_str();
  add_format(command, arguments->format, "text or json", {"text", "json"});
}

}  // namespace presum::cli
