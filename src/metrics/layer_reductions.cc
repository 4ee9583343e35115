// SPDX-License-Identifier: Apache-2.0
#include "metrics/layer_reductions.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

namespace presum::metrics {
namespace {

using Sketch = std::array<float, packet::kLayerSketch>;
using Vector = std::array<double, packet::kLayerSketch>;
using Ranks = std::vector<std::uint32_t>;

constexpr double kSame = 1e-5;        // of its size: what was put in came out
constexpr double kApart = 0.1;        // of the mean's size: what was put in is not the mean
constexpr double kFits = 0.02;        // of the mean's size: rounding, or what a fit leaves
constexpr double kClear = 0.2;        // a weight this near to 0 or to the largest is that
constexpr double kRidge = 1e-10;      // of the mean diagonal
constexpr std::size_t kWorkers = 64;  // beyond, sketches are too short for a fit

struct Part {
  std::uint32_t rank = 0;
  const packet::Layer* layer = nullptr;
};
using Parts = std::vector<Part>;

template <class A, class B>
double dot(const A& a, const B& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  }
  return sum;
}

// |a - factor b|
template <class A, class B>
double distance(const A& a, const B& b, double factor = 1) {
  Vector difference;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference[i] = static_cast<double>(a[i]) - factor * static_cast<double>(b[i]);
  }
  return std::sqrt(dot(difference, difference));
}

bool finite(const Sketch& sketch) {
  return std::all_of(sketch.begin(), sketch.end(), [](float x) { return std::isfinite(x); });
}

// The group's sketches of every worker; empty where one is not told or not finite.
Parts parts_of(Steps steps, std::size_t at, std::uint64_t id) {
  Parts parts;
  for (const packet::Step* step : steps) {
    const auto& layers = step->layers;
    auto found = at < layers.size() && layers[at].id == id
                     ? layers.begin() + static_cast<std::ptrdiff_t>(at)
                     : std::ranges::find(layers, id, &packet::Layer::id);
    if (found == layers.end() || !finite(found->own) || !finite(found->reduced)) return {};
    parts.push_back({step->header.identity.rank, &*found});
  }
  return parts;
}

void add(Vector& into, const Sketch& sketch, double weight) {
  for (std::size_t i = 0; i < into.size(); ++i) into[i] += weight * static_cast<double>(sketch[i]);
}

Vector mean_of(const Parts& parts) {
  Vector mean{};
  for (const Part& part : parts) {
    add(mean, part.layer->own, 1 / static_cast<double>(parts.size()));
  }
  return mean;
}

// Of the mean, or of the mean of gradients of these sizes that have nothing in common: where they
// cancel, a rounding is large beside their mean.
double size_of(const Parts& parts, const Vector& mean) {
  double squares = 0;
  for (const Part& part : parts) squares += dot(part.layer->own, part.layer->own);
  const double workers = static_cast<double>(parts.size());
  return std::max(std::sqrt(dot(mean, mean)), std::sqrt(squares) / workers);
}

// Solves the W x W system in place by Cholesky's method; false where it is not positive.
bool solve(std::vector<double>& a, std::vector<double>& x) {
  const std::size_t n = x.size();
  for (std::size_t j = 0; j < n; ++j) {
    for (std::size_t i = j; i < n; ++i) {
      double sum = a[i * n + j];
      for (std::size_t k = 0; k < j; ++k) sum -= a[i * n + k] * a[j * n + k];
      if (i == j && !(sum > 0)) return false;
      a[i * n + j] = i == j ? std::sqrt(sum) : sum / a[j * n + j];
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t k = 0; k < i; ++k) x[i] -= a[i * n + k] * x[k];
    x[i] /= a[i * n + i];
  }
  for (std::size_t i = n; i-- > 0;) {
    for (std::size_t k = i + 1; k < n; ++k) x[i] -= a[k * n + i] * x[k];
    x[i] /= a[i * n + i];
  }
  return true;
}

