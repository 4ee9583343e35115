// SPDX-License-Identifier: Apache-2.0
#include "monitor/watch.h"

#include <utility>

namespace presum::monitor {

Watch::Watch(const ModelKey& model) : detector_(detect::Options{}), diagnoser_(model) {}

void Watch::hello(const packet::Hello& hello) {
  diagnoser_.hello(hello.header.identity, hello.facts);
  changed_ = true;
}

void Watch::farewell(const packet::Note& note) {
  diagnoser_.farewell(note.header.identity, note.state);
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
