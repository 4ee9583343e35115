// SPDX-License-Identifier: Apache-2.0
#include "detect/detector.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "base/hash.h"
#include "detect/archive.h"
#include "detect/e_values.h"
#include "detect/history.h"
#include "detect/pair_panel.h"
#include "detect/partition.h"
#include "detect/rank_panel.h"
#include "detect/statistics.h"

namespace presum::detect {
namespace {

constexpr std::array kThetas = {0.25, 0.5, 0.8, 1.25, 2.0, 4.0};
constexpr std::array kGroupThetas = {1.0, 4.0};
constexpr std::size_t kMostWorkers = 4096;
constexpr std::size_t kMostGroupWorkers = 256;
constexpr std::size_t kMostGroups = 64;
constexpr std::size_t kStatistics = 9;
constexpr std::uint64_t kMagic = 0x3254'4544'5350'5250ULL;  // "PRPSDET2": its 2 is the version

// Weights of all statistics, with those of pairs (0.1) and partitions (0.1), add up to 1.
constexpr std::array kSpecs = {
    PanelSpec{Statistic::kLoss, true, true, 0.2, 2, true, 0.005},
    PanelSpec{Statistic::kNorm, true, true, 0.2, 2, false, 0.03},
    PanelSpec{Statistic::kDirection, true, true, 0.15, 3, false, 0.002},
    PanelSpec{Statistic::kPeak, true, true, 0.05, 2, false, 0.03},
    PanelSpec{Statistic::kResidual, true, false, 0.05, 4, false, 0.03},
    PanelSpec{Statistic::kTokens, true, true, 0.05, 2, false, 0.03},
    PanelSpec{Statistic::kMicroBatch, false, true, 0.05, 2, true, 0.5},
};
constexpr PanelSpec kGroupSpec{
    Statistic::kGroupNorm, true, true, 0.05 / double(kMostGroups), 2, false, 0.1};
constexpr std::size_t kLossPanel = 0;
constexpr std::size_t kNormPanel = 1;
constexpr std::size_t kDirectionPanel = 2;
constexpr std::size_t kMicroPanel = 6;

double usable_level(double level) { return level >= 1 ? std::min(level, 1e100) : Options{}.level; }

bool in_order(const StepRecord& record) {
  const auto not_ascending = [](const WorkerRecord& a, const WorkerRecord& b) {
    return a.replica >= b.replica;
  };
  return std::ranges::adjacent_find(record.workers, not_ascending) == record.workers.end() &&
         record.workers.back().replica < record.workers_expected;
}

bool is_ratio(Statistic s) {
  return s == Statistic::kNorm || s == Statistic::kTokens || s == Statistic::kGroupNorm;
}

}  // namespace

struct Detector::State {
  explicit State(const Options& o) : options(o) {
    options.level = usable_level(o.level);
    start(0);
  }

  std::vector<Alarm> update(const StepRecord& record);
  std::vector<Alarm> lasting() const;
  template <class Archive>
  void visit(Archive& archive);
  void visit_groups(RestoringArchive& archive);
  void visit_groups(SavingArchive& archive);
  bool fits() const;

  void start(std::uint32_t expected);
  void restart(std::uint64_t step);
  void watch(const StepRecord& record);
  std::vector<bool> odd_workers() const;
  void leave_out_named_pairs();
  void leave_out_odd_directions();
  void leave_out_blamed();
  void watch_groups(const StepRecord& record);
  void leave_out_odd_norms();
  RankPanel* group_panel(std::uint64_t id, std::size_t likely);
  void watch_pairs(const StepRecord& record);

  void judge_workers(std::vector<Alarm>& alarms);
  void judge_worker(std::uint32_t worker, std::vector<Alarm>& alarms);
  void judge_pairs(std::vector<Alarm>& alarms);
  void judge_partition(std::vector<Alarm>& alarms);
  void judge_history(const StepRecord& record, std::vector<Alarm>& alarms);
  void judge_events(const RankPanel& panel, EventWatch& watch, std::vector<Alarm>& alarms);

