// SPDX-License-Identifier: Apache-2.0
#include "checks/engine/draws.h"

#include <algorithm>
#include <utility>

#include "base/hash.h"
#include "checks/engine/sampling.h"

namespace presum::checks {
namespace {

using Identity = DrawnPass::Identity;

constexpr std::size_t kSamples = std::size_t{1} << 18;
constexpr std::uint32_t kMaxBits = 60;
constexpr std::size_t kRecur = 3;     // samples that came in another step: rows are changed alike
constexpr double kNearlyWhole = 0.9;  // of the data; a pass may restart from here on

// Whether datasets hold different positions: an index is then a different sample on each rank.
bool shares_differ(const StepRecord& record) {
  return split(record, FingerprintKind::kDataShare).differs();
}

// A step whose micro-batches belong to two passes over the data.
bool straddles(const WorkerRecord& worker) {
  if (worker.micro_batches < 2) return false;
  const std::uint64_t last = value_of(worker, FingerprintKind::kDataBatch);
  return last + 1 < worker.micro_batches;
}

// Whether most of the data was drawn in the pass.
bool nearly_whole(const WorkerRecord& worker, const DrawnPass& pass) {
  const auto length = static_cast<double>(value_of(worker, FingerprintKind::kDataLength));
  return static_cast<double>(pass.drawn) >= kNearlyWhole * length;
}

// All ranks except the first of each sampler position: ranks that share a position draw the same.
std::set<std::uint32_t> followers(const StepRecord& record) {
  std::set<std::uint32_t> out;
  if (ranks_per_place(record) < 2) return out;
  std::set<std::uint64_t> places;
  for (const WorkerRecord& w : record.workers) {
    if (!places.insert(value_of(w, FingerprintKind::kSamplerRank)).second) out.insert(w.replica);
  }
  return out;
}

}  // namespace

bool DrawnPass::follows(std::uint64_t sample) const {
  return (sample & ((std::uint64_t{1} << bits) - 1)) == 0;
}

std::vector<DrawnPass> Draws::passes() const {
  std::vector<DrawnPass> out;
  for (const Following& each : passes_) out.push_back(each.pass);
  return out;
}

void Draws::see(const StepRecord& record, std::span<const Batch> batches) {
  followed_.clear();
  again_.clear();
  if (record.workers.empty()) return;
  begin_anew(record);
  const bool shared = rows_are_shared(record, batches);
  if (record.workers.size() == record.workers_expected) followers_ = followers(record);
  std::vector<bool> leads;
  for (const WorkerRecord& w : record.workers) leads.push_back(!followers_.contains(w.replica));
  ending_.clear();
  for (Following& pass : passes_) {
    if (ends_within(record, leads, pass)) ending_.push_back(pass.pass.number);
  }
  for (std::size_t i = 0; i < leads.size(); ++i) {
    followed_.push_back(draw(record, record.workers[i], shared, leads[i]));
  }
}

// If the loader and its data are recreated for each pass, the pass number never changes. A replay
// of the first batch before the pass has ended does not count as a new pass.
void Draws::begin_anew(const StepRecord& record) {
  std::vector<std::uint64_t> anew;
  for (const WorkerRecord& w : record.workers) {
    const std::uint64_t number = value_of(w, FingerprintKind::kDataPass);
    const std::uint64_t batch = value_of(w, FingerprintKind::kDataBatch);
    Place& place = places_[w.replica];
    const std::uint64_t rows = value_of(w, FingerprintKind::kBatch);
    const bool first = batch + 1 == w.micro_batches;
    const Following* now = find(number);
    const bool replays = first && rows != 0 && rows == place.first_rows && now != nullptr &&
                         !nearly_whole(w, now->pass);
    if (number == place.pass && batch < place.batch && !replays) anew.push_back(number);
    place = {number, batch, first ? rows : place.first_rows};
  }
  for (Following& pass : passes_) {
    if (std::ranges::find(anew, pass.pass.number) != anew.end()) begin_anew(pass);
  }
}

void Draws::begin_anew(Following& pass) {
  pass.pass = {.id = ++ids_, .number = pass.pass.number, .identity = pass.pass.identity};
  pass.doubled = false;
  Samples drawn = std::exchange(pass.first, {});
  if (pass.pass.identity == Identity::kIndex) pass.before = std::move(drawn);
}

// An endless sampler restarts the data within a single loader pass: once all of the data was drawn,
// or, if nothing is known to divide it and samples came twice, once every rank drew all of it. In
// the step where that happens, the draws cannot be assigned.
bool Draws::ends_within(const StepRecord& record, const std::vector<bool>& leads, Following& pass) {
  const WorkerRecord& any = record.workers.front();
  const std::uint64_t number = pass.pass.number;
  const std::uint64_t length = value_of(any, FingerprintKind::kDataLength);
  const std::uint64_t own = value_of(any, FingerprintKind::kSamplerLength);
  const std::uint64_t replicas = value_of(any, FingerprintKind::kSamplerReplicas, 1);
  const bool undivided = any.fingerprint_of(FingerprintKind::kSamplerReplicas) == nullptr;
  const auto workers = static_cast<std::uint64_t>(std::ranges::count(leads, true));
  const std::uint64_t most = std::max<std::uint64_t>({replicas, workers, 1});
  if (length == 0 || std::max(length, own) > UINT64_MAX / most) return false;
  std::uint64_t rows = 0;
  for (std::size_t i = 0; i < leads.size(); ++i) {
    const WorkerRecord& w = record.workers[i];
    if (leads[i] && value_of(w, FingerprintKind::kDataPass, ~number) == number) rows += rows_of(w);
  }
  const std::uint64_t times = undivided && pass.doubled ? workers : 1;
  const std::uint64_t whole = std::max(length * times, own * replicas);
  if (rows > 0 && pass.pass.drawn >= whole) {
    begin_anew(pass);
    return false;
  }
  if (pass.pass.drawn + rows <= whole) return false;
  pass.pass.drawn += rows;
  return true;
}

Draws::Following* Draws::find(std::uint64_t number) {
  const auto found =
      std::ranges::find(passes_, number, [](const Following& each) { return each.pass.number; });
  return found == passes_.end() ? nullptr : &*found;
}

// The pass that a rank is in; null if it is unknown or too old.
Draws::Following* Draws::pass_of(const StepRecord& record, const WorkerRecord& worker) {
  const std::uint64_t* number = worker.fingerprint_of(FingerprintKind::kDataPass);
  if (number == nullptr) return nullptr;
  if (Following* pass = find(*number)) return pass;
  if (!passes_.empty() && *number < passes_.back().pass.number) return nullptr;
  if (passes_.size() == 2) passes_.erase(passes_.begin());
  const bool shared =
      distributed_sampling(record) && !shares_differ(record) &&
      std::ranges::none_of(record.workers, [](const auto& w) { return w.indices.empty(); });
  passes_.push_back({.pass = {.id = ++ids_,
                              .number = *number,
                              .identity = shared ? Identity::kIndex : Identity::kRow}});
  return &passes_.back();
}

Draws::Followed Draws::draw(const StepRecord& record, const WorkerRecord& w, bool shared,
                            bool leads) {
  if (w.samples.hashes.empty() && w.indices.empty()) {
    return leads ? Followed::kNoSamples : Followed::kNotNow;
  }
  Following* pass =
      leads ? pass_of(record, w) : find(value_of(w, FingerprintKind::kDataPass, DrawnPass::kNever));
  if (pass == nullptr && !leads) return Followed::kNotNow;
  if (pass == nullptr) return Followed::kNoLoader;
  if (std::ranges::find(ending_, pass->pass.number) != ending_.end()) return Followed::kNotNow;
  const bool by_index = pass->pass.identity == Identity::kIndex;
  if (shared && !by_index) return Followed::kSharedRows;
  if (leads) pass->pass.last_step = record.step;
  if (straddles(w)) return Followed::kNotNow;
  if (leads) {
    pass->pass.drawn += std::max<std::uint64_t>(
        w.samples.rows, by_index ? w.indices.size() : w.samples.hashes.size());
  }
  const bool indexed = aligned(w) && !shares_differ(record);
  if (by_index) {
    const std::uint64_t data = share_of_data(w);
    for (std::size_t i = 0; i < w.indices.size(); ++i) {
      const std::uint64_t row = indexed ? w.samples.hashes[i] : 0;
      draw(*pass, mix64(w.indices[i] + 1 + data), {w.indices[i], row, record.step, w.rank}, leads);
    }
  } else {
    if (leads) thin_to(w.samples.thinned, *pass);
    for (std::size_t i = 0; i < w.samples.hashes.size(); ++i) {
      const std::uint64_t row = w.samples.hashes[i];
      draw(*pass, row, {indexed ? w.indices[i] : kNoIndex, row, record.step, w.rank}, leads);
    }
  }
  if (!leads) return Followed::kNotNow;
  changed_ = changed_ || value_of(w, FingerprintKind::kRowsChanged) > 0;
  return changed_ && !by_index && recurred_.size() < kRecur ? Followed::kChanged : Followed::kYes;
}

void Draws::draw(Following& pass, std::uint64_t sample, const First& mine, bool leads) {
  if (!pass.pass.follows(sample)) return;
  if (leads) pass.pass.first_step = std::min(pass.pass.first_step, mine.step);
  const auto found = pass.first.find(sample);
  const bool in_pass = found != pass.first.end();
  if (leads && recurred_.size() < kRecur) {
    const Following& other = passes_.front();
    const bool before = &other != &pass && other.first.contains(sample);
    if (in_pass ? found->second.step < mine.step : before) recurred_.insert(sample);
  }
  if (const First* first = in_pass ? &found->second : drawn_before(pass, sample)) {
    const bool known = mine.index != kNoIndex && first->index != kNoIndex;
    if (known && mine.index != first->index) return;  // equal records in the dataset
    again_.push_back({.pass = pass.pass.id,
                      .sample = sample,
                      .row = mine.row,
                      .step = mine.step,
                      .rank = mine.rank,
                      .in_pass = in_pass,
                      .same_index = known,
                      .shares_place = !leads,
                      .first_row = first->row,
                      .first_step = first->step,
                      .first_rank = first->rank});
  }
  if (!leads) return;
  pass.doubled = pass.doubled || in_pass;
  if (in_pass) return;
  pass.first.emplace(sample, mine);
  if (pass.first.size() > kSamples) thin_to(pass.pass.bits + 1, pass);
}

// Only draws by index: the same rows return in every pass.
const Draws::First* Draws::drawn_before(const Following& pass, std::uint64_t sample) const {
  if (pass.pass.identity != Identity::kIndex) return nullptr;
  const auto at = pass.before.find(sample);
  if (at != pass.before.end()) return &at->second;
  const Following& other = passes_.front();
  if (other.pass.number >= pass.pass.number) return nullptr;
  const auto found = other.first.find(sample);
  return found == other.first.end() ? nullptr : &found->second;
}

void Draws::thin_to(std::uint32_t bits, Following& pass) {
  bits = std::min(bits, kMaxBits);
  if (bits <= pass.pass.bits) return;
  pass.pass.bits = bits;
  std::erase_if(pass.first, [&](const auto& entry) { return !pass.pass.follows(entry.first); });
}

}  // namespace presum::checks
