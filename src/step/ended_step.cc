// SPDX-License-Identifier: Apache-2.0
#include "step/ended_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "base/hash.h"
#include "base/try.h"
#include "presum/fingerprint.h"

namespace presum::step {
namespace {

void unscale(GradientSums& sums, double scale) {
  sums.sum_squares /= scale * scale;
  sums.max_abs /= scale;
}

void thin(Samples& samples) {
  samples.rows = samples.hashes.size();
  while (samples.hashes.size() > packet::kSamplesMax && samples.thinned < packet::kThinnedMax) {
    ++samples.thinned;
    const std::uint64_t mask = (std::uint64_t{1} << samples.thinned) - 1;
    std::erase_if(samples.hashes, [&](std::uint64_t hash) { return (hash & mask) != 0; });
  }
}

std::uint32_t kind_of(FingerprintKind kind) { return static_cast<std::uint32_t>(kind); }

// NaN counts as nonzero.
bool is_zero(const Number& number, Numbers numbers) { return known(number, numbers) == 0; }

}  // namespace

Result<std::uint64_t> hash_state(const void* data, std::size_t count, std::uint32_t element_bytes) {
  if (data == nullptr && count > 0) {
    return fail(ErrorCode::kInvalidArgument, "a state without data");
  }
  const auto of = [&](Dtype dtype) {
    return observe::gradient_pass(data, count, dtype, {}).fingerprint;
  };
  switch (element_bytes) {
    case 2:
      return of(Dtype::kBF16);
    case 4:
      return of(Dtype::kF32);
    case 8:
      return of(Dtype::kF64);
    default:
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("a state of {} bytes an element", element_bytes));
  }
}

void Contents::ends(const Ended& step, std::uint64_t optimizer_steps) {
  report.number = step.number;
  report.optimizer_step = optimizer_steps;
  report.micro_batches = step.passes;
  owns_known = owns_known && step.whole;
}

void Contents::told(bool wrapped, StepTimes times) {
  fingerprint(kind_of(FingerprintKind::kWrapperForward), wrapped ? 1 : 0);
  report.times = std::move(times);
}

void Contents::forget() {
  auto states = std::move(report.states);
  *this = {};
  report.states = std::move(states);
}

void Contents::fingerprint(std::uint32_t kind, std::uint64_t value) {
  auto& all = report.fingerprints;
  const auto at = std::ranges::find(all, kind, &FingerprintValue::kind);
  if (at != all.end()) {
    at->value = value;
  } else {
    all.push_back({kind, value});
  }
}

void Contents::samples(std::span<const std::uint64_t> hashes) {
  auto& all = report.samples.hashes;
  all.insert(all.end(), hashes.begin(), hashes.end());
}

Status Contents::set_gram(std::span<const double> share, std::uint32_t workers) {
  if (share.empty() || share.size() != packet::gram_size(workers)) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} values are no Gram matrix of {} ranks (at most {})", share.size(),
                            workers, packet::kGramWorkersMax));
  }
  gram.assign(share.begin(), share.end());
  return {};
}

void Contents::indices(std::span<const std::uint64_t> indices) {
  auto& all = report.indices;
  const std::size_t room = kIndicesMax - std::min(kIndicesMax, all.size());
  const auto kept = indices.first(std::min(room, indices.size()));
  all.insert(all.end(), kept.begin(), kept.end());
}

Status Contents::state(const Layout& layout, StateHash::Kind kind, std::uint32_t index,
                       const void* data, std::size_t count, std::uint32_t element_bytes,
                       std::uint32_t shard) {
  PRESUM_ASSIGN(const std::uint64_t fingerprint, hash_state(data, count, element_bytes));
  return state_sum(layout, kind, index, fingerprint, shard);
}

Status Contents::state_sum(const Layout& layout, StateHash::Kind kind, std::uint32_t index,
                           std::uint64_t fingerprint, std::uint32_t shard) {
  const Layout::Tensor* what = layout.hashed(kind, index);
  if (what == nullptr) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("unknown parameter or buffer {}", index));
  }
  if (shard > StateHash::kShardsMax) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("a shard of number {}", shard));
  }
  add_state({.group = layout.group_id(*what), .kind = kind, .shard = shard},
            mix64(fingerprint ^ what->id));
  return {};
}

void Contents::watched(std::string_view name, std::uint32_t index, std::uint64_t fingerprint,
                       StateHash::Kind kind, std::uint32_t shard) {
  add_state({.group = name_hash(name), .kind = kind, .shard = shard},
            mix64(fingerprint ^ splitmix64(index)));
}

