// SPDX-License-Identifier: Apache-2.0
#include "checks/gradient/compared.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/pairs.h"
#include "checks/engine/mean.h"
#include "checks/engine/text.h"
#include "detect/statistics.h"

namespace presum::checks {
namespace {

constexpr std::size_t kSteps = 32;
constexpr std::uint64_t kTell = 8;   // steps that a mean needs
constexpr double kNear = 0.05;       // of a log: 5%, in addition to the standard error
constexpr double kErrors = 3;        // standard errors allowed for a layer or a cosine similarity
constexpr double kMostError = 0.05;  // a larger error makes a factor a guess
constexpr double kMostErrorOfNorm = 0.08;  // the same for the norm, if the loss does not contradict
constexpr double kMostErrorBesideLoss = 0.1;  // and if the loss has the factor too
constexpr double kLeastFactor = 1.5;
constexpr double kMostLayerError = 0.15;  // small layers vary more
constexpr double kSameNorm = 1e-3;        // relative
constexpr std::size_t kLayers = 64;
constexpr std::size_t kWorkers = 256;  // with more ranks, no layers are kept

// Close to x, with a small error.
bool is(const Mean& seen, double x, double most_error = kMostError) {
  return seen.count() >= kTell && seen.error() <= most_error &&
         std::abs(seen.value() - x) <= kNear + seen.error();
}

bool layer_is(const Mean& layer, double x) {
  return layer.error() <= kMostLayerError &&
         std::abs(layer.value() - x) <= kNear + kErrors * layer.error();
}

}  // namespace

// Logs of the ratio of a rank's values to the geometric mean of the others', divided by the
// divisor.
struct RecentGradients::Ratios {
  Mean divisor;
  Mean norm;
  Mean loss;
  std::vector<Mean> layers;

