// SPDX-License-Identifier: Apache-2.0
#include "observe/gradient_pass.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/float_environment.h"
#include "base/simd_dispatch.h"
#include "observe/fingerprint.h"
#include "observe/sketch.h"
#include "observe/zeros.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "observe/gradient_pass.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h:
#include "base/vectors-inl.h"
#include "hwy/highway.h"

#ifndef PRESUM_OBSERVE_GRADIENT_PASS_ONCE
#define PRESUM_OBSERVE_GRADIENT_PASS_ONCE

namespace presum::observe {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::size_t kChunk = 64;  // elements processed together: one word of signs
static_assert(kZeroRun == kChunk);
constexpr std::size_t kAccumulators = 16;
constexpr std::size_t kCacheLine = 64;
// Prefetches into the second-level cache, and from there into the first. The processors' own
// prefetchers stop at the end of a page, and prefetching into one level alone fetches too little at
// a time (bench/kernel_bench.cc).
constexpr std::size_t kFarAhead = 8192;
constexpr std::size_t kNearAhead = 1024;

// The buckets of the next elements: a place in the sketch or, for a chunk that is partial or wraps
// around the sketch's end, a copy that `write_back` writes back.
class Buckets {
 public:
  explicit Buckets(SketchSpan sketch) : sketch_(sketch), mask_(sketch.size - 1) {}

  // REQUIRES: first is a multiple of kChunk; elements is a multiple of kChunk, or less than kChunk.
  // Reduces elements to the number that have consecutive buckets from the returned one on.
  float* take(std::size_t first, std::size_t& elements) {
    const std::size_t in_block = first & mask_;
    if (in_block == 0) {
      rotation_ = sketch_rotation(sketch_.seed, first / sketch_.size, sketch_.size);
    }
    begin_ = (first + rotation_) & mask_;
    const std::size_t before_end = sketch_.size - begin_;
    copied_ = elements < kChunk || before_end < kChunk;
    if (copied_) {
      elements = elements_ = std::min(elements, kChunk);
      return copy_out();
    }
    const std::size_t consecutive = std::min(before_end, sketch_.size - in_block);
    elements = std::min(elements, consecutive / kChunk * kChunk);
    return sketch_.values + begin_;
  }

  void write_back() {
    if (copied_) copy_in();
  }

 private:
  std::size_t elements_before_end() const { return std::min(elements_, sketch_.size - begin_); }

  HWY_NOINLINE float* copy_out() {
    const std::size_t before_end = elements_before_end();
    std::memcpy(copy_, sketch_.values + begin_, before_end * sizeof(float));
    std::memcpy(copy_ + before_end, sketch_.values, (elements_ - before_end) * sizeof(float));
    return copy_;
  }

  HWY_NOINLINE void copy_in() const {
    const std::size_t before_end = elements_before_end();
    std::memcpy(sketch_.values + begin_, copy_, before_end * sizeof(float));
    std::memcpy(sketch_.values, copy_ + before_end, (elements_ - before_end) * sizeof(float));
  }

  SketchSpan sketch_;
  std::size_t mask_;
  std::size_t rotation_ = 0;
  std::size_t begin_ = 0;
  std::size_t elements_ = 0;
  bool copied_ = false;
  alignas(64) float copy_[kChunk] = {};
};

// The last chunk, padded with zeros. The keys of absent words are zero too, so padding adds
// nothing.
template <std::size_t kElementBytes>
struct LastChunk {
  static constexpr std::size_t kKeys = kElementBytes == 8 ? 2 * kChunk : kChunk;

  HWY_NOINLINE void fill(const std::uint8_t* from, std::size_t elements,
                         const std::uint32_t* from_keys) {
    std::memset(bytes, 0, sizeof bytes);
    std::memset(keys, 0, sizeof keys);
    std::memcpy(bytes, from, elements * kElementBytes);
    const std::size_t words = kElementBytes == 8 ? 2 * elements : (elements + 1) / 2 * 2;
    std::memcpy(keys, from_keys, words * sizeof(std::uint32_t));
  }

  alignas(64) std::uint8_t bytes[kChunk * kElementBytes];
  alignas(64) std::uint32_t keys[kKeys];
};

}  // namespace
}  // namespace presum::observe

#endif  // PRESUM_OBSERVE_GRADIENT_PASS_ONCE

