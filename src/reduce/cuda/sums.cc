// SPDX-License-Identifier: Apache-2.0
#include "reduce/cuda/sums.h"

#include <algorithm>
#include <string_view>

#include "reduce/checks.h"
#include "reduce/cuda/sum_threads.h"

namespace presum::reduce::cuda {
namespace {

static_assert(kNear == kNearLeaves);

std::string_view dtype_suffix(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
      return "_f32";
    case Dtype::kF64:
      return "_f64";
    case Dtype::kBF16:
      return "_bf16";
    case Dtype::kF16:
      return "_f16";
  }
  return "";
}

constexpr std::string_view kPrefix = "presum_";

// REQUIRES: it is one of them.
const device::Kernel& kernel(std::string_view sum, std::string_view dtype) {
  const std::span<const device::Kernel> all = kernels();
  const auto found = std::find_if(all.begin(), all.end(), [&](const device::Kernel& one) {
    const std::string_view name(one.name + kPrefix.size());
    return name.size() == sum.size() + dtype.size() && name.starts_with(sum) &&
           name.ends_with(dtype);
  });
  return *found;
}

// What a launch reads and writes of each element: leaves, and everything else.
struct Bytes {
  std::size_t of_leaves, of_others;
};

Status start(const Queue& queue, const device::Kernel& kernel, const Sum& sum, Bytes bytes) {
  if (sum.count == 0) return {};
  const std::uint64_t blocks = (sum.count + kThreads - 1) / kThreads;
  if (blocks > 0x7FFFFFFF) return refuse("too many elements for one launch");
  return queue.launcher.start({kernel,
                               &sum,
                               static_cast<std::uint32_t>(blocks),
                               0,
                               {sum.count * bytes.of_leaves, sum.count * bytes.of_others}},
                              queue.stream);
}

Status check_leaves(const DeviceLeaves& leaves) {
  Status status = reduce::check_leaves(leaves.addresses.size(), kLeavesMax);
  if (!status || leaves.addresses.size() <= kNear || leaves.uploaded != nullptr) return status;
  return refuse("leaves are too many for a launch's argument; upload their list");
}

Sum sum_of(const DeviceLeaves& leaves, std::size_t count) {
  Sum sum{};
  sum.count = count;
  sum.leaves.count = static_cast<std::uint32_t>(leaves.addresses.size());
  if (leaves.addresses.size() <= kNear) {
    std::copy(leaves.addresses.begin(), leaves.addresses.end(), sum.leaves.near);
  } else {
    sum.leaves.far = leaves.uploaded;
  }
  return sum;
}

Sum quotient_of(const DeviceLeaves& leaves, std::size_t count, std::uint32_t divisor, void* out) {
  Sum sum = sum_of(leaves, count);
  sum.divisor = divisor;
  sum.out = out;
  return sum;
}

Sum sum_of(const Binned& binned, std::size_t count) {
  Sum sum{};
  sum.count = count;
  sum.top = binned.top;
  sum.high = binned.high;
  sum.low = binned.low;
  return sum;
}

std::size_t leaves_bytes(const DeviceLeaves& leaves, Dtype dtype) {
  return leaves.addresses.size() * element_bytes(dtype);
}

constexpr std::size_t kState = 17;  // bytes of a binned element

}  // namespace

Status exact(const Queue& queue, const DeviceLeaves& leaves, Dtype dtype, std::size_t count,
             std::uint32_t divisor, void* out) {
  Status status = all_of(check_leaves(leaves), check_divisor(divisor), check_any_dtype(dtype));
  if (!status) return status;
  return start(queue, kernel("exact", dtype_suffix(dtype)),
               quotient_of(leaves, count, divisor, out),
               {leaves_bytes(leaves, dtype), element_bytes(dtype)});
}

Status exponents(const Queue& queue, const DeviceLeaves& leaves, Dtype dtype, std::size_t count,
                 std::uint8_t* exponents) {
  Status status = all_of(check_leaves(leaves), check_short_dtype(dtype));
  if (!status) return status;
  Sum sum = sum_of(leaves, count);
  sum.top = exponents;
  return start(queue, kernel("exponents", dtype_suffix(dtype)), sum,
               {leaves_bytes(leaves, dtype), 1});
}

