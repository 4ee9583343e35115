// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "presum/training.h"
#include "step/cadence.h"
#include "step/ended_step.h"
#include "step/gradients.h"
#include "step/machine.h"
#include "step/optimizers.h"
#include "step/passes.h"
#include "step/timing.h"
#include "step/worker.h"

namespace presum::step {

struct Settings {
  std::uint64_t every = 1;          // record every n-th step
  std::uint64_t reduced_every = 1;  // read the reduced gradient of every n-th step
  bool knows_optimizer = false;
  bool one_optimizer = false;  // a single optimizer steps all parameters
  bool on_host = true;         // gradients are in host memory
  // For gradients in host memory; device times come through EndedStep::times.
  Clocks clocks;
};

// What to read of the pass that begins.
enum class Read : std::uint8_t {
  kNothing = 0,
  kSums = 1,      // what `.grad` holds after the pass has accumulated
  kArrivals = 2,  // what the pass adds to `.grad`, because it was not empty
};

struct PassBeginning {
  bool reduces = false;
  bool more_follow = false;  // the program says that this is one of several passes to be summed
  bool readable = true;
  Number held = 0.0;  // upper bound on the size of what `.grad` holds; NaN: unknown
};

// The steps of one model on one rank: takes a framework's events and produces ended steps.
// Independent of frameworks and threads; its only clocks are those in Settings. Not synchronized;
// borrowed pointers are only read during the call. docs/step.md defines the effect of each event.
class Steps {
 public:
  static Result<Steps> create(WorkerOptions options, const std::vector<Parameter>& parameters,
                              Settings settings);

  Worker& worker() { return worker_; }
  const Worker& worker() const { return worker_; }
  const Identity& identity() const { return worker_.identity(); }
  Packet hello() const { return worker_.hello(layout_->groups()); }
  // No step follows. `text`: how the program ended, if that is worth a line; may be empty.
  Packet goodbye(std::uint64_t optimizer_steps, std::vector<FingerprintValue> fingerprints = {},
                 std::string text = {}) const;

  // ---- forward passes

  // A forward pass of any kind through the wrapper, outside of a backward pass; ends an open step.
  // `left`: if asks_what_is_left(), an upper bound on the size of what `.grad` holds; NaN: unknown.
  void forward(const Number& left = kNaN);
  bool asks_what_is_left() const;
  // The forward pass through the wrapper is a training pass.
  void enter_wrapper();
  // A training forward pass of the module itself begins. Returns whether to take the fingerprints
  // of the next step. They are taken at the last forward pass through the wrapper before the first
  // backward pass, because a single rank may evaluate the module in between.
  bool enter_module();
  bool next_is_recorded() const { return cadence_.may_record_next(machine_); }
  // A counter by which ranks take turns reporting what is not reported at every step. Equal on all
  // ranks at a reduced step, as long as all steps are reduced.
  std::uint64_t turn() const {
    const StepNumber& next = machine_.next();
    return next.reductions + (next.unreduced > 0 ? next.window : 0);
  }

  // ---- backward passes

  // Whether the next pass is the first in its window.
  bool window_begins() const { return machine_.passes() == 0 || open(); }
  // The backward pass reaches the output of forward pass number `forward`. Only forward passes that
  // it reaches count, so validation does not.
  void reached(std::uint64_t forward, const ForwardFacts& facts) { reached_.add(forward, facts); }
  void forget_reached() { reached_.clear(); }
  // Whether the pass's root is the loss, because its forward passes have no loss or several.
  bool needs_root() const { return !reached_.has_one_loss(); }
  // REQUIRES: no step is open, so that `held` describes one step only.
  Read pass_begins(const PassBeginning& how);
  // Whether what the pass under way reports belongs to a step that is recorded.
  bool collects() const {
    const bool reduces = machine_.state() == State::kReducing || open();
    return reduces ? records_ : next_is_recorded();
  }
  // The pass's forward passes are those that were reached. `part`: the reduction waits for
  // gradients of another pass.
  void pass_ends(Pass pass, bool part = false);
  bool records() const { return records_; }  // for the step under way or open
  bool open() const { return machine_.state() == State::kReduced; }
  // Whether to read the open step's reduced gradient.
  bool reduced_is_due() const;
  // The next pass is reduced after it is over: of the next step instead, the reduced gradient is
  // read. REQUIRES: no step is open.
  void postpone_reduced() { cadence_.postpone(machine_.next_reduced().reductions); }
  // Gradients are handed over for reduction: by hand (`reduction`), or by the other ranks only
  // (`shadow`).
  void reduction();
  void shadow();

  // ---- gradients

  // The gradients of the step under way or open.
  Gradients& gradients() { return gradients_; }
  const Gradients& gradients() const { return gradients_; }
  // A gradient arrives at a parameter whose `.grad` is not empty. A second arrival in one pass
  // makes the step's own gradient unknown.
  void arrives(ParameterId parameter);

  // ---- between passes

  // `.grad` holds nothing or zeros, and passes have ended since it last did. `changed`: the
  // parameters have changed too.
  void zeroed(bool changed);
  void optimizer_begins();
  Optimizers& optimizers() { return optimizers_; }
  void optimizer_steps(std::uint64_t which);
  std::uint64_t optimizer_steps() const { return optimizers_.steps(); }
  void closed();
  // Returns the oldest step that has ended and was not taken yet.
  std::optional<EndedStep> take_ended();
  // The number of windows that have ended so far, recorded or not. A number that arrives late
  // belongs to an earlier window if the count has changed.
  std::uint64_t windows() const { return windows_; }

  // ---- what else belongs to the step

  void loss(const Number& value, double weight, std::uint64_t tokens) {
    contents_.passes.report(value, weight, tokens);
  }
  Contents& contents() { return contents_; }
  Timing& timing() { return timing_; }  // for events that matter only for their time
  const Machine& machine() const { return machine_; }
  const Layout& layout() const { return *layout_; }

  // ---- a program that marks the beginning and end of its steps

  void begin_step(std::uint64_t step);

 private:
  Steps(WorkerOptions options, Settings settings, std::shared_ptr<const Layout> layout);

  void on(Event event);
  void end(const Ended& step);
  void reduce();
  void begin_reading(const StepNumber& number);
  void leave_window();
  void tell_what_is_left(const Number& left);

  Worker worker_;
  Timing timing_;
  Optimizers optimizers_;
  Cadence cadence_;
  bool on_host_;
  std::shared_ptr<const Layout> layout_;
  Machine machine_;
  Gradients gradients_;
  Contents contents_;
  std::deque<EndedStep> ended_;
  ForwardsReached reached_;
  std::uint64_t windows_ = 0;
  bool records_ = false;
  bool begun_ = false;           // the coming step has had a forward pass
  bool wrapped_ = false;         // and it went through the wrapper
  bool entering_ = false;        // a forward pass is between the wrapper and the module
  bool numbers_itself_ = false;  // the program marks the beginning and end of its steps
};

// Ends the step that begin_step began.
Packet end_step(Steps& steps, const StepEnd& end);

}  // namespace presum::step
