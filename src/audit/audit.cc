// SPDX-License-Identifier: Apache-2.0
#include "audit/audit.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "audit/values.h"
#include "base/float_environment.h"

namespace presum::audit {
namespace {

template <class Real>
void read_rows(Leaves leaves, Dtype dtype, std::size_t first, std::size_t count, Rows<Real>& rows) {
  rows.count = count;
  for (std::size_t worker = 0; worker < leaves.size(); ++worker) {
    const auto* data = static_cast<const std::byte*>(leaves[worker]);
    unpack(data + first * element_bytes(dtype), dtype, rows[worker]);
  }
}

}  // namespace

struct Auditor::Of {
  virtual ~Of() = default;
  virtual void add(Leaves leaves, std::size_t count, const void* result) = 0;
  virtual Comparison comparison() const = 0;
  virtual std::size_t workers() const = 0;
};

namespace {

template <class Real>
struct OfReal final : Auditor::Of {
  OfReal(std::uint32_t workers, Dtype type, std::uint32_t division)
      : dtype(type),
        divisor(division),
        rows(workers),
        exact(workers, type, division),
        inference(workers, type, division) {}

  void add(Leaves leaves, std::size_t count, const void* result) override {
    const auto* from = static_cast<const std::byte*>(result);
    for (std::size_t first = 0, length = 0; first < count; first += length) {
      length = std::min<std::size_t>(kBlock - measures.elements % kBlock, count - first);
      read_rows(leaves, dtype, first, length, rows);
      actual.resize(length);
      unpack<Real>(from + first * element_bytes(dtype), dtype, actual);
      measures.add<Real>(actual, exact.truth(rows), dtype, divisor);
      inference.add(rows, actual);
    }
  }

  Comparison comparison() const override { return {measures, inference.inferred()}; }
  std::size_t workers() const override { return rows.workers(); }

  Dtype dtype;
  std::uint32_t divisor;
  Rows<Real> rows;
  std::vector<Real> actual;
  Exact<Real> exact;
  Measures measures;
  Inference<Real> inference;
};

}  // namespace

Status check_arguments(std::size_t workers, Dtype dtype, std::uint32_t divisor) {
  const auto refuse = [](std::string why) { return fail(ErrorCode::kInvalidArgument, why); };
  if (workers < 1 || workers > kWorkersMax) {
    return refuse(std::to_string(workers) + " workers (1 to 1024 are possible)");
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
  return r;
}

Auditor::Auditor(std::unique_ptr<Of> of) : of_(std::move(of)) {}
Auditor::Auditor(Auditor&&) noexcept = default;
Auditor& Auditor::operator=(Auditor&&) noexcept = default;
Auditor::~Auditor() = default;

Result<Auditor> Auditor::create(std::size_t workers, Dtype dtype, std::uint32_t divisor) {
  if (auto s = check_arguments(workers, dtype, divisor); !s) return tl::unexpected(s.error());
  const auto count = static_cast<std::uint32_t>(workers);
  if (dtype == Dtype::kF64) {
    return Auditor(std::make_unique<OfReal<double>>(count, dtype, divisor));
  }
  return Auditor(std::make_unique<OfReal<float>>(count, dtype, divisor));
}

Status Auditor::add(Leaves leaves, std::size_t count, const void* result) {
  if (leaves.size() != of_->workers()) {
    return fail(ErrorCode::kInvalidArgument, std::to_string(leaves.size()) + " buffers of " +
                                                 std::to_string(of_->workers()) + " workers");
  }
  const bool missing = result == nullptr || std::ranges::find(leaves, nullptr) != leaves.end();
  if (missing && count > 0) return fail(ErrorCode::kInvalidArgument, "a buffer without data");
  const base::DefaultFloatEnvironment environment;
  of_->add(leaves, count, result);
  return {};
}

Comparison Auditor::comparison() const { return of_->comparison(); }

Result<Comparison> compare(Leaves leaves, Dtype dtype, std::size_t count, std::uint32_t divisor,
                           const void* result) {
  auto auditor = Auditor::create(leaves.size(), dtype, divisor);
  if (!auditor) return tl::unexpected(auditor.error());
  if (auto s = auditor->add(leaves, count, result); !s) return tl::unexpected(s.error());
  return auditor->comparison();
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
    unpack<double>(static_cast<const std::byte*>(result) + first * element_bytes(dtype), dtype,
                   actual);
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