  struct Strongest {
    RankPanel* panel = nullptr;
    Side side = Side::kHigh;
    std::uint64_t group = 0;
    double evidence = 0;
  };
  Strongest strongest(std::uint32_t worker);
  void settle(const Strongest& s, std::uint32_t worker, std::vector<Alarm>& alarms);
  Alarm subject(const RankPanel& panel, Side side, std::uint32_t worker) const;
  Alarm outlier(const Strongest& s, std::uint32_t worker, const Window& window) const;
  std::uint64_t deviating_group(std::uint32_t worker) const;
  bool explained_by_outlier(double evidence, std::vector<Alarm>& alarms);
  Alarm partition_alarm(Partition::Test test, const Window& window, double evidence) const;
  std::optional<std::uint32_t> suspect(const RankPanel& panel, Side side) const;
  bool cooling(std::vector<std::uint64_t>& raised_at, std::size_t at) const;
  void saw(Statistic s, bool seen) { steps[static_cast<std::size_t>(s)] += seen ? 1 : 0; }

  Options options;
  std::uint32_t workers = 0;
  std::uint64_t updates = 0;
  std::uint64_t last_step = 0;  // of an update
  std::array<std::uint64_t, kStatistics> steps = {};
  std::vector<RankPanel> panels;  // in the order of kSpecs
  std::vector<std::uint64_t> group_ids;
  std::vector<RankPanel> groups;
  PairPanel pairs;
  Partition partition;
  std::array<EventWatch, 2> events;  // of loss and norm
  SameWork same_work;
  std::vector<std::uint64_t> event_raised_at;  // loss then norm, by worker; step + 1, 0: never
  std::vector<std::uint64_t> same_raised_at;   // likewise, one

