// SPDX-License-Identifier: Apache-2.0
#include "metrics/step_metrics.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <unordered_set>

#include "metrics/direction.h"
#include "metrics/gram.h"

namespace presum {

Interval cosine_interval(double cosine, std::uint32_t sketch_size, double spike_share) {
  if (std::isnan(cosine) || sketch_size == 0) return {};
  constexpr double kSpikeWidening = 8;
  const double z = std::atanh(std::clamp(cosine, -1.0, 1.0));
  const double share = std::clamp(spike_share, 0.0, 1.0);
  const double half =
      1.96 / std::sqrt(static_cast<double>(sketch_size)) * (1 + kSpikeWidening * share);
  return {std::tanh(z - half), std::tanh(z + half)};
}

namespace metrics {
namespace {

struct Moments {
  std::size_t count = 0;
  double mean = kNaN;
  double std = kNaN;
  double range = kNaN;
};

// Two passes in double; population standard deviation. Not-finite values are left out.
template <class Range, class Get>
Moments moments(const Range& range, Get&& get) {
  Moments m;
  double sum = 0;
  double low = std::numeric_limits<double>::infinity();
  double high = -low;
  for (const auto& item : range) {
    const double x = get(item);
    if (!std::isfinite(x)) continue;
    ++m.count;
    sum += x;
    low = std::min(low, x);
    high = std::max(high, x);
  }
  if (m.count == 0) return m;
  m.mean = sum / static_cast<double>(m.count);
  m.range = high - low;
  double squares = 0;
  for (const auto& item : range) {
    const double x = get(item);
    if (std::isfinite(x)) squares += (x - m.mean) * (x - m.mean);
  }
  m.std = m.range == 0 ? 0 : std::sqrt(squares / static_cast<double>(m.count));
  return m;
}

void fill_loss(WorkerRecord& w, const packet::Step& step) {
  double weighted = 0;
  for (const MicroBatch& m : step.micro) {
    if (m.weight > 0) weighted += m.weight * m.loss;
    w.weight += m.weight;
    w.tokens += m.tokens;
  }
  if (w.weight > 0) w.loss = weighted / w.weight;
  w.loss_nonfinite = w.weight > 0 && !std::isfinite(w.loss);
}

WorkerRecord worker_record(const packet::Step& step) {
  WorkerRecord w{step};
  w.rank = step.header.identity.rank;
  w.replica = step.header.identity.replica;
  fill_loss(w, step);
  // A worker without input under DDP's join() takes part with no micro-batch.
  const bool unread =
      step.elements == 0 && (step.skipped_parameters > 0 || step.micro_batches == 0);
  w.grad_norm = unread ? kNaN : std::sqrt(step.total.sum_squares);
  w.grad_max = step.total.max_abs;
  w.nonfinite = step.total.nonfinite;
  w.fingerprint = step.total.fingerprint;
  if (step.reduced) {
    w.reduced_norm = std::sqrt(step.reduced->sum_squares);
    w.reduced_fingerprint = step.reduced->fingerprint;
  }
  return w;
}

std::uint32_t distinct_gradients(const std::vector<WorkerRecord>& workers) {
  std::unordered_set<std::uint64_t> seen;
  for (const WorkerRecord& w : workers) {
    if (w.grad_norm > 0 || w.nonfinite > 0) seen.insert(w.fingerprint);
  }
  return static_cast<std::uint32_t>(seen.size());
}

const packet::Group* find_group(const packet::Step& step, std::size_t at, std::uint64_t id) {
  if (at < step.groups.size() && step.groups[at].id == id) return &step.groups[at];
  const auto found = std::find_if(step.groups.begin(), step.groups.end(),
                                  [&](const packet::Group& g) { return g.id == id; });
  return found == step.groups.end() ? nullptr : &*found;
}

GroupRecord group_record(const StepInput& input, std::size_t at, std::uint64_t id) {
  GroupRecord g;
  g.id = id;
  for (const packet::Step* step : input.workers) {
    const packet::Group* group = find_group(*step, at, id);
    g.norms.push_back(group ? static_cast<float>(std::sqrt(group->sums.sum_squares)) : NAN);
    g.maxima.push_back(group ? static_cast<float>(group->sums.max_abs) : NAN);
    g.fingerprints.push_back(group ? static_cast<std::uint32_t>(group->sums.fingerprint) : 0);
    g.nonfinite += group ? group->sums.nonfinite : 0;
  }
  const Moments m = moments(g.norms, [](float x) { return static_cast<double>(x); });
  g.norm_mean = m.mean;
  g.norm_std = m.std;
  return g;
}

// The norm of the reduced gradient, if every worker that reported one holds the same bits.
std::optional<double> agreed_reduced_norm(StepRecord& record) {
  const WorkerRecord* first = nullptr;
  for (const WorkerRecord& w : record.workers) {
    if (std::isnan(w.reduced_norm) && w.reduced_fingerprint == 0) continue;
    if (first == nullptr) first = &w;
    if (w.reduced_fingerprint != first->reduced_fingerprint) record.reduced_disagrees = true;
  }
  if (first == nullptr || record.reduced_disagrees) return std::nullopt;
  return first->reduced_norm;
}

// W <g_i, G> of each worker; empty where one is not known.
std::vector<double> row_sums(const StepInput& input) {
  std::vector<double> rows;
  for (const packet::Step* step : input.workers) {
    if (!std::isfinite(step->mean_dot)) return {};
    rows.push_back(step->mean_dot * static_cast<double>(input.workers.size()));
  }
  return rows;
}

double sum_of(const std::vector<double>& x) { return std::accumulate(x.begin(), x.end(), 0.0); }

struct Norms {
  double sum = 0;
  double squares = 0;
  bool all_finite = true;
};

Norms sum_norms(const std::vector<WorkerRecord>& workers) {
  Norms n;
  for (const WorkerRecord& w : workers) {
    n.all_finite = n.all_finite && std::isfinite(w.grad_norm);
    n.sum += w.grad_norm;
    n.squares += w.grad_norm * w.grad_norm;
  }
  return n;
}

bool usable(std::span<const float> sketch) {
  double squares = 0;
  for (const float x : sketch) squares += static_cast<double>(x) * static_cast<double>(x);
  return std::isfinite(squares) && squares > 0;
}

// Which workers have a direction, and their sketches and norms.
struct Directed {
  Directions directions;
  std::vector<std::size_t> workers;  // positions in StepInput::workers
};

Directed directed_workers(const StepInput& input, const StepRecord& record) {
  Directed d;
  for (std::size_t i = 0; i < input.workers.size(); ++i) {
    const auto& sketch = input.workers[i]->sketch;
    const double norm = record.workers[i].grad_norm;
    if (sketch.empty() || !std::isfinite(norm) || norm == 0 || !usable(sketch)) continue;
    auto& size = d.directions.sketch_size;
    if (size == 0) size = static_cast<std::uint32_t>(sketch.size());
    if (sketch.size() != size) continue;
    d.directions.sketches.emplace_back(sketch);
    d.directions.norms.push_back(norm);
    d.workers.push_back(i);
  }
  return d;
}

class Compute {
 public:
  explicit Compute(const StepInput& input) : input_(input) {}

