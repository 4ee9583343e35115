// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <unordered_map>

#include "diagnose/step_context.h"

namespace presum::diagnose {

// Whether every worker reads the same samples again and again, and nobody else's: one batch that is
// overfitted, or shards that are never dealt anew. Then workers differ lastingly without a fault.
// Knows up to 65,536 rows; where there are more it says no.
class StaticData {
 public:
  void see(const StepContext& context);
  // Five records long nothing but one's own samples of before.
  bool is_static() const { return !lost_ && quiet_ >= 5; }

 private:
  std::unordered_map<std::uint64_t, std::uint32_t> reader_;  // replica by row
  std::uint64_t quiet_ = 0;
  bool lost_ = false;
};

}  // namespace presum::diagnose
