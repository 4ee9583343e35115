// SPDX-License-Identifier: Apache-2.0
#include "detect/detector.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "base/hash.h"
#include "base/pairs.h"
#include "detect/alarm_raiser.h"
#include "detect/archive.h"
#include "detect/e_values.h"
#include "detect/history.h"
#include "detect/pair_panel.h"
#include "detect/partition.h"
#include "detect/statistics.h"
#include "detect/worker_panels.h"

namespace presum::detect {
namespace {

constexpr std::size_t kWorkersMax = 4096;
constexpr std::uint64_t kMagic = 0x3354'4544'5350'5250ULL;  // "PRPSDET3"; the 3 is the version

bool in_order(const StepRecord& record) {
  const auto not_ascending = [](const WorkerRecord& a, const WorkerRecord& b) {
    return a.replica >= b.replica;
  };
  return std::ranges::adjacent_find(record.workers, not_ascending) == record.workers.end() &&
         record.workers.back().replica < record.workers_expected;
}

}  // namespace

struct Detector::State {
  explicit State(const Options& o) : options(o) { start(0); }

  std::vector<Alarm> update(const StepRecord& record);
  std::vector<Alarm> lasting() const;
  void visit(Archive& archive);

  void start(std::uint32_t expected);
  void restart(std::uint64_t step);
  void watch(const StepRecord& record);
  std::vector<bool> odd_workers() const;
  void leave_out_named_pairs();
  void leave_out_blamed();
  void watch_pairs(const StepRecord& record);
  void leave_out_odd_directions();
  void saw(Statistic s, bool seen) { steps[static_cast<std::size_t>(s)] += seen ? 1 : 0; }

  Options options;
  std::uint32_t workers = 0;
  std::uint64_t updates = 0;
  std::uint64_t last_step = 0;  // at the last update
  std::array<std::uint64_t, kStatisticCount> steps = {};
  WorkerPanels panels;
  PairPanel pairs;
  Partition partition;
  History history;

