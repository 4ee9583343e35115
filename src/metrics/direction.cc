// SPDX-License-Identifier: Apache-2.0
#include "metrics/direction.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace presum::metrics {
namespace {

// Sum of products in double, over 8 fixed lanes so that compilers vectorize it. A sketch has a
// power of two of buckets, at least 64.
template <class Values>
double dot(std::span<const float> a, const Values& b) {
  std::array<double, 8> lane{};
  for (std::size_t i = 0; i < a.size(); i += 8) {
    for (std::size_t l = 0; l < 8; ++l) {
      lane[l] += static_cast<double>(a[i + l]) * static_cast<double>(b[i + l]);
    }
  }
  return std::accumulate(lane.begin(), lane.end(), 0.0);
}

std::vector<double> inverse_norms(const Directions& d) {
  std::vector<double> inverse;
  inverse.reserve(d.sketches.size());
  for (const auto& s : d.sketches) inverse.push_back(1 / std::sqrt(dot(s, s)));
  return inverse;
}

double clip(double cosine) { return std::clamp(cosine, -1.0, 1.0); }

// Mean over pairs i < j of x_i x_j.
double mean_pair_product(const std::vector<double>& x) {
  const double sum = std::accumulate(x.begin(), x.end(), 0.0);
  const double squares = std::inner_product(x.begin(), x.end(), x.begin(), 0.0);
  const auto v = static_cast<double>(x.size());
  return (sum * sum - squares) / (v * (v - 1));
}

std::vector<double> reciprocals(const std::vector<double>& x) {
  std::vector<double> out(x.size());
  std::transform(x.begin(), x.end(), out.begin(), [](double value) { return 1 / value; });
  return out;
}

}  // namespace

// Sums over ranks for each bucket b, with unit sketches u_i, that the estimates and their errors
// need.
struct CosineEstimate::Buckets {
  std::vector<double> unit;            // sum u_ib
  std::vector<double> weighted;        // sum n_i u_ib
  std::vector<double> unit_scatter;    // sum u_ib^2 (1 + r_i), r_i = sum over j != i of rho_ij
  std::vector<double> weight_scatter;  // sum u_ib^2 n_i (n_i + q_i), q_i = sum of n_j rho_ij
};

CosineEstimate::CosineEstimate(const Directions& d) : norms_(d.norms) {
  const std::size_t v = d.sketches.size();
  const auto inverse = inverse_norms(d);
  Buckets b;
  b.unit.assign(d.sketch_size, 0.0);
  b.weighted.assign(d.sketch_size, 0.0);
  for (std::size_t i = 0; i < v; ++i) {
    for (std::size_t k = 0; k < d.sketch_size; ++k) {
      const double u = static_cast<double>(d.sketches[i][k]) * inverse[i];
      b.unit[k] += u;
      b.weighted[k] += norms_[i] * u;
    }
  }
  b.unit_scatter.assign(d.sketch_size, 0.0);
  b.weight_scatter.assign(d.sketch_size, 0.0);
  for (std::size_t i = 0; i < v; ++i) {
    const double r = dot(d.sketches[i], b.unit) * inverse[i] - 1;
    const double q = dot(d.sketches[i], b.weighted) * inverse[i] - norms_[i];
    to_others_.push_back(clip(r / static_cast<double>(v - 1)));
    mean_ += r;
    rows_.push_back(norms_[i] * q);
    cross_sum_ += norms_[i] * q;
    for (std::size_t k = 0; k < d.sketch_size; ++k) {
      const double u = static_cast<double>(d.sketches[i][k]) * inverse[i];
      b.unit_scatter[k] += u * u * (1 + r);
      b.weight_scatter[k] += u * u * norms_[i] * (norms_[i] + q);
    }
  }
  mean_ = clip(mean_ / static_cast<double>(v * (v - 1)));
  estimate_errors(b);
}

// Delta method: bucket b contributes psi_b to the error of the mean cosine and phi_b to that of the
// cross sum. Both sum to zero over b; the sums of their squares are the variances.
void CosineEstimate::estimate_errors(const Buckets& b) {
  const auto v = static_cast<double>(norms_.size());
  const double pairs = v * (v - 1) / 2;
  const double per_total = mean_pair_product(reciprocals(norms_));
  double raw = 0;
  double corrected = 0;
  double cross = 0;
  for (std::size_t k = 0; k < b.unit.size(); ++k) {
    const double psi = (b.unit[k] * b.unit[k] - b.unit_scatter[k]) / (2 * pairs);
    const double phi = b.weighted[k] * b.weighted[k] - b.weight_scatter[k];
    raw += psi * psi;
    cross += phi * phi;
    const double rest = psi - per_total * phi / (2 * pairs);
    corrected += rest * rest;
  }
  standard_error_ = std::sqrt(raw);
  corrected_error_ = std::sqrt(corrected);
  cross_sum_error_ = std::sqrt(cross);
}

// Applies an addition to every <g_i, g_j> to the cosines. Keep the order of the additions: the bits
// of recorded cosines depend on it.
void CosineEstimate::correct_total(double exact_cross_sum) {
  const auto v = static_cast<double>(norms_.size());
  const double all = std::accumulate(rows_.begin(), rows_.end(), 0.0);
  const double a = shift_ = (exact_cross_sum - all) / (2 * v * (v - 1));
  const auto inverse = reciprocals(norms_);
  double inverse_sum = 0, shift_sum = 0, a_sum = 0;
  for (const double x : inverse) {
    inverse_sum += x;
    shift_sum += a * x;
    a_sum += a;
  }
  mean_ = 0;
  cross_sum_ = 0;
  for (std::size_t i = 0; i < inverse.size(); ++i) {
    const double others = a * (inverse_sum - inverse[i]) + shift_sum - a * inverse[i];
    const double moved = to_others_[i] + others * inverse[i] / (v - 1);
    rows_[i] += a * (v - 1) + a_sum - a;
    cross_sum_ += rows_[i];
    mean_ += moved / v;
    to_others_[i] = clip(moved);
  }
  mean_ = clip(mean_);
  standard_error_ = corrected_error_;
}

double CosineEstimate::corrected(std::size_t i, std::size_t j, double raw) const {
  if (shift_ == 0) return raw;
  return clip(raw + (shift_ + shift_) / (norms_[i] * norms_[j]));
}

std::vector<double> pair_cosines(const Directions& d) {
  const auto inverse = inverse_norms(d);
  std::vector<double> out;
  out.reserve(inverse.size() * (inverse.size() - 1) / 2);
  for (std::size_t i = 0; i < inverse.size(); ++i) {
    for (std::size_t j = i + 1; j < inverse.size(); ++j) {
      out.push_back(clip(dot(d.sketches[i], d.sketches[j]) * inverse[i] * inverse[j]));
    }
  }
  return out;
}

}  // namespace presum::metrics
