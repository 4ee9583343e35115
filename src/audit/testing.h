// SPDX-License-Identifier: Apache-2.0
// For tests: buffers of ranks, and the results of an all-reduce over them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "audit/audit.h"
#include "audit/synthetic.h"
#include "audit/values.h"
#include "base/try.h"

namespace presum::audit {

// Gradients of `workers` ranks in memory, in one dtype.
class Buffers {
 public:
  Buffers(std::uint32_t workers, Dtype dtype, std::size_t count,
          Distribution distribution = Distribution::kGaussian, std::uint64_t seed = 1)
      : dtype_(dtype), count_(count) {
    std::vector<double> values(count);
    for (std::uint32_t worker = 0; worker < workers; ++worker) {
      generate(distribution, seed, worker, 0, values);
      leaves_.push_back(packed(values));
    }
  }

  // Values by rank, then by element.
  Buffers(Dtype dtype, const std::vector<std::vector<double>>& workers)
      : dtype_(dtype), count_(workers.front().size()) {
    for (const auto& values : workers) leaves_.push_back(packed(values));
  }

  std::vector<std::byte> packed(std::span<const double> values) const {
    std::vector<std::byte> out(values.size() * element_bytes(dtype_));
    if (dtype_ == Dtype::kF64) {
      pack(values, dtype_, out.data());
      return out;
    }
    std::vector<float> narrow(values.begin(), values.end());
    round_to(dtype_, std::span(narrow));
    pack(std::span<const float>(narrow), dtype_, out.data());
    return out;
  }

  // Returns the value of one element of a rank.
  double at(std::size_t worker, std::size_t element) const {
    double out = 0;
    unpack(leaves_[worker].data(), element, dtype_, std::span(&out, 1));
    return out;
  }

  std::vector<const void*> pointers() const {
    std::vector<const void*> out;
    for (const auto& leaf : leaves_) out.push_back(leaf.data());
    return out;
  }
  Dtype dtype() const { return dtype_; }
  std::size_t count() const { return count_; }
  std::size_t workers() const { return leaves_.size(); }

 private:
  Dtype dtype_;
  std::size_t count_;
  std::vector<std::vector<std::byte>> leaves_;
};

// Compares a whole result at once.
inline Result<Comparison> compare(Leaves leaves, Dtype dtype, std::size_t count,
                                  std::uint32_t divisor, const void* result) {
  PRESUM_ASSIGN(const auto auditor, Auditor::create(leaves.size(), dtype, divisor, count));
  PRESUM_TRY(auditor->add(leaves, count, result));
  return auditor->comparison();
}

inline float rounded(float x, Dtype format) {
  with_rounding<float>(format, [&](auto rounding) { x = rounding(x); });
  return x;
}

// Sums each element over the ranks in a given order, written out: values in float, every partial
// sum rounded to `format`. `turn(element)` is the order.
template <class Turn>
std::vector<double> summed(const Buffers& buffers, Dtype format, Turn&& turn) {
  std::vector<double> out;
  for (std::size_t i = 0; i < buffers.count(); ++i) {
    const std::vector<std::uint32_t> order = turn(i);
    auto sum = rounded(static_cast<float>(buffers.at(order[0], i)), format);
    for (std::size_t k = 1; k < order.size(); ++k) {
      const auto x = rounded(static_cast<float>(buffers.at(order[k], i)), format);
      sum = rounded(sum + x, format);
    }
    out.push_back(sum);
  }
  return out;
}

}  // namespace presum::audit