// What each part weighs in what came out, by least squares; empty where these do not explain it.
std::vector<double> weights_of(const Parts& parts, const Sketch& out, double size) {
  const std::size_t n = parts.size();
  if (n > kWorkers) return {};
  std::vector<double> gram(n * n);
  std::vector<double> weights(n);
  double trace = 0;
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      gram[i * n + j] = dot(parts[i].layer->own, parts[j].layer->own);
    }
    trace += gram[i * n + i];
    weights[i] = dot(parts[i].layer->own, out);
  }
  for (std::size_t i = 0; i < n; ++i) gram[i * n + i] += kRidge * trace / static_cast<double>(n);
  if (!solve(gram, weights)) return {};
  Vector fitted{};
  for (std::size_t w = 0; w < n; ++w) add(fitted, parts[w].layer->own, weights[w]);
  return distance(out, fitted) <= kFits * size ? weights : std::vector<double>();
}

bool apart(double weight, double most) { return std::abs(weight - most) > kClear * most; }

// Of ranks whose part weighs otherwise than that in the middle.
void find_weighed(const Parts& parts, double size, LayerReduction& out) {
  const std::vector<double> weights = weights_of(parts, parts.front().layer->reduced, size);
  if (weights.empty()) return;
  std::vector<double> sorted = weights;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::ranges::nth_element(sorted, middle);
  const double most = *middle;
  if (!(most > 0)) return;
  for (std::size_t w = 0; w < parts.size(); ++w) {
    if (apart(weights[w], most)) out.weighed.emplace_back(parts[w].rank, weights[w] / most);
  }
  if (2 * out.weighed.size() >= parts.size()) out.weighed.clear();
}

// The ranks whose equally weighted parts make what came out; none where no such set does.
Ranks ranks_in(const Parts& parts, const Sketch& out, double size) {
  const std::vector<double> weights = weights_of(parts, out, size);
  const double most = weights.empty() ? 0 : *std::ranges::max_element(weights);
  Ranks ranks;
  for (std::size_t w = 0; w < weights.size(); ++w) {
    if (std::abs(weights[w]) <= kClear * most) continue;
    if (apart(weights[w], most)) return {};
    ranks.push_back(parts[w].rank);
  }
  return ranks;
}

void find_sets(const Parts& parts, double size, LayerReduction& out) {
  std::vector<std::uint64_t> seen;
  for (const Part& part : parts) {
    if (std::ranges::find(seen, part.layer->fingerprint) != seen.end()) continue;
    seen.push_back(part.layer->fingerprint);
    Ranks ranks = ranks_in(parts, part.layer->reduced, size);
    if (!ranks.empty() && ranks.size() < parts.size()) out.means_of.push_back(std::move(ranks));
  }
}

std::optional<LayerReduction> reduction_of(const Parts& parts) {
  const Vector mean = mean_of(parts);
  const double size = size_of(parts, mean);
  if (parts.empty() || !(size > 0)) return std::nullopt;
  LayerReduction out{.id = parts.front().layer->id};
  for (const Part& part : parts) {
    const packet::Layer& layer = *part.layer;
    out.alike = out.alike && layer.fingerprint == parts.front().layer->fingerprint;
    out.off = std::max(out.off, distance(layer.reduced, mean) / size);
    const bool own =
        distance(layer.reduced, layer.own) <= kSame * std::sqrt(dot(layer.own, layer.own));
    if (own && distance(layer.own, mean) > kApart * size) out.kept_own.push_back(part.rank);
  }
  const Sketch& reduced = parts.front().layer->reduced;
  const double square = dot(mean, mean);
  out.factor = out.alike && square > 0 ? dot(reduced, mean) / square : kNaN;
  out.factor_off = distance(reduced, mean, out.factor) / size;
  if (!out.alike) find_sets(parts, size, out);
  if (out.factor_off > kFits) find_weighed(parts, size, out);
  return out;
}

}  // namespace

std::vector<LayerReduction> layer_reductions(Steps steps) {
  std::vector<LayerReduction> out;
  if (steps.size() < 2) return out;
  const auto& layers = steps.front()->layers;
  for (std::size_t at = 0; at < layers.size(); ++at) {
    if (auto one = reduction_of(parts_of(steps, at, layers[at].id))) out.push_back(std::move(*one));
  }
  return out;
}

}  // namespace presum::metrics
