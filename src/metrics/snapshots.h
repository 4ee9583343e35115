// SPDX-License-Identifier: Apache-2.0
// Mean, standard deviation and range of the known values.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "presum/step_record.h"

namespace presum::metrics {

struct Snapshots {
  std::size_t count = 0;
  double mean = kNaN;
  double std = kNaN;
  double range = kNaN;
};

// Statistics of `get(item)` over all items, in double, in two passes. Skips values that are not
// finite; all NaN if none is left. The standard deviation is that of the population; it is 0 for
// one value and for equal values.
template <class Range, class Get>
Snapshots snapshots(const Range& range, Get&& get) {
  Snapshots m;
  double sum = 0;
  double low = std::numeric_limits<double>::infinity();
  double high = -low;
  for (const auto& item : range) {
    const double x = get(item);
    if (!std::isfinite(x)) continue;
    ++m.count;
    sum += x;
    low = std::min(low, x);
    high = std::max(high, x);
  }
  if (m.count == 0) return m;
  m.mean = sum / static_cast<double>(m.count);
  m.range = high - low;
  double squares = 0;
  for (const auto& item : range) {
    const double x = get(item);
    if (std::isfinite(x)) squares += (x - m.mean) * (x - m.mean);
  }
  m.std = m.range == 0 ? 0 : std::sqrt(squares / static_cast<double>(m.count));
  return m;
}

}  // namespace presum::metrics
