// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/host_device.h"
#include "observe/fingerprint.h"
#include "observe/sketch.h"
#include "observe/zeros.h"
#include "presum/dtype.h"

// What each thread of the CUDA pass over a batch of gradients does between two barriers, as
// functions that the host can run too: observe/cuda/batch.cc runs one thread after the other.
//
// A span is 8,192 elements of one gradient: eight fingerprint blocks ("tiles"). A block of threads
// processes a run of adjacent spans of the batch, which may belong to different gradients. Within a
// span, a thread takes 8 pairs of adjacent elements of one tile. Therefore no two threads access
// the same bucket of the sketch between two barriers, every sum has a fixed order, and the grid
// depends only on the gradients' lengths: every GPU gives the same bits. They differ from those of
// observe/gradient_pass.h in the order of floating-point additions.
//
// Nothing here synchronizes or allocates; pointers are borrowed.
namespace presum::observe::cuda {

inline constexpr unsigned kThreads = 512;
inline constexpr unsigned kWarp = 32;
inline constexpr unsigned kWarps = kThreads / kWarp;
inline constexpr unsigned kTiles = 8;  // per span
inline constexpr unsigned kSpan = kTiles * static_cast<unsigned>(kFingerprintBlock);
inline constexpr unsigned kTileThreads = kThreads / kTiles;
inline constexpr unsigned kTileWarps = kTileThreads / kWarp;
inline constexpr unsigned kPairs = kFingerprintBlock / 2 / kTileThreads;  // per thread and span
inline constexpr unsigned kFinishThreads = 256;
inline constexpr unsigned kColumns = 32;  // a block that adds up sketches has 32 x 8 threads
inline constexpr unsigned kRows = kFinishThreads / kColumns;
inline constexpr std::uint32_t kMaxShared = 8192;  // number of sums that fit into shared memory

// A gradient of a batch, in its uploaded form.
struct Item {
  const void* data;
  std::uint64_t count;
  std::uint64_t seed;
  std::uint64_t first_span;  // index in the batch; an empty gradient has no span
};

// The result for a part of a gradient.
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
  Partial* partials;  // block b writes its result for item i to b + i: no two share a place
  float* rows;        // one sketch per block; later launches on the same stream add to them
  std::uint64_t spans;
  std::uint32_t count;        // number of items
  std::uint32_t blocks;       // at most `spans`
  std::uint32_t rows_in_use;  // the rows of later blocks are still uninitialized
  std::uint32_t sketch_size;  // 0: no sketch

  // Number of floats that a block adds to. If a sketch is shorter than a span, the block keeps
  // several sketches, one after the other, so that each element of a span has its own float.
  std::uint32_t sums() const {
    return sketch_size == 0 || sketch_size > kSpan ? sketch_size : kSpan;
  }
  bool in_shared() const { return sums() <= kMaxShared; }
  std::uint64_t first_span(std::uint32_t block) const {
    return spans / blocks * block + (spans % blocks < block ? spans % blocks : block);
  }
};

// Iterates over the spans of a block of threads.
class Walk {
 public:
  Walk(const Batch& batch, std::uint32_t block)
      : batch_(&batch), span_(batch.first_span(block)), end_(batch.first_span(block + 1)) {
    // the search finds the last item that begins at or before span_
    std::uint32_t after = batch.count;
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
  std::uint64_t after_ = 0;  // the first span after the item
  std::uint32_t item_ = 0;
  Item gradient_{};
};

// The sums of one block of threads.
struct BlockSketch {
  float* values;
  std::uint32_t size;  // 0: no sketch
  std::uint32_t sums;
  int bits = 63 - std::countl_zero(static_cast<std::uint64_t>(size));  // size is 2^bits
};

// The signs of a thread's pairs, each for a run of 64 elements.
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
  // Moves exponent and mantissa to their positions in a float and multiplies by 2^112 for the
  // difference in bias. Infinities and NaNs also get all exponent bits set.
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

  static constexpr unsigned kKeys = kDtype == Dtype::kF64 ? 4 : 2;  // words per pair
  static constexpr unsigned kAllKeys = kKeys * kFingerprintBlock / 2;

  explicit Thread(unsigned index) : tile_(index / kTileThreads), index_(index % kTileThreads) {}

  // Loads this thread's elements of the span that begins at element `span`. Elements past the
  // gradient's end are zero, which changes no sum.
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

  // The signs of the sketch's elements in the run of 64 that contains this thread's pair j. Equal
  // for all threads of a warp.
  std::uint64_t signs(const Item& gradient, std::uint64_t span, unsigned j) const {
    return sketch_signs(gradient.seed, (span + place(j)) / 64);
  }

  // Adds the pairs to the sketch and to this thread's sums. `keys` are the keys of a fingerprint
  // block (kAllKeys), `signs` those of this thread's pairs. Returns this thread's share of its
  // tile's block sum (observe/fingerprint.h).
  std::uint64_t add(const Item& gradient, std::uint64_t span, const Pairs& pairs,
                    const std::uint32_t* keys, const Signs& signs, const BlockSketch& sketch) {
    return left_of(gradient, span) == kSpan
               ? add_span<true>(gradient, span, pairs, keys, signs, sketch)
               : add_span<false>(gradient, span, pairs, keys, signs, sketch);
  }