void Contents::add_state(StateHash of, std::uint64_t value) {
  auto at = std::ranges::find_if(report.states, [&](const StateHash& s) {
    return s.group == of.group && s.kind_and_shard() == of.kind_and_shard();
  });
  if (at == report.states.end()) at = report.states.insert(at, of);
  at->value += value;
}

EndedStep::EndedStep(std::shared_ptr<const Layout> layout, packet::Header header,
                     std::uint32_t sketch_size, Contents contents)
    : layout_(std::move(layout)), sketch_size_(sketch_size), contents_(std::move(contents)) {
  out_.header = header;
  out_.groups.resize(layout_->gradient_groups());
  for (std::size_t g = 0; g < out_.groups.size(); ++g) out_.groups[g].id = layout_->groups()[g].id;
}

void EndedStep::put(Gradients& gradients) {
  gradients.put(out_);
  zero_share_ = gradients.zero_share();
}

Gradients& EndedStep::gradients() {
  if (!gradients_) gradients_.emplace(*layout_, sketch_size_);
  return *gradients_;
}

void EndedStep::times(std::span<const Marked> marks) { contents_.report.times = replay(marks); }

void EndedStep::rows(const std::vector<std::uint64_t>& hashes, std::uint64_t others) {
  contents_.rows_known = contents_.rows_known && !hashes.empty();
  contents_.samples(hashes);
  std::uint64_t sum = contents_.row_sum.value_or(0) + others;
  for (const std::uint64_t hash : hashes) sum += hash;
  contents_.row_sum = sum;
}

// One pass is read as it arrived; several are read as their sum, if `.grad` held zeros before the
// first.
bool EndedStep::knows_own() const {
  const bool one_pass = contents_.report.micro_batches <= 1;
  return contents_.read && contents_.owns_known && (one_pass || is_zero(contents_.over, numbers_));
}

void EndedStep::forget_unknown(packet::Step& out, bool scale_known) const {
  if (!knows_own() || !scale_known) {
    out.elements = 0;
    out.total = {};
    for (packet::Group& group : out.groups) group.sums = {};
    out.sketch.clear();
    out.layers.clear();
    out.skipped_parameters = static_cast<std::uint32_t>(layout_->parameters().size());
  }
  if (is_zero(contents_.over, numbers_) && scale_known) return;
  out.reduced.reset();  // it includes what `.grad` held before
  out.layers.clear();
  out.gram.clear();
}

void EndedStep::put_fingerprints() {
  const double weight = contents_.passes.gradient_weight(numbers_);
  if (!std::isnan(weight)) {
    contents_.fingerprint(kind_of(FingerprintKind::kGradientWeight),
                          std::bit_cast<std::uint64_t>(weight));
  }
  if (!std::isnan(zero_share_) && knows_own()) {
    contents_.fingerprint(kind_of(FingerprintKind::kZeroShare),
                          std::bit_cast<std::uint64_t>(zero_share_));
  }
  const double over = known(contents_.over, numbers_);
  if (contents_.after_step && over > 0 && contents_.report.use == StepUse::kUsed) {
    contents_.fingerprint(kind_of(FingerprintKind::kLeftOver), 1);
  }
  if (!contents_.rows_known) {
    contents_.report.samples.hashes.clear();
  } else if (contents_.row_sum) {
    contents_.fingerprint(kind_of(FingerprintKind::kBatch), *contents_.row_sum);
  }
}

Packet EndedStep::packet() {
  if (gradients_) put(*gradients_);
  const double scale = contents_.scale ? known(*contents_.scale, numbers_) : 1;
  if (scale != 1 && std::isfinite(scale)) {
    contents_.fingerprint(kind_of(FingerprintKind::kLossScale),
                          std::bit_cast<std::uint64_t>(scale));
  }
  put_fingerprints();
  packet::Step out = out_;
  static_cast<StepReport&>(out) = contents_.report;
  out.gram = contents_.gram;
  if (out.use == StepUse::kKept && is_zero(contents_.after, numbers_)) out.use = StepUse::kUnused;
  const bool scale_known = scale > 0 && std::isnormal(scale * scale);
  forget_unknown(out, scale_known);
  thin(out.samples);
  out.micro = contents_.passes.micro_batches(numbers_);
  out.gradient_scale = scale_known ? scale : 1;
  unscale(out.total, out.gradient_scale);
  for (packet::Group& group : out.groups) unscale(group.sums, out.gradient_scale);
  if (out.reduced) unscale(*out.reduced, out.gradient_scale);
  const double square = out.gradient_scale * out.gradient_scale;
  for (packet::Layer& layer : out.layers) layer.squares /= square;
  for (double& product : out.gram) product /= square;
  return packet::encode(out);
}

}  // namespace presum::step
