// SPDX-License-Identifier: Apache-2.0
// Which arithmetic gave a result: docs/audit.md, "How format and order are inferred".
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

// One arithmetic, and how many elements of the result it gives bit for bit.
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
  std::uint32_t start = 0;  // the worker with whom its sum begins
};

struct Inferred {
  Accumulation accumulation = Accumulation::kUnknown;
  SumOrder order = SumOrder::kUnknown;
  Division division = Division::kUnknown;
  std::uint64_t wrong = 0;  // elements that no rounding in `accumulation` explains;
                            // in any format, where the order is unknown
  // Where most elements are wrong, the result is no sum or mean of these values: format, order and
  // division are unknown then.
  bool unrelated = false;
  std::optional<std::uint32_t>
      copy_of;                         // the worker whose own values the result has; unrelated too
  std::vector<Hypothesis> hypotheses;  // best first
  std::vector<Piece> pieces;           // of the order that was found, if it is a ring; at most 256
  Beyond beyond;
};

struct Evidence {
  std::uint64_t elements = 0;
  std::uint64_t examined = 0;      // elements that hypotheses were tried on
  std::uint64_t telling = 0;       // of those: what not every hypothesis gives; zeros tell nothing
  Excess all;                      // of all elements
  Excess sample;                   // of those that hypotheses were tried on
  std::vector<std::uint64_t> own;  // of the examined: equal to a worker's own value, by worker
};

// What follows from the counts. `hypotheses` in the order of preference among equals, not empty,
// each with its share of what was examined unless it was dropped. From 1 to 23 telling elements:
// format and order are unknown.
Inferred conclude(std::vector<Hypothesis> hypotheses, const Evidence& evidence,
                  std::uint32_t workers, Dtype dtype);

// Follows which rotation of a ring explains an element and its neighbors, since the places where
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

// The elements that hypotheses are tried on: all of at most 65,536, else 256 runs that are spread
// evenly, since the order in a ring depends on the place. A run has 256 elements, and fewer down to
// 64 from 9 workers on, since a ring is tried from every worker.
class Sample {
 public:
  Sample(std::uint64_t elements, std::size_t workers);
  struct Run {
    std::uint64_t first = 0;
    std::uint64_t end = 0;
  };
  // The first run that ends behind a position; empty, at `elements`, behind the last one.
  Run from(std::uint64_t position) const;

 private:
  std::uint64_t elements_;
  std::uint64_t run_;
};

// Tries hypotheses on elements of a result. Rings are tried up to 64 workers. A hypothesis that
// gives 1,024 elements fewer than the best is not tried further. Not thread-safe. Memory does not
// depend on the number of elements.
template <class Real>
class Inference {
 public:
  // `divisor` as for reduce::exact: 1 where the result is a sum.
  Inference(std::uint32_t workers, Dtype dtype, std::uint32_t divisor);
  // The elements from `first` on. REQUIRES: at most kBlock, behind those of earlier calls.
  void add(std::uint64_t first, const Rows<Real>& rows, std::span<const Real> result);
  // `all`: of all `elements`, where these were a sample.
  Inferred inferred(std::uint64_t elements, const Excess& all) const;

 private:
  // A hypothesis under test.
  struct Trial {
    Hypothesis hypothesis;
    bool active = true;
    RingTrack track{};
  };
  // What is done to values before they are added, and what may become of their sum.
  struct Dividing {
    Division before = Division::kNone;
    std::vector<Division> after;  // what the whole is called
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
  std::vector<std::uint8_t> given_by_all_;  // of the block, by element
  std::vector<std::uint64_t> own_;          // by worker
  std::vector<Scheme> schemes_;
  std::vector<Dividing> dividings_;
  std::vector<Trial> trials_;
  TrialSum<Real> sum_;
  BoundsByDivision<Real> bounds_;
};

}  // namespace presum::audit
