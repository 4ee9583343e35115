// SPDX-License-Identifier: Apache-2.0
#include "metrics/layer_reductions.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>

#include "base/hash.h"

namespace presum::metrics {
namespace {

using Sketch = std::array<float, packet::kLayerSketch>;
using Vector = std::array<double, packet::kLayerSketch>;
using Ranks = std::vector<std::uint32_t>;

constexpr double kApart = 0.1;  // of the mean's size: the contribution differs from the mean
constexpr double kFits = 0.02;  // of the mean's size: rounding, or the residual of a fit
// a weight this near to 0 or to the largest weight counts as equal to it
constexpr double kClear = 0.2;
constexpr double kMeans = 0.02;       // accepted deviation from the weight in a mean, for rounding
constexpr double kRidge = 1e-10;      // of the mean diagonal
constexpr std::size_t kWorkers = 64;  // above this, sketches are too short for a fit

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

bool finite(const Parts& parts) {
  return std::ranges::all_of(parts, [](const Part& part) {
    return finite(part.layer->own) && finite(part.layer->reduced);
  });
}

bool is_sharded(const packet::Step* step) {
  return std::ranges::any_of(step->layers, [](const packet::Layer& l) { return l.shard != 0; });
}

// Returns whether the result was added to what earlier reductions had left.
bool added(const Parts& parts) {
  return std::ranges::any_of(parts, [](const Part& p) { return std::isnan(p.layer->squares); });
}

// The group's sketches of every rank; empty if a rank did not report it.
Parts parts_of(Steps steps, std::size_t at, std::uint64_t id) {
  Parts parts;
  for (const packet::Step* step : steps) {
    const auto& layers = step->layers;
    auto found = at < layers.size() && layers[at].id == id
                     ? layers.begin() + static_cast<std::ptrdiff_t>(at)
                     : std::ranges::find(layers, id, &packet::Layer::id);
    if (found == layers.end()) return {};
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

// The size of the mean, or of the mean of uncorrelated gradients of these sizes if that is larger:
// when gradients cancel, rounding is large relative to their mean.
double size_of(const Parts& parts, const Vector& mean) {
  double squares = 0;
  for (const Part& part : parts) squares += dot(part.layer->own, part.layer->own);
  const double workers = static_cast<double>(parts.size());
  return std::max(std::sqrt(dot(mean, mean)), std::sqrt(squares) / workers);
}

// Computes the Cholesky factor of the n x n matrix in place; false if the matrix is not positive
// definite.
bool factor(std::vector<double>& a, std::size_t n) {
  for (std::size_t j = 0; j < n; ++j) {
    for (std::size_t i = j; i < n; ++i) {
      double sum = a[i * n + j];
      for (std::size_t k = 0; k < j; ++k) sum -= a[i * n + k] * a[j * n + k];
      if (i == j && !(sum > 0)) return false;
      a[i * n + j] = i == j ? std::sqrt(sum) : sum / a[j * n + j];
    }
  }
  return true;
}

// Solves the system whose matrix has this Cholesky factor.
void solve(const std::vector<double>& a, std::vector<double>& x) {
  const std::size_t n = x.size();
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t k = 0; k < i; ++k) x[i] -= a[i * n + k] * x[k];
    x[i] /= a[i * n + i];
  }
  for (std::size_t i = n; i-- > 0;) {
    for (std::size_t k = i + 1; k < n; ++k) x[i] -= a[k * n + i] * x[k];
    x[i] /= a[i * n + i];
  }
}

// The Cholesky factor of the parts' Gram matrix, with a ridge; empty if there are too many parts or
// they are zero.
std::vector<double> factor_of(const Parts& parts) {
  const std::size_t n = parts.size();
  if (n > kWorkers) return {};
  std::vector<double> gram(n * n);
  double trace = 0;
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      gram[i * n + j] = dot(parts[i].layer->own, parts[j].layer->own);
    }
    trace += gram[i * n + i];
  }
  for (std::size_t i = 0; i < n; ++i) gram[i * n + i] += kRidge * trace / static_cast<double>(n);
  return factor(gram, n) ? gram : std::vector<double>();
}

// The weight of each part in the result, by least squares; empty if the parts do not explain the
// result.
std::vector<double> weights_of(const Parts& parts, const std::vector<double>& gram,
                               const Sketch& out, double size) {
  if (gram.empty()) return {};
  const std::size_t n = parts.size();
  std::vector<double> weights(n);
  for (std::size_t i = 0; i < n; ++i) weights[i] = dot(parts[i].layer->own, out);
  solve(gram, weights);
  Vector fitted{};
  for (std::size_t w = 0; w < n; ++w) add(fitted, parts[w].layer->own, weights[w]);
  return distance(out, fitted) <= kFits * size ? weights : std::vector<double>();
}

bool apart(double weight, double most) { return std::abs(weight - most) > kClear * most; }

// For two ranks: the weight in a mean, if one rank has it and the other is left out, negated, or at
// least doubled; otherwise 0, since either rank may be the wrong one.
double usual_of_two(double one, double other) {
  constexpr double kMean = 0.5;
  if (std::abs(other - kMean) < std::abs(one - kMean)) std::swap(one, other);
  const bool told = other <= kClear * kMean || other >= (2 - kClear) * kMean;
  return std::abs(one - kMean) <= kMeans && told ? one : 0;
}

// The median weight.
double usual(std::vector<double> weights) {
  if (weights.size() == 2) return usual_of_two(weights[0], weights[1]);
  const auto middle = weights.begin() + static_cast<std::ptrdiff_t>(weights.size() / 2);
  std::ranges::nth_element(weights, middle);
  return *middle;
}

