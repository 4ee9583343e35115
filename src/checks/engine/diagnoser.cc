// SPDX-License-Identifier: Apache-2.0
#include "checks/engine/diagnoser.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "checks/engine/batches.h"
#include "checks/engine/check.h"
#include "checks/engine/draws.h"
#include "checks/engine/layer_groups.h"
#include "checks/engine/merge.h"
#include "checks/engine/passes.h"
#include "checks/engine/roster.h"
#include "checks/engine/rules.h"
#include "checks/engine/signal_log.h"
#include "checks/job/rank_ended.h"
#include "checks/job/resume_mismatch.h"

namespace presum::checks {
namespace {

bool worse(const Diagnoser::Numbered& a, const Diagnoser::Numbered& b) {
  return std::tuple(-static_cast<int>(a.finding.severity), a.finding.first_step, a.id) <
         std::tuple(-static_cast<int>(b.finding.severity), b.finding.first_step, b.id);
}

// A practice that the program declares as intended becomes information, with its reason.
std::vector<Signal> allowed(std::vector<Signal> signals, const Roster& roster) {
  for (Signal& s : signals) {
    const std::string reason = roster.fact_of_all("allow." + std::string(s.check->id));
    if (reason.empty()) continue;
    s.severity = Severity::kInfo;
    s.allowed = true;
    s.remedy = "Nothing: the program allows it (" + reason + ").";
  }
  return signals;
}

// Ranks that are interrupted together leave their last step unfinished, which is information too.
std::vector<Signal> interrupted(std::vector<Signal> signals) {
  const auto end = std::ranges::find(signals, &kRankEnded, &Signal::check);
  if (end == signals.end() || end->severity > Severity::kInfo) return signals;
  for (Signal& s : signals) {
    const bool last = s.first_step >= end->first_step && without(s.ranks, end->ranks).empty();
    if (s.check == &kMissingRank && last) s.severity = Severity::kInfo;
  }
  return signals;
}

}  // namespace

struct Diagnoser::State {
  ModelKey model;
  Roster roster{};
  SignalLog log{};
  Draws draws{};
  Passes passes{};
  Averaging averaging{};
  LatePasses late{};
  LayerGroups layer_groups{};
  Rules rules{};

  void end_passes() {
    for (const Pass& pass : passes.take_over()) rules.pass_over(pass, roster, log);
  }
};

Diagnoser::Diagnoser(const ModelKey& model) : state_(std::make_unique<State>(State{model})) {}
Diagnoser::Diagnoser(Diagnoser&&) noexcept = default;
Diagnoser& Diagnoser::operator=(Diagnoser&&) noexcept = default;
Diagnoser::~Diagnoser() = default;

void Diagnoser::resumes(PriorRun prior) { state_->rules.resume().resumes(std::move(prior)); }

void Diagnoser::snapshot(const Identity& who, const TrainingSnapshot& snapshot) {
  state_->rules.resume().begins(who, snapshot, state_->roster, state_->log);
}

const BeganWith& Diagnoser::began_with() const { return state_->rules.resume().began_with(); }

void Diagnoser::hello(const Identity& who, const WorkerFacts& facts) {
  state_->roster.hello(who, facts);
}

void Diagnoser::group(std::size_t ranks) { state_->roster.see_group(ranks); }

void Diagnoser::beats() { state_->rules.beats(); }

void Diagnoser::ended(const std::optional<RankEnd>& end) { report_end(end, state_->log); }

void Diagnoser::stalled(const Stall& stall) { report_stall(stall, state_->log); }

void Diagnoser::farewell(const Identity& who, const FinalState& last) {
  state_->passes.farewell(who.rank, last);
  state_->end_passes();
  state_->rules.farewell(who.rank, state_->layer_groups.apart(who.rank, last), state_->roster,
                         state_->log);
}

void Diagnoser::update(const StepRecord& record, const detect::StepAlarms& alarms,
                       const detect::TimeAlarms& times) {
  state_->log.begin_record();
  state_->layer_groups.see(record);
  if (state_->layer_groups.empty()) return judge(record, alarms, times);
  judge(state_->layer_groups.apart(record), alarms, times);
}

void Diagnoser::judge(const StepRecord& record, const detect::StepAlarms& alarms,
                      const detect::TimeAlarms& times) {
  state_->roster.see(record);
  const std::vector<Batch> read = batches(record);
  state_->draws.see(record, read);
  state_->passes.see(record);
  state_->averaging.see(record);
  state_->late.see(record);
  state_->rules.update({record, read, alarms, times, state_->roster, state_->draws,
                        state_->averaging, state_->late, state_->layer_groups},
                       state_->log);
  state_->end_passes();
}

std::vector<Diagnoser::Numbered> Diagnoser::findings() const {
  const std::vector<Signal> signals = interrupted(allowed(state_->log.signals(), state_->roster));
  const std::size_t world = state_->roster.world_size();
  std::vector<Numbered> out;
  for (const std::vector<std::size_t>& members : merge(signals)) {
    Numbered numbered{signals[*std::min_element(members.begin(), members.end())].id,
                      finding_of(signals, members, world)};
    numbered.finding.model = state_->model;
    numbered.finding.hosts = state_->roster.hosts(numbered.finding.ranks);
    out.push_back(std::move(numbered));
  }
  std::sort(out.begin(), out.end(), worse);
  return out;
}

std::vector<CheckRecord> Diagnoser::checks() const {
  std::vector<CheckRecord> out;
  for (const Check check : catalog()) out.push_back(state_->log.record(check));
  return out;
}

}  // namespace presum::checks
