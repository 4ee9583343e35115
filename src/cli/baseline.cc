// SPDX-License-Identifier: Apache-2.0
#include "cli/baseline.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/try.h"
#include "checks/engine/diagnoser.h"
#include "cli/text.h"

namespace presum::cli {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::year_month_day;

constexpr std::string_view kKeys[] = {"check", "ranks", "reason", "expires"};

Error refuse(const std::string& what) { return fail(ErrorCode::kInvalidArgument, what); }

// "2027-03-31".
std::optional<year_month_day> date_of(std::string_view text) {
  if (text.size() != 10 || text[4] != '-' || text[7] != '-') return {};
  int year = 0;
  unsigned month = 0;
  unsigned day = 0;
  const auto whole = [&](std::size_t from, std::size_t size, auto& value) {
    const char* end = text.data() + from + size;
    const auto read = std::from_chars(text.data() + from, end, value);
    return read.ec == std::errc() && read.ptr == end;
  };
  if (!whole(0, 4, year) || !whole(5, 2, month) || !whole(8, 2, day)) return {};
  const year_month_day date{std::chrono::year{year}, std::chrono::month{month},
                            std::chrono::day{day}};
  return date.ok() ? std::optional(date) : std::nullopt;
}

year_month_day today() {
  return std::chrono::floor<std::chrono::days>(std::chrono::system_clock::now());
}

std::string text_in(const Json& entry, const char* key) {
  const auto found = entry.find(key);
  return found != entry.end() && found->is_string() ? found->get<std::string>() : "";
}

Status check_keys(const Json& entry) {
  if (!entry.is_object()) return refuse("is not an object");
  for (const auto& [key, value] : entry.items()) {
    if (std::ranges::find(kKeys, key) != std::end(kKeys)) continue;
    return refuse(fmt::format("has an unknown key {}{}", key, nearest(key, kKeys)));
  }
  return {};
}

Status check_name(const std::string& name) {
  if (checks::find_check(name) != nullptr) return {};
  std::vector<std::string_view> ids;
  for (const checks::Check one : checks::catalog()) ids.push_back(one->id);
  return refuse(fmt::format("names no check of presum: \"{}\"{}", name, nearest(name, ids)));
}

Status check_date(const std::string& text) {
  const auto date = date_of(text);
  if (!date) return refuse(R"(needs "expires", a date such as "2027-03-31")");
  if (*date < today()) return refuse(fmt::format("expired on {}: renew or remove it", text));
  return {};
}

Result<std::optional<std::vector<std::uint32_t>>> ranks_in(const Json& entry) {
  const auto found = entry.find("ranks");
  if (found == entry.end()) return std::optional<std::vector<std::uint32_t>>();
  const auto rank = [](const Json& one) {
    return one.is_number_unsigned() && one.get<std::uint64_t>() <= UINT32_MAX;
  };
  if (!found->is_array() || found->empty() || !std::ranges::all_of(*found, rank)) {
    return refuse(R"(needs a list of rank numbers as "ranks", such as [0, 3])");
  }
  return std::optional(found->get<std::vector<std::uint32_t>>());
}

Result<BaselineEntry> entry_of(const Json& entry) {
  PRESUM_TRY(check_keys(entry));
  BaselineEntry out{.check = text_in(entry, "check"),
                    .ranks = {},
                    .reason = text_in(entry, "reason"),
                    .expires = text_in(entry, "expires")};
  PRESUM_TRY(check_name(out.check));
  if (out.reason.find_first_not_of(" \t\r\n") == std::string::npos)
    return refuse(R"(needs "reason", a sentence)");
  PRESUM_TRY(check_date(out.expires));
  PRESUM_ASSIGN(out.ranks, ranks_in(entry));
  return out;
}

Result<Json> document_of(const std::string& file) {
  std::error_code error;
  std::ifstream in(file);
  if (!in || std::filesystem::is_directory(file, error)) {
    return fail(ErrorCode::kIo, fmt::format("cannot read the baseline {}", file));
  }
  Json document = Json::parse(in, nullptr, false);
  const bool formed = document.is_object() && document.size() == 1 && document.contains("ignore") &&
                      document["ignore"].is_array();
  if (formed) return std::move(document["ignore"]);
  return refuse(fmt::format(R"({} is not a baseline: it must be JSON, {{"ignore": [...]}})", file));
}

}  // namespace

Result<std::vector<BaselineEntry>> read_baseline(const std::string& file) {
  PRESUM_ASSIGN(const Json entries, document_of(file));
  std::vector<BaselineEntry> out;
  for (const Json& entry : entries) {
    auto read = entry_of(entry);
    if (!read) {
      return refuse(fmt::format("{}: entry {} {}", file, out.size() + 1, read.error().message));
    }
    out.push_back(*std::move(read));
  }
  return out;
}

bool applies(const BaselineEntry& entry, const Finding& finding) {
  if (entry.check != finding.check) return false;
  if (!entry.ranks) return true;
  const auto covered = [&](const std::vector<std::uint32_t>& ranks) {
    return std::ranges::all_of(ranks, [&](std::uint32_t rank) {
      return std::ranges::find(*entry.ranks, rank) != entry.ranks->end();
    });
  };
  return !finding.ranks.empty() && covered(finding.ranks) &&
         std::ranges::all_of(finding.evidence, covered, &Finding::Evidence::ranks);
}

const BaselineEntry* entry_for(std::span<const BaselineEntry> baseline, const Finding& finding) {
  const auto found = std::ranges::find_if(
      baseline, [&](const BaselineEntry& entry) { return applies(entry, finding); });
  return found == baseline.end() ? nullptr : &*found;
}

}  // namespace presum::cli