  // Of the last step.
  Tick tick;
  Statistics values;
  std::vector<double> group_values;
  std::vector<std::uint32_t> replicas;
  std::vector<float> cosines;
  std::vector<double> totals;
  RankTables tables{kThetas};
  RankTables group_tables{kGroupThetas};
};

// ---- watching

void Detector::State::start(std::uint32_t expected) {
  workers = expected;
  const std::size_t n = expected < 2 || expected > kMostWorkers ? 0 : expected;
  panels.clear();
  for (const PanelSpec& spec : kSpecs) panels.emplace_back(spec, n, kThetas.size());
  group_ids.clear();
  groups.clear();
  pairs = PairPanel(n);
  partition = {};
  events = {};
  same_work = {};
  event_raised_at.assign(2 * n, 0);
  same_raised_at.assign(1, 0);
}

std::vector<Alarm> Detector::State::update(const StepRecord& record) {
  if (record.workers_expected != workers) start(record.workers_expected);
  std::vector<Alarm> alarms;
  if (workers < 2 || workers > kMostWorkers || record.workers.size() < 2 || !in_order(record)) {
    return alarms;
  }
  if (updates > 0 && record.step <= last_step) restart(record.step);
  last_step = record.step;
  const auto t = double(++updates);
  const bool ever = options.control == Options::Control::kEver;
  tick = {record.step, ever ? 1 / (t * (t + 1)) : 1};
  watch(record);
  judge_history(record, alarms);
  judge_workers(alarms);
  judge_pairs(alarms);
  judge_partition(alarms);
  return alarms;
}

// The steps have begun to count anew. What was said in the old count has no place in the new one.
void Detector::State::restart(std::uint64_t step) {
  for (auto* set : {&panels, &groups}) {
    for (RankPanel& panel : *set) panel.restart(step);
  }
  pairs.restart(step);
  partition.restart(step);
  same_work = {};
  std::ranges::fill(event_raised_at, 0);
  std::ranges::fill(same_raised_at, 0);
}

void Detector::State::watch(const StepRecord& record) {
  values.fill(record, workers, odd_workers());
  leave_out_named_pairs();
  tables.trim();
  group_tables.trim();
  const std::array<const std::vector<double>*, kSpecs.size()> sources = {
      &values.loss,     &values.norm,   &values.direction, &values.peak,
      &values.residual, &values.tokens, &values.closest};
  leave_out_blamed();
  const bool spread = partition.update(values.micro, tick);
  for (std::size_t k = 0; k < panels.size(); ++k) {
    const bool seen = panels[k].update(*sources[k], tick, tables);
    saw(kSpecs[k].statistic, seen || (k == kMicroPanel && spread));
  }
  watch_pairs(record);
  if (options.groups && workers <= kMostGroupWorkers) watch_groups(record);
}

std::vector<bool> Detector::State::odd_workers() const {
  std::vector<bool> odd(workers);
  for (std::uint32_t i = 0; i < workers; ++i) {
    odd[i] = panels[kLossPanel].blamed(i, tick.step) || panels[kNormPanel].blamed(i, tick.step) ||
             pairs.named(i, tick.step);
  }
  return odd;
}

// A pair that was named moves the mean cosine of both.
void Detector::State::leave_out_named_pairs() {
  for (std::uint32_t i = 0; i < workers; ++i) {
    if (pairs.named(i, tick.step)) values.direction[i] = kNaN;
  }
}

// Micro-batches of a worker that is blamed already say nothing new about the others.
void Detector::State::leave_out_blamed() {
  const auto blamed = [&](std::uint32_t i) {
    return panels[kLossPanel].blamed(i, tick.step) || panels[kMicroPanel].blamed(i, tick.step);
  };
  std::uint32_t count = 0;
  for (std::uint32_t i = 0; i < workers; ++i) count += blamed(i) ? 1 : 0;
  if (workers - count < 2 || 2 * count > workers) return;
  for (std::uint32_t i = 0; i < workers; ++i) {
    if (blamed(i)) values.micro[i].clear();
  }
}

void Detector::State::watch_groups(const StepRecord& record) {
  group_values.assign(workers, kNaN);
  bool seen = false;
  for (std::size_t g = 0; g < record.groups.size(); ++g) {
    RankPanel* panel = group_panel(record.groups[g].id, g);
    if (panel == nullptr) continue;
    fill_group(record, record.groups[g], group_values);
    leave_out_odd_norms();
    seen = panel->update(group_values, tick, group_tables) || seen;
  }
  saw(Statistic::kGroupNorm, seen);
}

// A worker whose whole norm deviates is said to do so once, not once for every group.
void Detector::State::leave_out_odd_norms() {
  for (std::uint32_t i = 0; i < workers; ++i) {
    if (panels[kNormPanel].blamed(i, tick.step)) group_values[i] = kNaN;
  }
}

RankPanel* Detector::State::group_panel(std::uint64_t id, std::size_t likely) {
  if (likely < group_ids.size() && group_ids[likely] == id) return &groups[likely];
  const auto found = std::ranges::find(group_ids, id);
  if (found != group_ids.end()) return &groups[std::size_t(found - group_ids.begin())];
  if (group_ids.size() == kMostGroups) return nullptr;
  group_ids.push_back(id);
  return &groups.emplace_back(kGroupSpec, workers, kGroupThetas.size());
}

void Detector::State::watch_pairs(const StepRecord& record) {
  replicas.clear();
  for (const WorkerRecord& w : record.workers) replicas.push_back(w.replica);
  cosines = record.cosines;
  if (cosines.size() == replicas.size() * (replicas.size() - 1) / 2) leave_out_odd_directions();
  saw(Statistic::kPair, pairs.update(replicas, cosines, tick));
}

// A worker whose direction deviates moves all its pairs.
void Detector::State::leave_out_odd_directions() {
  const auto odd = [&](std::size_t p) {
    return panels[kDirectionPanel].blamed(replicas[p], tick.step);
  };
  std::size_t at = 0;
  for (std::size_t i = 0; i < replicas.size(); ++i) {
    for (std::size_t j = i + 1; j < replicas.size(); ++j, ++at) {
      if (odd(i) || odd(j)) cosines[at] = NAN;
    }
  }
}

// ---- judging

void Detector::State::judge_workers(std::vector<Alarm>& alarms) {
  totals.assign(workers, 0);
  for (const auto* set : {&panels, &groups}) {
    for (const RankPanel& panel : *set) panel.add_evidence(totals);
  }
  for (std::uint32_t i = 0; i < workers; ++i) judge_worker(i, alarms);
}

// A worker is named by its own evidence alone, so that two at fault are both named. What does not
// matter, or was said just now, is set back without a word; the rest may still be enough.
void Detector::State::judge_worker(std::uint32_t worker, std::vector<Alarm>& alarms) {
  while (totals[worker] >= options.level) {
    const Strongest s = strongest(worker);
    if (s.evidence <= 0) return;
    settle(s, worker, alarms);
  }
}

Detector::State::Strongest Detector::State::strongest(std::uint32_t worker) {
  Strongest best;
  const auto offer = [&](RankPanel& panel, std::uint64_t group) {
    for (const Side side : {Side::kHigh, Side::kLow}) {
      const double evidence = panel.evidence(worker, side);
      if (evidence > best.evidence) best = {&panel, side, group, evidence};
    }
  };
  for (RankPanel& panel : panels) offer(panel, 0);
  for (std::size_t g = 0; g < groups.size(); ++g) offer(groups[g], group_ids[g]);
  return best;
}

void Detector::State::settle(const Strongest& s, std::uint32_t worker, std::vector<Alarm>& alarms) {
  const Window window = s.panel->window(worker, s.side, tick.step);
  const bool matters = s.panel->matters(window, s.side);
  if (matters) s.panel->blame(worker, tick.step);
  if (!matters || s.panel->cooling(worker, s.side, tick.step, options.cooldown)) {
    s.panel->reset(worker, s.side);
    totals[worker] -= s.evidence;
    return;
  }
  alarms.push_back(outlier(s, worker, window));
  for (const std::uint32_t replica : alarms.back().replicas) {
    totals[replica] = 0;
    const Side side = replica == worker ? s.side : opposite(s.side);
    s.panel->raised(replica, side, tick.step, window.effect);
    for (auto* set : {&panels, &groups}) {
      for (RankPanel& panel : *set) panel.reset_worker(replica);
    }
  }
}

Alarm Detector::State::subject(const RankPanel& panel, Side side, std::uint32_t worker) const {
  const bool micro = panel.spec().statistic == Statistic::kMicroBatch;
  Alarm alarm;
  alarm.kind = micro ? Alarm::Kind::kTooInconsistent : Alarm::Kind::kOutlier;
  alarm.statistic = panel.spec().statistic;
  alarm.high = side == Side::kHigh;
  alarm.replicas = {worker};
  if (workers == 2 && !micro) alarm.replicas = {0, 1};
  return alarm;
}

std::vector<Alarm> Detector::State::lasting() const {
  std::vector<Alarm> out;
  for (const auto* set : {&panels, &groups}) {
    for (const RankPanel& panel : *set) {
      for (const auto& [worker, side] : panel.lasting()) {
        out.push_back(subject(panel, side, worker));
      }
    }
  }
  return out;
}

Alarm Detector::State::outlier(const Strongest& s, std::uint32_t worker,
                               const Window& window) const {
  Alarm alarm = subject(*s.panel, s.side, worker);
  const Statistic statistic = alarm.statistic;
  alarm.first_step = window.first_step;
  alarm.step = tick.step;
  alarm.evidence = std::log10(totals[worker]);
  alarm.effect = window.effect;
  if (is_ratio(statistic)) alarm.ratio = std::exp(window.difference);
  const bool local = statistic == Statistic::kLoss || statistic == Statistic::kNorm;
  alarm.group = local ? deviating_group(worker) : s.group;
  return alarm;
}

// The group that deviates clearly more than the groups usually do; 0 where none does.
std::uint64_t Detector::State::deviating_group(std::uint32_t worker) const {
  constexpr double kLeastDifference = 0.2;
  constexpr double kTimesOthers = 3;
  std::vector<double> sizes;
  for (const RankPanel& panel : groups) sizes.push_back(std::abs(panel.recent(worker)));
  if (sizes.size() < 3) return 0;
  const auto largest = std::ranges::max_element(sizes);
  const double size = *largest;
  const std::uint64_t id = group_ids[std::size_t(largest - sizes.begin())];
  return size >= kLeastDifference && size >= kTimesOthers * median(sizes) ? id : 0;
}

void Detector::State::judge_pairs(std::vector<Alarm>& alarms) {
  if (pairs.steps() == 0) return;
  for (const auto& c : pairs.crossings(options.level, tick.step, options.cooldown)) {
    Alarm alarm;
    alarm.kind = c.similar ? Alarm::Kind::kPairSimilar : Alarm::Kind::kPairOpposed;
    alarm.statistic = Statistic::kPair;
    alarm.high = c.similar;
    alarm.replicas = {c.i, c.j};
    alarm.first_step = c.window.first_step;
    alarm.step = tick.step;
    alarm.evidence = std::log10(c.evidence);
    alarm.effect = c.similar ? c.window.effect : -c.window.effect;
    alarms.push_back(std::move(alarm));
  }
}

void Detector::State::judge_partition(std::vector<Alarm>& alarms) {
  for (const auto test : {Partition::kEven, Partition::kUneven, Partition::kClose}) {
    const double evidence = partition.evidence(test);
    if (!(evidence >= options.level)) continue;
    const Window window = partition.window(test, tick.step);
    partition.reset(test);
    if (!Partition::matters(test, window)) continue;
    if (partition.cooling(test, tick.step, options.cooldown)) continue;
    partition.raised(test, tick.step);
    if (test == Partition::kUneven && explained_by_outlier(evidence, alarms)) continue;
    alarms.push_back(partition_alarm(test, window, evidence));
  }
}

// One worker with higher or lower losses also makes the workers' means differ.
bool Detector::State::explained_by_outlier(double evidence, std::vector<Alarm>& alarms) {
  RankPanel& panel = panels[kLossPanel];
  for (const Side side : {Side::kHigh, Side::kLow}) {
    const auto worker = suspect(panel, side);
    if (!worker) continue;
    totals[*worker] = evidence;
    settle({&panel, side, 0, evidence}, *worker, alarms);
    return true;
  }
  return false;
}

Alarm Detector::State::partition_alarm(Partition::Test test, const Window& window,
                                       double evidence) const {
  Alarm alarm;
  const bool even = test == Partition::kEven;
  alarm.kind = even ? Alarm::Kind::kTooConsistent : Alarm::Kind::kTooInconsistent;
  alarm.statistic = Statistic::kMicroBatch;
  alarm.high = test == Partition::kUneven;
  const auto worker = even ? std::nullopt : suspect(panels[kMicroPanel], Side::kLow);
  if (worker) alarm.replicas = {*worker};
  alarm.first_step = window.first_step;
  alarm.step = tick.step;
  alarm.evidence = std::log10(evidence);
  alarm.effect = alarm.high ? window.effect : -window.effect;
  return alarm;
}

// The worker that holds nearly all evidence of one side, and a little at least. Of two workers it
// is the first: they mirror each other. None where the statistic said nothing at this step.
std::optional<std::uint32_t> Detector::State::suspect(const RankPanel& panel, Side side) const {
  constexpr double kShare = 0.9;
  constexpr double kLeast = 1e-6;  // of the level
  double total = 0;
  double most = 0;
  std::uint32_t worker = 0;
  for (std::uint32_t i = 0; i < workers; ++i) {
    const double evidence = panel.evidence(i, side);
    total += evidence;
    if (evidence > most) worker = i;
    most = std::max(most, evidence);
  }
  const bool enough = most > kShare * total && most >= kLeast * options.level;
  return enough && panel.reading(worker) ? std::optional(worker) : std::nullopt;
}

// Whether the same was raised just now; if not, it counts as raised at this step.
bool Detector::State::cooling(std::vector<std::uint64_t>& raised_at, std::size_t at) const {
  if (raised_at[at] != 0 && tick.step + 1 - raised_at[at] <= options.cooldown) return true;
  raised_at[at] = tick.step + 1;
  return false;
}

void Detector::State::judge_history(const StepRecord& record, std::vector<Alarm>& alarms) {
  judge_events(panels[kLossPanel], events[0], alarms);
  judge_events(panels[kNormPanel], events[1], alarms);
  const auto first = same_work.update(record);
  if (!first || cooling(same_raised_at, 0)) return;
  Alarm alarm;
  alarm.kind = Alarm::Kind::kTooConsistent;
  alarm.statistic = Statistic::kDirection;
  alarm.first_step = *first;
  alarm.step = tick.step;
  alarms.push_back(std::move(alarm));
}

void Detector::State::judge_events(const RankPanel& panel, EventWatch& watch,
                                   std::vector<Alarm>& alarms) {
  const bool norm = panel.spec().statistic == Statistic::kNorm;
  for (const auto& event : watch.update(panel, workers, tick.step)) {
    if (cooling(event_raised_at, (norm ? workers : 0) + event.worker)) continue;
    Alarm alarm;
    alarm.kind = Alarm::Kind::kEvent;
    alarm.statistic = panel.spec().statistic;
    alarm.high = event.reading.effect > 0;
    alarm.replicas = {event.worker};
    alarm.first_step = alarm.step = tick.step;
    alarm.evidence = std::abs(event.reading.effect);
    alarm.effect = event.reading.effect;
    if (norm) alarm.ratio = std::exp(event.reading.difference);
    alarms.push_back(std::move(alarm));
  }
}

// ---- saving

template <class Archive>
void Detector::State::visit(Archive& archive) {
  archive(updates);
  archive(last_step);
  for (std::uint64_t& s : steps) archive(s);
  for (RankPanel& panel : panels) archive(panel);
  archive(group_ids);
  visit_groups(archive);
  archive(pairs);
  archive(partition);
  for (EventWatch& watch : events) archive(watch);
  archive(same_work);
  archive(event_raised_at);
  archive(same_raised_at);
}

void Detector::State::visit_groups(SavingArchive& archive) {
  for (RankPanel& panel : groups) archive(panel);
}

void Detector::State::visit_groups(RestoringArchive& archive) {
  if (group_ids.size() > kMostGroups || workers > kMostGroupWorkers) return;
  for (std::size_t g = 0; g < group_ids.size(); ++g) {
    archive(groups.emplace_back(kGroupSpec, workers, kGroupThetas.size()));
  }
}

bool Detector::State::fits() const {
  const auto fits = [](const RankPanel& panel) { return panel.fits(); };
  const std::size_t n = workers < 2 || workers > kMostWorkers ? 0 : workers;
  return std::ranges::all_of(panels, fits) && std::ranges::all_of(groups, fits) &&
         groups.size() == group_ids.size() && pairs.fits() && event_raised_at.size() == 2 * n &&
         same_raised_at.size() == 1;
}

namespace {

// What a state starts with: it continues only under the same options.
struct Header {
  std::uint64_t magic = kMagic;
  std::uint64_t control = 0;
  double level = 0;
  std::uint64_t cooldown = 0;
  std::uint64_t groups = 0;
  bool operator==(const Header&) const = default;
};

Header header_of(const Options& options) {
  return {kMagic, static_cast<std::uint64_t>(options.control), options.level, options.cooldown,
          options.groups ? 1U : 0U};
}

std::uint64_t checksum(std::span<const std::byte> bytes) {
  return name_hash({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

}  // namespace

Detector::Detector(const Options& options) : state_(std::make_unique<State>(options)) {}
Detector::Detector(Detector&&) noexcept = default;
Detector& Detector::operator=(Detector&&) noexcept = default;
Detector::~Detector() = default;

std::vector<Alarm> Detector::update(const StepRecord& record) { return state_->update(record); }
std::vector<Alarm> Detector::lasting() const { return state_->lasting(); }

std::uint64_t Detector::steps(Statistic statistic) const {
  return state_->steps[static_cast<std::size_t>(statistic)];
}

std::string Detector::save() const {
  std::vector<std::byte> bytes;
  ByteWriter out(bytes);
  out.put(header_of(state_->options));
  out.put(std::uint64_t{state_->workers});
  SavingArchive archive(bytes);
  state_->visit(archive);
  out.put(checksum(bytes));
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

bool Detector::restore(std::string_view state) {
  auto bytes = std::as_bytes(std::span(state));
  if (bytes.size() < sizeof(std::uint64_t)) return false;
  const auto body = bytes.first(bytes.size() - sizeof(std::uint64_t));
  ByteReader end(bytes.subspan(body.size()));
  if (end.get<std::uint64_t>() != checksum(body)) return false;
  ByteReader start(body);
  if (start.get<Header>() != header_of(state_->options)) return false;
  const auto workers = start.get<std::uint64_t>();
  if (!workers || *workers > std::numeric_limits<std::uint32_t>::max()) return false;
  auto restored = std::make_unique<State>(state_->options);
  restored->start(static_cast<std::uint32_t>(*workers));
  RestoringArchive archive(body.subspan(body.size() - start.remaining()));
  restored->visit(archive);
  if (!archive.ok() || !archive.at_end() || !restored->fits()) return false;
  state_ = std::move(restored);
  return true;
}

}  // namespace presum::detect
