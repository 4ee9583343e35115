// SPDX-License-Identifier: Apache-2.0
#include "report/report.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "base/try.h"
#include "checks/engine/diagnoser.h"
#include "judge/continuations.h"
#include "judge/documents.h"
#include "presum/version.h"
#include "report/model_charts.h"
#include "report/page_assets.h"
#include "report/stall_list.h"

namespace presum::report {
namespace {

constexpr std::size_t kCellsMax = 450'000;  // numbers in a page, about 7 bytes each

constexpr std::size_t kFindingsMax = 100;

// For a page from a file, which has no HTTP headers.
constexpr std::string_view kPolicy =
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
    "'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action "
    "'none'\">\n";

// The findings that the page shows, the worst first.
std::span<const Finding> shown(std::span<const Finding> findings) {
  return findings.first(std::min(findings.size(), kFindingsMax));
}

// The findings that are shown, and the total number.
Json judgment_of(const judge::Judgment& judgment) {
  return {{"verdict", to_string(judgment.verdict)},
          {"reason", judgment.reason},
          {"findings", judge::findings_json(shown(judgment.findings))},
          {"count", judgment.findings.size()},
          {"checks", judge::checks_json(judgment.checks)},
          {"audits", judge::audits_json(judgment.audits)}};
}

Json catalog_json() {
  Json out = Json::object();
  for (const checks::Check check : checks::catalog()) {
    out[std::string(check->id)] = {
        {"looks_at", check->compares}, {"blind", check->cannot_see}, {"code", check->mistake}};
  }
  return out;
}

// One entry per segment and key, with the ranks that share each value.
Json facts_json(const std::vector<Fact>& facts) {
  std::map<std::pair<std::uint32_t, std::string>, std::map<std::string, std::vector<std::uint32_t>>>
      by_key;
  for (const Fact& f : facts) by_key[{f.segment, f.key}][f.value].push_back(f.rank);
  Json out = Json::array();
  for (const auto& [key, values] : by_key) {
    Json shared = Json::array();
    for (const auto& [value, ranks] : values)
      shared.push_back({{"value", value}, {"ranks", ranks}});
    out.push_back({{"segment", key.first}, {"key", key.second}, {"values", shared}});
  }
  return out;
}

Json notes_json(const std::vector<NoteRecord>& notes) {
  Json out = Json::array();
  for (const NoteRecord& n : notes) {
    out.push_back({{"segment", n.segment}, {"rank", n.rank}, {"text", n.text}});
  }
  return out;
}

Json outcomes_json(std::span<const Continuation> continuations) {
  Json out = judge::continuations_json(continuations);
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i]["outcome"] = judge::outcome_text(continuations[i]);
  }
  return out;
}

Json hosts_json(const std::vector<ModelInfo>& modules) {
  Json out = Json::object();
  for (const ModelInfo& m : modules) {
    for (const WorkerInfo& w : m.workers) out[std::to_string(w.rank)] = w.host;
  }
  return out;
}

std::vector<GroupInfo> groups_of(const StepRecord& step, const std::vector<GroupInfo>& groups) {
  std::vector<GroupInfo> out;
  std::ranges::copy_if(groups, std::back_inserter(out),
                       [&](const GroupInfo& g) { return g.model == step.model; });
  return out;
}

// The first steps of the findings that the page shows for a model: its own, and those that also
// show in it.
std::vector<std::uint64_t> first_steps(const ModelKey& model, std::span<const Finding> findings) {
  std::vector<std::uint64_t> out;
  for (const Finding& f : findings) {
    if (f.model == model || std::ranges::find(f.elsewhere, model) != f.elsewhere.end()) {
      out.push_back(f.first_step);
    }
  }
  return out;
}

// Passes each row to the charts that hold its step. A run that is still being written may have rows
// for steps that no chart holds yet.
class ModelRouter {
 public:
  explicit ModelRouter(std::vector<ModelCharts>& models) : models_(models) {}
  ModelCharts* find(const StepKey& key) {
    if (models_.empty()) return nullptr;
    for (std::size_t tried = 0; tried < models_.size(); ++tried) {
      if (models_[at_].holds(key)) return &models_[at_];
      at_ = (at_ + 1) % models_.size();
    }
    return nullptr;
  }

