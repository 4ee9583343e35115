// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/host_device.h"
#include "observe/fingerprint.h"
#include "observe/sketch.h"
#include "observe/zeros.h"
#include "presum/dtype.h"

// What each thread of the CUDA pass over a batch of gradients does between two barriers, as
// functions that the host can run too: one thread after the other, by observe/cuda/batch.cc.
//
// A span is 8,192 elements of one gradient, eight fingerprint blocks ("tiles"); a block of threads
// takes a run of neighboring spans of the batch, whichever gradients they are of, and in a span a
// thread takes 8 pairs of neighboring elements of one tile. So no two threads meet in a bucket of
// the sketch between two barriers, every sum has a fixed order, and the grid depends on the
// gradients' lengths only: results are the same bits on every GPU. They differ from those of
// observe/gradient_pass.h in the order of floating-point additions.
//
// Nothing here is synchronized or allocated; pointers are borrowed.
namespace presum::observe::cuda {

inline constexpr unsigned kThreads = 512;
inline constexpr unsigned kWarp = 32;
inline constexpr unsigned kWarps = kThreads / kWarp;
inline constexpr unsigned kTiles = 8;  // of a span
inline constexpr unsigned kSpan = kTiles * static_cast<unsigned>(kFingerprintBlock);
inline constexpr unsigned kTileThreads = kThreads / kTiles;
inline constexpr unsigned kTileWarps = kTileThreads / kWarp;
inline constexpr unsigned kPairs = kFingerprintBlock / 2 / kTileThreads;  // of a thread in a span
inline constexpr unsigned kFinishThreads = 256;
inline constexpr unsigned kColumns = 32;  // threads of a block that adds up sketches: 32 x 8
inline constexpr unsigned kRows = kFinishThreads / kColumns;
inline constexpr std::uint32_t kMaxShared = 8192;  // sums that fit into shared memory

// A gradient of a batch, as it is uploaded.
struct Item {
  const void* data;
  std::uint64_t count;
  std::uint64_t seed;
  std::uint64_t first_span;  // of the batch's; an empty gradient has none
};

// What is known of a part of a gradient.
struct Partial {
  double sum_squares;
  double max_abs;
  std::uint64_t nonfinite;
  std::uint64_t fingerprint;
  std::uint64_t zeros;
};

inline Partial combine(const Partial& a, const Partial& b) {
  return {a.sum_squares + b.sum_squares, a.max_abs < b.max_abs ? b.max_abs : a.max_abs,
          a.nonfinite + b.nonfinite, a.fingerprint + b.fingerprint, a.zeros + b.zeros};
}

// One launch over the gradients of one dtype.
struct Batch {
  const Item* items;
  Partial* partials;  // block b leaves what it found of item i at b + i: no two share a place
  float* rows;        // a sketch each block, which launches after it on the same stream add to
  std::uint64_t spans;
  std::uint32_t count;        // of items
  std::uint32_t blocks;       // at most `spans`
  std::uint32_t rows_in_use;  // those of later blocks hold nothing yet
  std::uint32_t sketch_size;  // 0: no sketch

  // Floats that a block adds to: sketches one after the other where a sketch is shorter than a
  // span, so that each element of a span has one of its own.
  std::uint32_t sums() const {
    return sketch_size == 0 || sketch_size > kSpan ? sketch_size : kSpan;
  }
  bool in_shared() const { return sums() <= kMaxShared; }
  std::uint64_t first_span(std::uint32_t block) const {
    return spans / blocks * block + (spans % blocks < block ? spans % blocks : block);
  }
};

// A block of threads on its way through its spans.
class Walk {
 public:
  Walk(const Batch& batch, std::uint32_t block)
      : batch_(&batch), span_(batch.first_span(block)), end_(batch.first_span(block + 1)) {
    std::uint32_t after = batch.count;  // the last item that begins at span_ or before
    while (after - item_ > 1) {
      const std::uint32_t middle = item_ + (after - item_) / 2;
      (batch.items[middle].first_span <= span_ ? item_ : after) = middle;
    }
    enter();
  }

  bool more() const { return span_ < end_; }
  std::uint32_t item() const { return item_; }
  const Item& gradient() const { return gradient_; }
  std::uint64_t first() const { return (span_ - gradient_.first_span) * kSpan; }

  void next() {
    ++span_;
    if (span_ >= end_ || span_ < after_) return;
    do ++item_;
    while (item_ + 1 < batch_->count && batch_->items[item_ + 1].first_span <= span_);
    enter();
  }

 private:
  void enter() {
    gradient_ = batch_->items[item_];
    after_ = gradient_.first_span + (gradient_.count + kSpan - 1) / kSpan;
  }

