// SPDX-License-Identifier: Apache-2.0
// duplicate-data, and pair-too-similar where gradients are equal though the samples are not.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "diagnose/step_context.h"

namespace presum::diagnose {

// Input that no loader dealt, and that workers were given alike: it may be noise that a program
// draws, in some of its passes. Whether it is equal in all steps shows after some.
class UndealtInput {
 public:
  using Members = std::vector<std::size_t>;  // places in StepRecord::workers
  // Steps since workers were first given equal input that no loader dealt.
  struct Group {
    std::uint64_t first_step = 0;
    std::uint64_t equal = 0;
    std::uint64_t known = 0;
    std::uint64_t changes = 0;  // equal steps whose input was another one than the last
    std::uint64_t content = 0;
  };
  // Every step counts in which the rows of all of a group are known.
  void watch(const StepContext& context);
  // These have equal input. Null for what a loader dealt.
  Group* equal(const StepContext& context, const Members& members);
  const Group* find(const Ranks& ranks) const;
  // Steps until all that was equal ever since can be judged.
  std::uint64_t undecided() const;

 private:
  std::map<Ranks, Group> groups_;  // at most 64
  Group beyond_{};                 // of what does not fit: nothing is said of it
};

class Duplicates {
 public:
  void update(const StepContext& context, SignalLog& log);

 private:
  using Members = UndealtInput::Members;
  // How often in a row the same workers were found equal, with another value each time.
  class Streaks {
   public:
    void next_step();
    std::uint64_t extend(const Ranks& ranks, std::uint64_t value);

   private:
    struct Streak {
      std::uint64_t value = 0;
      std::uint64_t length = 0;
    };
    std::map<Ranks, Streak> now_, before_;
  };
  struct Found {
    std::vector<Members> rows;       // groups that read the same samples
    std::vector<Members> drawn;      // groups with the same input in all steps, of no loader
    std::vector<Members> at_times;   // groups with the same input in some steps, of no loader
    std::vector<Members> gradients;  // groups with the same gradient, whose samples are not known
    std::vector<Members> unlike;     // groups with the same gradient from different samples
    bool drawn_only = true;          // rows: none of them came from a loader
    std::uint64_t undecided = 0;     // records until equal rows that may be chance are a finding
    std::uint64_t first_step = ~std::uint64_t{0};  // at which what is drawn was equal first
  };
  void group_rows(const StepContext& context, Found& found);
  void group_gradients(const StepContext& context, Found& found);
  bool certain(const StepContext& context, const Members& members, Found& found);
  void add_rows(const StepContext& context, Members members, Found& found);
  static void report(const StepContext& context, const Found& found, SignalLog& log);
  void await_certainty(const StepContext& context, const Found& found, SignalLog& log) const;
  void take_drawn(const StepContext& context, Found& found);
  void report_at_times(const StepContext& context, const Members& members, SignalLog& log) const;
  static void report_unlike(const StepContext& context, const Members& members, SignalLog& log);

  Streaks samples_;
  Streaks gradients_;
  Streaks beside_;  // equal gradients of equal rows that a loader dealt from other places
  UndealtInput undealt_;
};

}  // namespace presum::diagnose
