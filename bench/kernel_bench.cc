// SPDX-License-Identifier: Apache-2.0
//
// Throughput of the gradient pass as a ratio to a plain read of the same bytes, for every SIMD
// target and dtype. `--quick`: a tiny run that shows that it works, not how fast it is.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/simd.h"
#include "base/simd_dispatch.h"
#include "observe/gradient_pass.h"
#include "timing.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "../bench/kernel_bench.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace presum {
namespace {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// The baseline: the sum of all 64-bit words, in eight accumulators. `bytes` is a multiple of 1,024.
std::uint64_t read_kernel(const std::uint8_t* data, std::size_t bytes, std::size_t prefetch_bytes) {
  const hn::ScalableTag<std::uint64_t> d;
  constexpr std::size_t kLanes = hn::MaxLanes(hn::ScalableTag<std::uint64_t>());
  const auto* words = reinterpret_cast<const std::uint64_t*>(data);
  const std::size_t count = bytes / sizeof(std::uint64_t);
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0, s4 = s0, s5 = s0, s6 = s0, s7 = s0;
  for (std::size_t i = 0; i < count; i += 8 * kLanes) {
    for (std::size_t line = 0; prefetch_bytes > 0 && line < kLanes; ++line) {
      const auto ahead = reinterpret_cast<std::uintptr_t>(words + i) + prefetch_bytes + 64 * line;
      hwy::Prefetch(reinterpret_cast<const std::uint8_t*>(ahead));
    }
    s0 = hn::Add(s0, hn::LoadU(d, words + i));
    s1 = hn::Add(s1, hn::LoadU(d, words + i + kLanes));
    s2 = hn::Add(s2, hn::LoadU(d, words + i + 2 * kLanes));
    s3 = hn::Add(s3, hn::LoadU(d, words + i + 3 * kLanes));
    s4 = hn::Add(s4, hn::LoadU(d, words + i + 4 * kLanes));
    s5 = hn::Add(s5, hn::LoadU(d, words + i + 5 * kLanes));
    s6 = hn::Add(s6, hn::LoadU(d, words + i + 6 * kLanes));
    s7 = hn::Add(s7, hn::LoadU(d, words + i + 7 * kLanes));
  }
  const auto low = hn::Add(hn::Add(s0, s1), hn::Add(s2, s3));
  const auto high = hn::Add(hn::Add(s4, s5), hn::Add(s6, s7));
  std::uint64_t sums[kLanes];
  hn::StoreU(hn::Add(low, high), d, sums);
  return std::accumulate(sums, sums + kLanes, std::uint64_t{0});
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace
}  // namespace presum
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace presum {
namespace {

HWY_EXPORT(read_kernel);

using Clock = std::chrono::steady_clock;

constexpr std::uint32_t kBuckets = 4096;
constexpr std::size_t kAlignment = 64;
constexpr Clock::duration kLimit = std::chrono::seconds(20);  // a row, after three rounds

struct Options {
  std::size_t bytes = std::size_t{256} << 20;
  int rounds = 31;
};

struct NamedDtype {
  const char* name;
  Dtype dtype;
};
constexpr NamedDtype kDtypes[] = {
    {"f32", Dtype::kF32}, {"bf16", Dtype::kBF16}, {"f16", Dtype::kF16}, {"f64", Dtype::kF64}};

// Finite elements of middling size, whatever their type: exponents differ in three bits only.
void fill_gradient(Dtype dtype, std::uint8_t* data, std::size_t bytes) {
  const std::size_t width = element_bytes(dtype);
  for (std::size_t i = 0; i < bytes; i += 8) {
    const std::uint64_t word = splitmix64(i);
    std::memcpy(data + i, &word, 8);
  }
  for (std::size_t i = width - 1; i < bytes; i += width) {
    data[i] = static_cast<std::uint8_t>((data[i] & 0x83) | 0x38);
  }
}

class Bench {
 public:
  Bench(Dtype dtype, const Options& options)
      : dtype_(dtype),
        rounds_(options.rounds),
        bytes_(options.bytes),
        storage_(options.bytes + kAlignment),
        sketch_(kBuckets) {
    void* start = storage_.data();
    std::size_t space = storage_.size();
    data_ = static_cast<std::uint8_t*>(std::align(kAlignment, bytes_, start, space));
    fill_gradient(dtype, data_, bytes_);
    read_prefetch_ = best_prefetch();
  }

  void print_row(std::string_view target, const char* dtype_name) {
    std::vector<double> read_gb, full, plain, norm;
    const auto begin = Clock::now();
    for (int round = 0; round < rounds_ && (round < 3 || Clock::now() - begin < kLimit); ++round) {
      const double read_s = seconds([this] { return read(read_prefetch_); });
      read_gb.push_back(static_cast<double>(bytes_) / read_s * 1e-9);
      full.push_back(read_s / seconds([this] { return gradient(kBuckets); }));
      plain.push_back(seconds([this] { return read(read_prefetch_); }) /
                      seconds([this] { return gradient(0); }));
      norm.push_back(seconds([this] { return read(read_prefetch_); }) /
                     seconds([this] { return norm_only(); }));
    }
    std::printf("%-8.*s %-5s", static_cast<int>(target.size()), target.data(), dtype_name);
    for (const auto* ratios : {&full, &plain, &norm}) {
      const Ratio ratio = summarise(*ratios);
      std::printf("  %5.3f [%5.3f, %5.3f]", ratio.median, ratio.low, ratio.high);
    }
    std::printf("  %5.1f GB/s, prefetch %zu, %zu rounds\n", median(read_gb), read_prefetch_,
                read_gb.size());
    std::fflush(stdout);
  }

 private:
  std::uint64_t read(std::size_t prefetch_bytes) const {
    return PRESUM_SIMD_DISPATCH(read_kernel)(data_, bytes_, prefetch_bytes);
  }

  std::uint64_t gradient(std::uint32_t buckets) {
    const observe::SketchSpan sketch{sketch_.data(), buckets, 1};
    return observe::gradient_pass(data_, count(), dtype_, sketch).fingerprint;
  }

  std::uint64_t norm_only() const {
    return observe::norm_pass(data_, count(), dtype_).sum_squares > 0 ? 1 : 0;
  }

  std::size_t count() const { return bytes_ / element_bytes(dtype_); }

  // The baseline gets the software prefetch distance that makes it fastest here.
  std::size_t best_prefetch() const {
    std::size_t best = 0;
    double best_s = 0;
    for (const std::size_t distance : {0, 256, 512, 1024, 2048, 4096}) {
      std::vector<double> times;
      for (int i = 0; i < 7; ++i) times.push_back(seconds([&] { return read(distance); }));
      const double time_s = median(times);
      if (best_s == 0 || time_s < best_s) {
        best = distance;
        best_s = time_s;
      }
    }
    return best;
  }

  Dtype dtype_;
  int rounds_;
  std::size_t bytes_;
  std::vector<std::uint8_t> storage_;
  std::uint8_t* data_ = nullptr;
  std::vector<float> sketch_;
  std::size_t read_prefetch_ = 0;
};

int run(const Options& options) {
  std::printf(
      "Ratio of throughput to a plain read of the same bytes: the sum of 64-bit words, with the\n"
      "same target and the prefetch distance that is best for it. %zu KiB, 64-byte aligned; one\n"
      "thread, its processor time. A round times read and pass one after the other. Shown: the\n"
      "median of the rounds' ratios (at most %d rounds) [its 95%% interval from order statistics;\n"
      "of three rounds, their range]. Gradient pass: norm, maximum, fingerprint, and a sketch of\n"
      "%u buckets.\n\n",
      options.bytes >> 10, options.rounds, kBuckets);
  std::printf("%-8s %-5s  %-21s  %-21s  %-21s  %s\n", "target", "dtype", "gradient pass/read",
              "without sketch/read", "norm pass/read", "read");
  for (const std::string_view target : base::simd_targets()) {
    if (const Status forced = base::set_simd_target(target); !forced) return 1;
    for (const auto& [name, dtype] : kDtypes) Bench(dtype, options).print_row(target, name);
  }
  return 0;
}

}  // namespace
}  // namespace presum

int main(int argc, char** argv) {
  presum::Options options;
  if (argc == 2 && std::string_view(argv[1]) == "--quick") {
    options = {.bytes = std::size_t{64} << 10, .rounds = 3};
  } else if (argc != 1) {
    std::fprintf(stderr, "usage: %s [--quick]\n", argv[0]);
    return 2;
  }
  return presum::run(options);
}

#endif  // HWY_ONCE
