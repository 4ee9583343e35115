// SPDX-License-Identifier: Apache-2.0
#include "presum/aggregator.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "aggregate/continuation.h"
#include "aggregate/model_analysis.h"
#include "aggregate/prior_run.h"
#include "aggregate/rank_ends.h"
#include "aggregate/stall_watch.h"
#include "aggregate/step_assembler.h"
#include "base/try.h"
#include "judge/continuations.h"
#include "judge/coverage.h"
#include "judge/judgment.h"
#include "packet/packet.h"
#include "runlog/writer.h"

namespace presum {
namespace {

// The W x W matrix is computed at every step up to this many ranks; above, at every kMatrixEvery-th
// step.
constexpr std::size_t kMatrixWorkers = 256;
constexpr std::uint64_t kMatrixEvery = 50;
constexpr std::uint32_t kModulesMax = 1024;
constexpr std::size_t kAnalysesMax = 4096;  // models times shards
constexpr Seconds kDetectorsEvery{30.0};
constexpr std::size_t kProcessesMax = 65'536;
constexpr std::size_t kProcessBytes = 64;  // limit for each part of a hello's process description

RankProcess process_of(const packet::Hello& hello) {
  RankProcess out{.rank = hello.header.identity.rank, .host = hello.facts.host};
  for (const auto& [name, value] : hello.facts.facts) {
    if (name == "pid") out.pid = value.substr(0, kProcessBytes);
    if (name == "process_start") out.start = value.substr(0, kProcessBytes);
  }
  return out;
}

void sort_worst_first(std::vector<Finding>& findings) {
  std::stable_sort(findings.begin(), findings.end(), [](const Finding& a, const Finding& b) {
    return a.severity != b.severity ? a.severity > b.severity : a.first_step < b.first_step;
  });
}

}  // namespace

struct Aggregator::State {
  State(AggregatorOptions given, runlog::Writer log, aggregate::PriorRuns before)
      : options(std::move(given)),
        writer(std::move(log)),
        prior(std::move(before)),
        continued(writer.segment(), prior.steps),
        stalls(options.world_size) {}

  using WorkerKey = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>;

  AggregatorOptions options;
  runlog::Writer writer;
  aggregate::PriorRuns prior;  // what earlier segments left
  aggregate::ContinuedRun continued;
  aggregate::StepAssembler assembler;
  aggregate::StallWatch stalls;
  aggregate::RankEnds ends;
  std::optional<checks::RankEnd> end_told;
  std::map<std::uint32_t, RankProcess> processes;    // by rank; those that have not ended
  std::map<std::uint32_t, std::uint32_t> models_of;  // by rank; models that have not said goodbye
  std::map<std::pair<std::uint32_t, std::uint32_t>, aggregate::ModelAnalysis>
      analyses;  // model_index, dp_group
  using FindingKey = std::tuple<std::uint32_t, std::uint32_t, std::uint64_t>;
  std::map<FindingKey, Severity> announced;
  Seconds detectors_saved{0};
  // Since `detectors_saved`. A later run may continue from the checkpoint.
  bool checkpointed = false;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> modules;  // see admit()
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t>
      replicas;                    // by model_index and dp_group
  std::uint32_t widest_group = 0;  // ranks of a data-parallel group
  std::set<std::uint32_t> ranks;   // ranks heard so far
  std::set<WorkerKey> departed;
  std::set<WorkerKey> hellos;
  AggregatorCounters counters;
  PacketCounts counts_written;
  std::string incomplete;    // why the record is incomplete
  bool lost_others = false;  // no more packets can arrive from other ranks
  Status health;             // the first error of the run log; nothing is written after it
  bool closed = false;

  static WorkerKey key(const Identity& who) { return {who.model_index, who.dp_group, who.replica}; }

  // Returns whether a rank of this job can have this identity.
  bool possible(const Identity& who) const {
    const std::uint32_t world = options.world_size;
    return world == 0 || (who.replicas <= world && who.rank < world && who.dp_group < world);
  }

  // Replaces the model's index by its number in the run log. A rank's own index counts the models
  // that it attached before on the same ranks, because a rank may have models that the others do
  // not know. Returns false for a bad packet, which would cost memory.
  bool admit(Identity& who) {
    const bool known = modules.contains({who.model_index, who.replicas});
    if (!possible(who) || (!known && modules.size() >= kModulesMax)) return false;
    const auto next = static_cast<std::uint32_t>(modules.size());
    const auto number = modules.try_emplace({who.model_index, who.replicas}, next).first->second;
    const std::pair key{number, who.dp_group};
    if (!replicas.contains(key) && replicas.size() >= kAnalysesMax) return false;
    who.model_index = key.first;
    replicas[key] = who.replicas;
    ranks.insert(who.rank);
    return true;
  }