  // Adds a tile to the fingerprint once its block sum is known. Called on the first thread of each
  // tile.
  void end_tile(std::uint64_t block_sum, const Item& gradient, std::uint64_t span) {
    const std::uint64_t tile = span / kFingerprintBlock + tile_;
    if (tile * kFingerprintBlock >= gradient.count) return;
    const std::uint64_t left = gradient.count - tile * kFingerprintBlock;
    const std::size_t elements =
        left < kFingerprintBlock ? static_cast<std::size_t>(left) : kFingerprintBlock;
    fingerprint_ += fingerprint_of_block(block_sum, tile, elements);
  }

  // Returns the result since the last call.
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

  // Position of pair j within a span.
  std::uint32_t place(unsigned j) const {
    return tile_ * static_cast<unsigned>(kFingerprintBlock) + 2 * pair(j);
  }

  // Number of elements that the gradient has in the span.
  static std::uint32_t left_of(const Item& gradient, std::uint64_t span) {
    const std::uint64_t left = gradient.count - span;
    return left < kSpan ? static_cast<std::uint32_t>(left) : kSpan;
  }

  // `kWhole`: the gradient fills the span.
  template <bool kWhole>
  std::uint64_t add_span(const Item& gradient, std::uint64_t span, const Pairs& pairs,
                         const std::uint32_t* keys, const Signs& signs, const BlockSketch& sketch) {
    const std::uint32_t left = kWhole ? kSpan : left_of(gradient, span);
    const std::uint32_t run = run_of(span);
    std::uint64_t share = 0;
    double squares = 0;
    Real largest = 0;
    // Otherwise one sketch block contains all of a thread's pairs.
    const bool short_blocks = sketch.size < kFingerprintBlock;
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
    if (squares <= std::numeric_limits<double>::max()) {  // true only if all elements are finite
      largest_ = larger(largest_, largest);
    } else {
      count_nonfinite(pairs);
    }
    return share;
  }

  static constexpr unsigned kRun = kZeroRun;
  static constexpr unsigned kRunsApart = 2 * kTileThreads / kRun;  // between two pairs

  // Returns which of the 15 runs of a period contains this thread's first pair.
  std::uint32_t run_of(std::uint64_t span) const {
    constexpr std::uint32_t kRuns = kSpan / kRun % 15;
    return (kRuns * (static_cast<std::uint32_t>(span / kSpan) % 15) + place(0) / kRun) % 15;
  }

  // Elements past the gradient's end are zero.
  void count_nonfinite(const Pairs& pairs) {
    for (unsigned j = 0; j < kPairs; ++j) {
      for (int i = 0; i < 2; ++i) {
        const Bits bits = i == 0 ? pairs.of[j].first : pairs.of[j].second;
        const Real size = size_of(Element<kDtype>::value(bits));
        const bool finite = size <= std::numeric_limits<Real>::max();  // false for NaN
        nonfinite_ += finite ? 0U : 1U;
        if (finite) largest_ = larger(largest_, size);
      }
    }
  }

  static Real size_of(Real x) { return x < 0 ? -x : x; }

  // The result is meaningful only if neither is NaN.
  static Real larger(Real a, Real b) {
#ifdef __CUDA_ARCH__
    return max(a, b);
#else
    return a < b ? b : a;
#endif
  }

  // Except for f64, the square is exact in double, so a fused multiply-add gives the same result.
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

  // Sets the rotation of the sketch block that contains an element.
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
  std::uint64_t rotated_ = ~std::uint64_t{0};  // the sketch block to which rotation_ belongs
  std::uint32_t rotation_ = 0;
  double sum_squares_ = 0;
  Real largest_ = 0;
  std::uint32_t nonfinite_ = 0;
  std::uint32_t zeros_ = 0;
  std::uint64_t fingerprint_ = 0;
};

// Runs before a block's first span. `held` is its row if an earlier launch has written to it.
inline void begin(const BlockSketch& sketch, const float* held, unsigned thread) {
  if (sketch.values == held) return;
  for (std::uint32_t i = thread; i < sketch.sums; i += kThreads) {
    sketch.values[i] = held != nullptr && i < sketch.size ? held[i] : 0.0F;
  }
}

// Runs after a block's last span: combines its sums into one sketch.
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

// The location of one gradient's parts.
struct Parts {
  const Partial* first;
  std::uint64_t count;
};

// The sketches that the launches on one stream wrote.
struct Sketches {
  const float* rows;
  std::uint64_t count;
};

struct Step {
  const Parts* parts;
  const Sketches* sketches;
  Partial* found;  // one per gradient
  float* sketch;
  std::uint32_t gradients;
  std::uint32_t streams;
  std::uint32_t sketch_size;

  static constexpr std::uint32_t kGradients = kFinishThreads / kWarp;  // per block
  std::uint32_t gradient_blocks() const { return (gradients + kGradients - 1) / kGradients; }
  std::uint32_t sketch_blocks() const { return sketch_size / kColumns; }
};

// One thread's share of one gradient's parts.
inline Partial gather(const Parts& parts, unsigned lane) {
  Partial sum{};
  for (std::uint64_t i = lane; i < parts.count; i += kWarp) sum = combine(sum, parts.first[i]);
  return sum;
}

// One thread's share of a bucket: rows `row`, `row` + kRows, ... of each stream.
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
