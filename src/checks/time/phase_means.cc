// SPDX-License-Identifier: Apache-2.0
#include "checks/time/phase_means.h"

#include <cmath>

#include "base/others_median.h"
#include "detect/e_values.h"

namespace presum::checks {
namespace {

constexpr std::size_t kSamples = 64;

template <class Value>
std::vector<double> values_of(const StepRecord& record, Value&& value) {
  std::vector<double> out;
  for (const WorkerRecord& w : record.workers) out.push_back(value(w.times));
  return out;
}

double mean_of(std::span<const double> values) {
  double sum = 0;
  for (const double x : values) sum += x;
  return sum / static_cast<double>(values.size());
}

double share_of(const StepTimes& times) {
  const double own = times.own();
  return own > 0 && std::isfinite(times.processor) ? std::min(1.0, times.processor / own) : 0;
}

// REQUIRES: not empty.
void add(BesideOthers& to, const BesideOthers& from, double weight) {
  for (std::size_t p = 0; p < kPhaseCount; ++p) to.phases[p] += weight * from.phases[p];
  for (const auto member : {&BesideOthers::own, &BesideOthers::waits, &BesideOthers::others_own,
                            &BesideOthers::on_processor, &BesideOthers::step}) {
    to.*member += weight * from.*member;
  }
}

// Over the ranks for which it is known.
template <class Samples>
base::ThreadTimes mean_of(const Samples& samples, base::ThreadTimes BesideOthers::*of) {
  base::ThreadTimes sum;
  double known = 0;
  for (const BesideOthers& s : samples) {
    const base::ThreadTimes& times = s.*of;
    if (std::isnan(times.processor)) continue;
    sum.processor += times.processor;
    sum.queued += times.queued;
    ++known;
  }
  return {sum.processor / known, sum.queued / known};
}

bool threads_known(const StepRecord& record) {
  return std::ranges::all_of(record.workers, [](const WorkerRecord& w) {
    return !w.times.on_device && std::isfinite(w.times.processor) && std::isfinite(w.times.queued);
  });
}

}  // namespace

bool all_timed(const StepRecord& record) {
  return record.workers.size() > 1 &&
         std::ranges::all_of(record.workers, [](const WorkerRecord& w) { return w.times.known(); });
}

void PhaseMeans::see(const StepRecord& record) {
  const auto& workers = record.workers;
  const auto own = values_of(record, [](const StepTimes& t) { return t.own(); });
  const auto waits = values_of(record, [](const StepTimes& t) { return t.of(Phase::kReduction); });
  const double step = mean_of(values_of(record, [](const StepTimes& t) { return t.total(); }));
  const double all_waits = mean_of(waits) * static_cast<double>(waits.size());
  const base::OthersMedian others_own(own);
  const bool threads = threads_known(record);
  const auto processor =
      values_of(record, [&](const StepTimes& t) { return threads ? t.processor : 0; });
  const auto queued = values_of(record, [&](const StepTimes& t) { return threads ? t.queued : 0; });
  const base::OthersMedian others_processor(processor);
  const base::OthersMedian others_queued(queued);
  std::vector<base::OthersMedian> others_phase;
  for (std::size_t p = 0; p < kPhaseCount; ++p) {
    others_phase.emplace_back(values_of(record, [&](const auto& t) { return t.seconds[p]; }));
  }
  for (std::size_t i = 0; i < workers.size(); ++i) {
    const StepTimes& times = workers[i].times;
    Sample now;
    now.number = record.step;
    now.others_own = others_own.of(own[i]);
    now.own = own[i] - now.others_own;
    if (threads) {
      now.thread = {processor[i], queued[i]};
      now.others_thread = {others_processor.of(processor[i]), others_queued.of(queued[i])};
    }
    now.waits = waits[i] - (all_waits - waits[i]) / static_cast<double>(waits.size() - 1);
    now.on_processor = share_of(times);
    now.step = step;
    for (std::size_t p = 0; p < kPhaseCount; ++p) {
      now.phases[p] = times.seconds[p] - others_phase[p].of(times.seconds[p]);
    }
    std::vector<Sample>& kept = workers_[workers[i].replica];
    if (kept.size() == kSamples) kept.erase(kept.begin());
    kept.push_back(now);
  }
  total_.add(step);
  waiting_.add(mean_of(waits) - *std::ranges::min_element(waits));
  const auto data = values_of(record, [](const StepTimes& t) { return t.of(Phase::kData); });
  data_.add(*std::ranges::min_element(data));
}

std::span<const PhaseMeans::Sample> PhaseMeans::samples(std::uint32_t replica,
                                                        std::uint64_t step) const {
  const std::span<const Sample> all = *workers_.find(replica);
  const auto first = std::ranges::find_if(all, [&](const Sample& s) { return s.number >= step; });
  const auto before = static_cast<std::size_t>(first - all.begin());
  return all.subspan(std::min(before, all.size() - 1));
}

BesideOthers PhaseMeans::since(std::uint32_t replica, std::uint64_t step) const {
  const auto some = samples(replica, step);
  BesideOthers out;
  for (const Sample& s : some) add(out, s, 1 / static_cast<double>(some.size()));
  out.thread = mean_of(some, &BesideOthers::thread);
  out.others_thread = mean_of(some, &BesideOthers::others_thread);
  return out;
}

PhaseMeans::Typical PhaseMeans::typical(std::uint32_t replica, std::uint64_t step) const {
  constexpr double kOfNormal = 1.4826;
  std::vector<double> values;
  for (const Sample& s : samples(replica, step)) values.push_back(s.own);
  Typical out{.own = detect::median(values)};
  for (double& x : values) x = std::abs(x - out.own);
  out.scatter = kOfNormal * detect::median(values);
  return out;
}

}  // namespace presum::checks