  bool everyone_left() const {
    std::size_t workers = 0;
    for (const auto& [key, count] : replicas) workers += count;
    return workers > 0 && departed.size() >= workers;
  }

  aggregate::ModelAnalysis& analysis(const Identity& who) {
    const auto [at, fresh] = analyses.try_emplace(
        {who.model_index, who.dp_group}, ModelKey{writer.segment(), who.model_index, who.dp_group});
    if (fresh && writer.segment() > 1) {
      auto saved = writer.saved_detector(who.model_index, who.dp_group);
      at->second.resumes(std::move(prior.models[{who.model_index, who.dp_group}]),
                         saved ? std::move(*saved) : std::nullopt);
    }
    return at->second;
  }

  Status take(const packet::Hello& hello) {
    const Identity& who = hello.header.identity;
    stalls.hello(who.rank, hello.facts.groups);
    ends.hello(who.rank);
    if (processes.size() < kProcessesMax) processes[who.rank] = process_of(hello);
    if (hellos.insert(key(who)).second) ++models_of[who.rank];
    analysis(who).tell().hello(who, hello.facts);
    widest_group = std::max(widest_group, who.replicas);
    for (auto& [of, each] : analyses) each.group(widest_group);
    return writer.add(hello);
  }

  Status take(const packet::SnapshotOf& snapshot) {
    const Identity& who = snapshot.header.identity;
    analysis(who).tell().snapshot(who, snapshot.snapshot);
    checkpointed = checkpointed || snapshot.snapshot.kind == TrainingSnapshot::Kind::kSaved;
    return writer.add(snapshot);
  }

  Status take(const packet::Beat& beat) {
    stalls.beat(beat.header.identity.rank, beat.beat, options.clock());
    for (auto& [key, model] : analyses) model.beats();
    return {};
  }

  // Writes to the run log at once: a launcher that sees the first rank end ends the others,
  // including the recording one.
  Status watch_ends() {
    auto end = ends.first();
    if (end == end_told || analyses.empty()) return {};
    const bool fresh = !end || !end_told || end->words() != end_told->words();
    end_told = std::move(end);
    analyses.begin()->second.tell().ended(end_told);
    if (!fresh) return {};  // only more evidence; each rank brings some
    PRESUM_TRY(write_ready(false));
    PRESUM_TRY(write_findings());
    return writer.commit();
  }

  Status process_ended(std::uint32_t rank, const ProcessEnd& end) {
    processes.erase(rank);
    ends.process_ended(rank, end, stalls.in_step(options.clock()));
    return watch_ends();
  }

  // Ranks that end abnormally say nothing; their last heartbeats are the only evidence.
  Status watch_silent() {
    if (lost_others) return {};
    for (const auto& [rank, place] : stalls.silent(options.clock())) ends.silent(rank, place);
    ends.close();
    return watch_ends();
  }

  // Writes to the run log at once, because a launcher may end the job.
  Status watch_stalls() {
    const auto stall = stalls.look(options.clock());
    if (!stall) return {};
    PRESUM_TRY(writer.add(*stall));
    if (!analyses.empty()) analyses.begin()->second.tell().stalled(*stall);
    PRESUM_TRY(write_findings());
    return writer.commit();
  }

  void leave(std::uint32_t rank, const std::string& why) {
    stalls.left(rank, why);
    ends.left(rank, why);
  }

  Status take(const packet::Note& note) {
    const Identity& who = note.header.identity;
    if (note.final) {
      const bool fresh = departed.insert(key(who)).second;
      const bool the_last = fresh && models_of[who.rank] > 0 && --models_of[who.rank] == 0;
      if (the_last) leave(who.rank, note.text);
      assembler.departed(who);
      analysis(who).tell().farewell(who, note.state);
      PRESUM_TRY(watch_ends());
    }
    if (note.broken) {
      const auto why = fmt::format("on rank {}: {}", who.rank, note.text);
      become_incomplete(why);
      PRESUM_TRY(writer.mark_incomplete(why));
    }
    return writer.add(note);
  }

  Status take(packet::Step&& step) {
    ends.step(step.header.identity.rank, step.header.step);
    using Taken = aggregate::StepAssembler::Taken;
    const Taken taken = assembler.add(std::move(step), options.clock());
    if (taken == Taken::kDuplicate) ++counters.duplicate;
    if (taken == Taken::kLate) ++counters.late;
    if (taken == Taken::kImplausible) ++counters.damaged;
    return {};
  }

