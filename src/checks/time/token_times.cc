// SPDX-License-Identifier: Apache-2.0
#include "checks/time/token_times.h"

#include <algorithm>
#include <cmath>

namespace presum::checks {
namespace {

constexpr double kForgetting = 0.99;
constexpr double kTimesFollow = 0.7;  // correlation
constexpr std::uint64_t kTokenTimesFrom = 10;

// Without the time that the thread waited for a processor: tokens do not cause it.
double computes(const WorkerRecord& w) {
  constexpr double kMostQueued = 0.9;
  const double seconds = w.times.of(Phase::kForward) + w.times.of(Phase::kBackward);
  const double queued = std::isnan(w.times.queued) ? 0 : w.times.queued;
  return seconds - std::min(queued, kMostQueued * seconds);
}

}  // namespace

void TokenTimes::see(const StepRecord& record) {
  const auto& workers = record.workers;
  const auto n = static_cast<double>(workers.size());
  double x_mean = 0;
  double y_mean = 0;
  double seconds = 0;
  for (const WorkerRecord& w : workers) {
    if (w.tokens == 0 || !(computes(w) > 0)) return;
    x_mean += std::log(static_cast<double>(w.tokens)) / n;
    y_mean += std::log(computes(w)) / n;
    seconds += computes(w);
  }
  for (double* sum : {&xx_, &xy_, &yy_, &weight_}) *sum *= kForgetting;
  bool differ = false;
  for (const WorkerRecord& w : workers) {
    const double x = std::log(static_cast<double>(w.tokens)) - x_mean;
    const double y = std::log(computes(w)) - y_mean;
    differ = differ || std::abs(x) > 1e-9;
    xx_ += x * x;
    xy_ += x * y;
    yy_ += y * y;
    Share& share = shares_[w.replica];
    share.log_tokens.add(x * n / (n - 1));  // relative to the mean of the others
    share.computes.add((seconds - computes(w)) / (n - 1));
  }
  weight_ += n;
  steps_ += differ ? 1 : 0;
}

double TokenTimes::correlation() const {
  return xx_ > 0 && yy_ > 0 ? xy_ / std::sqrt(xx_ * yy_) : 0;
}

double TokenTimes::spread() const { return weight_ > 0 ? std::sqrt(xx_ / weight_) : 0; }

double TokenTimes::explained(std::uint32_t replica) const {
  const Share* share = shares_.find(replica);
  if (share == nullptr || steps_ < kTokenTimesFrom || correlation() < kTimesFollow) return 0;
  const double longer = std::exp(xy_ / xx_ * share->log_tokens.value()) - 1;
  return std::max(0.0, longer * share->computes.value());
}

}  // namespace presum::checks
