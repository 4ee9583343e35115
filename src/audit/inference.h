// SPDX-License-Identifier: Apache-2.0
// Which arithmetic gave a result: docs/audit.md, "How format and order are inferred".
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "audit/measures.h"
#include "audit/orders.h"
#include "presum/audit.h"

namespace presum::audit {

Accumulation accumulation_of(Dtype dtype);

// Values are rounded to `wire`, partial sums to `accumulation`, the sum to `wire`.
struct Scheme {
  Dtype wire = Dtype::kF32;
  Dtype accumulation = Dtype::kF32;
};

// One way to add, and how many elements of the result it gives bit for bit.
struct Hypothesis {
  Scheme scheme;
  Division division = Division::kNone;
  SumOrder order = SumOrder::kUnknown;
  std::uint64_t examined = 0;
  std::uint64_t reproduced = 0;
  double share() const {
    return examined == 0 ? 0 : static_cast<double>(reproduced) / static_cast<double>(examined);
  }
};

// A piece of the buffer that one rotation of a ring explains.
struct Piece {
  std::uint64_t first = 0;
  std::uint64_t end = 0;
  std::uint32_t start = 0;  // the worker with whom its sum begins
};

// For each format, widest first: elements further off than sums in it can be, in any order.
using Beyond = std::vector<std::pair<Accumulation, std::uint64_t>>;

struct Inferred {
  Accumulation accumulation = Accumulation::kUnknown;
  SumOrder order = SumOrder::kUnknown;
  Division division = Division::kUnknown;
  std::uint64_t wrong = 0;             // elements that no rounding in `accumulation` explains;
                                       // in any format, where the order is unknown
  std::vector<Hypothesis> hypotheses;  // best first
  std::vector<Piece> pieces;           // of the order that was found, if it is a ring; at most 256
  Beyond beyond;
};

struct Evidence {
  std::uint64_t elements = 0;
  std::uint64_t examined = 0;  // elements that hypotheses were tried on
  std::uint64_t telling = 0;   // of those: what not every hypothesis gives; zeros tell nothing
  Beyond beyond;               // of all elements
  Beyond examined_beyond;      // of those that hypotheses were tried on
};

// What follows from the counts. `hypotheses` in the order of preference among equals, not empty,
// each with its share of what was examined unless it was dropped. From 1 to 23 telling elements:
// format and order are unknown.
Inferred conclude(std::vector<Hypothesis> hypotheses, const Evidence& evidence,
                  std::uint32_t workers, Dtype dtype);

// Follows which rotation of a ring explains an element and its neighbours, since the places where
// the pieces of a ring meet are not known. A piece counts from kInformative elements on which the
// rotations differ: shorter ones come about by chance.
class RingTrack {
 public:
  static constexpr std::uint64_t kInformative = 24;
  static constexpr std::size_t kPiecesMax = 256;

  // The mask of an element that every rotation gives.
  static std::uint64_t all_of(std::uint32_t workers) {
    return workers >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << workers) - 1;
  }
  explicit RingTrack(std::uint32_t workers = 1);
  // Bit s of a mask: the rotation that begins with worker s gives this element.
  void add(std::span<const std::uint64_t> masks);
  // Elements that were not looked at. A piece may begin or end among them.
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
  std::uint64_t informative_ = 0;  // elements of the open run
  std::uint64_t reproduced_ = 0;   // without the open run
  std::vector<Piece> pieces_;
};

// Counts elements further off than sums in some format can be, in any order. Not thread-safe.
template <class Real>
class Bounds {
 public:
  Bounds(std::uint32_t workers, Dtype dtype);
  // `slack`: how many half units in the last place the division may add up to. `examined`: whether
  // hypotheses are tried on these elements.
  void add(const Rows<Real>& rows, std::uint32_t divisor, double slack,
           std::span<const Real> result, std::size_t way, bool examined);
  // The fewest over the ways to divide.
  Beyond beyond() const { return fewest(beyond_); }
  Beyond examined_beyond() const { return fewest(examined_); }

 private:
  using Counts = std::vector<std::vector<std::uint64_t>>;  // by way, then by format
  struct Bound {
    Dtype wire;
    double relative;  // to the sum of absolute values
    double tiny;      // what underflow adds
  };

  Bound bound_of(Dtype format, std::uint32_t divisor) const;
  Beyond fewest(const Counts& counts) const;

  std::uint32_t workers_;
  Dtype dtype_;
  std::vector<Dtype> formats_;
  Counts beyond_;
  Counts examined_;
  Sums sums_;
};

// Tries hypotheses on a result, block by block: on all of the first 2^18 elements, then on every
// 16th block of kBlock; the bounds see every element. Rings are tried up to 64 workers. A
// hypothesis that has fallen 2% behind the best after 65,536 telling elements is not tried further.
// Not thread-safe. Memory does not depend on the number of elements.
template <class Real>
class Inference {
 public:
  // `divisor` as for reduce::exact: 1 where the result is a sum.
  Inference(std::uint32_t workers, Dtype dtype, std::uint32_t divisor);
  // REQUIRES: a call's elements are of one block of kBlock, counted from the first of all.
  void add(const Rows<Real>& rows, std::span<const Real> result);
  Inferred inferred() const;

 private:
  // A hypothesis under test.
  struct Trial {
    Hypothesis hypothesis;
    bool active = true;
    RingTrack track{};
  };
  using Trials = std::vector<Trial>;
  // Values before they are added, and what may become of their sum.
  struct Way {
    Division before = Division::kNone;
    std::vector<Division> after;  // what the whole is called
  };

  void plan();
  bool is_sampled() const;
  void examine(const Rows<Real>& rows, std::span<const Real> result);
  void skip(std::uint64_t elements);
  std::uint64_t count_same(std::span<const Real> values, std::span<const Real> result);
  void prepare(const Rows<Real>& rows, Dtype wire, Division before);
  void try_way(Scheme scheme, const Way& way, std::span<const Real> result);
  void try_order(Scheme scheme, const Way& way, SumOrder kind, std::span<const Real> result);
  void try_ring(Scheme scheme, const Way& way, SumOrder kind, std::span<const Real> result);
  std::vector<Trial*> wanted(Scheme scheme, const Way& way, SumOrder kind);
  void sum(Scheme scheme, SumOrder kind, std::uint32_t start);
  // The sum as `division` leaves it.
  std::span<const Real> finished(Division division, Dtype wire);
  void drop_losers();
  void check_bounds(const Rows<Real>& rows, std::span<const Real> result, bool examined);

  std::uint32_t workers_;
  Dtype dtype_;
  std::uint32_t divisor_;
  std::uint64_t elements_ = 0;
  std::uint64_t examined_ = 0;
  std::uint64_t telling_ = 0;
  std::vector<std::uint8_t> given_by_all_;  // of the block, by element
  std::vector<Scheme> schemes_;
  std::vector<Way> ways_;
  Trials trials_;
  Adder<Real> adder_;
  Rows<Real> prepared_;
  std::vector<Real> sum_;
  std::vector<Real> finished_;
  Bounds<Real> bounds_;
};

}  // namespace presum::audit