HWY_BEFORE_NAMESPACE();
namespace presum::observe {
namespace {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using namespace base::HWY_NAMESPACE;

constexpr std::size_t kSums = kAccumulators / kDoubleLanes;  // vectors of accumulators
constexpr std::size_t kSteps = kChunk / kLanes;              // vectors of floats in a chunk
static_assert(kLanes <= kAccumulators);

template <Dtype kDtype, bool kSketch>
class Pass {
 public:
  // Everything is inlined into one function, so that the sums stay in registers. The constructor is
  // written out because an implicit one would not be compiled for the target.
  HWY_INLINE Pass()
      : largest_double_(hn::Zero(Doubles())),
        largest_float_(hn::Zero(Floats())),
        block_sum_(hn::Zero(LongWords())) {
    for (auto& sum : sums_) sum = hn::Zero(Doubles());
  }

  HWY_INLINE GradientSums result(const std::uint8_t* data, std::size_t count) const {
    const double sum = sum_squares();
    GradientSums sums{sum, hn::GetLane(hn::MaxOfLanes(Doubles(), largest())), 0, 0, zeros_};
    if (!std::isfinite(sum)) sums = plain_norm(data, count, kDtype);
    sums.fingerprint = fingerprint_;
    return sums;
  }

  // Processes the chunks in stretches, each up to the end of a fingerprint block or up to the point
  // at which the sketch wraps. A partial last chunk is a stretch by itself.
  HWY_INLINE void run(const std::uint8_t* data, std::size_t count, SketchSpan sketch) {
    Buckets buckets(sketch);
    LastChunk<kBytes> last;
    for (std::size_t first = 0; first < count;) {
      std::size_t elements = std::min(kFingerprintBlock - first % kFingerprintBlock, count - first);
      if (elements > kChunk) elements = elements / kChunk * kChunk;
      float* to = nullptr;
      if constexpr (kSketch) to = buckets.take(first, elements);
      const std::uint8_t* from = data + first * kBytes;
      const std::uint32_t* keys = keys_of(first);
      if (elements < kChunk) {
        last.fill(from, elements, keys);
        if (is_looked_at(first)) zeros_ -= kChunk - elements;
        from = last.bytes;
        keys = last.keys;
      }
      stretch(from, keys, sketch.seed + first / kChunk, to, elements);
      count_zeros(from, first, elements);
      if constexpr (kSketch) buckets.write_back();
      first += elements;
      end_stretch(first, count);
    }
  }

 private:
  static constexpr std::size_t kBytes = element_bytes(kDtype);
  static constexpr std::size_t kWordsPerElement = kDtype == Dtype::kF64 ? 2 : 1;

  static HWY_INLINE void prefetch_chunks_ahead(const std::uint8_t* from) {
    for (std::size_t line = 0; line < kChunk * kBytes; line += kCacheLine) {
      prefetch<2>(from, kFarAhead + line);
      prefetch<3>(from, kNearAhead + line);
    }
  }

  static const std::uint32_t* keys_of(std::size_t first) {
    return kFingerprintKey.data() + (first % kFingerprintBlock) * kWordsPerElement;
  }

  HWY_INLINE void stretch(const std::uint8_t* from, const std::uint32_t* keys,
                          std::uint64_t sign_seed, float* buckets, std::size_t elements) {
    for (std::size_t i = 0; i < elements; i += kChunk) {
      prefetch_chunks_ahead(from + i * kBytes);
      const std::uint64_t signs = kSketch ? sketch_signs(sign_seed, i / kChunk) : 0;
      steps(std::make_index_sequence<kSteps>(), from + i * kBytes, keys + i * kWordsPerElement,
            signs, kSketch ? buckets + i : nullptr);
    }
  }

  template <std::size_t... kStep>
  HWY_INLINE void steps(std::index_sequence<kStep...>, const std::uint8_t* from,
                        const std::uint32_t* keys, std::uint64_t signs, float* buckets) {
    (step<kStep>(from + kStep * kLanes * kBytes, keys + kStep * kLanes * kWordsPerElement, signs,
                 buckets + kStep * kLanes),
     ...);
  }

  template <std::size_t kStep>
  HWY_INLINE void step(const std::uint8_t* from, const std::uint32_t* keys, std::uint64_t signs,
                       float* buckets) {
    const Vectors v = read<kDtype>(from);
    add_squares<2 * kStep % kSums>(v);
    take_largest(v);
    add_products(v, keys);
    if constexpr (kSketch) add_signed<kStep>(v.floats, signs, buckets);
  }

