// SPDX-License-Identifier: Apache-2.0
// What needs the run's own past, or none: single steps far outside everything seen, and workers
// that all hold the same gradient (docs/detectors.md, D4 and "The same work"). No error control.
#pragma once

#include <cstdint>
#include <vector>

#include "detect/rank_panel.h"
#include "presum/step_record.h"

namespace presum::detect {

class EventWatch {
 public:
  struct Event {
    std::uint32_t worker = 0;
    RankPanel::Reading reading;
  };
  // Looks at the panel's last step. Workers that are blamed already are left out, silent for the
  // first 100 steps.
  std::vector<Event> update(const RankPanel& panel, std::size_t workers, std::uint64_t step);

  template <class Archive>
  void visit(Archive& archive) {
    archive(peak_);
  }

 private:
  double peak_ = 0;  // largest distance so far, slowly forgotten
};

// Ten steps in a row in which all workers hold one gradient up to rounding.
class SameWork {
 public:
  // The step where it began, once it has lasted; then it starts to count anew.
  std::optional<std::uint64_t> update(const StepRecord& record);

  template <class Archive>
  void visit(Archive& archive) {
    archive(streak_);
    archive(first_);
  }

 private:
  std::uint64_t streak_ = 0;
  std::uint64_t first_ = 0;
};

}  // namespace presum::detect
