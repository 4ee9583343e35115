// SPDX-License-Identifier: Apache-2.0
// no-reduction, reduced-gradient-mismatch, reduction-scale.
#pragma once

#include <cstdint>

#include "diagnose/book.h"
#include "diagnose/look.h"

namespace presum::diagnose {

class Reduction {
 public:
  void update(const Look& look, Book& book);

 private:
  void watch_unreduced_steps(const Look& look, Book& book);
  void compare(const Look& look, Book& book);
  void not_reduced(const Look& look, std::size_t own, const Split& held, Book& book) const;
  void mismatch(const Look& look, const Split& held, Book& book) const;
  void check_finite(const Look& look, Book& book) const;
  void check_scale(const Look& look, Book& book);

  PerWorker<std::uint64_t> unreduced_;  // steps so far
  double last_ratio_ = 0;               // of a reduced norm that was off; 0: it was not
};

}  // namespace presum::diagnose