  // A fused multiply-add gives the same result as two operations if the product is exact.
  static HWY_INLINE hn::Vec<Doubles> add_square(hn::Vec<Doubles> x, hn::Vec<Doubles> sum) {
    return kDtype == Dtype::kF64 ? hn::Add(sum, hn::Mul(x, x)) : hn::MulAdd(x, x, sum);
  }

  template <std::size_t kSum>
  HWY_INLINE void add_squares(const Vectors& v) {
    sums_[kSum] = add_square(v.low, sums_[kSum]);
    sums_[kSum + 1] = add_square(v.high, sums_[kSum + 1]);
  }

  // With a NaN the result is arbitrary, and unused.
  HWY_INLINE void take_largest(const Vectors& v) {
    if constexpr (kDtype == Dtype::kF64) {
      largest_double_ = hn::Max(largest_double_, hn::Max(hn::Abs(v.low), hn::Abs(v.high)));
    } else {
      largest_float_ = larger(largest_float_, v.floats);
    }
  }

#if HWY_TARGET <= HWY_AVX3
  // The result may be negative.
  static HWY_INLINE hn::Vec<Floats> larger(hn::Vec<Floats> a, hn::Vec<Floats> b) {
    constexpr int kOfMagnitudes = 7;
    return hn::Vec<Floats>{_mm512_range_ps(a.raw, b.raw, kOfMagnitudes)};
  }
#else
  static HWY_INLINE hn::Vec<Floats> larger(hn::Vec<Floats> a, hn::Vec<Floats> b) {
    return hn::Max(a, hn::Abs(b));
  }
#endif

  // Counts in the stretch that was just read, and is in the cache.
  HWY_INLINE void count_zeros(const std::uint8_t* from, std::size_t first, std::size_t elements) {
    const std::size_t past = first % kZeroPeriod;
    for (std::size_t i = past == 0 ? 0 : kZeroPeriod - past; i < elements; i += kZeroPeriod) {
      for (std::size_t j = 0; j < kChunk; j += kLanes) count_zeros(from + (i + j) * kBytes);
    }
  }

  HWY_INLINE void count_zeros(const std::uint8_t* from) {
    const Vectors v = read<kDtype>(from);
    if constexpr (kDtype == Dtype::kF64) {
      zeros_ += hn::CountTrue(Doubles(), hn::Eq(v.low, hn::Zero(Doubles())));
      zeros_ += hn::CountTrue(Doubles(), hn::Eq(v.high, hn::Zero(Doubles())));
    } else {
      zeros_ += hn::CountTrue(Floats(), hn::Eq(v.floats, hn::Zero(Floats())));
    }
  }

  HWY_INLINE void add_products(const Vectors& v, const std::uint32_t* keys) {
    add_product(v.words, keys);
    if constexpr (kDtype == Dtype::kF64) add_product(v.words_high, keys + kLanes);
  }

  HWY_INLINE void add_product(hn::Vec<Words> words, const std::uint32_t* keys) {
    const auto left = hn::Add(words, hn::Load(Words(), keys));
    const auto right = hn::ShiftRight<32>(hn::BitCast(LongWords(), left));
    block_sum_ = hn::Add(block_sum_, hn::MulEven(left, hn::BitCast(Words(), right)));
  }

#if HWY_TARGET <= HWY_AVX3
  // The sign of lane l in step s is bit s * kLanes + l.
  template <std::size_t kStep>
  static HWY_INLINE void add_signed(hn::Vec<Floats> x, std::uint64_t signs, float* buckets) {
    const Floats df;
    const auto negated = static_cast<__mmask16>(signs >> (kStep * kLanes));
    const auto sum = hn::LoadU(df, buckets);
    const __m512 added = hn::Add(sum, x).raw;
    hn::StoreU(hn::Vec<Floats>{_mm512_mask_sub_ps(added, negated, sum.raw, x.raw)}, df, buckets);
  }
#else
  // One shift by lane serves 32 elements; a constant shift then moves the step's signs to the sign
  // bit.
  template <std::size_t kStep>
  static HWY_INLINE hn::Vec<Words> sign_bits(std::uint64_t signs) {
    constexpr std::size_t kStepsPerWord = 32 / kLanes;
    constexpr int kShift = static_cast<int>(kLanes * (kStepsPerWord - 1 - kStep % kStepsPerWord));
    const Words dw;
    const auto word = static_cast<std::uint32_t>(signs >> (kStep / kStepsPerWord * 32));
    const auto by_lane = hn::Sub(hn::Set(dw, kLanes - 1), hn::Iota(dw, 0));
    const auto aligned = hn::ShiftLeft<kShift>(hn::Shl(hn::Set(dw, word), by_lane));
    return hn::And(aligned, hn::Set(dw, 0x80000000U));
  }