Status encode(const Queue& queue, const DeviceLeaves& leaves, Dtype dtype, std::size_t count,
              const std::uint8_t* exponents, std::size_t total_leaves, int bits, void* out) {
  Status status = all_of(check_leaves(leaves), check_total(total_leaves, leaves.addresses.size()),
                         check_short_dtype(dtype));
  if (!status) return status;
  Sum sum = sum_of(leaves, count);
  sum.top = const_cast<std::uint8_t*>(exponents);  // is only read
  sum.total_leaves = static_cast<std::uint32_t>(total_leaves);
  sum.high = out;
  return start(queue, kernel(bits == 32 ? "encode32" : "encode64", dtype_suffix(dtype)), sum,
               {leaves_bytes(leaves, dtype), 1 + static_cast<std::size_t>(bits) / 8});
}

Status decode(const Queue& queue, const void* sums, const std::uint8_t* exponents,
              std::size_t count, std::size_t total_leaves, std::uint32_t divisor, int bits,
              Dtype dtype, void* out) {
  Status status =
      all_of(check_total(total_leaves, 0), check_divisor(divisor), check_short_dtype(dtype));
  if (!status) return status;
  Sum sum{};
  sum.count = count;
  sum.top = const_cast<std::uint8_t*>(exponents);  // are only read
  sum.high = const_cast<void*>(sums);
  sum.total_leaves = static_cast<std::uint32_t>(total_leaves);
  sum.divisor = divisor;
  sum.out = out;
  return start(queue, kernel(bits == 32 ? "decode32" : "decode64", dtype_suffix(dtype)), sum,
               {0, 1 + static_cast<std::size_t>(bits) / 8 + element_bytes(dtype)});
}

Status fixed(const Queue& queue, const DeviceLeaves& leaves, Dtype dtype, std::size_t count,
             std::uint32_t divisor, int bits, void* out) {
  Status status = all_of(check_leaves(leaves), check_divisor(divisor), check_short_dtype(dtype));
  if (!status) return status;
  return start(queue, kernel(bits == 32 ? "fixed32" : "fixed64", dtype_suffix(dtype)),
               quotient_of(leaves, count, divisor, out),
               {2 * leaves_bytes(leaves, dtype), element_bytes(dtype)});
}

Status binned_add(const Queue& queue, const Binned& sum, std::size_t count,
                  const DeviceLeaves& leaves, Dtype dtype) {
  Status status = all_of(check_leaves(leaves), check_short_dtype(dtype));
  if (!status) return status;
  Sum argument = sum_of(sum, count);
  argument.leaves = sum_of(leaves, count).leaves;
  return start(queue, kernel("binned_add", dtype_suffix(dtype)), argument,
               {leaves_bytes(leaves, dtype), 2 * kState});
}

Status binned_raise(const Queue& queue, const Binned& sum, std::size_t count,
                    const std::uint8_t* top) {
  Sum argument = sum_of(sum, count);
  argument.other_top = top;
  return start(queue, kernel("binned_raise", ""), argument, {0, 2 * kState + 1});
}

Status binned_merge(const Queue& queue, const Binned& into, const Binned& from, std::size_t count) {
  Sum argument = sum_of(into, count);
  argument.other_top = from.top;
  argument.other_high = from.high;
  argument.other_low = from.low;
  return start(queue, kernel("binned_merge", ""), argument, {0, 3 * kState});
}

Status binned_decode(const Queue& queue, const Binned& sum, std::size_t count,
                     std::uint32_t divisor, Dtype dtype, void* out) {
  Status status = all_of(check_divisor(divisor), check_short_dtype(dtype));
  if (!status) return status;
  Sum argument = sum_of(sum, count);
  argument.divisor = divisor;
  argument.out = out;
  return start(queue, kernel("binned_decode", dtype_suffix(dtype)), argument,
               {0, kState + element_bytes(dtype)});
}

}  // namespace presum::reduce::cuda