  // False if no layer is known.
  bool all_layers_at(double x) const {
    const auto known = [](const Mean& layer) { return layer.count() >= kTell; };
    return std::ranges::any_of(layers, known) &&
           std::ranges::all_of(layers, [&](const Mean& l) { return !known(l) || layer_is(l, x); });
  }
  // The position of the only layer that is clearly not at 0 while all others are; none otherwise.
  std::optional<std::size_t> only_layer() const {
    std::optional<std::size_t> out;
    for (std::size_t g = 0; g < layers.size(); ++g) {
      if (layers[g].count() < kTell || layer_is(layers[g], 0)) continue;
      if (out || !(layers[g].error() <= kMostLayerError)) return std::nullopt;
      out = g;
    }
    return layers.size() > 1 ? out : std::nullopt;
  }
};

bool Compared::is_turned() const {
  return cosine_of_others > kErrors * cosine_error && layers_alike &&
         std::abs(std::log(norm_ratio)) <= kNear + norm_ratio_error &&
         std::abs(cosine + cosine_of_others) <= 0.2 * cosine_of_others + kErrors * cosine_error;
}

bool Compared::is_clipped() const {
  return norm_ratio < 1 && norm_cv <= kSameNorm && norm_ratio_error > kSameNorm;
}

void RecentGradients::see(const StepRecord& record) {
  if (steps_.size() == kSteps) steps_.pop_front();
  Step& step = steps_.emplace_back(Step{record.step, record.cosine_mean, {}});
  std::vector<const GroupRecord*> told;  // null: no gradient except rounding
  ids_.clear();
  for (const GroupRecord& group : record.groups) {
    if (told.size() == kLayers || record.workers.size() > kWorkers) break;
    told.push_back(detect::practically_zero(record, group) ? nullptr : &group);
    ids_.push_back(group.id);
  }
  for (std::size_t k = 0; k < record.workers.size(); ++k) {
    const WorkerRecord& w = record.workers[k];
    const double passes = std::log(double(w.micro_batches));
    Worker& out = step.workers.emplace_back();
    out.replica = w.replica;
    out.micro_batches = passes;
    out.samples = std::log(double(w.samples.rows)) - passes;
    out.tokens = std::log(double(w.tokens)) - passes;
    out.loss = std::log(w.loss);
    out.norm = detect::log_norm(w, w.grad_norm);
    out.cosine = w.cosine_to_others;
    for (const GroupRecord* group : told) {
      const bool known = group != nullptr && k < group->norms.size();
      out.layers.push_back(known ? detect::log_norm(w, double{group->norms[k]}) : kNaN);
    }
  }
}

// The mean over the pairs without this rank.
double RecentGradients::Step::cosine_of_others(const Worker& one) const {
  const double others = double(workers.size()) - 1;
  const double pairs = double(pairs_of(workers.size()));
  return pairs > others ? (cosine_mean * pairs - one.cosine * others) / (pairs - others) : kNaN;
}

RecentGradients::Ratios RecentGradients::ratios(std::uint32_t replica, std::uint64_t first_step,
                                                double Worker::*divisor, double sign) const {
  Ratios out;
  for (const Step& step : steps_) {
    const auto own = std::ranges::find(step.workers, replica, &Worker::replica);
    if (step.number < first_step || own == step.workers.end()) continue;
    const double over = divisor == nullptr ? 0 : sign * (*own).*divisor;
    const auto beside = [&](const auto& value_of) {
      double others = 0;
      for (const Worker& w : step.workers) others += &w == &*own ? 0 : value_of(w);
      return value_of(*own) - others / double(step.workers.size() - 1) - over;
    };
    out.divisor.add(over);
    out.norm.add(beside([](const Worker& w) { return w.norm; }));
    out.loss.add(beside([](const Worker& w) { return w.loss; }));
    out.layers.resize(std::max(out.layers.size(), own->layers.size()));
    for (std::size_t g = 0; g < own->layers.size(); ++g) {
      out.layers[g].add(beside([g](const Worker& w) { return w.layers[g]; }));
    }
  }
  return out;
}

// How the rank's loss may be scaled: every divisor whose factor the rank's values have, applied or
// missing.
std::vector<std::string> RecentGradients::scales(std::uint32_t replica, std::uint64_t first_step,
                                                 const Ratios& seen) const {
  struct Divisor {
    double Worker::*of;
    const char* more;
    const char* less;
    // The loss that a program reports is often the mean, whatever backward() was called on. The
    // number of samples is then not enough evidence: any constant may equal it.
    bool may_be_of_a_told_loss;
  };
  constexpr Divisor kDivisors[] = {
      {&Worker::micro_batches, "not divided by the {} micro-batches of a step",
       "divided by the {} micro-batches of a step once more", true},
      {&Worker::samples, "summed over the {} samples of a micro-batch (`reduction=\"sum\"`)",
       "divided by the {} samples of a micro-batch once more", false},
      {&Worker::tokens,
       "summed over the target tokens of a micro-batch (`reduction=\"sum\"`), {} on average",
       "divided by the target tokens of a micro-batch once more, {} on average", true},
  };
  const bool equal_losses = !(std::abs(seen.loss.value()) > kNear + seen.loss.error());
  std::vector<std::string> out;
  for (const Divisor& divisor : kDivisors) {
    for (const double sign : {1.0, -1.0}) {
      const Ratios left = ratios(replica, first_step, divisor.of, sign);
      const double size = std::exp(sign * left.divisor.value());
      if (!(size >= kLeastFactor) || !left.all_layers_at(0)) continue;
      const bool by_loss = is(left.loss, 0) && is(left.norm, 0, kMostErrorBesideLoss);
      const bool by_norm =
          divisor.may_be_of_a_told_loss && equal_losses && is(left.norm, 0, kMostErrorOfNorm);
      if (!by_loss && !by_norm) continue;
      out.push_back(fmt::format(fmt::runtime(sign > 0 ? divisor.more : divisor.less),
                                number(std::round(size))));
    }
  }
  return out;
}

Compared RecentGradients::compare(std::uint32_t replica, std::uint64_t first_step) const {
  const Ratios seen = ratios(replica, first_step, nullptr, 1);
  if (seen.norm.count() < kTell) return {};
  Mean own_norm;
  Mean cosine;
  Mean cosine_of_others;
  for (const Step& step : steps_) {
    const auto own = std::ranges::find(step.workers, replica, &Worker::replica);
    if (step.number < first_step || own == step.workers.end()) continue;
    own_norm.add(own->norm);
    cosine.add(own->cosine);
    cosine_of_others.add(step.cosine_of_others(*own));
  }
  const auto only = seen.only_layer();
  return {.norm_ratio = std::exp(seen.norm.value()),
          .norm_ratio_error = seen.norm.error(),
          .loss_ratio = std::exp(seen.loss.value()),
          .norm_cv = own_norm.deviation(),
          .layers_alike = seen.all_layers_at(seen.norm.value()),
          .only_layer = only ? ids_.at(*only) : 0,
          .cosine = cosine.value(),
          .cosine_error = cosine.error(),
          .cosine_of_others = cosine_of_others.value(),
          .scales = scales(replica, first_step, seen)};
}

}  // namespace presum::checks
