// SPDX-License-Identifier: Apache-2.0
#include "detect/rank_panel.h"

#include <algorithm>
#include <limits>

#include "base/hash.h"

namespace presum::detect {
namespace {

constexpr double kRecentRate = 0.1;

std::uint64_t tie(std::uint64_t step, Statistic statistic, std::uint32_t worker) {
  return splitmix64(splitmix64(step) ^ (std::uint64_t{worker} << 8) ^
                    static_cast<std::uint64_t>(statistic));
}

double center(double a, double b) { return a + (b - a) / 2; }

}  // namespace

RankPanel::RankPanel(const PanelSpec& spec, std::size_t workers, std::size_t thetas)
    : spec_(spec), workers_(workers), thetas_(thetas), memory_(workers) {
  const double sides = (spec.high ? 1 : 0) + (spec.low ? 1 : 0);
  component_weight_ = spec.weight / (sides * double(workers * thetas));
  blocks_.assign(workers * kSnapshots * 2 * thetas, 0);
  seen_.assign(workers * 3, 0);
  recent_.assign(workers, 0);
  readings_.resize(workers);
}

bool RankPanel::update(std::span<const double> values, std::uint64_t step, RankTables& tables) {
  std::ranges::fill(readings_, std::nullopt);
  if (!gather(values, step)) return false;
  const auto less = [&](const Item& a, const Item& b) { return before(a, b, step); };
  std::ranges::sort(reference_, less);
  update_scale();
  const std::size_t n = reference_.size();
  const RankTable& inner = tables.of(n);
  for (std::size_t r = 0; r < n; ++r) {
    take(reference_[r], inner.row(r), middle_without(r), step);
  }
  for (const Item& item : suspects_) {
    const auto below = std::ranges::lower_bound(reference_, item, less) - reference_.begin();
    take(item, tables.of(n + 1).row(static_cast<std::size_t>(below)), middle(), step);
  }
  memory_.follow(readings_);
  ++steps_;
  return true;
}

// Separates the ranks that are compared with each other from those already blamed. If most are
// blamed, it compares all, because it is then unknown what is normal.
bool RankPanel::gather(std::span<const double> values, std::uint64_t step) {
  reference_.clear();
  suspects_.clear();
  double low = std::numeric_limits<double>::infinity();
  double high = -low;
  for (std::uint32_t i = 0; i < workers_; ++i) {
    if (!std::isfinite(values[i])) continue;
    low = std::min(low, values[i]);
    high = std::max(high, values[i]);
    (memory_.blamed(i, step) ? suspects_ : reference_).push_back({values[i], i});
  }
  const std::size_t known = reference_.size() + suspects_.size();
  if (known < std::max<std::size_t>(2, spec_.least_workers) || low == high) return false;
  if (reference_.size() < 2 || 2 * reference_.size() < known) {
    reference_.insert(reference_.end(), suspects_.begin(), suspects_.end());
    suspects_.clear();
  }
  return true;
}

bool RankPanel::before(const Item& a, const Item& b, std::uint64_t step) const {
  if (a.value != b.value) return a.value < b.value;
  return tie(step, spec_.statistic, a.worker) < tie(step, spec_.statistic, b.worker);
}

void RankPanel::update_scale() {
  const double m = middle();
  scratch_.clear();
  for (const Item& item : reference_) scratch_.push_back(std::abs(item.value - m));
  scale_.update(scratch_);
}

double RankPanel::middle() const {
  const std::size_t n = reference_.size();
  return center(reference_[(n - 1) / 2].value, reference_[n / 2].value);
}

// The median of the other ranks, from the sorted values of all.
double RankPanel::middle_without(std::size_t rank) const {
  const std::size_t others = reference_.size() - 1;
  const auto at = [&](std::size_t k) { return reference_[k < rank ? k : k + 1].value; };
  return center(at((others - 1) / 2), at(others / 2));
}

void RankPanel::take(const Item& item, std::span<const double> e, double others,
                     std::uint64_t step) {
  const double difference = item.value - others;
  const Reading reading{
      scale_.distance(difference),
      bounded(spec_.relative && difference != 0 ? difference / std::abs(others) : difference)};
  const auto seen = std::span(seen_).subspan(std::size_t{item.worker} * 3, 3);
  advance(block(item.worker), e, step, {seen[0], seen[1], seen[2]});
  seen[0] += 1;
  seen[1] += reading.effect;
  seen[2] += reading.difference;
  recent_[item.worker] += kRecentRate * (reading.difference - recent_[item.worker]);
  readings_[item.worker] = reading;
}

std::span<double> RankPanel::block(std::size_t worker) {
  const std::size_t size = kSnapshots * 2 * thetas_;
  return std::span(blocks_).subspan(worker * size, size);
}

std::span<const double> RankPanel::block(std::size_t worker) const {
  const std::size_t size = kSnapshots * 2 * thetas_;
  return std::span(blocks_).subspan(worker * size, size);
}

void RankPanel::add_evidence(std::span<double> totals) const {
  for (std::size_t i = 0; i < workers_; ++i) {
    totals[i] += evidence(i, Side::kHigh) + evidence(i, Side::kLow);
  }
}

double RankPanel::evidence(std::size_t worker, Side side) const {
  if (!watches(side)) return 0;
  return component_weight_ * sum(block(worker).subspan(first_column(side), thetas_));
}

Window RankPanel::window(std::size_t worker, Side side, std::uint64_t step) const {
  const double* seen = &seen_[worker * 3];
  return window_of(block(worker), 2 * thetas_, first_column(side), thetas_,
                   {seen[0], seen[1], seen[2]}, step);
}

bool RankPanel::matters(const Window& window, Side side) const {
  const double sign = side == Side::kHigh ? 1 : -1;
  return sign * window.effect >= kLeastEffect && sign * window.difference >= spec_.least_difference;
}

void RankPanel::reset(std::size_t worker, Side side) {
  clear(block(worker), 2 * thetas_, first_column(side), thetas_);
}

void RankPanel::reset_worker(std::size_t worker) { std::ranges::fill(block(worker), 0.0); }

std::vector<std::pair<std::uint32_t, Side>> RankPanel::lasting() const {
  auto out = memory_.lasting();
  std::erase_if(out, [&](const auto& raised) { return !readings_[raised.first]; });
  return out;
}

void RankPanel::restart(std::uint64_t step) {
  for (std::size_t i = 0; i < workers_; ++i) begin_at(block(i), 2 * thetas_, step);
  memory_.restart();
}

}  // namespace presum::detect