 private:
  std::vector<ModelCharts>& models_;
  std::size_t at_ = 0;
};

Status fill(const RunLog& log, std::vector<ModelCharts>& models) {
  ModelRouter router(models);
  PRESUM_TRY(log.for_each_workers([&](const StepKey& key, std::span<const WorkerRecord> workers) {
    if (ModelCharts* model = router.find(key)) model->add_workers(key, workers);
  }));
  PRESUM_TRY(log.for_each_groups([&](const StepKey& key, std::span<const GroupRecord> groups) {
    if (ModelCharts* model = router.find(key)) model->add_groups(key, groups);
  }));
  for (ModelCharts& model : models) {
    for (const StepKey& key : model.matrices().steps()) {
      PRESUM_ASSIGN(const auto pairs, log.cosines(key));
      model.matrices().add(key, pairs);
    }
  }
  return {};
}

bool ascending(std::span<const StepRecord> steps) {
  return std::adjacent_find(steps.begin(), steps.end(), [](const auto& a, const auto& b) {
           return a.step >= b.step;
         }) == steps.end();
}

Result<Json> models_json(const RunLog& log, std::span<const StepRecord> steps,
                         std::span<const Finding> findings, std::size_t cells_max) {
  PRESUM_ASSIGN(const auto groups, log.groups());
  const auto spans = judge::cut(steps);
  std::vector<ModelCharts> models;
  models.reserve(spans.size());
  for (const auto& span : spans) {
    if (!ascending(span)) return fail(ErrorCode::kCorrupt, log.name() + ": steps out of order");
    models.emplace_back(span, groups_of(span.front(), groups),
                        first_steps(span.front().model, shown(findings)), cells_max / spans.size());
  }
  PRESUM_TRY(fill(log, models));
  Json out = Json::array();
  for (const ModelCharts& model : models) out.push_back(model.json());
  return out;
}

std::string assembled(std::string_view data, std::string_view policy, std::string_view nonce) {
  std::string out = replaced(replaced(kPageBeforeData, "@POLICY@", policy), "@NONCE@", nonce);
  out += data;
  out += replaced(kPageAfterData, "@NONCE@", nonce);
  return out;
}

Result<Json> run_data(const RunLog& log, std::size_t cells_max) {
  PRESUM_ASSIGN(const auto steps, log.steps());
  PRESUM_ASSIGN(const auto judgment, judge::judge(log, steps));
  PRESUM_ASSIGN(const auto facts, log.facts());
  PRESUM_ASSIGN(const auto notes, log.notes());
  PRESUM_ASSIGN(const auto stalls, log.stalls());
  PRESUM_ASSIGN(const auto modules, log.modules());
  PRESUM_ASSIGN(auto models, models_json(log, steps, judgment.findings, cells_max));
  return Json{{"name", log.name()},
              {"segments", judge::segments_json(judgment.segments)},
              {"continuations", outcomes_json(judgment.continuations)},
              {"judgment", judgment_of(judgment)},
              {"facts", facts_json(facts)},
              {"notes", notes_json(notes)},
              {"stalls", stalls_json(stalls)},
              {"hosts", hosts_json(modules)},
              {"parts", std::move(models)}};
}

}  // namespace

Result<Json> page_data(std::span<const RunLog> runs) {
  Json out = Json::array();
  for (const RunLog& run : runs) {
    PRESUM_ASSIGN(auto data, run_data(run, kCellsMax / runs.size()));
    out.push_back(std::move(data));
  }
  return Json{{"presum", version()}, {"catalog", catalog_json()}, {"runs", std::move(out)}};
}

Result<std::string> page(std::span<const RunLog> runs, const Json& comparison) {
  PRESUM_ASSIGN(auto data, page_data(runs));
  if (!comparison.is_null()) data["comparison"] = comparison;
  return assembled(embeddable(data), kPolicy, "");
}

std::string live_page(const std::string& nonce) {
  return assembled("null", "", " nonce=\"" + nonce + "\"");
}

}  // namespace presum::report
