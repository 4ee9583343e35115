// SPDX-License-Identifier: Apache-2.0
#include "base/simd.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/simd_dispatch.h"
#include "base/try.h"

namespace presum::base {
namespace {

using Target = std::int64_t;  // one bit of HWY_TARGETS; a lower bit is a better target

// Asked once: detection executes CPUID, which takes tens of microseconds in a virtual machine.
const std::vector<Target>& possible_targets() {
  static const std::vector<Target> targets = hwy::SupportedAndGeneratedTargets();
  return targets;
}

Result<Target> find_target(std::string_view wanted) {
  const std::vector<Target>& targets = possible_targets();
  if (wanted.empty()) return targets.front();
  const auto found = std::find_if(targets.begin(), targets.end(), [wanted](Target target) {
    return hwy::TargetName(target) == wanted;
  });
  if (found != targets.end()) return *found;
  std::string names;
  for (const std::string_view name : simd_targets()) {
    names += names.empty() ? " " : ", ";
    names += name;
  }
  return fail(ErrorCode::kInvalidArgument, "PRESUM_SIMD: \"" + std::string(wanted) +
                                               "\" is not possible here; use one of" + names);
}

const Result<Target>& environment_target() {
  static const Result<Target> target = [] {
    const char* wanted = std::getenv("PRESUM_SIMD");
    return find_target(wanted == nullptr ? "" : wanted);
  }();
  return target;
}

std::atomic<Target> forced_target = 0;  // 0: none

constexpr bool kSingleTarget = (HWY_TARGETS & (HWY_TARGETS - 1)) == 0;

std::size_t table_index(Target target) {
  if (kSingleTarget) return 0;
  hwy::ChosenTarget chosen;
  chosen.Update(target);
  return chosen.GetIndex();
}

}  // namespace

Result<std::string_view> simd_target() {
  const Target forced = forced_target.load(std::memory_order_relaxed);
  if (forced != 0) return std::string_view(hwy::TargetName(forced));
  PRESUM_ASSIGN(const Target target, environment_target());
  return std::string_view(hwy::TargetName(target));
}

std::vector<std::string_view> simd_targets() {
  std::vector<std::string_view> names;
  for (const Target target : possible_targets()) names.emplace_back(hwy::TargetName(target));
  return names;
}

std::vector<std::string_view> impossible_simd_targets() {
  std::vector<std::string_view> names;
  for (Target bit = 1; bit != 0 && bit <= HWY_TARGETS; bit <<= 1) {
    const auto& targets = possible_targets();
    const bool compiled = (HWY_TARGETS & bit) != 0;
    if (compiled && std::find(targets.begin(), targets.end(), bit) == targets.end()) {
      names.emplace_back(hwy::TargetName(bit));
    }
  }
  return names;
}

Status set_simd_target(std::string_view name) {
  PRESUM_ASSIGN(const Target target, name.empty() ? 0 : find_target(name));
  forced_target.store(target, std::memory_order_relaxed);
  return {};
}

std::size_t simd_table_index() noexcept {
  const Target forced = forced_target.load(std::memory_order_relaxed);
  if (forced != 0) return table_index(forced);
  static const std::size_t chosen =
      table_index(environment_target().value_or(possible_targets().front()));
  return chosen;
}

}  // namespace presum::base
