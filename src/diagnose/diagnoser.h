// SPDX-License-Identifier: Apache-2.0
// Alarms and fingerprints become findings: docs/findings.md.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "detect/detector.h"
#include "presum/finding.h"
#include "presum/step_record.h"

namespace presum::diagnose {

// What a worker said about itself (a packet::Hello without its wire details).
struct WorkerFacts {
  std::uint32_t rank = 0;
  std::uint32_t replica = 0;
  std::string host;
  std::vector<std::pair<std::string, std::string>> facts;     // later values replace earlier ones
  std::vector<std::pair<std::uint64_t, std::string>> groups;  // id and name
};

// A worker's last words.
struct Farewell {
  std::uint32_t rank = 0;
  std::uint32_t replica = 0;
  std::uint64_t clock = 0;  // optimiser steps so far: states of equal clocks are compared
  std::vector<StateHash> states;
};

// Finds what is wrong with one model of one segment.
//
// Thread-safety: not synchronised. Memory is bounded whatever the records hold (samples of a long
// epoch are thinned out). Never throws. Deterministic.
class Diagnoser {
 public:
  Diagnoser(std::uint32_t segment, std::uint32_t module, std::uint32_t shard);
  Diagnoser(Diagnoser&&) noexcept;
  Diagnoser& operator=(Diagnoser&&) noexcept;
  ~Diagnoser();

  void hello(const WorkerFacts& facts);
  void farewell(const Farewell& farewell);
  // REQUIRES: ascending steps. `detector` has already seen the record and raised `alarms`.
  void update(const StepRecord& record, std::span<const detect::Alarm> alarms,
              const detect::Detector& detector);

  // One finding a cause, worst first, then by first step. An id stays with its finding while it
  // grows; ids are not reused.
  struct Numbered {
    std::uint64_t id = 0;
    Finding finding;
  };
  std::vector<Numbered> findings() const;
  // Every check, in the order of the catalogue.
  std::vector<CheckRecord> checks() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// What findings and coverage mean together. `steps`: with at least two workers.
Verdict verdict(std::span<const Finding> findings, std::uint64_t steps, bool whole);

// One check of the catalogue (checks.cc), in the order in which a cause is named.
struct CheckInfo {
  std::string_view id;
  Severity severity;
  std::string_view looks_at;  // one line for people
  std::string_view remedy;
  std::string_view resembles;  // may be empty
};
std::span<const CheckInfo> catalogue();

}  // namespace presum::diagnose