// Finds the ranks whose part has a different weight than that of most ranks.
void find_weighed(const Parts& parts, const Sketch& reduced, double size, LayerReduction& out) {
  const std::vector<double> weights = weights_of(parts, factor_of(parts), reduced, size);
  if (weights.empty()) return;
  const double most = usual(weights);
  if (!(most > 0)) return;
  for (std::size_t w = 0; w < parts.size(); ++w) {
    if (apart(weights[w], most)) out.weighed.emplace_back(parts[w].rank, weights[w] / most);
  }
  if (2 * out.weighed.size() >= parts.size() && parts.size() > 2) out.weighed.clear();
}

// The ranks whose equally weighted parts make the result; empty if no such set does.
Ranks ranks_in(const Parts& parts, const std::vector<double>& gram, const Sketch& out,
               double size) {
  const std::vector<double> weights = weights_of(parts, gram, out, size);
  const double most = weights.empty() ? 0 : *std::ranges::max_element(weights);
  Ranks ranks;
  for (std::size_t w = 0; w < weights.size(); ++w) {
    if (std::abs(weights[w]) <= kClear * most) continue;
    if (apart(weights[w], most)) return {};
    ranks.push_back(parts[w].rank);
  }
  return ranks;
}

// One copy of the result: that of one rank, or that of a replica whose ranks hold one part each.
struct Copy {
  std::uint64_t fingerprint = 0;
  std::uint64_t elements = 0;
  double squares = 0;
  Sketch sketch{};
  std::vector<std::size_t> workers;  // indices into the parts
};
using Copies = std::vector<Copy>;

void join(Copy& copy, const Part& part, std::size_t place) {
  const packet::Layer& layer = *part.layer;
  copy.fingerprint += layer.shard == 0 ? layer.fingerprint : mix64(layer.fingerprint ^ layer.shard);
  copy.elements += layer.part;
  copy.squares += layer.squares;
  for (std::size_t i = 0; i < copy.sketch.size(); ++i) copy.sketch[i] += layer.reduced[i];
  copy.workers.push_back(place);
}

// The k-th ranks of all shards, by rank, hold one copy. Empty if the copies are not whole: a part
// was not reported, or the shards have different numbers of ranks.
Copies copies_of(const Parts& parts) {
  Copies copies;
  std::map<std::uint32_t, std::size_t> copies_so_far;
  for (std::size_t w = 0; w < parts.size(); ++w) {
    const std::uint32_t shard = parts[w].layer->shard;
    const std::size_t copy = shard == 0 ? w : copies_so_far[shard]++;
    if (copy >= copies.size()) copies.resize(copy + 1);
    join(copies[copy], parts[w], w);
  }
  const bool whole = std::ranges::all_of(copies, [&](const Copy& copy) {
    return std::ranges::all_of(copy.workers, [&](std::size_t w) {
      return parts[w].layer->shard == 0 || parts[w].layer->elements == copy.elements;
    });
  });
  return whole ? copies : Copies();
}

void find_sets(const Parts& parts, const Copies& copies, double size, LayerReduction& out) {
  const std::vector<double> gram = factor_of(parts);
  std::vector<std::uint64_t> seen;
  for (const Copy& copy : copies) {
    if (std::ranges::find(seen, copy.fingerprint) != seen.end()) continue;
    seen.push_back(copy.fingerprint);
    Ranks ranks = ranks_in(parts, gram, copy.sketch, size);
    if (!ranks.empty() && ranks.size() < parts.size()) out.means_of.push_back(std::move(ranks));
  }
}

std::optional<LayerReduction> reduction_of(const Parts& parts) {
  if (!finite(parts)) return std::nullopt;
  const Vector mean = mean_of(parts);
  const double size = size_of(parts, mean);
  const Copies copies = copies_of(parts);
  if (copies.empty() || !(size > 0)) return std::nullopt;
  LayerReduction out{.id = parts.front().layer->id};
  for (const Copy& copy : copies) {
    out.alike = out.alike && copy.fingerprint == copies.front().fingerprint;
    out.off = std::max(out.off, distance(copy.sketch, mean) / size);
  }
  for (const Part& part : parts) {
    const bool apart = distance(part.layer->own, mean) > kApart * size;
    if (part.layer->kept && apart) out.kept_own.push_back(part.rank);
  }
  const Sketch& reduced = copies.front().sketch;
  const double square = dot(mean, mean);
  out.factor = out.alike && square > 0 ? dot(reduced, mean) / square : kNaN;
  out.factor_off = distance(reduced, mean, out.factor) / size;
  if (!out.alike) find_sets(parts, copies, size, out);
  if (out.factor_off > kFits) find_weighed(parts, reduced, size, out);
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

void join_shards(Steps steps, std::span<WorkerRecord> workers) {
  if (steps.size() < 2 || !std::ranges::any_of(steps, is_sharded)) return;
  std::vector<Copy> of(steps.size());
  for (std::size_t at = 0; at < steps.front()->layers.size(); ++at) {
    const Parts parts = parts_of(steps, at, steps.front()->layers[at].id);
    if (finite(parts) && added(parts)) continue;
    for (const Copy& copy : copies_of(parts)) {
      for (const std::size_t w : copy.workers) {
        of[w].fingerprint += mix64(copy.fingerprint ^ parts[w].layer->id);
        of[w].elements += parts[w].layer->elements;
        of[w].squares += copy.squares;
      }
    }
  }
  for (std::size_t w = 0; w < steps.size(); ++w) {
    if (of[w].elements != steps[w]->elements) continue;
    workers[w].reduced_norm = std::sqrt(of[w].squares);
    workers[w].reduced_fingerprint = std::max<std::uint64_t>(of[w].fingerprint, 1);
  }
}

}  // namespace presum::metrics