  Status write(aggregate::StepAssembler::Assembled&& assembled) {
    std::vector<const packet::Step*> workers;
    for (const packet::Step& step : assembled.workers) workers.push_back(&step);
    const packet::Header& first = workers.front()->header;
    auto& model = analysis(first.identity);
    StepRecord record = model.measure(
        {.workers_expected = assembled.workers_expected,
         .left_out = assembled.left_out,
         .workers = workers,
         .missing = lost_others ? std::vector<std::uint32_t>() : std::move(assembled.missing),
         .pairwise = workers.size() <= kMatrixWorkers || first.step % kMatrixEvery == 0});
    const bool known = model.continuation().has_value();
    model.judge(record);
    if (!known && model.continuation()) {
      continued.add(*model.continuation());
      PRESUM_TRY(writer.add(*model.continuation()));
    }
    ++counters.records;
    return writer.add(std::move(record));
  }

  Status write_ready(bool flush) {
    while (auto assembled = assembler.next(options.clock(), flush)) {
      PRESUM_TRY(write(std::move(*assembled)));
    }
    return {};
  }

  Status write_findings() {
    for (auto& [key, model] : analyses) {
      if (!model.take_changed()) continue;
      std::vector<Finding> findings;
      for (const auto& numbered : model.findings()) findings.push_back(numbered.finding);
      const auto checks = model.checks();
      PRESUM_TRY(writer.replace({writer.segment(), key.first, key.second}, findings, checks));
    }
    return {};
  }

  Status save_detectors() {
    for (auto& [key, model] : analyses) {
      const auto state = model.save();
      if (state) PRESUM_TRY(writer.save_detector(key.first, key.second, *state));
    }
    return {};
  }

  Status write_counts() {
    const PacketCounts& now = counters;
    if (now == counts_written) return {};
    counts_written = now;
    return writer.count(now);
  }

  // Never commits a step without its findings.
  Status commit_if_due() {
    if (!writer.is_due()) return {};
    PRESUM_TRY(write_findings());
    PRESUM_TRY(write_counts());
    const Seconds now = options.clock();
    if (std::exchange(checkpointed, false) || now - detectors_saved >= kDetectorsEvery) {
      detectors_saved = now;
      PRESUM_TRY(save_detectors());
    }
    return writer.tick();
  }

  Status write_last() {
    PRESUM_TRY(write_ready(true));
    PRESUM_TRY(watch_silent());
    PRESUM_TRY(write_findings());
    PRESUM_TRY(write_counts());
    return save_detectors();
  }

  judge::Coverage coverage() const {
    std::vector<judge::ModelSteps> models;
    judge::CheckCounts checks{};
    for (const auto& [key, model] : analyses) {
      models.push_back(model.steps());
      for (const CheckRecord& c : model.checks()) ++checks[static_cast<std::size_t>(c.state)];
    }
    return judge::cover(models, continued.continuations(), checks);
  }

  Status guarded(Status status) {
    if (health && !status) {
      health = status;
      become_incomplete(status.error().message);
    }
    return status;
  }

