// SPDX-License-Identifier: Apache-2.0
#include "checks/engine/batches.h"

#include <algorithm>
#include <set>

#include "base/hash.h"

namespace presum::checks {
namespace {

std::uint64_t low_bits(std::uint32_t count) {
  return count >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1;
}

Batch batch_of(const WorkerRecord& worker, std::uint64_t mask, std::vector<std::uint64_t>& rows) {
  rows.clear();
  for (const std::uint64_t row : worker.samples.hashes) {
    if ((row & mask) == 0) rows.push_back(row);
  }
  Batch out;
  out.known = !rows.empty();
  out.rows = rows.size();
  for (const std::uint64_t row : rows) out.order = mix64(out.order + row);
  std::sort(rows.begin(), rows.end());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const bool again = i > 0 && rows[i] == rows[i - 1];
    out.set += mix64(rows[i] + 1);  // with repeats: some rows are in every batch
    if (!again) {
      ++out.distinct;
    } else if (i == 1 || rows[i - 2] != rows[i]) {
      ++out.repeated;
    }
  }
  return out;
}

}  // namespace

std::vector<Batch> batches(const StepRecord& record) {
  std::uint32_t thinned = 0;
  for (const WorkerRecord& w : record.workers) thinned = std::max(thinned, w.samples.thinned);
  std::vector<Batch> out;
  out.reserve(record.workers.size());
  std::vector<std::uint64_t> rows;
  for (const WorkerRecord& w : record.workers) out.push_back(batch_of(w, low_bits(thinned), rows));
  return out;
}

bool rows_are_shared(const StepRecord& record, std::span<const Batch> batches) {
  if (record.workers.size() < 2) return false;
  std::set<std::uint64_t> whole;
  for (std::size_t i = 0; i < batches.size(); ++i) {
    const std::uint64_t* batch = record.workers[i].fingerprint_of(FingerprintKind::kBatch);
    const bool same = batches[i].known && batches[i].set == batches.front().set;
    if (!same || batch == nullptr || !whole.insert(*batch).second) return false;
  }
  return true;
}

bool aligned(const WorkerRecord& worker) {
  return worker.samples.thinned == 0 && worker.samples.hashes.size() == worker.indices.size();
}

bool disjoint_indices(const WorkerRecord& a, const WorkerRecord& b) {
  if (a.indices.empty() || b.indices.empty()) return false;
  const std::set<std::uint64_t> of_a(a.indices.begin(), a.indices.end());
  return std::ranges::none_of(b.indices, [&](auto index) { return of_a.contains(index); });
}

}  // namespace presum::checks
