// SPDX-License-Identifier: Apache-2.0
#include "step/passes.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace presum::step {
namespace {

bool is_late(const ForwardFacts& facts) {
  return step::is_late(facts.tokens) || (facts.loss && step::is_late(*facts.loss)) ||
         (facts.share && step::is_late(*facts.share));
}

bool is_late(const Pass& pass) {
  return (pass.root && step::is_late(*pass.root)) || step::is_late(pass.root_scale) ||
         step::is_late(pass.targets) || step::is_late(pass.targets_weight) ||
         std::ranges::any_of(pass.forwards, [](const ForwardFacts& f) { return is_late(f); });
}

std::uint64_t count_of(double number) {
  return number > 0 && number < 0x1p64 ? static_cast<std::uint64_t>(number) : 0;
}

std::uint64_t tokens_of(const Pass& pass, Numbers numbers) {
  double sum = 0;
  for (const ForwardFacts& f : pass.forwards) sum += known(f.tokens, numbers);
  return count_of(sum);
}

std::uint64_t targets_of(const Pass& pass, std::uint64_t tokens, Numbers numbers) {
  const std::uint64_t own = count_of(known(pass.targets, numbers));
  return own > 0 ? own : tokens;
}

// NaN if there is no target.
double token_weight_of(const Pass& pass, std::uint64_t targets, Numbers numbers) {
  const double sum = known(pass.targets_weight, numbers) / known(pass.root_scale, numbers);
  return targets > 0 ? sum / static_cast<double>(targets) : kNaN;
}

// NaN unless all shares are known.
double share_of(const Pass& pass, Numbers numbers) {
  double sum = pass.forwards.empty() ? kNaN : 0;
  for (const ForwardFacts& f : pass.forwards) sum += f.share ? known(*f.share, numbers) : kNaN;
  return sum;
}

bool has_loss(const ForwardFacts& facts) { return facts.loss.has_value(); }

// Whether the loss is that of a forward pass.
bool is_forwards(const Pass& pass) { return std::ranges::count_if(pass.forwards, has_loss) == 1; }

std::optional<double> loss_of(const Pass& pass, bool has_share, Numbers numbers) {
  if (is_forwards(pass)) {
    return known(*std::ranges::find_if(pass.forwards, has_loss)->loss, numbers);
  }
  if (!pass.root) return std::nullopt;
  const double factor = has_share ? pass.share_factor : 1;
  return known(*pass.root, numbers) / known(pass.root_scale, numbers) / factor;
}

}  // namespace

bool is_late(const Number& number) { return std::holds_alternative<Late>(number); }

double known(const Number& number, Numbers numbers) {
  if (const double* value = std::get_if<double>(&number)) return *value;
  const std::uint32_t place = std::get<Late>(number).place;
  return place < numbers.size() ? numbers[place] : kNaN;
}

void ForwardsReached::add(std::uint64_t forward, const ForwardFacts& facts) {
  const auto [at, fresh] = places_.try_emplace(forward, reached_.size());
  if (fresh) {
    reached_.push_back(facts);
  } else if (!reached_[at->second].loss) {
    reached_[at->second] = facts;
  }
}

bool ForwardsReached::has_one_loss() const {
  return 1 == std::ranges::count_if(reached_, [](const auto& one) { return one.loss.has_value(); });
}

std::vector<ForwardFacts> ForwardsReached::take() {
  places_.clear();
  return std::exchange(reached_, {});
}

void Passes::add(Pass pass) {
  if (!is_late(pass) && late_.empty()) return settle(pass, {});
  lost_ = lost_ || late_.size() == kLatePassesMax;
  if (!lost_) late_.push_back(std::move(pass));
}

void Passes::report(const Number& loss, double weight, std::uint64_t tokens) {
  if (!step::is_late(loss) && told_late_.empty()) {
    return told_.add({std::get<double>(loss), weight, tokens});
  }
  told_lost_ = told_lost_ || told_late_.size() == kLatePassesMax;
  if (!told_lost_) told_late_.push_back({loss, weight, tokens});
}

void Passes::settle(const Pass& pass, Numbers numbers) {
  const double share = share_of(pass, numbers);
  const bool has_share = !std::isnan(share);
  any_ = true;
  shares_ += share;
  gradient_factor_ = pass.gradient_factor;
  const auto loss = loss_of(pass, has_share, numbers);
  if (!loss) return;
  const std::uint64_t tokens = tokens_of(pass, numbers);
  tokens_ += tokens;
  const std::uint64_t targets = targets_of(pass, tokens, numbers);
  // A loss that is a share of all tokens becomes the mean over the micro-batch's own tokens.
  of_passes_.add({.loss = share > 0 ? *loss / share : *loss,
                  .weight = has_share ? static_cast<double>(tokens) : 1,
                  .tokens = tokens,
                  .targets = targets,
                  .token_weight = token_weight_of(pass, targets, numbers),
                  .differentiated = !has_share && !is_forwards(pass)});
}

Passes Passes::settled(Numbers numbers) const {
  Passes out = *this;
  for (const Pass& pass : std::exchange(out.late_, {})) out.settle(pass, numbers);
  for (const Told& one : std::exchange(out.told_late_, {})) {
    out.told_.add({known(one.loss, numbers), one.weight, one.tokens});
  }
  return out;
}

std::vector<MicroBatch> Passes::micro_batches(Numbers numbers) const {
  if (told_lost_) return {};
  if (!late_.empty() || !told_late_.empty()) return settled(numbers).micro_batches(numbers);
  auto of_passes = lost_ ? std::vector<MicroBatch>() : of_passes_.bounded();
  auto told = told_.bounded();
  if (told.empty()) return of_passes;
  if (told.size() != of_passes.size()) {
    told.front().tokens += tokens_;
    return told;
  }
  for (std::size_t i = 0; i < told.size(); ++i) {
    told[i].tokens += of_passes[i].tokens;
    told[i].targets = of_passes[i].targets;
    told[i].token_weight = of_passes[i].token_weight;
  }
  return told;
}

double Passes::gradient_weight(Numbers numbers) const {
  if (lost_ || !late_.empty()) return lost_ ? kNaN : settled(numbers).gradient_weight(numbers);
  const double weight = gradient_factor_ * shares_;
  return any_ && weight > 0 ? weight : kNaN;
}

}  // namespace presum::step
