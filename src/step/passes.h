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

// A number that is still on its device: its place among those that are to come.
struct Late {
  std::uint32_t place = 0;
};
using Number = std::variant<double, Late>;
// Numbers that have come, by place.
using Numbers = std::span<const double>;
bool is_late(const Number& number);
// NaN for a place that is not there.
double known(const Number& number, Numbers numbers);

// What a forward pass told of its micro-batch.
struct ForwardFacts {
  std::optional<Number> loss;  // of the model's output
  Number tokens = 0.0;         // target tokens; 0 if unknown
  // Of the tokens that the loss was divided by, where it is not all of them.
  std::optional<Number> share;
};

// The forward passes that the backward pass under way goes through.
class ForwardsReached {
 public:
  // The first facts with a loss count.
  void add(std::uint64_t forward, const ForwardFacts& facts);
  bool empty() const { return reached_.empty(); }
  void clear() {
    reached_.clear();
    places_.clear();
  }
  bool has_one_loss() const;
  // They are forgotten here.
  std::vector<ForwardFacts> take();

 private:
  std::vector<ForwardFacts> reached_;
  std::unordered_map<std::uint64_t, std::size_t> places_;  // by forward
};

// A backward pass: one micro-batch, however many forward passes it went through.
struct Pass {
  std::vector<ForwardFacts> forwards;
  // What backward() was called on, with the factors on it. It is the loss where the forward passes
  // do not have just one.
  std::optional<Number> root;
  Number root_scale = 1.0;  // that a loss scaler put on its loss
  double share_factor = 1;  // on a loss that is a share of all tokens
  // How many times larger than that of the mean over all tokens a gradient is, where shares are.
  double gradient_factor = 1;
};

// The backward passes of one step and their losses. Memory is bounded, however many passes they
// are: of more than kMicroBatchesMax the mean is kept, and of more than kLatePassesMax after one
// with numbers on a device no loss.
class Passes {
 public:
  static constexpr std::size_t kLatePassesMax = 65'536;

  void add(Pass pass);
  // A loss that the program reports. It replaces what passes say.
  void report(const Number& loss, double weight, std::uint64_t tokens);

  // Each micro-batch once; explicit losses replace those of passes.
  std::vector<MicroBatch> micro_batches(Numbers numbers) const;
  // How many times larger than that of its mean loss over tokens the gradient is; NaN if unknown.
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
  double shares_ = 0;         // NaN once one is not known
  double gradient_factor_ = 1;
  bool any_ = false;
  std::vector<Pass> late_;
  MicroBatches told_;
  std::vector<Told> told_late_;
  bool lost_ = false;       // losses of passes
  bool told_lost_ = false;  // those that the program reported
};

}  // namespace presum::step
