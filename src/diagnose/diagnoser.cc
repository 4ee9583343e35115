// SPDX-License-Identifier: Apache-2.0
#include "diagnose/diagnoser.h"

#include <algorithm>
#include <tuple>

#include "diagnose/audits.h"
#include "diagnose/batches.h"
#include "diagnose/book.h"
#include "diagnose/checks.h"
#include "diagnose/data_order.h"
#include "diagnose/duplicates.h"
#include "diagnose/gradients.h"
#include "diagnose/look.h"
#include "diagnose/manifest.h"
#include "diagnose/merge.h"
#include "diagnose/overlap.h"
#include "diagnose/presence.h"
#include "diagnose/reduction.h"
#include "diagnose/rng.h"
#include "diagnose/roster.h"
#include "diagnose/sampler.h"
#include "diagnose/settings.h"
#include "diagnose/states.h"
#include "diagnose/statistics.h"

namespace presum::diagnose {
namespace {

constexpr std::uint64_t kStepsForAVerdict = 5;

WatchedSteps watched_steps(const detect::Detector& detector) {
  WatchedSteps out{};
  for (std::size_t s = 0; s < out.size(); ++s) {
    out[s] = detector.steps(static_cast<detect::Statistic>(s));
  }
  return out;
}

bool worse(const Diagnoser::Numbered& a, const Diagnoser::Numbered& b) {
  return std::tuple(-static_cast<int>(a.finding.severity), a.finding.first_step, a.id) <
         std::tuple(-static_cast<int>(b.finding.severity), b.finding.first_step, b.id);
}

}  // namespace

struct Diagnoser::State {
  ModelKey model;
  Roster roster{};
  Book book{};

  Presence presence{};
  Nonfinite nonfinite_gradient{Check::kNonfiniteGradient};
  Nonfinite nonfinite_loss{Check::kNonfiniteLoss};
  Reduction reduction{};
  Settings settings{};
  Manifest manifest{};
  Duplicates duplicates{};
  DataOrder data_order{};
  Overlap overlap{};
  States states{};
  ZeroGradient zero{};
  FrozenGradient frozen{};
  Statistics statistics{};
  Rng rng{};

  // A rule is one line here, and a row of checks.cc.
  void update(const Look& look) {
    presence.update(look, book);
    nonfinite_gradient.update(look, book);
    nonfinite_loss.update(look, book);
    reduction.update(look, book);
    watch_audits(look, book);
    settings.update(look, book);
    manifest.update(look, book);
    duplicates.update(look, book);
    data_order.update(look, book);
    Sampler::update(look, book);
    overlap.update(look, book);
    states.update(look, book);
    zero.update(look, book);
    frozen.update(look, book);
    statistics.update(look, book);
    rng.update(look, book);
  }
};

Diagnoser::Diagnoser(const ModelKey& model) : state_(std::make_unique<State>(State{model})) {}
Diagnoser::Diagnoser(Diagnoser&&) noexcept = default;
Diagnoser& Diagnoser::operator=(Diagnoser&&) noexcept = default;
Diagnoser::~Diagnoser() = default;

void Diagnoser::hello(const Identity& who, const WorkerFacts& facts) {
  state_->roster.hello(who, facts);
}

void Diagnoser::farewell(const Identity& who, const FinalState& last) {
  state_->states.farewell(who.rank, last, state_->roster, state_->book);
}

void Diagnoser::update(const StepRecord& record, std::span<const detect::Alarm> alarms,
                       const detect::Detector& detector) {
  state_->book.next();
  state_->roster.see(record);
  const WatchedSteps watched = watched_steps(detector);
  const std::vector<Batch> read = batches(record);
  const std::vector<detect::Alarm> lasting = detector.lasting();
  state_->update({record, read, alarms, lasting, watched, state_->roster});
}

std::vector<Diagnoser::Numbered> Diagnoser::findings() const {
  const std::vector<Signal>& signals = state_->book.signals();
  std::vector<Numbered> out;
  for (const std::vector<std::size_t>& members : merge(signals)) {
    Numbered numbered{signals[*std::min_element(members.begin(), members.end())].id,
                      finding_of(signals, members)};
    numbered.finding.model = state_->model;
    numbered.finding.hosts = state_->roster.hosts(numbered.finding.ranks);
    out.push_back(std::move(numbered));
  }
  std::sort(out.begin(), out.end(), worse);
  return out;
}

std::vector<CheckRecord> Diagnoser::checks() const {
  std::vector<CheckRecord> out;
  for (std::size_t check = 0; check < kChecks; ++check) {
    out.push_back(state_->book.record(static_cast<Check>(check)));
  }
  return out;
}

Verdict verdict(std::span<const Finding> findings, std::uint64_t steps, bool whole) {
  const bool bad = std::any_of(findings.begin(), findings.end(),
                               [](const Finding& f) { return f.severity != Severity::kInfo; });
  if (bad) return Verdict::kInconsistent;
  const bool enough = whole && steps >= kStepsForAVerdict;
  return enough ? Verdict::kConsistent : Verdict::kInsufficientEvidence;
}

}  // namespace presum::diagnose
