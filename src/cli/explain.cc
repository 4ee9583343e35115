// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checks/engine/diagnoser.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/rows.h"
#include "cli/text.h"
#include "cli/verb.h"

namespace presum::cli {
namespace {

using checks::Check;
using Json = nlohmann::ordered_json;

constexpr const char* kExplainHelp =
    "What a check compares, what it cannot see, how the mistake looks in a program, and what to\n"
    "do about it. Without CHECK: a list of all.\n\n"
    "Exit code: 0 explained, 2 there is no such check.\n\n"
    "Examples:\n"
    "  presum explain duplicate-data\n"
    "  presum explain --format json       # what every check declares of itself";

struct ExplainOptions {
  std::string check;
  std::string format = "text";
};

std::string list() {
  std::string out;
  for (const Check check : checks::catalog()) {
    out += fmt::format("{:<27} {:<9} {}\n", check->id, to_string(check->severity), check->compares);
  }
  return out + "\npresum explain CHECK says more of one.\n";
}

Json json_of(Check check) {
  Json explained = Json::array();
  for (const Check effect : check->explains) explained.push_back(effect->id);
  Json fingerprints = Json::array();
  for (const FingerprintKind kind : check->fingerprints) {
    fingerprints.push_back(find_fingerprint_kind(static_cast<std::uint32_t>(kind))->name);
  }
  return {{"check", check->id},
          {"severity", to_string(check->severity)},
          {"compares", check->compares},
          {"fires", check->fires},
          {"consequence", check->consequence},
          {"cannot_see", check->cannot_see},
          {"mistake", check->mistake},
          {"fix", check->fix},
          {"resembles", check->resembles},
          {"explains", explained},
          {"fingerprints", fingerprints}};
}

std::string indented(std::string_view text) {
  std::string out = "    ";
  for (const char c : text) out += c == '\n' ? std::string("\n    ") : std::string(1, c);
  return out;
}

std::string text_of(Check check) {
  std::string out = fmt::format("{} ({})\n\n", check->id, to_string(check->severity));
  out += fmt::format("looks at    {}\n", check->compares);
  out += fmt::format("matters     {}\n", check->consequence);
  out += fmt::format("not seen    {}\n", check->cannot_see);
  out += fmt::format("do          {}\n", check->fix);
  if (!check->resembles.empty()) out += fmt::format("resembles   {}\n", check->resembles);
  return out + fmt::format("in code\n\n{}\n", indented(check->mistake));
}

int explain(const ExplainOptions& options, const Streams& io) {
  const bool json = options.format == "json";
  if (options.check.empty()) {
    Json all = Json::array();
    for (const Check check : checks::catalog()) all.push_back(json_of(check));
    io.out << (json ? json_text(all) : list());
    return kOk;
  }
  const Check check = checks::find_check(options.check);
  if (check == nullptr) {
    std::vector<std::string_view> ids;
    for (const Check one : checks::catalog()) ids.push_back(one->id);
    return complain(io, "explain",
                    Error{ErrorCode::kNotFound,
                          fmt::format("there is no check {}{}; presum explain lists all",
                                      printable(options.check), nearest(options.check, ids))});
  }
  io.out << (json ? json_text(json_of(check)) : text_of(check));
  return kOk;
}

}  // namespace

void add_explain(CLI::App& program, Command& chosen) {
  const auto [command, options] =
      add_verb<ExplainOptions>(program, chosen, "explain",
                               "what a check compares, and how to fix it", kExplainHelp, explain);
  command->add_option("CHECK", options->check, "such as duplicate-data, as findings name it");
  add_format(command, options->format, "text or json", {"text", "json"});
}

}  // namespace presum::cli
