// SPDX-License-Identifier: Apache-2.0
#include "monitor/watch.h"

#include <utility>

namespace presum::monitor {

Watch::Watch(std::uint32_t segment, std::uint32_t module, std::uint32_t shard)
    : detector_(detect::Options{}), diagnoser_(segment, module, shard) {}

void Watch::hello(const packet::Hello& hello) {
  diagnose::WorkerFacts facts{.rank = hello.header.identity.world_rank,
                              .replica = hello.header.identity.replica,
                              .host = hello.host,
                              .facts = hello.facts,
                              .groups = {}};
  for (const packet::GroupName& g : hello.groups) facts.groups.emplace_back(g.id, g.name);
  diagnoser_.hello(facts);
  changed_ = true;
}

void Watch::farewell(const packet::Note& note) {
  diagnoser_.farewell({.rank = note.header.identity.world_rank,
                       .replica = note.header.identity.replica,
                       .clock = note.clock,
                       .states = note.states});
  changed_ = true;
}

void Watch::judge(StepRecord& record) {
  record.noise_scale = noise_.update(record.signal, record.noise);
  const auto alarms = detector_.update(record);
  diagnoser_.update(record, alarms, detector_);
  if (record.workers.size() > 1 && !record.lacks_packets()) ++compared_steps_;
  span_.add(record.step, !record.lacks_packets());
  changed_ = true;
}

std::vector<Finding> Watch::findings() const {
  std::vector<Finding> out;
  for (auto& numbered : diagnoser_.findings()) out.push_back(std::move(numbered.finding));
  return out;
}

bool Watch::take_changed() { return std::exchange(changed_, false); }

}  // namespace presum::monitor
