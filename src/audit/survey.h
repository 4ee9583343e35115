// SPDX-License-Identifier: Apache-2.0
// The same gradients, summed in many orders and formats and compared with the exact sum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "audit/audit.h"

namespace presum::audit {

struct SurveyRow {
  std::string name;  // for example "ring"
  Measures measures;
};

// Number of elements in which two of the sums differ.
struct SurveyPair {
  std::string name;
  std::uint64_t differing = 0;
};

struct SurveyResult {
  std::uint64_t elements = 0;
  std::vector<SurveyRow> rows;  // the last row is "exact"
  // The last two: elements that any of kSurveyOrders orders changes, and the same for the exact
  // sum.
  std::vector<SurveyPair> pairs;
};

inline constexpr std::uint32_t kSurveyOrders = 20;

struct SurveyOptions {
  std::uint32_t workers = 16;  // number of leaves; an even number above 2 is also split as half x 2
  Dtype dtype = Dtype::kF32;
  std::uint64_t elements = 0;  // of the whole buffer: a ring divides it into pieces
  std::uint64_t seed = 1;      // for the orders of arrival
};

// Takes the buffers piece by piece, in order. Memory does not depend on the number of elements. Not
// thread-safe; pointers as for Auditor::add.
class Survey {
 public:
  // Errors: those of check_arguments.
  static Result<std::unique_ptr<Survey>> create(const SurveyOptions& options);
  virtual ~Survey() = default;

  virtual void add(Leaves leaves, std::size_t count) = 0;
  virtual SurveyResult result() const = 0;
};

}  // namespace presum::audit
