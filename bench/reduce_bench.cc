// SPDX-License-Identifier: Apache-2.0
//
// Time of exact sums of W buffers as a ratio to a plain sum of the same buffers, for every
// SIMD target; `--best`: for the best. `--quick`: a tiny run that shows that it works, not how fast
// it is.
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/simd.h"
#include "base/simd_dispatch.h"
#include "presum/reduce.h"
#include "timing.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "../bench/reduce_bench.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"
#include "plain_sum-inl.h"

#if HWY_ONCE

namespace presum {
namespace {

using Clock = std::chrono::steady_clock;

constexpr Clock::duration kLimit = std::chrono::seconds(10);  // a row, after three rounds

struct Options {
  std::size_t bytes = std::size_t{256} << 20;  // of all buffers together
  int rounds = 31;
  bool all_targets = true;
};

enum class Data { kGaussian, kWide, kDenormals };
constexpr const char* kDataNames[] = {"Gaussian", "wide range", "0.1% denormals"};

struct Case {
  Dtype dtype;
  Data data;
  std::size_t leaves;
};
constexpr Case kCases[] = {
    {Dtype::kF32, Data::kGaussian, 8},  {Dtype::kF32, Data::kGaussian, 16},
    {Dtype::kF32, Data::kGaussian, 64}, {Dtype::kF32, Data::kGaussian, 1024},
    {Dtype::kF32, Data::kWide, 8},      {Dtype::kF32, Data::kWide, 64},
    {Dtype::kF32, Data::kDenormals, 8}, {Dtype::kF32, Data::kDenormals, 64},
    {Dtype::kBF16, Data::kGaussian, 8}, {Dtype::kBF16, Data::kGaussian, 64},
};

double uniform(std::uint64_t word) { return (static_cast<double>(word >> 11) + 0.5) * 0x1p-53; }

// Some values of a kind, from which buffers are filled in another order each.
std::vector<float> values_of(Data data) {
  constexpr double kTwoPi = 6.283185307179586;
  std::vector<float> values(std::size_t{1} << 16);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double radius = std::sqrt(-2 * std::log(uniform(splitmix64(2 * i))));
    const double gauss = radius * std::cos(kTwoPi * uniform(splitmix64(2 * i + 1)));
    const std::uint64_t word = splitmix64(i ^ 0x5EED000000);
    const int power = data == Data::kWide ? static_cast<int>(word % 41) - 20 : 0;
    values[i] = static_cast<float>(std::ldexp(gauss, power));
    if (data == Data::kDenormals && word % 1000 == 0) {
      const std::uint32_t bits = static_cast<std::uint32_t>(word >> 32) & 0x807FFFFF;
      std::memcpy(&values[i], &bits, sizeof bits);
    }
  }
  return values;
}

class Buffers {
 public:
  Buffers(const Case& c, const Options& options)
      : dtype_(c.dtype),
        count_(options.bytes / c.leaves / element_bytes(c.dtype) / kRound * kRound) {
    const std::vector<float> values = values_of(c.data);
    for (std::size_t leaf = 0; leaf < c.leaves; ++leaf) {
      storage_.push_back(std::make_unique<std::uint8_t[]>(count_ * element_bytes(dtype_)));
      fill(storage_.back().get(), leaf, values);
      leaves_.push_back(storage_.back().get());
    }
  }

  const Leaves& leaves() const { return leaves_; }
  Dtype dtype() const { return dtype_; }
  std::size_t count() const { return count_; }

 private:
  static constexpr std::size_t kRound = 4096;

  void fill(std::uint8_t* to, std::size_t leaf, const std::vector<float>& values) const {
    const std::size_t width = element_bytes(dtype_);
    for (std::size_t i = 0; i < count_; ++i) {
      const float& value = values[splitmix64(i * 4096 + leaf) % values.size()];
      const auto* bytes = reinterpret_cast<const std::uint8_t*>(&value);
      std::memcpy(to + i * width, bytes + 4 - width, width);
    }
  }

  Dtype dtype_;
  std::size_t count_;
  std::vector<std::unique_ptr<std::uint8_t[]>> storage_;
  Leaves leaves_;
};

class Bench {
 public:
  Bench(const Case& c, const Options& options)
      : case_(c),
        options_(options),
        buffers_(c, options),
        plain_(buffers_.leaves(), c.dtype, buffers_.count()),
        out_(buffers_.count()) {}

  void print_row(std::string_view target) {
    plain_.find_best_traversal();
    std::vector<double> ratios, plain_gb;
    const auto begin = Clock::now();
    for (int round = 0; round < options_.rounds && (round < 3 || Clock::now() - begin < kLimit);
         ++round) {
      const double plain_s = seconds([this] { return plain_.run(); });
      ratios.push_back(seconds([this] { return sum(); }) / plain_s);
      plain_gb.push_back(bytes() / plain_s * 1e-9);
    }
    const Ratio ratio = summarize(ratios);
    std::printf("%-8.*s %-5s %5zu  %-15s %6.2f [%4.2f, %4.2f]  %5.1f GB/s, %zu rounds\n",
                static_cast<int>(target.size()), target.data(),
                case_.dtype == Dtype::kBF16 ? "bf16" : "f32", case_.leaves,
                kDataNames[static_cast<int>(case_.data)], ratio.median, ratio.low, ratio.high,
                median(plain_gb), ratios.size());
    std::fflush(stdout);
  }

 private:
  double bytes() const {
    return static_cast<double>(buffers_.count() * case_.leaves * element_bytes(case_.dtype));
  }

  std::uint64_t sum() {
    return reduce::exact(buffers_.leaves(), case_.dtype, buffers_.count(), 1, out_.data()) ? 1 : 0;
  }

  Case case_;
  Options options_;
  Buffers buffers_;
  PlainSum plain_;
  std::vector<float> out_;
};

int run(const Options& options) {
  std::printf(
      "Ratio of time to a plain fp32 sum of the same W buffers (%zu MiB together), which has the\n"
      "same target, eight buffers at a time, and the tile and prefetch distance that are best for\n"
      "it; that of bf16 is rounded to bf16. One thread, its processor time. A round times both,\n"
      "one after the other. Shown: the median of the rounds' ratios (at most %d rounds) [its 95%%\n"
      "interval from order statistics; of three rounds, their range]. Wide range: a factor from\n"
      "2^-20 to 2^20.\n\n",
      options.bytes >> 20, options.rounds);
  std::printf("%-8s %-5s %5s  %-15s %-19s  %s\n", "target", "dtype", "W", "data", "ratio",
              "plain sum");
  for (const std::string_view target : base::simd_targets()) {
    if (target == "EMU128" && options.rounds > 3) break;  // vectors in plain code
    if (const Status forced = base::set_simd_target(target); !forced) return 1;
    for (const Case& c : kCases) Bench(c, options).print_row(target);
    if (!options.all_targets) break;
  }
  return 0;
}

}  // namespace
}  // namespace presum

int main(int argc, char** argv) {
  presum::Options options;
  const std::string_view option = argc == 2 ? argv[1] : "";
  if (option == "--quick") {
    options = {.bytes = std::size_t{4096} * 4 * 1024, .rounds = 3};
  } else if (option == "--best") {
    options.all_targets = false;
  } else if (argc != 1) {
    std::fprintf(stderr, "usage: %s [--quick | --best]\n", argv[0]);
    return 2;
  }
  return presum::run(options);
}

#endif  // HWY_ONCE