  StepRecord run() {
    fill_workers();
    fill_dispersion();
    fill_groups();
    directed_ = directed_workers(input_, record_);
    record_.sketch_size = directed_.directions.sketch_size;
    fill_reduced();
    if (!fill_gram()) fill_sketched();
    fill_noise();
    return std::move(record_);
  }

 private:
  void fill_workers() {
    record_.workers_expected = input_.workers_expected;
    record_.workers_seen = static_cast<std::uint32_t>(input_.workers.size());
    record_.missing_replicas = input_.missing;
    for (const packet::Step* step : input_.workers) record_.workers.push_back(worker_record(*step));
    if (input_.workers.empty()) return;
    const packet::Header& h = input_.workers.front()->header;
    record_.model.segment = h.segment;
    record_.model.module = h.identity.module;
    record_.model.shard = h.identity.shard;
    record_.step = h.step;
    record_.distinct_gradients = distinct_gradients(record_.workers);
    norms_ = sum_norms(record_.workers);
  }

  void fill_dispersion() {
    const auto loss = moments(record_.workers, [](const WorkerRecord& w) { return w.loss; });
    record_.loss_mean = loss.mean;
    record_.loss_std = loss.std;
    record_.loss_range = loss.range;
    const auto norm = moments(record_.workers, [](const WorkerRecord& w) { return w.grad_norm; });
    record_.grad_norm_mean = norm.mean;
    record_.grad_norm_std = norm.std;
    if (norm.mean > 0) record_.grad_norm_cv = norm.std / norm.mean;
    const auto tokens = moments(record_.workers, [](const WorkerRecord& w) {
      return w.tokens == 0 ? kNaN : static_cast<double>(w.tokens);
    });
    if (tokens.count == record_.workers.size() && tokens.count > 0) {
      record_.tokens_cv = tokens.std / tokens.mean;
    }
  }

