// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "packet/packet.h"

namespace presum::monitor {

// Sorts the steps of all workers into whole steps, in order for each model. Pure bookkeeping: time
// comes in as an argument. Not synchronised.
class StepAssembler {
 public:
  static constexpr std::size_t kLaterSteps = 64;
  static constexpr Seconds kPatience{30};

  // No worker is this many steps ahead of what is known of its model.
  static constexpr std::uint64_t kStepsAheadMax = 1 << 20;

  enum class Taken { kNew, kDuplicate, kLate, kImplausible };
  Taken add(packet::Step&& step, Seconds now);
  // The worker will send no further step: nobody waits for it any more.
  void departed(const Identity& worker);

  struct Assembled {
    std::uint32_t workers_expected = 0;
    std::vector<packet::Step> workers;  // by replica
  };
  // The next step that is complete or has waited long enough; with `flush`, any step.
  std::optional<Assembled> next(Seconds now, bool flush);

 private:
  struct Open {
    Seconds first_seen{0};
    std::uint32_t workers_expected = 0;
    std::map<std::uint32_t, packet::Step> workers;
  };
  struct Stream {
    std::map<std::uint64_t, Open> open;
    std::optional<std::uint64_t> last_closed;
    std::set<std::uint32_t> departed;
  };
  static std::uint64_t newest(const Stream& stream);
  static bool ready(const Stream& stream, Seconds now);

  std::map<std::pair<std::uint32_t, std::uint32_t>, Stream> streams_;  // by module and shard
};

}  // namespace presum::monitor