  template <std::size_t kStep>
  static HWY_INLINE void add_signed(hn::Vec<Floats> x, std::uint64_t signs, float* buckets) {
    const Floats df;
    const auto negated = hn::Xor(hn::BitCast(Words(), x), sign_bits<kStep>(signs));
    hn::StoreU(hn::Add(hn::LoadU(df, buckets), hn::BitCast(df, negated)), df, buckets);
  }
#endif

  HWY_INLINE void end_stretch(std::size_t end, std::size_t count) {
    if (end % kFingerprintBlock != 0 && end != count) return;
    std::uint64_t sums[kDoubleLanes];
    hn::StoreU(block_sum_, LongWords(), sums);
    const std::uint64_t sum = std::accumulate(sums, sums + kDoubleLanes, std::uint64_t{0});
    const std::size_t block = (end - 1) / kFingerprintBlock;
    fingerprint_ += fingerprint_of_block(sum, block, end - block * kFingerprintBlock);
    block_sum_ = hn::Zero(LongWords());
  }

  HWY_INLINE double sum_squares() const {
    double sums[kAccumulators];
    for (std::size_t v = 0; v < kSums; ++v)
      hn::StoreU(sums_[v], Doubles(), sums + v * kDoubleLanes);
    for (std::size_t half = kAccumulators / 2; half > 0; half /= 2) {
      for (std::size_t j = 0; j < half; ++j) sums[j] += sums[j + half];
    }
    return sums[0];
  }

  HWY_INLINE hn::Vec<Doubles> largest() const {
    if (kDtype == Dtype::kF64) return largest_double_;
    Vectors v;
    v.floats = hn::Abs(largest_float_);
    widen(v);
    return hn::Max(v.low, v.high);
  }

  hn::Vec<Doubles> sums_[kSums];
  hn::Vec<Doubles> largest_double_;
  hn::Vec<Floats> largest_float_;
  hn::Vec<LongWords> block_sum_;
  std::uint64_t zeros_ = 0;
  std::uint64_t fingerprint_ = 0;
};

template <Dtype kDtype, bool kSketch>
GradientSums gradient_of(const std::uint8_t* data, std::size_t count, SketchSpan sketch) {
  Pass<kDtype, kSketch> pass;
  pass.run(data, count, sketch);
  return pass.result(data, count);
}

template <Dtype kDtype>
GradientSums gradient_of(const void* data, std::size_t count, SketchSpan sketch) {
  const auto* bytes = static_cast<const std::uint8_t*>(data);
  return sketch.size == 0 ? gradient_of<kDtype, false>(bytes, count, sketch)
                          : gradient_of<kDtype, true>(bytes, count, sketch);
}

GradientSums gradient_kernel(const void* data, std::size_t count, Dtype dtype, SketchSpan sketch) {
  PRESUM_RETURN_BY_DTYPE(dtype, gradient_of, data, count, sketch)
  return {};
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace
}  // namespace presum::observe
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace presum::observe {
namespace {

[[maybe_unused]] bool is_valid(const SketchSpan& sketch) {
  return sketch.size == 0 || (sketch.values != nullptr && std::has_single_bit(sketch.size) &&
                              sketch.size >= 64 && sketch.size <= 65536);
}

}  // namespace

HWY_EXPORT(gradient_kernel);

GradientSums gradient_pass(const void* data, std::size_t count, Dtype dtype,
                           SketchSpan sketch) noexcept {
  assert(is_valid(sketch));
  const base::DefaultFloatEnvironment environment;
  return PRESUM_SIMD_DISPATCH(gradient_kernel)(data, count, dtype, sketch);
}

}  // namespace presum::observe

#endif  // HWY_ONCE
