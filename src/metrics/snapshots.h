// SPDX-License-Identifier: Apache-2.0
// Mean, standard deviation and range of what is known.
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

// Of `get(item)` of all items, in double, in two passes. Values that are not finite are left out;
// NaN where none is left. The deviation is the population's, 0 for one value and for equal ones.
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
