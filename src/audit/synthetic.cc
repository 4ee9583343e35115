// SPDX-License-Identifier: Apache-2.0
#include "audit/synthetic.h"

#include <cmath>

#include "base/hash.h"

namespace presum::audit {
namespace {

constexpr std::uint64_t kShared = ~std::uint64_t{0};  // in place of a rank
constexpr std::uint64_t kRow = 1024;                  // elements of an embedding row
constexpr std::uint64_t kLayer = 65'536;

// The draws for one element, in sequence.
class Draws {
 public:
  Draws(std::uint64_t seed, std::uint64_t worker, std::uint64_t element)
      : state_(splitmix64(splitmix64(seed) ^ splitmix64(worker)) + element * 16) {}
  std::uint64_t bits() { return splitmix64(state_++); }
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  // Approximately standard normal: the sum of twelve uniform values minus six (Irwin-Hall).
  double normal() {
    std::uint64_t sum = 0;
    for (int word = 0; word < 4; ++word) {
      const std::uint64_t b = bits();
      sum += (b & kThird) + ((b >> 21) & kThird) + ((b >> 42) & kThird);
    }
    return static_cast<double>(sum) * 0x1p-21 - 6;
  }

 private:
  static constexpr std::uint64_t kThird = (1U << 21) - 1;
  std::uint64_t state_;
};

// 2^x, linear within a binade.
double power_of_two(double x) {
  const double whole = std::floor(x);
  return std::ldexp(1 + (x - whole), static_cast<int>(whole));
}

double gradient(std::uint64_t seed, std::uint32_t worker, std::uint64_t element) {
  Draws layer(seed, kShared - 1, element / kLayer);
  const double scale = power_of_two(-20 * layer.uniform());
  const bool embedding = layer.uniform() < 0.2;
  if (embedding && Draws(seed, worker, ~(element / kRow)).uniform() < 0.5) return 0;
  const double signal = Draws(seed, kShared, element).normal();
  return scale * (0.3 * signal + Draws(seed, worker, element).normal());
}

double value(Distribution distribution, std::uint64_t seed, std::uint32_t worker,
             std::uint64_t element) {
  Draws draws(seed, worker, element);
  switch (distribution) {
    case Distribution::kGradients:
      return gradient(seed, worker, element);
    case Distribution::kGaussian:
      return 0.001 * draws.normal();
    case Distribution::kLognormal: {
      const double size =
          0.001 * power_of_two(4 * draws.normal()) * (1 + 0x1p-30 * draws.uniform());
      return draws.bits() % 2 == 0 ? size : -size;
    }
    case Distribution::kWide: {
      const double size = std::ldexp(1 + draws.uniform(), static_cast<int>(draws.bits() % 60) - 40);
      return draws.bits() % 2 == 0 ? size : -size;
    }
  }
  return 0;
}

}  // namespace

std::optional<Distribution> distribution_of(std::string_view name) {
  if (name == "gradients") return Distribution::kGradients;
  if (name == "gaussian") return Distribution::kGaussian;
  if (name == "lognormal") return Distribution::kLognormal;
  if (name == "wide") return Distribution::kWide;
  return std::nullopt;
}

void generate(Distribution distribution, std::uint64_t seed, std::uint32_t worker,
              std::uint64_t first, std::span<double> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = value(distribution, seed, worker, first + i);
  }
}

}  // namespace presum::audit
