// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <variant>
#include <vector>

#include "presum/records.h"
#include "step/micro_batches.h"

namespace presum::step {

// A number that is still on its device, by its index among the numbers to be read.
struct Late {
  std::uint32_t place = 0;
};
using Number = std::variant<double, Late>;
// Numbers that were read from the device, by index.
using Numbers = std::span<const double>;
bool is_late(const Number& number);
// NaN for an index out of range.
double known(const Number& number, Numbers numbers);

// What a forward pass reports of its micro-batch.
struct ForwardFacts {
  std::optional<Number> loss;  // from the model's output
  Number tokens = 0.0;         // target tokens; 0 if unknown
  // This micro-batch's share of the tokens that the loss was divided by; absent if the loss was
  // divided by the micro-batch's own tokens.
  std::optional<Number> share;
};

// The forward passes that the backward pass under way goes through.
class ForwardsReached {
 public:
  // Of several facts with the same `forward`, keeps the first with a loss.
  void add(std::uint64_t forward, const ForwardFacts& facts);
  bool empty() const { return reached_.empty(); }
  void clear() {
    reached_.clear();
    places_.clear();
  }
  bool has_one_loss() const;
  // Returns the passes and forgets them.
  std::vector<ForwardFacts> take();

 private:
  std::vector<ForwardFacts> reached_;
  std::unordered_map<std::uint64_t, std::size_t> places_;  // index in reached_, by forward pass
};

// A backward pass: one micro-batch, however many forward passes it goes through.
struct Pass {
  std::vector<ForwardFacts> forwards;
  // The tensor that backward() was called on, times its factors. It is the loss unless exactly one
  // forward pass has a loss.
  std::optional<Number> root;
  Number root_scale = 1.0;  // the scale that a loss scaler applied to the loss
  double share_factor = 1;  // the factor on a loss that is a share of all tokens
  // With shares: how many times larger the gradient is than that of the mean over all tokens.
  double gradient_factor = 1;
  // The targets of the loss function, and what they weigh together in the tensor that backward()
  // was called on, with the loss scale. 0 targets: as many as the forward passes have.
  Number targets = 0.0;
  Number targets_weight = kNaN;  // NaN: unknown
};

// The backward passes of one step and their losses. Memory is bounded: above kMicroBatchesMax
// passes, only the mean is kept; above kLatePassesMax passes from the first with a late number on,
// no loss is kept.
class Passes {
 public:
  static constexpr std::size_t kLatePassesMax = 65'536;

  void add(Pass pass);
  // A loss that the program reports. It replaces the losses of passes.
  void report(const Number& loss, double weight, std::uint64_t tokens);

  // One per micro-batch. Losses that the program reports replace those of passes.
  std::vector<MicroBatch> micro_batches(Numbers numbers) const;
  // How many times larger the gradient is than that of the step's mean loss over tokens; NaN if
  // unknown.
  double gradient_weight(Numbers numbers) const;

 private:
  struct Told {
    Number loss;
    double weight;
    std::uint64_t tokens;
  };
  void settle(const Pass& pass, Numbers numbers);
  Passes settled(Numbers numbers) const;

  MicroBatches of_passes_;
  std::uint64_t tokens_ = 0;  // of passes that have a loss
  double shares_ = 0;         // NaN once a share is unknown
  double gradient_factor_ = 1;
  bool any_ = false;
  std::vector<Pass> late_;
  MicroBatches told_;
  std::vector<Told> told_late_;
  bool lost_ = false;       // losses of passes were dropped
  bool told_lost_ = false;  // losses that the program reported were dropped
};

}  // namespace presum::step
