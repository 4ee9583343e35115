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
  std::uint64_t reduced_every = 1;  // and read its reduced gradient every n-th
  bool knows_optimizer = false;
  bool one_optimizer = false;  // one, which steps all parameters
  bool on_host = true;         // gradients lie in host memory
  Clocks clocks;               // of host memory; elsewhere times come with EndedStep::times
};

// What is to be read of the pass that begins.
enum class Read : std::uint8_t {
  kNothing = 0,
  kSums = 1,      // what `.grad` holds once it has accumulated
  kArrivals = 2,  // what is added to it: it held something before
};

struct PassBeginning {
  bool reduces = false;
  bool more_follow = false;  // the program says so: it is one of several that are summed
  bool readable = true;
  Number held = 0.0;  // how large what `.grad` holds is at most; NaN: not known
};

// The steps of one model on one worker: a framework's events come in, ended steps go out. It knows
// no framework, no thread and no clock but the one it is given. Not synchronized; borrowed pointers
// are only read during the call. docs/step.md defines what each event does.
class Steps {
 public:
  static Result<Steps> create(WorkerOptions options, const std::vector<Parameter>& parameters,
                              Settings settings);

  Worker& worker() { return worker_; }
  const Worker& worker() const { return worker_; }
  const Identity& identity() const { return worker_.identity(); }
  Packet hello() const { return worker_.hello(layout_->groups()); }
  // No step will follow. `text`: how the program ended, where that is worth a line; may be empty.
  Packet goodbye(std::uint64_t optimizer_steps, std::vector<FingerprintValue> fingerprints = {},
                 std::string text = {}) const;

  // ---- forward passes

  // Any forward pass through the wrapper, outside of a backward pass: an open step ends. `left`:
  // how large what `.grad` holds is at most, where asks_what_is_left(); NaN: not known.
  void forward(const Number& left = kNaN);
  bool asks_what_is_left() const;
  // It is a training pass.
  void enter_wrapper();
  // A training forward of the module itself begins. Whether the fingerprints of the coming step are
  // to be taken: of the last forward through the wrapper before its first backward pass, for one
  // worker alone may well evaluate the module in between.
  bool enter_module();
  bool next_is_recorded() const { return cadence_.may_record_next(machine_); }
  // By which workers take turns at what they do not report at every step: the same for all at a
  // step that is reduced, as long as all of them are.
  std::uint64_t turn() const {
    const StepNumber& next = machine_.next();
    return next.reductions + (next.unreduced > 0 ? next.window : 0);
  }

  // ---- backward passes

  // Whether the next pass is the first of its window.
  bool window_begins() const { return machine_.passes() == 0 || open(); }
  // A pass begins at the output of a forward pass, which has a number. Only what gets here counts:
  // validation does not.
  void reached(std::uint64_t forward, const ForwardFacts& facts) { reached_.add(forward, facts); }
  void forget_reached() { reached_.clear(); }
  // The root is the loss: forward passes have none, or several.
  bool needs_root() const { return !reached_.has_one_loss(); }
  // Requires that no step is open: else `held` would belong to two.
  Read pass_begins(const PassBeginning& how);
  // Whether what the pass under way tells is of a step that is recorded.
  bool collects() const {
    const bool reduces = machine_.state() == State::kReducing || open();
    return reduces ? records_ : next_is_recorded();
  }
  // Its forward passes are those that were reached. `part`: what reduces waits for gradients of
  // another pass.
  void pass_ends(Pass pass, bool part = false);
  bool records() const { return records_; }  // the step under way, or open
  bool open() const { return machine_.state() == State::kReduced; }
  // Whether the open step's reduced gradient is to be read.
  bool reduced_is_due() const;
  // Gradients are handed over to be reduced: by hand, or (`shadow`) by the other workers alone.
  void reduction();
  void shadow();

  // ---- gradients

  // Of the step under way or open.
  Gradients& gradients() { return gradients_; }
  const Gradients& gradients() const { return gradients_; }
  // A gradient arrives where `.grad` holds something. A second one of a pass makes both unknown.
  void arrives(ParameterId parameter);

  // ---- between passes

  // `.grad` holds nothing, or zeros, and passes have ended since it did. `changed`: so have the
  // parameters.
  void zeroed(bool changed);
  void optimizer_begins();
  Optimizers& optimizers() { return optimizers_; }
  void optimizer_steps(std::uint64_t which);
  std::uint64_t optimizer_steps() const { return optimizers_.steps(); }
  void closed();
  // The oldest step that has ended.
  std::optional<EndedStep> take_ended();
  // Windows that were left so far, recorded or not: what is late of one has another count.
  std::uint64_t windows() const { return windows_; }

  // ---- what else belongs to the step

  void loss(const Number& value, double weight, std::uint64_t tokens) {
    contents_.passes.report(value, weight, tokens);
  }
  Contents& contents() { return contents_; }
  Timing& timing() { return timing_; }  // of events whose time alone counts
  const Machine& machine() const { return machine_; }
  const Layout& layout() const { return *layout_; }

  // ---- a program that says itself where a step begins and ends

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
  bool wrapped_ = false;         // and through the wrapper
  bool entering_ = false;        // a forward pass is on its way from the wrapper to the module
  bool numbers_itself_ = false;  // the program says where steps begin and end
};

// Ends the step that begin_step began.
Packet end_step(Steps& steps, const StepEnd& end);

}  // namespace presum::step
