// SPDX-License-Identifier: Apache-2.0
#include "checks/engine/passes.h"

#include <algorithm>
#include <bit>

#include "checks/engine/sampling.h"

namespace presum::checks {
namespace {

constexpr std::size_t kFollowed = 4096;                     // passes, readers and datasets
constexpr std::uint64_t kSamples = std::uint64_t{1} << 27;  // by index

void draw(const WorkerRecord& worker, std::uint64_t step, Pass& pass) {
  const std::uint64_t rows = rows_of(worker);
  pass.gapless = pass.gapless && rows > 0;
  pass.rows += rows;
  pass.rows_at_once = std::max(pass.rows_at_once, rows);
  pass.last_step = step;
  const std::uint64_t passed_over = value_of(worker, FingerprintKind::kRowsPassedOver);
  const std::uint64_t cut = value_of(worker, FingerprintKind::kRowsCut);
  pass.passed_over += passed_over;
  pass.cut += cut;
  pass.untrained_at_once = std::max(pass.untrained_at_once, passed_over + cut);
  pass.indexed = pass.indexed && !worker.indices.empty() && worker.indices.size() < kIndicesMax &&
                 worker.indices.size() >= rows && std::ranges::max(worker.indices) < pass.length;
  if (!pass.indexed) return;
  for (const std::uint64_t index : worker.indices) pass.drawn.insert(index);
}

}  // namespace

void SampleSet::unite(const SampleSet& other) {
  for (std::size_t i = 0; i < words_.size(); ++i) words_[i] |= other.words_[i];
}

std::uint64_t SampleSet::count() const {
  std::uint64_t out = 0;
  for (const std::uint64_t word : words_) out += static_cast<std::uint64_t>(std::popcount(word));
  return out;
}

std::uint64_t SampleSet::end() const {
  for (std::size_t i = words_.size(); i > 0; --i) {
    const auto zeros = static_cast<std::uint64_t>(std::countl_zero(words_[i - 1]));
    if (zeros < 64) return 64 * i - zeros;
  }
  return 0;
}

bool reads_passes(const WorkerRecord& worker) {
  using enum FingerprintKind;
  return value_of(worker, kDataLength) > 0 && worker.fingerprint_of(kDataPass) != nullptr &&
         worker.fingerprint_of(kDataBatch) != nullptr;
}

void Passes::see(const StepRecord& record) {
  for (const WorkerRecord& worker : record.workers) {
    if (reads_passes(worker)) read(record, worker);
  }
  if (record.workers.size() == record.workers_expected) return;
  for (auto& [of, open] : passes_) open.pass.all_workers = false;
}

void Passes::read(const StepRecord& record, const WorkerRecord& worker) {
  using enum FingerprintKind;
  const std::uint64_t number = value_of(worker, kDataPass);
  const std::uint64_t batch = value_of(worker, kDataBatch);
  const Data data = share_of_data(worker);
  const std::pair key{worker.replica, data};
  if (readers_.size() >= kFollowed && !readers_.contains(key)) return lose_readers();
  const auto [at, fresh] = readers_.try_emplace(key);
  if (fresh) ++readers_of_[data];
  Reader reader = at->second;
  const bool further = reader.reading && number == reader.pass;
  if (reader.reading && !further) {
    if (batch + 1 < worker.micro_batches) {  // the step began in the previous pass
      draw(worker, record.step, passes_.at({data, reader.pass}).pass);
    }
    leave(data, reader, value_of(worker, kDataEnded) == reader.pass + 1);
  }
  const std::uint64_t before = further ? reader.batch + 1 : 0;
  reader = {worker.rank, number, batch, true};
  Pass& pass = further ? passes_.at({data, number}).pass : enter(record, worker, reader).pass;
  readers_[key] = reader;
  pass.is_first = pass.is_first && (fresh || further);
  if (further) {
    pass.gapless = pass.gapless && batch + 1 >= before && batch < before + worker.micro_batches;
  } else {
    pass.from_start = pass.from_start && batch < worker.micro_batches;
  }
  draw(worker, record.step, pass);
  take_leave(worker.rank);
}

// If some readers of a pass are not followed, the pass is not known in full.
void Passes::lose_readers() {
  if (std::exchange(too_many_, true)) return;
  for (auto& [of, open] : passes_) open.pass.gapless = false;
}

Passes::Open& Passes::enter(const StepRecord& record, const WorkerRecord& worker,
                            const Reader& reader) {
  using enum FingerprintKind;
  const Data data = share_of_data(worker);
  if (passes_.size() >= kFollowed) {  // some rank never continues: drops its passes
    passes_.clear();
    readers_.clear();
    readers_of_ = {{data, 1}};
  }
  std::erase_if(passes_, [&](const auto& entry) {  // that some ranks never reached
    return entry.first.first == data && entry.second.readers == 0;
  });
  const auto [at, fresh] = passes_.try_emplace({data, reader.pass});
  Pass& pass = at->second.pass;
  if (fresh) {
    pass.data = data;
    pass.number = reader.pass;
    pass.length = value_of(worker, kDataLength);
    pass.contents = value_of(worker, kDataContents);
    pass.own = value_of(worker, kSamplerLength);
    pass.first_step = record.step;
    pass.workers = record.workers_expected;
    pass.gapless = !too_many_;
    pass.indexed = pass.length <= kSamples - std::min(kSamples, samples_followed());
    if (pass.indexed) pass.drawn = SampleSet(pass.length);
  }
  ++at->second.readers;
  insert(pass.ranks, worker.rank);
  return at->second;
}

void Passes::farewell(std::uint32_t rank, const FinalState& last) {
  using enum FingerprintKind;
  if (farewells_.size() >= kFollowed) return;
  const std::uint64_t pass = last.fingerprint_or_zero(kDataPass);
  farewells_[rank] = {pass, last.fingerprint_or_zero(kDataBatch),
                      last.fingerprint_or_zero(kDataEnded) == pass + 1};
  take_leave(rank);
}

// Once its last step has arrived.
void Passes::take_leave(std::uint32_t rank) {
  const auto farewell = farewells_.find(rank);
  if (farewell == farewells_.end()) return;
  const auto [pass, batch, ended] = farewell->second;
  for (auto& [key, reader] : readers_) {
    if (reader.rank != rank || !reader.reading || reader.pass != pass || reader.batch != batch) {
      continue;
    }
    leave(key.second, reader, ended);
    farewells_.erase(farewell);
    return;
  }
}

void Passes::leave(Data data, Reader& reader, bool ended) {
  reader.reading = false;
  const auto at = passes_.find({data, reader.pass});
  if (at == passes_.end()) return;
  auto& [pass, readers] = at->second;
  pass.ended = pass.ended && ended;
  --readers;
  if (readers > 0 || pass.ranks.size() < readers_of_[data]) return;
  over_.push_back(std::move(pass));
  passes_.erase(at);
}

std::uint64_t Passes::samples_followed() const {
  std::uint64_t out = 0;
  for (const auto& [key, open] : passes_) out += open.pass.indexed ? open.pass.length : 0;
  return out;
}

}  // namespace presum::checks