  // Scratch for the last step.
  Statistics values;
  std::vector<std::uint32_t> replicas;
  std::vector<float> cosines;
};

void Detector::State::start(std::uint32_t expected) {
  workers = expected;
  const std::size_t n = expected < 2 || expected > kWorkersMax ? 0 : expected;
  panels = WorkerPanels(n);
  pairs = PairPanel(n);
  partition = {};
  history = History(n);
}

std::vector<Alarm> Detector::State::update(const StepRecord& record) {
  if (record.workers_expected != workers) start(record.workers_expected);
  std::vector<Alarm> alarms;
  if (workers < 2 || workers > kWorkersMax || record.workers.size() < 2 || !in_order(record)) {
    return alarms;
  }
  if (updates > 0 && record.step <= last_step) restart(record.step);
  last_step = record.step;
  ++updates;
  watch(record);
  history.update(record.step, panels, options.cooldown, alarms);
  AlarmRaiser raiser(options, record.step, panels, alarms);
  raiser.raise_workers();
  raiser.raise_pairs(pairs);
  raiser.raise_partition(partition);
  return alarms;
}

std::vector<Alarm> Detector::State::lasting() const {
  std::vector<Alarm> out;
  panels.each_lasting([&](const RankPanel& panel, std::uint32_t worker, Side side) {
    out.push_back(alarm_about(panel, side, worker));
  });
  return out;
}

// The count of steps has started over. Blame and cool-downs of the old count do not apply to the
// new one.
void Detector::State::restart(std::uint64_t step) {
  panels.restart(step);
  pairs.restart(step);
  partition.restart(step);
  history.restart();
}

void Detector::State::watch(const StepRecord& record) {
  values.fill(record, workers, odd_workers());
  leave_out_named_pairs();
  leave_out_blamed();
  const bool spread = partition.update(values.micro, weigh_alike(record), last_step);
  StatisticSet seen = panels.update(values, last_step);
  if (spread) seen.set(static_cast<std::size_t>(Statistic::kMicroBatch));
  for (std::size_t s = 0; s < kStatisticCount; ++s) steps[s] += seen[s] ? 1 : 0;
  watch_pairs(record);
  if (workers <= kGroupWorkersMax) {
    saw(Statistic::kGroupNorm, panels.update_groups(record, last_step));
  }
}

std::vector<bool> Detector::State::odd_workers() const {
  std::vector<bool> odd(workers);
  for (std::uint32_t i = 0; i < workers; ++i) {
    odd[i] = panels.blamed(Statistic::kLoss, i, last_step) ||
             panels.blamed(Statistic::kNorm, i, last_step) || pairs.named(i, last_step);
  }
  return odd;
}

// A named pair shifts the mean cosine of both ranks.
void Detector::State::leave_out_named_pairs() {
  for (std::uint32_t i = 0; i < workers; ++i) {
    if (pairs.named(i, last_step)) values.direction[i] = kNaN;
  }
}

// Micro-batches of a blamed rank say nothing new about the others.
void Detector::State::leave_out_blamed() {
  const auto blamed = [&](std::uint32_t i) {
    return panels.blamed(Statistic::kLoss, i, last_step) ||
           panels.blamed(Statistic::kMicroBatch, i, last_step);
  };
  std::uint32_t count = 0;
  for (std::uint32_t i = 0; i < workers; ++i) count += blamed(i) ? 1 : 0;
  if (workers - count < 2 || 2 * count > workers) return;
  for (std::uint32_t i = 0; i < workers; ++i) {
    if (blamed(i)) values.micro[i].clear();
  }
}

void Detector::State::watch_pairs(const StepRecord& record) {
  replicas.clear();
  for (const WorkerRecord& w : record.workers) replicas.push_back(w.replica);
  cosines = record.cosines;
  if (cosines.size() == pairs_of(replicas.size())) leave_out_odd_directions();
  saw(Statistic::kPair, pairs.update(replicas, cosines, last_step));
}

// A rank whose direction deviates shifts all its pairs.
void Detector::State::leave_out_odd_directions() {
  const auto odd = [&](std::size_t p) {
    return panels.blamed(Statistic::kDirection, replicas[p], last_step);
  };
  std::size_t at = 0;
  for (std::size_t i = 0; i < replicas.size(); ++i) {
    for (std::size_t j = i + 1; j < replicas.size(); ++j, ++at) {
      if (odd(i) || odd(j)) cosines[at] = NAN;
    }
  }
}

// ---- saving

void Detector::State::visit(Archive& archive) {
  archive.each(std::tie(updates, last_step, steps));
  panels.visit(archive);
  archive.each(std::tie(pairs, partition, history));
}

namespace {

// The beginning of a saved state; only a detector with the same options may continue it.
struct Header {
  std::uint64_t magic = kMagic;
  std::uint64_t unused = 0;  // formerly a kind of error control
  double level = 0;
  std::uint64_t cooldown = 0;
  std::uint64_t groups = 1;  // formerly an option
  bool operator==(const Header&) const = default;
};

Header header_of(const Options& options) {
  return {.level = options.level, .cooldown = options.cooldown};
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
StepAlarms Detector::judge(const StepRecord& record) {
  StepAlarms out;
  if (!record.unused()) out.raised = update(record);
  out.lasting = state_->lasting();
  out.watched = state_->steps;
  return out;
}

std::uint64_t Detector::steps() const { return state_->updates; }

std::uint32_t Detector::workers() const { return state_->workers; }

std::string Detector::save() const {
  std::vector<std::byte> bytes;
  ByteWriter out(bytes);
  out.put(header_of(state_->options));
  out.put(std::uint64_t{state_->workers});
  Archive archive(bytes);
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
  Archive archive(body.subspan(body.size() - start.remaining()));
  restored->visit(archive);
  if (!archive.ok() || !archive.at_end() || !restored->pairs.fits()) return false;
  state_ = std::move(restored);
  return true;
}

std::uint64_t least_steps(std::size_t workers) {
  if (workers < 2) return 0;
  StepRecord record;
  for (std::uint32_t i = 0; i < std::min<std::size_t>(workers, 1024); ++i) {
    WorkerRecord worker;
    worker.rank = worker.replica = i;
    worker.loss = i == 0 ? 2 : 1;
    record.workers.push_back(worker);
  }
  record.workers_expected = record.workers_seen = static_cast<std::uint32_t>(record.workers.size());
  Detector detector({});
  while (detector.update(record).empty()) ++record.step;
  return record.step + 1;
}

}  // namespace presum::detect
