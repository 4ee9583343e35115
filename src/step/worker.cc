// SPDX-License-Identifier: Apache-2.0
#include "step/worker.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/hash.h"

namespace presum::step {
namespace {

// Returns the beginning of a fact that is too long, then its length and hash.
std::string shortened(std::string_view text) {
  if (text.size() <= Worker::kFactBytesMax) return std::string(text);
  auto kept = Worker::kFactBytesMax - 64;
  // Do not cut within a UTF-8 character.
  while (kept > 0 && (static_cast<unsigned char>(text[kept]) & 0xC0U) == 0x80U) --kept;
  return fmt::format("{}... ({} bytes, hash {:016x})", text.substr(0, kept), text.size(),
                     name_hash(text));
}

}  // namespace

Worker::Worker(WorkerOptions options) : options_(std::move(options)) {
  for (auto& [key, value] : options_.facts) value = shortened(value);
}

Packet Worker::hello(const std::vector<GroupName>& groups) const {
  auto all = groups;
  all.insert(all.end(), watched_.begin(), watched_.end());
  return packet::encode(packet::Hello{
      .header = {.identity = options_.identity},
      .facts = {.host = options_.host, .facts = options_.facts, .groups = std::move(all)}});
}

void Worker::fact(std::string_view key, std::string_view value) {
  auto& facts = options_.facts;
  const auto at = std::ranges::find(facts, key, [](const auto& f) { return f.first; });
  if (at != facts.end()) {
    at->second = shortened(value);
  } else {
    facts.emplace_back(key, shortened(value));
  }
}

void Worker::watch(std::string_view name) {
  const std::uint64_t id = name_hash(name);
  if (std::ranges::find(watched_, id, &GroupName::id) != watched_.end()) return;
  watched_.push_back({.id = id, .elements = 0, .name = std::string(name)});
}

Packet Worker::note(packet::Note what) const {
  what.header.identity = options_.identity;
  return packet::encode(what);
}

}  // namespace presum::step
