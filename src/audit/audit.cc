// SPDX-License-Identifier: Apache-2.0
#include "audit/audit.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "audit/values.h"
#include "base/float_environment.h"
#include "base/try.h"

namespace presum::audit {
namespace {

Error refuse(const std::string& why) { return fail(ErrorCode::kInvalidArgument, why); }

template <class Real>
class AuditorOf final : public Auditor {
 public:
  AuditorOf(std::uint32_t workers, Dtype dtype, std::uint32_t divisor, std::uint64_t elements)
      : dtype_(dtype),
        sample_(elements, workers),
        rows_(workers),
        scan_(workers, dtype, divisor),
        inference_(workers, dtype, divisor) {}

  Status add(Leaves leaves, std::size_t count, const void* result) override {
    if (leaves.size() != rows_.workers()) {
      return refuse(std::to_string(leaves.size()) + " buffers of " +
                    std::to_string(rows_.workers()) + " ranks");
    }
    const bool missing = result == nullptr || std::ranges::find(leaves, nullptr) != leaves.end();
    if (missing && count > 0) return refuse("a buffer without data");
    const base::DefaultFloatEnvironment environment;
    scan_.add(leaves, count, result);
    const std::uint64_t end = position_ + count;
    for (std::uint64_t at = position_; at < end;) {
      const Sample::Run run = sample_.from(at);
      const std::uint64_t first = std::max(run.first, at);
      at = std::min({run.end, end, first + kBlock});
      if (first >= at) break;
      infer(leaves, first, at, result);
    }
    position_ = end;
    return {};
  }

  Comparison comparison() const override {
    const base::DefaultFloatEnvironment environment;
    const auto scanned = scan_.result();
    return {scanned.measures, inference_.inferred(position_, scanned.excess)};
  }

 private:
  void infer(Leaves leaves, std::uint64_t first, std::uint64_t end, const void* result) {
    read_rows(leaves, dtype_, first - position_, end - first, rows_);
    actual_.resize(end - first);
    unpack<Real>(result, first - position_, dtype_, actual_);
    inference_.add(first, rows_, actual_);
  }

  Dtype dtype_;
  Sample sample_;
  std::uint64_t position_ = 0;
  Rows<Real> rows_;
  std::vector<Real> actual_;
  Scan<Real> scan_;
  Inference<Real> inference_;
};

}  // namespace

Status check_arguments(std::size_t workers, Dtype dtype, std::uint32_t divisor) {
  if (workers < 1 || workers > kWorkersMax) {
    return refuse(std::to_string(workers) + " ranks (1 to 1024 are possible)");
  }
  if (element_bytes(dtype) == 0) return refuse("an unknown dtype");
  if (divisor < 1 || divisor > 0x7FFFFFFF) return refuse("a divisor out of range");
  return {};
}

AuditRecord Comparison::record(Dtype dtype) const {
  AuditRecord r;
  r.elements = measures.elements;
  r.differing = measures.differing;
  r.wrong = inferred.wrong;
  r.relative_l2 = measures.relative_l2();
  r.error_max = measures.error_max;
  r.gradient = accumulation_of(dtype);
  r.accumulation = inferred.accumulation;
  r.order = inferred.order;
  r.division = inferred.division;
  if (measures.ulps.count() > 0) r.ulps = measures.ulps.percentiles();
  return r;
}

Result<std::unique_ptr<Auditor>> Auditor::create(std::size_t workers, Dtype dtype,
                                                 std::uint32_t divisor, std::uint64_t elements) {
  PRESUM_TRY(check_arguments(workers, dtype, divisor));
  using Made = std::unique_ptr<Auditor>;
  const auto count = static_cast<std::uint32_t>(workers);
  if (dtype == Dtype::kF64) {
    return Made(new AuditorOf<double>(count, dtype, divisor, elements));
  }
  return Made(new AuditorOf<float>(count, dtype, divisor, elements));
}

Nearer nearer(Leaves leaves, Dtype dtype, std::size_t count, const void* result) {
  const base::DefaultFloatEnvironment environment;
  const auto divisor = static_cast<double>(leaves.size());
  Rows<double> rows(leaves.size());
  std::vector<double> actual;
  Sums sums;
  Nearer out;
  for (std::size_t first = 0; first < count; first += kBlock) {
    const std::size_t length = std::min(kBlock, count - first);
    read_rows(leaves, dtype, first, length, rows);
    actual.resize(length);
    unpack<double>(result, first, dtype, actual);
    sums.of(rows);
    for (std::size_t i = 0; i < length; ++i) {
      if (!std::isfinite(actual[i]) || !std::isfinite(sums.high[i])) continue;
      const double from_sum = std::abs(actual[i] - sums.high[i]);
      const double from_mean = std::abs(actual[i] - sums.high[i] / divisor);
      out.to_sum += from_sum < from_mean;
      out.to_mean += from_mean < from_sum;
    }
  }
  return out;
}

}  // namespace presum::audit
