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

struct Inferred {
  Accumulation accumulation = Accumulation::kUnknown;
  SumOrder order = SumOrder::kUnknown;
  Division division = Division::kUnknown;
  std::uint64_t wrong = 0;             // elements that no rounding in `accumulation` explains
  std::vector<Hypothesis> hypotheses;  // best first
  std::vector<Piece> pieces;           // of the order that was found, if it is a ring; at most 256
  // For each format, widest first: elements further off than sums in it can be, in any order.
  std::vector<std::pair<Accumulation, std::uint64_t>> beyond;
};

// What follows from the counts. `hypotheses` in the order of preference among equals, each with
// its share of all elements unless it was dropped.
Inferred conclude(std::vector<Hypothesis> hypotheses,
                  std::vector<std::pair<Accumulation, std::uint64_t>> beyond,
                  std::uint64_t elements, std::uint32_t workers, Dtype dtype);

// Follows which rotation of a ring explains an element and its neighbours, since the places where
// the pieces of a ring meet are not known. A piece counts from kInformative elements on which the
// rotations differ: shorter ones come about by chance.
class RingTrack {
 public:
  static constexpr std::uint64_t kInformative = 24;
  static constexpr std::size_t kPiecesMax = 256;

  explicit RingTrack(std::uint32_t workers = 1);
  // Bit s of a mask: the rotation that begins with worker s gives this element.
  void add(std::span<const std::uint64_t> masks);
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

// Tries hypotheses on a result, block by block. Rings are tried up to 64 workers. A hypothesis that
// has fallen 2% behind the best after 65,536 elements is not tried further.
// Not thread-safe. Memory does not depend on the number of elements.
// Elements further off than sums in some format can be, in any order.
template <class Real>
class Bounds {
 public:
  Bounds(std::uint32_t workers, Dtype dtype);
  // `slack`: how many half units in the last place the division may add up to.
  void add(const Rows<Real>& rows, std::uint32_t divisor, double slack,
           std::span<const Real> result, std::size_t way);
  // By format, widest first: the fewest over the ways to divide.
  std::vector<std::pair<Accumulation, std::uint64_t>> beyond() const;

 private:
  double rounding_error(Dtype format, double sum_abs) const;

  std::uint32_t workers_;
  Dtype dtype_;
  std::vector<Dtype> formats_;
  std::vector<std::vector<std::uint64_t>> beyond_;  // by way, then by format
  Sums sums_;
};

// Tries hypotheses on a result, block by block. Rings are tried up to 64 workers. A hypothesis that
// has fallen 2% behind the best after 65,536 elements is not tried further.
// Not thread-safe. Memory does not depend on the number of elements.
template <class Real>
class Inference {
 public:
  // `divisor` as for reduce::exact: 1 where the result is a sum.
  Inference(std::uint32_t workers, Dtype dtype, std::uint32_t divisor);
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
  void prepare(const Rows<Real>& rows, Dtype wire, Division before);
  void try_way(Scheme scheme, const Way& way, std::span<const Real> result);
  void try_order(Scheme scheme, const Way& way, SumOrder kind, std::span<const Real> result);
  void try_ring(Scheme scheme, const Way& way, SumOrder kind, std::span<const Real> result);
  std::vector<Trial*> wanted(Scheme scheme, const Way& way, SumOrder kind);
  void sum(Scheme scheme, SumOrder kind, std::uint32_t start);
  // The sum as `division` leaves it.
  std::span<const Real> finished(Division division, Dtype wire);
  void drop_losers();
  void check_bounds(const Rows<Real>& rows, std::span<const Real> result);

  std::uint32_t workers_;
  Dtype dtype_;
  std::uint32_t divisor_;
  std::uint64_t elements_ = 0;
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
