// SPDX-License-Identifier: Apache-2.0
// missing-worker.
#pragma once

#include <cstdint>

#include "diagnose/book.h"
#include "diagnose/look.h"

namespace presum::diagnose {

// A worker that comes back and says that it dropped its packets was not missing: presum was too
// slow, which is information.
class Presence {
 public:
  void update(const Look& look, Book& book);

 private:
  struct Worker {
    bool seen = false;
    std::uint64_t missing = 0;    // steps
    std::uint64_t explained = 0;  // of them, by packets that it dropped
    std::uint64_t dropped = 0;    // as it last said
  };
  void count_missing(const Look& look, Book& book);
  struct Absent {
    Blame blame;
    std::uint64_t longest = 0;
    bool seen = false;  // some of them
  };
  static void report(const Look& look, const Absent& absent, Book& book);
  void welcome(const WorkerRecord& worker, Book& book);
  void forgive(Signal& signal);

  PerWorker<Worker> workers_;  // by rank
};

}  // namespace presum::diagnose
