// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of this room: gradients, their true metrics in float64, and their packets.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "base/hash.h"
#include "metrics/step_metrics.h"
#include "packet/packet.h"
#include "step/steps.h"

namespace presum::metrics::testing {

using Gradient = std::vector<float>;
using Gradients = std::vector<Gradient>;

inline double dot(const Gradient& a, const Gradient& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  }
  return sum;
}

// Gradients of ranks with a common part, each with another scale.
inline Gradients random_gradients(std::size_t workers, std::uint64_t seed, double common = 0.7,
                                  std::size_t elements = 1024) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  Gradient shared(elements);
  for (float& x : shared) x = static_cast<float>(common * normal(random));
  Gradients out(workers, Gradient(elements));
  for (std::size_t i = 0; i < workers; ++i) {
    const double scale = 0.5 + 0.3 * static_cast<double>(i);
    for (std::size_t e = 0; e < elements; ++e) {
      out[i][e] = static_cast<float>(scale * (static_cast<double>(shared[e]) + normal(random)));
    }
  }
  return out;
}

// The definitions of docs/metrics.md, implemented literally. REQUIRES: at least one gradient.
class Truth {
 public:
  explicit Truth(const Gradients& g) : workers_(g.size()), gram_(g.size() * g.size()) {
    for (std::size_t i = 0; i < workers_; ++i) {
      for (std::size_t j = i; j < workers_; ++j) {
        gram_[i * workers_ + j] = gram_[j * workers_ + i] = dot(g[i], g[j]);
      }
    }
    for (std::size_t e = 0; e < g[0].size(); ++e) {
      double mean = 0;
      for (const Gradient& worker : g) mean += static_cast<double>(worker[e]);
      mean /= static_cast<double>(workers_);
      reduced_squares_ += mean * mean;
    }
  }

  std::size_t workers() const { return workers_; }
  double product(std::size_t i, std::size_t j) const { return gram_[i * workers_ + j]; }
  double norm(std::size_t i) const { return std::sqrt(product(i, i)); }
  double cosine(std::size_t i, std::size_t j) const { return product(i, j) / (norm(i) * norm(j)); }
  double reduced_norm() const { return std::sqrt(reduced_squares_); }

  double row_sum(std::size_t i) const {
    double sum = 0;
    for (std::size_t j = 0; j < workers_; ++j) sum += product(i, j);
    return sum;
  }
  double cosine_to_others(std::size_t i) const {
    double sum = 0;
    for (std::size_t j = 0; j < workers_; ++j) sum += j == i ? 0 : cosine(i, j);
    return sum / static_cast<double>(workers_ - 1);
  }
  double cosine_mean() const {
    double sum = 0;
    for (std::size_t i = 0; i < workers_; ++i) sum += cosine_to_others(i);
    return sum / static_cast<double>(workers_);
  }
  // The mean cosine of the pairs, weighted by the products of their norms.
  double consistency() const {
    double sum = 0;
    double weights = 0;
    for (std::size_t i = 0; i < workers_; ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        sum += norm(i) * norm(j) * cosine(i, j);
        weights += norm(i) * norm(j);
      }
    }
    return sum / weights;
  }

 private:
  std::size_t workers_;
  std::vector<double> gram_;
  double reduced_squares_ = 0;
};

struct Snapshots {
  double mean = 0;
  double std = 0;
  double range = 0;
};

inline Snapshots snapshots(const std::vector<double>& x) {
  const auto n = static_cast<double>(x.size());
  Snapshots m;
  m.mean = std::accumulate(x.begin(), x.end(), 0.0) / n;
  for (const double value : x) m.std += (value - m.mean) * (value - m.mean) / n;
  m.std = std::sqrt(m.std);
  const auto [low, high] = std::minmax_element(x.begin(), x.end());
  m.range = *high - *low;
  return m;
}

inline constexpr std::uint32_t kFirstRank = 100;  // ranks differ from replicas on purpose

// A packet whose sketch is the gradient itself, so that its cosines are exact. REQUIRES: the number
// of elements is a power of two, at least 64.
inline packet::Step step_of(const Gradient& gradient, std::uint32_t replica,
                            std::uint32_t replicas) {
  packet::Step step;
  step.header.identity = {.replica = replica, .rank = kFirstRank + replica, .replicas = replicas};
  step.header.step = 7;
  step.micro_batches = 1;
  step.total.sum_squares = dot(gradient, gradient);
  for (const float x : gradient) {
    if (!std::isfinite(x)) ++step.total.nonfinite;
    if (std::isfinite(x)) {
      step.total.max_abs = std::max(step.total.max_abs, static_cast<double>(std::abs(x)));
    }
  }
  step.total.fingerprint =
      name_hash({reinterpret_cast<const char*>(gradient.data()), gradient.size() * sizeof(float)});
  step.sketch = gradient;
  return step;
}

inline std::vector<packet::Step> steps_of(const Gradients& gradients) {
  std::vector<packet::Step> steps;
  for (const Gradient& g : gradients) {
    steps.push_back(step_of(g, static_cast<std::uint32_t>(steps.size()),
                            static_cast<std::uint32_t>(gradients.size())));
  }
  return steps;
}

// Every rank reports this norm of the reduced gradient.
inline void set_reduced(std::vector<packet::Step>& steps, double norm) {
  for (packet::Step& s : steps) {
    s.reduced = GradientSums{.sum_squares = norm * norm, .fingerprint = 99};
  }
}

inline StepRecord measure(const std::vector<packet::Step>& steps, std::uint32_t workers_expected,
                          bool pairwise = true) {
  std::vector<const packet::Step*> workers;
  workers.reserve(steps.size());
  for (const packet::Step& s : steps) workers.push_back(&s);
  return compute({.workers_expected = workers_expected,
                  .workers = workers,
                  .missing = {},
                  .pairwise = pairwise});
}

inline StepRecord measure(const std::vector<packet::Step>& steps) {
  return measure(steps, static_cast<std::uint32_t>(steps.size()));
}

// The packets of a step that ranks with these gradients send.
inline std::vector<packet::Step> sent(const Gradients& gradients, std::uint64_t number,
                                      std::uint32_t sketch_size, double scale = 1) {
  const auto workers = static_cast<std::uint32_t>(gradients.size());
  std::vector<packet::Step> out;
  for (std::uint32_t i = 0; i < workers; ++i) {
    const Gradient& own = gradients[i];
    auto steps = step::Steps::create(
        {.identity = {.replica = i, .rank = i, .replicas = workers}, .sketch_size = sketch_size},
        {{"w", own.size(), ""}}, {});
    steps->begin_step(number);
    EXPECT_TRUE(steps->gradients().read(0, own.data(), own.size(), Dtype::kF32, false));
    const Packet packet = step::end_step(*steps, {.gradient_scale = scale});
    out.push_back(std::get<packet::Step>(*packet::decode(packet.bytes)));
  }
  return out;
}

}  // namespace presum::metrics::testing