  void fill_groups() {
    if (input_.workers.empty()) return;
    const auto& groups = input_.workers.front()->groups;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      record_.groups.push_back(group_record(input_, g, groups[g].id));
    }
  }

  bool complete() const {
    return record_.workers_seen == record_.workers_expected && record_.workers_seen > 0 &&
           norms_.all_finite;
  }

  double count() const { return static_cast<double>(record_.workers.size()); }

  // Sum over i != j of n_i n_j.
  double pair_weight() const { return norms_.sum * norms_.sum - norms_.squares; }

  void fill_reduced() {
    const auto read = agreed_reduced_norm(record_);
    if (complete() && !record_.reduced_disagrees) rows_ = row_sums(input_);
    const auto norm = read ? read : norm_of_rows();
    if (!norm) return;
    record_.reduced_norm = *norm;
    reduced_inferred_ = !read;
    if (!complete() || !std::isfinite(*norm)) return;
    const double total = count() * *norm;  // norm of the sum of all gradients
    exact_cross_sum_ = total * total - norms_.squares;
    const double weight = pair_weight();
    if (std::abs(*exact_cross_sum_) > weight + kReductionTolerance * norms_.squares ||
        !rows_possible(total)) {
      return distrust_reduced();  // no gradients of these norms have that mean
    }
    if (count() > 1 && weight > 0) record_.consistency = *exact_cross_sum_ / weight;
  }

  // If G is the mean, the mean of <g_i, G> is |G|^2.
  std::optional<double> norm_of_rows() const {
    if (rows_.empty()) return std::nullopt;
    return std::sqrt(std::max(0.0, sum_of(rows_))) / count();
  }

  // Whether the row sums, where they are known, are those of gradients with a sum of this norm.
  bool rows_possible(double total) const {
    if (rows_.empty()) return true;
    const double squares = total * total;
    const double off = sum_of(rows_) - squares;
    if (std::abs(off) > kReductionTolerance * std::max(squares, norms_.squares)) return false;
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      const double bound = total + kReductionTolerance * norms_.sum;
      if (std::abs(rows_[i]) > record_.workers[i].grad_norm * bound) return false;
    }
    if (rows_.size() != 2) return true;
    return std::abs(rest_of_row(0) - rest_of_row(1)) <= kReductionTolerance * norms_.squares;
  }

  // Sum over j != i of <g_i, g_j>.
  double rest_of_row(std::size_t i) const {
    return rows_[i] - record_.workers[i].grad_norm * record_.workers[i].grad_norm;
  }

  void distrust_reduced() {
    record_.reduced_disagrees = true;
    record_.consistency = kNaN;
    if (reduced_inferred_) record_.reduced_norm = kNaN;
    exact_cross_sum_.reset();
    rows_.clear();
  }

  // Fills in what follows from a Gram matrix, where there is one of two or more directions.
  bool fill_gram() {
    gram_ = Gram::sum(input_.workers, record_.workers, input_.workers_expected);
    std::vector<std::size_t> directed;
    for (std::size_t i = 0; i < record_.workers.size(); ++i) {
      const double norm = record_.workers[i].grad_norm;
      if (std::isfinite(norm) && norm > 0) directed.push_back(i);
    }
    if (!gram_ || directed.size() < 2) return false;
    record_.cosine_source = CosineSource::kGram;
    fill_gram_cosines(directed);
    if (complete()) fill_gram_sums();
    return true;
  }

  void fill_gram_cosines(const std::vector<std::size_t>& directed) {
    const std::size_t w = record_.workers.size();
    if (input_.pairwise) record_.cosines.assign(w * (w - 1) / 2, NAN);
    std::vector<double> row(w);
    for (const std::size_t i : directed) {
      for (const std::size_t j : directed) {
        if (j == i) continue;
        const double cosine = gram_->cosine(i, j);
        row[i] += cosine;
        if (input_.pairwise && i < j) record_.cosines[place(i, j)] = static_cast<float>(cosine);
      }
    }
    const auto count = static_cast<double>(directed.size());
    for (const std::size_t i : directed) {
      record_.workers[i].cosine_to_others = row[i] / (count - 1);
    }
    const double mean = sum_of(row) / (count * (count - 1));
    record_.cosine_mean = record_.cosine_low = record_.cosine_high = mean;
  }

