// SPDX-License-Identifier: Apache-2.0
// What shows a run that is followed.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <ostream>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "presum/run_log.h"

namespace presum::cli {

// Is told at each look at the run what is there, in the order of these functions.
class TailView {
 public:
  virtual ~TailView() = default;
  // A step that is new. `several`: models, so that it says of which it is.
  virtual void add(const StepRecord& step, bool several) = 0;
  virtual void end_steps() = 0;
  // All that there are; whether any is new, or has changed.
  virtual bool show(std::span<const Finding> findings) = 0;
  virtual bool show(std::span<const StallRecord> stalls) = 0;
  virtual void say(const std::string& text) = 0;
  virtual void say_quiet(const std::string& text) = 0;  // until something comes
  virtual void end_look() = 0;
};

// What was told already of what may be told again.
class Told {
 public:
  bool is_new(const Finding& finding);
  bool is_new(const StallRecord& stall);

 private:
  std::set<std::tuple<ModelKey, std::string, std::vector<std::uint32_t>, std::uint64_t>> findings_;
  std::set<std::tuple<std::uint32_t, std::uint32_t, bool, bool>> stalls_;
};

// The columns that both views begin a step's line with.
std::string step_header();
std::string step_columns(const StepRecord& step);
// "critical: TITLE (...)", and of a stall; in colour if asked. Printable but for that.
std::string line_of(const Finding& finding);
std::string line_of(const StallRecord& stall);
std::string coloured(const std::string& text, Severity severity, bool colour);
Severity severity_of(const StallRecord& stall);

// A line for each step, finding and stall; to begin with of the last `lines` steps.
std::unique_ptr<TailView> line_view(std::uint64_t lines, std::ostream& out, bool colour);

}  // namespace presum::cli
