// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/step_span.h"
#include "detect/detector.h"
#include "diagnose/diagnoser.h"
#include "metrics/noise.h"
#include "packet/packet.h"
#include "presum/finding.h"

namespace presum::monitor {

// What is known of one model over its steps: its noise scale, detectors and findings. Not
// synchronised.
class Watch {
 public:
  explicit Watch(const ModelKey& model);

  void hello(const packet::Hello& hello);
  void farewell(const packet::Note& note);
  // Fills what needs the steps before, and judges the step.
  void judge(StepRecord& record);

  std::vector<Finding> findings() const;
  std::vector<diagnose::Diagnoser::Numbered> numbered_findings() const {
    return diagnoser_.findings();
  }
  std::vector<CheckRecord> checks() const { return diagnoser_.checks(); }
  std::uint64_t compared_steps() const { return compared_steps_; }
  std::uint64_t lost_steps() const { return span_.lost(); }
  // Something came in since `take_changed` was last called.
  bool take_changed();

  std::string save() const { return detector_.save(); }
  void restore(std::string_view state) { static_cast<void>(detector_.restore(state)); }

 private:
  metrics::NoiseScale noise_;
  detect::Detector detector_;
  diagnose::Diagnoser diagnoser_;
  std::uint64_t compared_steps_ = 0;  // with two workers or more, and no packet under way
  base::StepSpan span_;
  bool changed_ = true;
};

}  // namespace presum::monitor