  // Keeps the last reason for incomplete(), because losing the record is worse than missing a part
  // of it; the file keeps the first reason.
  void become_incomplete(std::string_view why) {
    const auto step = writer.committed_step();
    incomplete = step ? fmt::format("{} (after step {})", why, *step)
                      : fmt::format("{} (before the first step)", why);
  }
};

Aggregator::Aggregator(std::unique_ptr<State> state) : state_(std::move(state)) {}
Aggregator::Aggregator(Aggregator&&) noexcept = default;
Aggregator& Aggregator::operator=(Aggregator&&) noexcept = default;
Aggregator::~Aggregator() = default;

Result<Aggregator> Aggregator::open(AggregatorOptions options) {
  if (!options.clock) options.clock = monotonic_now;
  // Empty if the run is damaged; the writer reports that.
  auto prior = aggregate::read_prior_runs(options.run);
  PRESUM_ASSIGN(auto writer, runlog::open_writer(options.run, options.clock));
  return Aggregator(std::make_unique<State>(std::move(options), std::move(writer),
                                            prior ? std::move(*prior) : aggregate::PriorRuns()));
}

Announcement Aggregator::announcement() const {
  return {.run = state_->writer.run(), .segment = state_->writer.segment()};
}
bool Aggregator::everyone_left() const { return state_->everyone_left(); }
std::vector<RankProcess> Aggregator::processes() const {
  std::vector<RankProcess> out;
  for (const auto& [rank, process] : state_->processes) out.push_back(process);
  return out;
}

Status Aggregator::process_ended(std::uint32_t rank, const ProcessEnd& end) {
  if (!state_->health || state_->closed) return state_->health;
  return state_->guarded(state_->process_ended(rank, end));
}

std::size_t Aggregator::ranks_heard() const { return state_->ranks.size(); }

AggregatorCounters Aggregator::counters() const {
  AggregatorCounters out = state_->counters;
  std::vector<StepCount> counts;
  for (const auto& [key, model] : state_->analyses) {
    counts.push_back({.model = model.steps().model(), .steps = model.steps().logged()});
  }
  out.steps = judge::training_steps(counts, {});
  return out;
}

std::vector<std::string> Aggregator::take_notices() { return state_->continued.take_notices(); }

Status Aggregator::ingest(std::span<const std::byte> bytes) {
  if (!state_->health || state_->closed) return state_->health;
  auto message = packet::decode(bytes);
  if (!message) {
    ++state_->counters.damaged;
    return {};
  }
  auto& header = std::visit([](auto& m) -> packet::Header& { return m.header; }, *message);
  const auto [run, segment] = announcement();
  if (header.run != run || header.segment != segment) {
    ++state_->counters.foreign;
    return {};
  }
  // belongs to a process, not to a model
  const bool beat = std::holds_alternative<packet::Beat>(*message);
  if (beat ? !state_->possible(header.identity) : !state_->admit(header.identity)) {
    ++state_->counters.damaged;
    return {};
  }
  ++state_->counters.packets;
  if (!beat) state_->assembler.heard(header.identity, state_->options.clock());
  state_->stalls.heard(header.identity.rank, state_->options.clock());
  auto taken = std::visit([&](auto& m) { return state_->take(std::move(m)); }, *message);
  if (taken) taken = state_->write_ready(false);
  if (taken) taken = state_->commit_if_due();
  return state_->guarded(std::move(taken));
}

Status Aggregator::tick() {
  if (!state_->health || state_->closed) return state_->health;
  auto done = state_->write_ready(false);
  if (done) done = state_->watch_stalls();
  if (done) done = state_->commit_if_due();
  return state_->guarded(std::move(done));
}

std::string Aggregator::stall() const {
  const std::optional<Stall>& now = state_->stalls.now();
  return now && now->awaited && !now->harmless && !now->busy ? now->sentence : std::string();
}

std::vector<Finding> Aggregator::take_new_findings() {
  std::vector<Finding> known;
  std::vector<Finding> fresh;
  for (auto& [key, model] : state_->analyses) {
    for (const auto& [id, finding] : model.findings()) {
      const auto [at, is_new] =
          state_->announced.try_emplace({key.first, key.second, id}, finding.severity);
      const bool is_graver = at->second < finding.severity;
      at->second = std::max(at->second, finding.severity);
      (is_new || is_graver ? fresh : known).push_back(finding);
    }
  }
  const std::size_t before = judge::one_per_cause(known).size();
  std::erase_if(fresh, [&](const Finding& finding) {
    std::vector<Finding> all = known;
    all.push_back(finding);
    return judge::one_per_cause(std::move(all)).size() == before;
  });
  sort_worst_first(fresh);
  return judge::one_per_cause(std::move(fresh));
}

std::vector<Finding> Aggregator::findings() const {
  std::vector<Finding> out;
  for (auto& [key, model] : state_->analyses) {
    for (const auto& [id, finding] : model.findings()) out.push_back(finding);
  }
  sort_worst_first(out);
  return judge::one_per_cause(std::move(out));
}

Verdict Aggregator::verdict() const {
  return judge::verdict(findings(), state_->coverage(), state_->incomplete.empty());
}

Status Aggregator::lose_others(std::string_view why) {
  if (state_->lost_others || !state_->health || state_->closed) return state_->health;
  state_->lost_others = true;
  state_->become_incomplete(why);
  return state_->guarded(state_->writer.mark_incomplete(why));
}

std::string Aggregator::incomplete() const { return state_->incomplete; }

std::string Aggregator::too_short() const { return judge::statistics_text(state_->coverage()); }

Result<int> Aggregator::end_preflight(bool require_statistics) {
  if (!state_->health) return state_->health.error();
  auto written = state_->write_ready(true);
  const auto meaning = verdict();
  const bool judged = !require_statistics || state_->coverage().statistics_judged();
  const int code = meaning == Verdict::kInconsistent           ? 1
                   : meaning == Verdict::kConsistent && judged ? 0
                                                               : 2;
  if (written) written = state_->writer.preflight(code);
  if (!state_->guarded(written)) return written.error();
  return code;
}

Status Aggregator::close() {
  if (state_->closed) return state_->health;
  if (state_->health) static_cast<void>(state_->guarded(state_->write_last()));
  if (!state_->health) {
    const auto why = state_->health.error().message;
    abandon(why);
    return state_->health;
  }
  state_->closed = true;
  return state_->guarded(state_->writer.close());
}

void Aggregator::abandon(std::string_view why) {
  if (state_->closed) return;
  state_->closed = true;
  state_->writer.abandon(why);
  if (state_->health) state_->become_incomplete(why);
}

}  // namespace presum