  const Batch* batch_;
  std::uint64_t span_, end_;
  std::uint64_t after_ = 0;  // the first span behind the item
  std::uint32_t item_ = 0;
  Item gradient_{};
};

// The sums of one block of threads.
struct BlockSketch {
  float* values;
  std::uint32_t size;  // 0: no sketch
  std::uint32_t sums;
  int bits = 63 - std::countl_zero(static_cast<std::uint64_t>(size));  // the size is 2^bits
};

// Of a thread's pairs, each for a run of 64 elements.
struct Signs {
  std::uint64_t of[kPairs];
};

template <Dtype kDtype>
struct Element;
template <>
struct Element<Dtype::kF32> {
  using Bits = std::uint32_t;
  using Real = float;
  static float value(Bits bits) { return std::bit_cast<float>(bits); }
};
template <>
struct Element<Dtype::kF64> {
  using Bits = std::uint64_t;
  using Real = double;
  static double value(Bits bits) { return std::bit_cast<double>(bits); }
};
template <>
struct Element<Dtype::kBF16> {
  using Bits = std::uint16_t;
  using Real = float;
  static float value(Bits bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }
};
template <>
struct Element<Dtype::kF16> {
  using Bits = std::uint16_t;
  using Real = float;
  // Exponent and mantissa in their places of a float, which then lacks a factor of 2^112;
  // infinities and NaNs need all exponent bits besides.
  static float value(Bits bits) {
    const std::uint32_t magnitude = bits & 0x7FFFU;
    const std::uint32_t sign = (bits & 0x8000U) << 16;
    const std::uint32_t exponent = magnitude > 0x7BFF ? 0x7F800000U : 0U;
    const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112F;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled) | sign | exponent);
  }
};

// One thread of a block: its share of every span of that block.
template <Dtype kDtype>
class Thread {
 public:
  using Bits = typename Element<kDtype>::Bits;
  using Real = typename Element<kDtype>::Real;

  struct alignas(2 * sizeof(Bits)) Pair {
    Bits first, second;
  };
  struct Pairs {
    Pair of[kPairs];
  };

  static constexpr unsigned kKeys = kDtype == Dtype::kF64 ? 4 : 2;  // words of a pair
  static constexpr unsigned kAllKeys = kKeys * kFingerprintBlock / 2;

  explicit Thread(unsigned index) : tile_(index / kTileThreads), index_(index % kTileThreads) {}

  // This thread's elements of the span that begins at element `span`; what lies behind the
  // gradient's end is zero, which changes no sum.
  Pairs load(const Item& gradient, std::uint64_t span) const {
    Pairs pairs;
    const bool aligned = reinterpret_cast<std::uintptr_t>(gradient.data) % sizeof(Pair) == 0;
    const char* from = static_cast<const char*>(gradient.data) + span * sizeof(Bits);
    const std::uint32_t left = left_of(gradient, span);
    if (left == kSpan && aligned) {
      for (unsigned j = 0; j < kPairs; ++j) pairs.of[j] = load_pair(from + place(j) * sizeof(Bits));
    } else {
      for (unsigned j = 0; j < kPairs; ++j) pairs.of[j] = load(from, place(j), left);
    }
    return pairs;
  }

  // The signs of the sketch's elements in the run of 64 of this thread's pair j. All threads of a
  // warp have the same.
  std::uint64_t signs(const Item& gradient, std::uint64_t span, unsigned j) const {
    return sketch_signs(gradient.seed, (span + place(j)) / 64);
  }

  // Adds them to the sketch and to this thread's sums. `keys` are a block's (kAllKeys), `signs`
  // those of this thread's pairs. Returns this thread's share of its tile's block sum
  // (observe/fingerprint.h).
  std::uint64_t add(const Item& gradient, std::uint64_t span, const Pairs& pairs,
                    const std::uint32_t* keys, const Signs& signs, const BlockSketch& sketch) {
    return left_of(gradient, span) == kSpan
               ? add_span<true>(gradient, span, pairs, keys, signs, sketch)
               : add_span<false>(gradient, span, pairs, keys, signs, sketch);
  }

  // The block sum of this thread's tile is known; the first thread of each tile is told.
  void end_tile(std::uint64_t block_sum, const Item& gradient, std::uint64_t span) {
    const std::uint64_t tile = span / kFingerprintBlock + tile_;
    if (tile * kFingerprintBlock >= gradient.count) return;
    const std::uint64_t left = gradient.count - tile * kFingerprintBlock;
    const std::size_t elements =
        left < kFingerprintBlock ? static_cast<std::size_t>(left) : kFingerprintBlock;
    fingerprint_ += fingerprint_of_block(block_sum, tile, elements);
  }