  void fill_gram_sums() {
    if (exact_cross_sum_ && !reduction_fits_gram()) distrust_reduced();
    exact_cross_sum_ = gram_->cross_sum();
    record_.consistency = *exact_cross_sum_ / pair_weight();
    record_.mean_norm = std::sqrt(std::max(0.0, norms_.squares + *exact_cross_sum_)) / count();
    record_.mean_norm_error = 0;
  }

  bool reduction_fits_gram() const {
    const double cross = gram_->cross_sum();
    const double slack = kReductionTolerance * std::max(norms_.squares, norms_.squares + cross);
    if (std::abs(*exact_cross_sum_ - cross) > slack) return false;
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      const double row_slack = kReductionTolerance * record_.workers[i].grad_norm * norms_.sum;
      if (std::abs(rest_of_row(i) - gram_->row(i)) > row_slack) return false;
    }
    return true;
  }

  // Position of pair i < j in StepRecord::cosines.
  std::size_t place(std::size_t i, std::size_t j) const {
    return i * record_.workers.size() - i * (i + 1) / 2 + j - i - 1;
  }

  void fill_sketched() {
    fill_mean_norm();
    if (exact_pair()) {
      fill_exact_pair();
    } else {
      fill_directions();
    }
  }

  // Whether two workers' cosine follows from the reduced norm. Where it does not fit their sketches
  // the reduction was not their mean; rounding of a 16-bit reduction stays within the tolerance.
  bool exact_pair() {
    if (record_.workers.size() != 2 || !exact_cross_sum_) return false;
    const double product = record_.workers[0].grad_norm * record_.workers[1].grad_norm;
    if (product == 0) return false;
    if (std::abs(*exact_cross_sum_) <= 2 * product * (1 + kReductionTolerance) &&
        plausible_pair(product)) {
      return true;
    }
    distrust_reduced();
    return false;
  }

  // Two workers' sketches, where there are any, must allow the exact cosine.
  bool plausible_pair(double product) const {
    const Directed& d = directed_;
    if (d.workers.size() < 2) return true;
    const double sketched = pair_cosines(d.directions).front();
    const double slack = kSigmas / std::sqrt(static_cast<double>(d.directions.sketch_size));
    return std::abs(*exact_cross_sum_ / (2 * product) - sketched) <= slack + kReductionTolerance;
  }

  void fill_exact_pair() {
    const double product = record_.workers[0].grad_norm * record_.workers[1].grad_norm;
    const double cosine = std::clamp(*exact_cross_sum_ / (2 * product), -1.0, 1.0);
    record_.cosine_mean = record_.cosine_low = record_.cosine_high = cosine;
    record_.cosine_source = CosineSource::kExact;
    for (WorkerRecord& w : record_.workers) w.cosine_to_others = cosine;
    if (input_.pairwise) record_.cosines = {static_cast<float>(cosine)};
    record_.sketch_size = static_cast<std::uint32_t>(input_.workers[0]->sketch.size());
  }

  // ||mean of g_i||^2 = (sum ||g_i||^2 + sum over i != j of <g_i, g_j>) / W^2, before any
  // correction.
  void fill_mean_norm() {
    if (!complete() || directed_.workers.size() < 2 || !every_gradient_counted(directed_)) return;
    estimate_.emplace(directed_.directions);
    const auto w = static_cast<double>(record_.workers.size());
    const double squared = std::max(0.0, norms_.squares + estimate_->cross_sum()) / (w * w);
    record_.mean_norm = std::sqrt(squared);
    if (squared > 0) {
      record_.mean_norm_error = estimate_->cross_sum_error() / (2 * w * w * record_.mean_norm);
    }
  }

  void fill_directions() {
    const Directed& d = directed_;
    if (d.workers.size() < 2) return;
    if (!estimate_) estimate_.emplace(d.directions);
    CosineEstimate& estimate = *estimate_;
    record_.cosine_source = correct(d, estimate);
    record_.cosine_mean = estimate.mean();
    const double half = 1.96 * estimate.standard_error();
    record_.cosine_low = std::max(-1.0, estimate.mean() - half);
    record_.cosine_high = std::min(1.0, estimate.mean() + half);
    for (std::size_t i = 0; i < d.workers.size(); ++i) {
      record_.workers[d.workers[i]].cosine_to_others = estimate.to_others()[i];
    }
    if (every_gradient_counted(d)) cross_sum_ = estimate.cross_sum();
    if (input_.pairwise) fill_matrix(d, estimate);
  }

