// SPDX-License-Identifier: Apache-2.0
#include "aggregate/step_assembler.h"

#include <algorithm>

namespace presum::aggregate {
namespace {

template <class T>
std::size_t bytes_of(const std::vector<T>& values) {
  return values.capacity() * sizeof(T);
}

std::size_t bytes_of(const packet::Step& s) {
  return sizeof(s) + bytes_of(s.groups) + bytes_of(s.sketch) + bytes_of(s.micro) +
         bytes_of(s.fingerprints) + bytes_of(s.states) + bytes_of(s.samples.hashes) +
         bytes_of(s.indices) + bytes_of(s.gram);
}

}  // namespace

StepAssembler::Stream& StepAssembler::stream_of(const Identity& worker, Seconds now) {
  return streams_.try_emplace({worker.model_index, worker.dp_group}, now).first->second;
}

void StepAssembler::heard(const Identity& worker, Seconds now) {
  Stream& stream = stream_of(worker, now);
  stream.last_heard[worker.replica] = now;
  if (!stream.left.contains(worker.replica)) stream.not_awaited.erase(worker.replica);
}

StepAssembler::Taken StepAssembler::add(packet::Step&& step, Seconds now) {
  const Identity& who = step.header.identity;
  heard(who, now);
  Stream& stream = stream_of(who, now);
  const Key key(step.header.step, step.number.window);
  if (stream.last_closed && key <= *stream.last_closed) return Taken::kLate;
  if (step.header.step > newest(stream) + kStepsAheadMax ||
      step.number.unreduced > stream.unreduced + kStepsAheadMax) {
    return Taken::kImplausible;
  }
  const auto [at, fresh] = stream.open.try_emplace(key);
  Open& open = at->second;
  if (fresh) open.first_seen = now;
  open.workers_expected = std::max(open.workers_expected, who.replicas);
  const auto replica = who.replica;
  const auto bytes = bytes_of(step);
  const std::uint64_t unreduced = step.number.unreduced;
  if (!open.workers.try_emplace(replica, std::move(step)).second) return Taken::kDuplicate;
  stream.unreduced = std::max(stream.unreduced, unreduced);
  Worker& worker = stream.workers[replica];
  stream.with_open += worker.open.empty() ? 1 : 0;
  worker.open.emplace(key, unreduced);
  open.bytes += bytes;
  bytes_ += bytes;
  return Taken::kNew;
}

void StepAssembler::departed(const Identity& worker) {
  Stream& stream = stream_of(worker, Seconds{0});
  stream.left.insert(worker.replica);
  stream.not_awaited.insert(worker.replica);
}

std::uint64_t StepAssembler::newest(const Stream& stream) {
  const Key last =
      stream.open.empty() ? stream.last_closed.value_or(Key{}) : stream.open.rbegin()->first;
  return last.first;
}

bool StepAssembler::is_ahead(const Stream& stream, const Worker& worker) {
  return !worker.open.empty() && worker.open.begin()->first > stream.open.begin()->first;
}

bool StepAssembler::left_out(const Stream& stream, const Worker& worker) {
  return is_ahead(stream, worker) && worker.open.begin()->second == worker.unreduced;
}

void StepAssembler::close(Stream& stream, const packet::Step& step, const Key& key) {
  Worker& worker = stream.workers[step.header.identity.replica];
  worker.open.erase(key);
  stream.with_open -= worker.open.empty() ? 1 : 0;
  worker.unreduced = step.number.unreduced + (step.number.is_reduced() ? 0 : 1);
}

bool StepAssembler::complete(const Stream& stream) {
  const Key& key = stream.open.begin()->first;
  const Open& first = stream.open.begin()->second;
  const auto absent = [&](std::uint32_t replica) { return !first.workers.contains(replica); };
  auto gone = std::ranges::count_if(stream.not_awaited, absent);
  const std::size_t there = first.workers.size() + static_cast<std::size_t>(gone);
  const std::size_t ahead = stream.with_open - first.workers.size();
  if (key.second == StepNumber::kReduced || there + ahead < first.workers_expected) {
    return there >= first.workers_expected;
  }
  const auto without = std::ranges::count_if(stream.workers, [&](const auto& worker) {
    return !stream.not_awaited.contains(worker.first) && left_out(stream, worker.second);
  });
  return there + static_cast<std::size_t>(without) >= first.workers_expected;
}

bool StepAssembler::ready(const Stream& stream, Seconds now) {
  const Seconds waited = now - stream.open.begin()->second.first_seen;
  return stream.open.size() > kLaterSteps && waited >= kPatience;
}

void StepAssembler::stop_awaiting(Stream& stream, Seconds now, Who who) {
  const Open& first = stream.open.begin()->second;
  for (std::uint32_t replica = 0; replica < first.workers_expected; ++replica) {
    const auto heard = stream.last_heard.find(replica);
    const bool never = heard == stream.last_heard.end();
    if (first.workers.contains(replica) || (who == Who::kNeverHeard && !never)) continue;
    const Seconds last = never ? stream.began : heard->second;
    if (now - last >= kPatience) stream.not_awaited.insert(replica);
  }
}

StepAssembler::Streams::iterator StepAssembler::oldest() {
  const auto age = [](const Streams::value_type& entry) {
    const auto& open = entry.second.open;
    return open.empty() ? Seconds::max() : open.begin()->second.first_seen;
  };
  return std::ranges::min_element(streams_, {}, age);
}

StepAssembler::Assembled StepAssembler::take_first(Stream& stream, Why why) {
  std::set<std::uint32_t> ahead;
  if (stream.open.begin()->first.second != StepNumber::kReduced) {
    for (const auto& [replica, worker] : stream.workers) {
      if (is_ahead(stream, worker)) ahead.insert(replica);
    }
  }
  auto node = stream.open.extract(stream.open.begin());
  stream.last_closed = node.key();
  bytes_ -= node.mapped().bytes;
  Assembled out{.workers_expected = node.mapped().workers_expected,
                .left_out = static_cast<std::uint32_t>(ahead.size())};
  auto& workers = node.mapped().workers;
  const auto& gone = why == Why::kNoMemory ? stream.left : stream.not_awaited;
  for (std::uint32_t replica = 0; replica < out.workers_expected; ++replica) {
    if (workers.contains(replica) || ahead.contains(replica)) continue;
    if (why == Why::kWaited || gone.contains(replica)) out.missing.push_back(replica);
  }
  for (auto& [replica, step] : workers) {
    close(stream, step, node.key());
    out.workers.push_back(std::move(step));
  }
  number(stream, out.workers);
  return out;
}

// Ranks may have left out steps that were not reduced.
void StepAssembler::number(Stream& stream, std::vector<packet::Step>& workers) {
  std::uint64_t number = stream.last_number ? *stream.last_number + 1 : 0;
  for (const packet::Step& step : workers) {
    number = std::max(number, step.header.step + step.number.unreduced);
  }
  for (packet::Step& step : workers) step.header.step = number;
  stream.last_number = number;
}

std::optional<StepAssembler::Assembled> StepAssembler::next(Seconds now, bool flush) {
  for (auto& [key, stream] : streams_) {
    if (stream.open.empty()) continue;
    if (complete(stream)) return take_first(stream, Why::kComplete);
    if (ready(stream, now)) {
      stop_awaiting(stream, now, Who::kSilent);
      return take_first(stream, Why::kWaited);
    }
    if (!flush) continue;
    stop_awaiting(stream, now, Who::kNeverHeard);
    return take_first(stream, Why::kEnd);
  }
  if (bytes_ <= bytes_max_) return std::nullopt;
  Stream& stream = oldest()->second;
  stop_awaiting(stream, now, Who::kSilent);
  return take_first(stream, Why::kNoMemory);
}

}  // namespace presum::aggregate