  // What came together since the last call.
  Partial take_partial() {
    const Partial found{sum_squares_, static_cast<double>(largest_), nonfinite_, fingerprint_,
                        zeros_};
    sum_squares_ = 0;
    largest_ = 0;
    nonfinite_ = zeros_ = 0;
    fingerprint_ = 0;
    rotated_ = ~std::uint64_t{0};  // the next gradient has another seed
    return found;
  }

 private:
  unsigned pair(unsigned j) const { return index_ + j * kTileThreads; }

  // Of pair j within a span.
  std::uint32_t place(unsigned j) const {
    return tile_ * static_cast<unsigned>(kFingerprintBlock) + 2 * pair(j);
  }

  // How many elements of the span the gradient has.
  static std::uint32_t left_of(const Item& gradient, std::uint64_t span) {
    const std::uint64_t left = gradient.count - span;
    return left < kSpan ? static_cast<std::uint32_t>(left) : kSpan;
  }

  // `kWhole`: the gradient has all elements of the span.
  template <bool kWhole>
  std::uint64_t add_span(const Item& gradient, std::uint64_t span, const Pairs& pairs,
                         const std::uint32_t* keys, const Signs& signs, const BlockSketch& sketch) {
    const std::uint32_t left = kWhole ? kSpan : left_of(gradient, span);
    const std::uint32_t run = run_of(span);
    std::uint64_t share = 0;
    double squares = 0;
    Real largest = 0;
    const bool short_blocks = sketch.size < kFingerprintBlock;  // else one holds a thread's pairs
    if (sketch.size != 0) rotate(span + place(0), gradient.seed, sketch);
    for (unsigned j = 0; j < kPairs; ++j) {
      const std::uint32_t at = place(j);
      if (!kWhole && at >= left) break;
      const bool whole = kWhole || at + 1 < left;
      const Pair& bits = pairs.of[j];
      share += products(bits, keys + kKeys * pair(j), whole);
      const Real a = Element<kDtype>::value(bits.first), b = Element<kDtype>::value(bits.second);
      squares = with_square(with_square(squares, a), b);
      largest = larger(largest, larger(size_of(a), size_of(b)));
      if (run == (15 - j * kRunsApart % 15) % 15) {
        zeros_ += (a == 0 ? 1U : 0U) + (whole && b == 0 ? 1U : 0U);
      }
      if (sketch.size == 0) continue;
      if (short_blocks) rotate(span + at, gradient.seed, sketch);
      add_to_sketch(a, b, static_cast<std::uint32_t>(span) + at, signs.of[j], sketch);
    }
    sum_squares_ += squares;
    if (squares <= std::numeric_limits<double>::max()) {  // so all elements are finite
      largest_ = larger(largest_, largest);
    } else {
      count_nonfinite(pairs);
    }
    return share;
  }

  static constexpr unsigned kRun = kZeroRun;
  static constexpr unsigned kRunsApart = 2 * kTileThreads / kRun;  // of two pairs

  // Which of the 15 runs of a period this thread's first pair lies in.
  std::uint32_t run_of(std::uint64_t span) const {
    constexpr std::uint32_t kRuns = kSpan / kRun % 15;
    return (kRuns * (static_cast<std::uint32_t>(span / kSpan) % 15) + place(0) / kRun) % 15;
  }

  // What lies behind the gradient's end is zero.
  void count_nonfinite(const Pairs& pairs) {
    for (unsigned j = 0; j < kPairs; ++j) {
      for (int i = 0; i < 2; ++i) {
        const Bits bits = i == 0 ? pairs.of[j].first : pairs.of[j].second;
        const Real size = size_of(Element<kDtype>::value(bits));
        const bool finite = size <= std::numeric_limits<Real>::max();  // not so for a NaN
        nonfinite_ += finite ? 0U : 1U;
        if (finite) largest_ = larger(largest_, size);
      }
    }
  }

  static Real size_of(Real x) { return x < 0 ? -x : x; }

  // Of numbers.
  static Real larger(Real a, Real b) {
#ifdef __CUDA_ARCH__
    return max(a, b);
#else
    return a < b ? b : a;
#endif
  }

  // The square of what is no binary64 is exact: so it is no matter whether it is rounded before.
  static double with_square(double sum, Real x) {
    const auto wide = static_cast<double>(x);
    if constexpr (kDtype == Dtype::kF64) return sum + wide * wide;
    return std::fma(wide, wide, sum);
  }

  static Pair load(const char* from_span, std::uint32_t at, std::uint32_t left) {
    Pair pair{0, 0};
    const char* from = from_span + at * sizeof(Bits);
    if (at < left) pair.first = load_one(from);
    if (at + 1 < left) pair.second = load_one(from + sizeof(Bits));
    return pair;
  }

  static Pair load_pair(const char* from) {
    Pair pair;
    memcpy(&pair, __builtin_assume_aligned(from, sizeof(Pair)), sizeof(Pair));
    return pair;
  }

