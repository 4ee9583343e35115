// SPDX-License-Identifier: Apache-2.0
#include "compare/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "base/try.h"
#include "compare/model.h"
#include "compare/run.h"

namespace presum::compare {
namespace {

constexpr std::array<std::string_view, kStages> kNames = {
    "configuration", "data",           "random-generators", "parameters",
    "loss",          "local-gradient", "reduction",         "final-parameters"};

bool any_number(const ModelComparison& m) {
  for (std::size_t s = static_cast<std::size_t>(Stage::kParameters); s < kStages; ++s) {
    if (m.stages[s].compared > 0) return true;
  }
  return false;
}

std::string name_of(ModuleShard key) {
  return fmt::format("module {}, shard {}", key.first, key.second);
}

void list_models_of_one_run(const Run& run, const Run& other, const char* name, Comparison& out) {
  for (const auto& [key, segments] : run.models) {
    if (!other.models.contains(key)) {
      out.not_compared.push_back(fmt::format("{}: only in {}", name_of(key), name));
    }
  }
}

// "data, parameters, reduction at 2 steps": the stages of which something was compared, or nothing.
std::string stages_of(const ModelComparison& m, bool compared) {
  std::string out;
  for (std::size_t s = static_cast<std::size_t>(Stage::kData); s < kStages; ++s) {
    const std::uint64_t times = m.stages[s].compared;
    if ((times > 0) != compared) continue;
    const auto stage = static_cast<Stage>(s);
    std::string name(compared && stage == Stage::kData ? "samples" : kNames[s]);
    std::ranges::replace(name, '-', ' ');
    if (compared && stage != Stage::kFinal && times < m.common_steps) {
      name += fmt::format(" at {} step{}", times, times == 1 ? "" : "s");
    }
    out += (out.empty() ? "" : ", ") + name;
  }
  return out;
}

std::string steps_text(const ModelComparison& m) {
  auto of = fmt::format("{} common step{}", m.common_steps, m.common_steps == 1 ? "" : "s");
  if (m.a.steps == m.common_steps && m.b.steps == m.common_steps) return of;
  return fmt::format("{} (A holds {}, B {})", of, m.a.steps, m.b.steps);
}

std::string agreement_of(const ModelComparison& m) {
  if (!any_number(m)) return "nothing was compared that is computed";
  const auto rest = stages_of(m, false);
  const auto without = rest.empty() ? "" : "; not compared: " + rest;
  if (!m.other_worlds) {
    return fmt::format("identical in all that was compared, at {}{}", steps_text(m), without);
  }
  const auto some =
      m.world_steps == m.common_steps
          ? ""
          : fmt::format(" (at {} of the steps, equal numbers at the others)", m.world_steps);
  return fmt::format("identical for {} workers{}, bit for bit, at {}: {}{}", m.worlds, some,
                     steps_text(m), stages_of(m, true), without);
}

// Of several models one sentence each, if they are not the same.
std::string agreement_of(const Comparison& c) {
  auto first = agreement_of(c.models.front());
  if (c.models.size() == 1) return first;
  std::string out;
  bool alike = true;
  for (const ModelComparison& m : c.models) {
    const auto own = agreement_of(m);
    alike = alike && own == first;
    out += fmt::format("{}{}: {}", out.empty() ? "" : "; ", name_of({m.module, m.shard}), own);
  }
  return alike ? fmt::format("{} models, each {}", c.models.size(), first) : out;
}

void judge(const Run& a, const Run& b, Comparison& out) {
  const auto has_first = [](const ModelComparison& m) { return m.first.has_value(); };
  if (std::ranges::any_of(out.models, has_first)) {
    out.outcome = Outcome::kDifferent;
    return;
  }
  if (std::ranges::any_of(out.models, any_number)) {
    out.outcome = Outcome::kIdentical;
    out.agreement = agreement_of(out);
    return;
  }
  const bool common =
      std::ranges::any_of(out.models, [](const ModelComparison& m) { return m.common_steps > 0; });
  out.reason = a.models.empty()     ? "A holds no step"
               : b.models.empty()   ? "B holds no step"
               : out.models.empty() ? "the runs have no model with steps in common"
               : common             ? "the common steps hold nothing that can be compared"
                                    : "the runs have no step in common";
}

}  // namespace

std::string_view to_string(Stage stage) { return kNames[static_cast<std::size_t>(stage)]; }

const ModelComparison* Comparison::first() const {
  const ModelComparison* out = nullptr;
  const auto key = [](const ModelComparison& m) {
    return std::pair(m.at(*m.first).first->step, *m.first);
  };
  for (const ModelComparison& m : models) {
    if (m.first && (out == nullptr || key(m) < key(*out))) out = &m;
  }
  return out;
}

Result<Comparison> compare(const RunLog& a, const RunLog& b) {
  PRESUM_ASSIGN(const auto of_a, read_run(a));
  const auto of_b = read_run(b);
  if (!of_b) return of_b.error();
  Comparison out{.a = a.name(), .b = b.name()};
  for (const auto& [key, segments] : of_a.models) {
    if (!of_b->models.contains(key)) continue;
    PRESUM_ASSIGN(auto model, compare_model(of_a, *of_b, key));
    out.models.push_back(std::move(model.model));
    std::ranges::move(model.facts, std::back_inserter(out.facts));
  }
  list_models_of_one_run(of_a, *of_b, "A", out);
  list_models_of_one_run(*of_b, of_a, "B", out);
  judge(of_a, *of_b, out);
  return out;
}

}  // namespace presum::compare
