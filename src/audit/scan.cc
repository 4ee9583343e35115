// SPDX-License-Identifier: Apache-2.0
#include "audit/scan.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "audit/values.h"

namespace presum::audit {

template <class Real>
void read_rows(Leaves leaves, Dtype dtype, std::size_t first, std::size_t count, Rows<Real>& rows) {
  rows.count = count;
  for (std::size_t worker = 0; worker < leaves.size(); ++worker) {
    unpack(leaves[worker], first, dtype, rows[worker]);
  }
}

template <class Real>
Scan<Real>::Scan(std::uint32_t workers, Dtype dtype, std::uint32_t divisor)
    : dtype_(dtype),
      divisor_(divisor),
      bounds_(Bounds::of_any_division(workers, dtype, divisor)),
      plan_(workers, dtype, divisor, bounds_),
      counts_(bounds_.counts()),
      rows_(workers),
      exact_(workers, dtype, divisor) {
  pending_.bytes.resize((workers + 1) * kScanTile * element_bytes(dtype));
}

template <class Real>
bool Scan<Real>::has_kernel() const {
  return dtype_ != Dtype::kF64 && divisor_ <= (1U << 28);
}

// Adds whole tiles in place; the remainder waits until its tile is full.
template <class Real>
void Scan<Real>::add(Leaves leaves, std::size_t count, const void* result) {
  for (std::size_t first = 0, length = 0; first < count; first += length) {
    length = std::min(kScanTile - pending_.count, count - first);
    if (length == kScanTile) {
      add_tile(leaves, first, length, result);
      continue;
    }
    keep(leaves, first, length, result);
    if (pending_.count == kScanTile) add_pending();
  }
}

template <class Real>
void Scan<Real>::keep(Leaves leaves, std::size_t first, std::size_t count, const void* result) {
  const std::size_t width = element_bytes(dtype_);
  std::byte* row = pending_.bytes.data() + pending_.count * width;
  const auto append = [&](const void* from) {
    std::memcpy(row, static_cast<const std::byte*>(from) + first * width, count * width);
    row += kScanTile * width;
  };
  std::ranges::for_each(leaves, append);
  append(result);
  pending_.count += count;
}

template <class Real>
void Scan<Real>::add_pending() {
  std::vector<const void*> rows;
  for (std::size_t row = 0; row <= rows_.workers(); ++row) {
    rows.push_back(pending_.bytes.data() + row * kScanTile * element_bytes(dtype_));
  }
  add_tile(std::span(rows).first(rows_.workers()), 0, pending_.count, rows.back());
  pending_.count = 0;
}

template <class Real>
void Scan<Real>::add_tile(Leaves leaves, std::size_t first, std::size_t count, const void* result) {
  const std::size_t whole = has_kernel() ? count / kScanLanes * kScanLanes : 0;
  if (whole > 0) {
    scan_tile(plan_, leaves, result, first, whole, sums_, tile_);
    measures_.add_distances(tile_.few, std::span(tile_.ulps).first(tile_.ulps_count));
    if (tile_.left_count > 0) add_left(leaves, first, result);
  }
  if (whole < count) add_plainly(leaves, first + whole, count - whole, result);
}

template <class Real>
void Scan<Real>::add_left(Leaves leaves, std::size_t first, const void* result) {
  const auto gather = [&](const void* from, std::span<Real> to) {
    for (std::size_t i = 0; i < tile_.left_count; ++i) {
      unpack(from, first + tile_.left[i], dtype_, to.subspan(i, 1));
    }
  };
  rows_.count = tile_.left_count;
  for (std::size_t worker = 0; worker < leaves.size(); ++worker) {
    gather(leaves[worker], rows_[worker]);
  }
  actual_.resize(tile_.left_count);
  gather(result, actual_);
  add_rows();
}

template <class Real>
void Scan<Real>::add_plainly(Leaves leaves, std::size_t first, std::size_t count,
                             const void* result) {
  read_rows(leaves, dtype_, first, count, rows_);
  actual_.resize(count);
  unpack<Real>(result, first, dtype_, actual_);
  add_rows();
}

template <class Real>
void Scan<Real>::add_rows() {
  const Truth<Real>& truth = exact_.truth(rows_);
  measures_.add<Real>(actual_, truth, dtype_, divisor_);
  for (std::size_t i = 0; i < actual_.size(); ++i) {
    const Sums& s = truth.sums;
    bounds_.count<Real>({actual_[i], s.high[i], s.low[i], s.sum_abs[i], are_finite(rows_, i)},
                        counts_);
  }
}

template <class Real>
auto Scan<Real>::result() const -> Result {
  if (pending_.count > 0) {
    Scan whole = *this;
    whole.add_pending();
    return whole.result();
  }
  const auto total = [](const auto& lanes) {
    return std::accumulate(lanes.begin(), lanes.end(), 0.0);
  };
  const double by = static_cast<double>(divisor_) * divisor_;
  Measures measures = measures_;
  measures.add_sums(total(sums_.squared_errors) / by, total(sums_.squared_sums) / by,
                    total(sums_.ratios), std::ranges::max(sums_.largest_ratios));
  std::vector<std::uint64_t> counts = counts_;
  for (std::size_t f = 0; f < counts.size(); ++f) counts[f] += sums_.counts[f];
  return {measures, excess_of(dtype_, counts)};
}

template void read_rows(Leaves, Dtype, std::size_t, std::size_t, Rows<float>&);
template void read_rows(Leaves, Dtype, std::size_t, std::size_t, Rows<double>&);
template class Scan<float>;
template class Scan<double>;

}  // namespace presum::audit
