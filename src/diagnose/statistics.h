// SPDX-License-Identifier: Apache-2.0
// worker-outlier, pair-too-similar, too-consistent, loss-event, token-imbalance.
#pragma once

#include <cstdint>

#include "diagnose/book.h"
#include "diagnose/look.h"

namespace presum::diagnose {

class Statistics {
 public:
  void update(const Look& look, Book& book);

 private:
  static void cover(const Look& look, Book& book);
  static void report(const Look& look, const detect::Alarm& alarm, Book& book);
  static void extend(const Look& look, const detect::Alarm& alarm, Book& book);
  void watch_tokens(const Look& look, Book& book);

  std::uint64_t token_steps_ = 0;
  double cv_sum_ = 0;
  double gap_sum_ = 0;  // |mean of the workers' losses - mean over tokens|
  std::uint64_t gap_steps_ = 0;
};

}  // namespace presum::diagnose
