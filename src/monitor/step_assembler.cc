// SPDX-License-Identifier: Apache-2.0
#include "monitor/step_assembler.h"

#include <algorithm>

namespace presum::monitor {

StepAssembler::Taken StepAssembler::add(packet::Step&& step, Seconds now) {
  const Identity& who = step.header.identity;
  Stream& stream = streams_[{who.module, who.shard}];
  if (stream.last_closed && step.header.step <= *stream.last_closed) return Taken::kLate;
  if (step.header.step > newest(stream) + kStepsAheadMax) return Taken::kImplausible;
  const auto [at, fresh] = stream.open.try_emplace(step.header.step);
  Open& open = at->second;
  if (fresh) open.first_seen = now;
  open.workers_expected = std::max(open.workers_expected, who.replicas);
  const auto replica = who.replica;
  return open.workers.try_emplace(replica, std::move(step)).second ? Taken::kNew
                                                                   : Taken::kDuplicate;
}

void StepAssembler::departed(const Identity& worker) {
  streams_[{worker.module, worker.shard}].departed.insert(worker.replica);
}

std::uint64_t StepAssembler::newest(const Stream& stream) {
  return stream.open.empty() ? stream.last_closed.value_or(0) : stream.open.rbegin()->first;
}

bool StepAssembler::ready(const Stream& stream, Seconds now) {
  const Open& first = stream.open.begin()->second;
  if (stream.open.size() > kLaterSteps || now - first.first_seen >= kPatience) return true;
  const auto absent = [&](std::uint32_t replica) { return !first.workers.contains(replica); };
  const auto gone = std::count_if(stream.departed.begin(), stream.departed.end(), absent);
  return first.workers.size() + static_cast<std::size_t>(gone) >= first.workers_expected;
}

std::optional<StepAssembler::Assembled> StepAssembler::next(Seconds now, bool flush) {
  for (auto& [key, stream] : streams_) {
    if (stream.open.empty() || !(flush || ready(stream, now))) continue;
    auto node = stream.open.extract(stream.open.begin());
    stream.last_closed = node.key();
    Assembled out{.workers_expected = node.mapped().workers_expected, .workers = {}};
    for (auto& [replica, step] : node.mapped().workers) out.workers.push_back(std::move(step));
    return out;
  }
  return std::nullopt;
}

}  // namespace presum::monitor