  // Zero gradients have no direction and add nothing; anything else left out is unknown.
  bool every_gradient_counted(const Directed& d) const {
    const auto zero = std::count_if(record_.workers.begin(), record_.workers.end(),
                                    [](const WorkerRecord& w) { return w.grad_norm == 0; });
    return d.workers.size() + static_cast<std::size_t>(zero) == record_.workers.size();
  }

  CosineSource correct(const Directed& d, CosineEstimate& estimate) {
    if (!exact_cross_sum_ || !every_gradient_counted(d)) return CosineSource::kSketch;
    if (!fits_sketches(d, estimate)) {
      distrust_reduced();
      return CosineSource::kSketch;
    }
    if (!rows_.empty() && d.workers.size() > 2) {
      estimate.correct_rows(rows_of(d));
      return CosineSource::kRowSums;
    }
    estimate.correct_total(*exact_cross_sum_);
    return CosineSource::kTotalNorm;
  }

  std::vector<double> rows_of(const Directed& d) const {
    std::vector<double> rows;
    for (const std::size_t i : d.workers) rows.push_back(rows_[i]);
    return rows;
  }

  bool fits_sketches(const Directed& d, const CosineEstimate& estimate) const {
    const double slack =
        kSigmas * estimate.cross_sum_error() + kReductionTolerance * norms_.squares;
    const bool total = std::abs(*exact_cross_sum_ - estimate.cross_sum()) <= slack;
    return total && (rows_.empty() || rows_fit_sketches(d, estimate));
  }

  // Errors of a worker's pairs may all point the same way.
  bool rows_fit_sketches(const Directed& d, const CosineEstimate& estimate) const {
    const double share =
        kReductionTolerance + kSigmas / std::sqrt(static_cast<double>(d.directions.sketch_size));
    for (std::size_t i = 0; i < d.workers.size(); ++i) {
      const double slack = share * d.directions.norms[i] * norms_.sum;
      if (std::abs(rest_of_row(d.workers[i]) - estimate.rows()[i]) > slack) return false;
    }
    return true;
  }

  void fill_matrix(const Directed& d, const CosineEstimate& estimate) {
    const std::size_t w = record_.workers.size();
    record_.cosines.assign(w * (w - 1) / 2, NAN);
    const auto raw = pair_cosines(d.directions);
    std::size_t at = 0;
    for (std::size_t i = 0; i < d.workers.size(); ++i) {
      for (std::size_t j = i + 1; j < d.workers.size(); ++j, ++at) {
        record_.cosines[place(d.workers[i], d.workers[j])] =
            static_cast<float>(estimate.corrected(i, j, raw[at]));
      }
    }
  }

  void fill_noise() {
    const auto w = static_cast<double>(record_.workers.size());
    const auto cross = exact_cross_sum_ ? exact_cross_sum_ : cross_sum_;
    if (!cross || w < 2) return;
    const double sum_squares = std::max(0.0, norms_.squares + *cross);  // ||sum g_i||^2
    const double mean = norms_.squares / w;
    const double mean_gradient = (norms_.squares + *cross) / (w * w);
    record_.signal = (w * mean_gradient - mean) / (w - 1);
    record_.noise = (mean - mean_gradient) * w / (w - 1);
    if (norms_.squares > 0) {
      record_.effective_workers =
          sum_squares > 0 ? std::min(w, w * norms_.squares / sum_squares) : w;
    }
  }

  // How far a reduction may miss the mean, relative to sum ||g_i||^2: 16-bit reductions round.
  static constexpr double kReductionTolerance = 0.02;
  static constexpr double kSigmas = 6;

  const StepInput& input_;
  StepRecord record_;
  Norms norms_;
  Directed directed_;
  std::optional<Gram> gram_;
  std::optional<CosineEstimate> estimate_;
  bool reduced_inferred_ = false;          // reduced_norm follows from the rows
  std::vector<double> rows_;               // W <g_i, G> of every worker; empty: not known
  std::optional<double> exact_cross_sum_;  // W^2 |G|^2 - sum ||g_i||^2, or that of the Gram matrix
  std::optional<double> cross_sum_;        // the same, estimated
};

}  // namespace

StepRecord compute(const StepInput& input) { return Compute(input).run(); }

double NoiseScale::update(double signal, double noise) {
  constexpr double kRate = 0.02;
  if (std::isfinite(signal) && std::isfinite(noise)) {
    signal_ += kRate * (signal - signal_);
    noise_ += kRate * (noise - noise_);
    weight_ += kRate * (1 - weight_);
  }
  return weight_ > 0 && signal_ > 0 ? std::max(0.0, noise_) / signal_ : kNaN;
}

}  // namespace metrics
}  // namespace presum
