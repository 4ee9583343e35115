// SPDX-License-Identifier: Apache-2.0
// Finds the arithmetic that gave a result: docs/audit.md, "How format and order are inferred".
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "audit/bounds.h"
#include "audit/measures.h"
#include "audit/trial_sum.h"
#include "presum/audit.h"

namespace presum::audit {

// One arithmetic, and the number of elements of the result that it reproduces bit for bit.
struct Hypothesis {
  Scheme scheme;
  Division division = Division::kNone;
  SumOrder order = SumOrder::kUnknown;
  std::uint64_t examined = 0;
  std::uint64_t reproduced = 0;
};

// A piece of the buffer that one rotation of a ring explains.
struct Piece {
  std::uint64_t first = 0;
  std::uint64_t end = 0;
  std::uint32_t start = 0;  // the rank with whose value the sum starts
};

struct Inferred {
  Accumulation accumulation = Accumulation::kUnknown;
  SumOrder order = SumOrder::kUnknown;
  Division division = Division::kUnknown;
  // Elements that rounding in `accumulation` does not explain; if the order is unknown, elements
  // that rounding in no format explains.
  std::uint64_t wrong = 0;
  // Set if most elements are wrong. The result is then no sum or mean of these values, and format,
  // order and division are unknown.
  bool unrelated = false;
  // The rank whose own values the result contains; `unrelated` is set too.
  std::optional<std::uint32_t> copy_of;
  std::vector<Hypothesis> hypotheses;  // best first
  std::vector<Piece> pieces;           // of the order that was found, if it is a ring; at most 256
  Beyond beyond;
};

struct Evidence {
  std::uint64_t elements = 0;
  std::uint64_t examined = 0;  // elements on which hypotheses were tried
  // Of those, the elements that some hypothesis does not reproduce; zeros are never telling.
  std::uint64_t telling = 0;
  Excess all;     // over all elements
  Excess sample;  // over the examined elements
  // Examined elements that equal a rank's own value, by rank.
  std::vector<std::uint64_t> own;
};

// Draws the conclusion from the counts. `hypotheses` must not be empty; they are in the order of
// preference among equals, each with its share of the examined elements unless it was dropped. With
// 1 to 23 telling elements, format and order are unknown.
Inferred conclude(std::vector<Hypothesis> hypotheses, const Evidence& evidence,
                  std::uint32_t workers, Dtype dtype);

// Follows which rotation of a ring explains an element and its neighbors, because the boundaries
// between the pieces of a ring are unknown. A piece counts once it has kInformative elements on
// which the rotations differ; shorter pieces occur by chance.
class RingTrack {
 public:
  static constexpr std::uint64_t kInformative = 24;
  static constexpr std::size_t kPiecesMax = 256;

  // The mask of an element that every rotation reproduces.
  static std::uint64_t all_of(std::uint32_t workers) {
    return workers >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << workers) - 1;
  }
  explicit RingTrack(std::uint32_t workers = 1);
  // Bit s of a mask: the rotation that starts with rank s reproduces this element.
  void add(std::span<const std::uint64_t> masks);
  // Skips elements that were not examined. A piece may start or end among them.
  void skip(std::uint64_t elements) { position_ += elements; }
  std::uint64_t reproduced() const;
  std::vector<Piece> pieces() const;

 private:
  bool credible() const { return informative_ >= kInformative; }
  void close();
  Piece open_piece() const;

  std::uint64_t all_;
  std::uint64_t alive_;
  std::uint64_t position_ = 0;
  std::uint64_t first_ = 0;        // of the open run
  std::uint64_t informative_ = 0;  // in the open run
  std::uint64_t reproduced_ = 0;   // without the open run
  std::vector<Piece> pieces_;
};

// The elements on which hypotheses are tried: all of them up to 65,536; above, 256 evenly spaced
// runs, because the order in a ring depends on the position. A run has 256 elements. From 9 ranks
// on it has fewer, down to 64, because a ring is tried from every rank.
class Sample {
 public:
  Sample(std::uint64_t elements, std::size_t workers);
  struct Run {
    std::uint64_t first = 0;
    std::uint64_t end = 0;
  };
  // Returns the first run that ends after a position; after the last run, an empty run at
  // `elements`.
  Run from(std::uint64_t position) const;

 private:
  std::uint64_t elements_;
  std::uint64_t run_;
};

// Tries hypotheses on elements of a result. Tries rings for up to 64 ranks. Drops a hypothesis that
// reproduces 1,024 elements fewer than the best one. Not thread-safe. Memory does not depend on the
// number of elements.
template <class Real>
class Inference {
 public:
  // `divisor` as for reduce::exact: 1 if the result is a sum.
  Inference(std::uint32_t workers, Dtype dtype, std::uint32_t divisor);
  // Adds the elements from `first` on. REQUIRES: at most kBlock, after those of earlier calls.
  void add(std::uint64_t first, const Rows<Real>& rows, std::span<const Real> result);
  // `all`: over all `elements`, of which the added ones are a sample.
  Inferred inferred(std::uint64_t elements, const Excess& all) const;

 private:
  // A hypothesis under test.
  struct Trial {
    Hypothesis hypothesis;
    bool active = true;
    RingTrack track{};
  };
  // The division of values before the addition, and the possible divisions of their sum.
  struct Dividing {
    Division before = Division::kNone;
    std::vector<Division> after;  // names of the whole division
  };

  void plan();
  std::uint64_t count_same(std::span<const Real> values, std::span<const Real> result);
  void try_orders(Scheme scheme, const Dividing& dividing, std::span<const Real> result);
  void try_order(Scheme scheme, const Dividing& dividing, SumOrder kind,
                 std::span<const Real> result);
  void try_ring(Scheme scheme, const Dividing& dividing, SumOrder kind,
                std::span<const Real> result);
  std::vector<Trial*> active_trials(Scheme scheme, const Dividing& dividing, SumOrder kind);
  void drop_losers();
  void check_bounds(const Rows<Real>& rows, std::span<const Real> result);

  std::uint32_t workers_;
  Dtype dtype_;
  std::uint32_t divisor_;
  std::uint64_t position_ = 0;
  std::uint64_t examined_ = 0;
  std::uint64_t telling_ = 0;
  std::vector<std::uint8_t> given_by_all_;  // in the current block, by element
  std::vector<std::uint64_t> own_;          // by rank
  std::vector<Scheme> schemes_;
  std::vector<Dividing> dividings_;
  std::vector<Trial> trials_;
  TrialSum<Real> sum_;
  BoundsByDivision<Real> bounds_;
};

}  // namespace presum::audit