  static Bits load_one(const char* from) {
    Bits bits;
    memcpy(&bits, __builtin_assume_aligned(from, sizeof(Bits)), sizeof(Bits));
    return bits;
  }

  static std::uint64_t product(std::uint32_t left, std::uint32_t right) {
    return static_cast<std::uint64_t>(left) * right;
  }

  static std::uint64_t product_of_halves(std::uint64_t bits, const std::uint32_t* keys) {
    return product(static_cast<std::uint32_t>(bits) + keys[0],
                   static_cast<std::uint32_t>(bits >> 32) + keys[1]);
  }

  static std::uint64_t products(const Pair& bits, const std::uint32_t* keys, bool whole) {
    if constexpr (kDtype == Dtype::kF64) {
      return product_of_halves(bits.first, keys) +
             (whole ? product_of_halves(bits.second, keys + 2) : 0);
    } else {
      return product(bits.first + keys[0], bits.second + keys[1]);
    }
  }

  // By how much the block of the sketch is rotated that an element lies in.
  void rotate(std::uint64_t element, std::uint64_t seed, const BlockSketch& sketch) {
    const std::uint64_t block = element >> sketch.bits;
    if (block == rotated_) return;
    rotated_ = block;
    rotation_ = static_cast<std::uint32_t>(sketch_rotation(seed, block, sketch.size));
  }

  void add_to_sketch(Real a, Real b, std::uint32_t place, std::uint64_t signs,
                     const BlockSketch& sketch) const {
    const std::uint32_t mask = sketch.size - 1;
    float* values = sketch.values + (place & (sketch.sums - 1) & ~mask);
    const auto both = static_cast<std::uint32_t>(signs >> (place % 64));
    add_signed(values[(place + rotation_) & mask], static_cast<float>(a), both << 31);
    add_signed(values[(place + 1 + rotation_) & mask], static_cast<float>(b), both >> 1 << 31);
  }

  static void add_signed(float& sum, float value, std::uint32_t sign) {
    sum += std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) ^ sign);
  }

  unsigned tile_, index_;                      // in the span, in the tile
  std::uint64_t rotated_ = ~std::uint64_t{0};  // the block of the sketch that rotation_ is of
  std::uint32_t rotation_ = 0;
  double sum_squares_ = 0;
  Real largest_ = 0;
  std::uint32_t nonfinite_ = 0;
  std::uint32_t zeros_ = 0;
  std::uint64_t fingerprint_ = 0;
};

// Before a block's first span: `held` is its row where an earlier launch has left something there.
inline void begin(const BlockSketch& sketch, const float* held, unsigned thread) {
  if (sketch.values == held) return;
  for (std::uint32_t i = thread; i < sketch.sums; i += kThreads) {
    sketch.values[i] = held != nullptr && i < sketch.size ? held[i] : 0.0F;
  }
}

// After its last: its sums become one sketch.
inline void store(const BlockSketch& sketch, float* row, unsigned thread) {
  if (sketch.values == row) return;
  for (std::uint32_t i = thread; i < sketch.size; i += kThreads) {
    float sum = sketch.values[i];
    for (std::uint32_t j = i + sketch.size; j < sketch.sums; j += sketch.size) {
      sum += sketch.values[j];
    }
    row[i] = sum;
  }
}

// ---- at the end of a step

// Where the parts of one gradient lie.
struct Parts {
  const Partial* first;
  std::uint64_t count;
};

// The sketches that the launches on one stream left.
struct Sketches {
  const float* rows;
  std::uint64_t count;
};

struct Step {
  const Parts* parts;
  const Sketches* sketches;
  Partial* found;  // one each gradient
  float* sketch;
  std::uint32_t gradients;
  std::uint32_t streams;
  std::uint32_t sketch_size;

  static constexpr std::uint32_t kGradients = kFinishThreads / kWarp;  // of a block
  std::uint32_t gradient_blocks() const { return (gradients + kGradients - 1) / kGradients; }
  std::uint32_t sketch_blocks() const { return sketch_size / kColumns; }
};

// One thread's share of one gradient's parts.
inline Partial gather(const Parts& parts, unsigned lane) {
  Partial sum{};
  for (std::uint64_t i = lane; i < parts.count; i += kWarp) sum = combine(sum, parts.first[i]);
  return sum;
}

// One thread's share of a bucket: of each stream the rows `row`, `row` + kRows, ...
inline float gather(const Step& step, std::uint32_t bucket, unsigned row) {
  float sum = 0;
  for (std::uint32_t s = 0; s < step.streams; ++s) {
    for (std::uint64_t i = row; i < step.sketches[s].count; i += kRows) {
      sum += step.sketches[s].rows[i * step.sketch_size + bucket];
    }
  }
  return sum;
}

}  // namespace presum::observe::cuda
