// SPDX-License-Identifier: Apache-2.0
#include "checks/engine/sampling.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "checks/engine/split.h"
#include "checks/engine/step_context.h"

namespace presum::checks {
namespace {

// Parts of a rank's sampler that deal every sample: torch's, and Accelerate's wrappers around them.
constexpr std::string_view kDealsAll[] = {"BatchSampler",
                                          "DistributedSampler",
                                          "RandomSampler",
                                          "SequentialSampler",
                                          "SeedableRandomSampler",
                                          "BatchSamplerShard",
                                          "DistributedLengthGroupedSampler"};

// "A(B(C)): x=1" gives A, B and C.
std::vector<std::string_view> names_of(std::string_view sampler) {
  std::vector<std::string_view> out;
  sampler = sampler.substr(0, sampler.find(':'));
  while (!sampler.empty()) {
    const std::size_t end = std::min(sampler.find_first_of("()"), sampler.size());
    if (end > 0) out.push_back(sampler.substr(0, end));
    sampler.remove_prefix(std::min(end + 1, sampler.size()));
  }
  return out;
}

bool repeats_on_purpose(const Roster& roster) {
  const std::string sampler = roster.fact("sampler");
  // timm's and Ultralytics' _RepeatSampler restarts endlessly and repeats nothing within a pass.
  const std::size_t at = sampler.find("Repeat");
  const bool repeats = at != std::string::npos && (at == 0 || sampler[at - 1] != '_');
  return repeats || sampler.find("RASampler") != std::string::npos;
}

// Detects a sampler that repeats samples (generations of one prompt), whatever its name.
bool repeats_evenly(const StepRecord& record) {
  std::unordered_map<std::uint64_t, std::uint64_t> times;
  bool within = false;
  for (const WorkerRecord& w : record.workers) {
    if (w.indices.empty()) return false;
    std::unordered_set<std::uint64_t> own;
    for (const std::uint64_t index : w.indices) {
      ++times[index];
      within = !own.insert(index).second || within;
    }
  }
  if (!within || times.empty()) return false;
  const std::uint64_t each = times.begin()->second;
  return each > 1 && std::ranges::all_of(times, [&](const auto& t) { return t.second == each; });
}

}  // namespace

bool distributed_sampling(const StepRecord& record) {
  return !record.workers.empty() && std::ranges::all_of(record.workers, [](const WorkerRecord& w) {
    return value_of(w, FingerprintKind::kSamplerReplicas) > 1;
  });
}

std::uint64_t data_of(const WorkerRecord& worker) {
  using enum FingerprintKind;
  std::uint64_t out = 0;
  for (const auto kind : {kDataClass, kDataLength, kDataAttributes, kDataSubset, kDataContents}) {
    out = mix64(out + value_of(worker, kind));
  }
  return out;
}

std::uint64_t share_of_data(const WorkerRecord& worker) {
  const std::uint64_t* share = worker.fingerprint_of(FingerprintKind::kDataShare);
  return share == nullptr ? data_of(worker) : mix64(data_of(worker) + *share);
}

std::uint64_t rows_of(const WorkerRecord& worker) {
  return std::max<std::uint64_t>(worker.samples.rows, worker.indices.size());
}

bool draws_with_replacement(const Roster& roster) {
  const std::string sampler = roster.fact("sampler");
  const auto says = [&](const char* words) { return sampler.find(words) != std::string::npos; };
  return says("replacement=True") || says("ResampledShards") ||
         (says("WeightedRandomSampler") && !says("replacement=False"));
}

bool repeats_by_design(const StepRecord& record, const Roster& roster) {
  return repeats_on_purpose(roster) || repeats_evenly(record);
}

std::size_t ranks_per_place(const StepRecord& record) {
  const std::size_t workers = record.workers.size();
  if (workers < 4 || workers != record.workers_expected) return 1;
  std::vector<std::pair<std::uint32_t, std::uint64_t>> places;  // by rank
  std::uint64_t replicas = 0;
  for (const WorkerRecord& w : record.workers) {
    const std::uint64_t* place = w.fingerprint_of(FingerprintKind::kSamplerRank);
    const std::uint64_t* of = w.fingerprint_of(FingerprintKind::kSamplerReplicas);
    if (place == nullptr || of == nullptr || (replicas != 0 && *of != replicas)) return 1;
    replicas = *of;
    places.emplace_back(w.rank, *place);
  }
  if (replicas < 2 || replicas >= workers || workers % replicas != 0) return 1;
  std::ranges::sort(places);
  const std::size_t each = workers / replicas;
  for (std::size_t i = 0; i < workers; ++i) {
    if (places[i].second != i / each) return 1;
  }
  return each;
}

std::size_t divides_among_job(const StepRecord& record, const Roster& roster) {
  const Split replicas = split(record, FingerprintKind::kSamplerReplicas);
  if (replicas.known == 0 || replicas.known < record.workers_expected) return 0;
  if (replicas.differs()) return 0;
  const std::uint64_t among = replicas.groups.front().value;
  return among > record.workers_expected && among == roster.world_size() ? among : 0;
}

bool shares_places(const StepRecord& record) {
  const std::size_t each = ranks_per_place(record);
  if (each < 2) return false;
  std::unordered_map<std::uint64_t, std::uint64_t> first;  // gradient by place
  bool known = false;
  for (const WorkerRecord& w : record.workers) {
    if (w.fingerprint == 0 || !has_gradient(w)) continue;
    const std::uint64_t place = *w.fingerprint_of(FingerprintKind::kSamplerRank);
    const auto [at, fresh] = first.try_emplace(place, w.fingerprint);
    if (!fresh && at->second != w.fingerprint) return true;
    known = known || !fresh;
  }
  return !known;
}

bool skips(std::string_view sampler) { return sampler.find("Skip") != std::string_view::npos; }

bool draws_some(std::string_view sampler) {
  const auto names = names_of(sampler);
  return !names.empty() &&
         (names.back() == "SubsetRandomSampler" || names.back() == "RandomSampler");
}

bool deals_all(std::string_view sampler, std::uint64_t own, std::uint64_t length) {
  if (draws_some(sampler) && own > 0 && own < length) return false;
  const auto names = names_of(sampler);
  return !names.empty() && std::ranges::all_of(names, [](std::string_view name) {
    return std::ranges::find(kDealsAll, name) != std::end(kDealsAll);
  });
}

bool deals_each_once(const Roster& roster) {
  const std::string sampler = roster.fact("sampler");
  return sampler.empty() || deals_all(sampler, 0, 0);
}

}  // namespace presum::checks
