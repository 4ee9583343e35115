// SPDX-License-Identifier: Apache-2.0
// What differs between two runs at one step and stage, as facts; wording.h puts them in words.
// Names of layers, and values of facts, come from a run: they are not trusted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "presum/audit.h"

namespace presum::compare {

enum class Side : std::uint8_t { kA, kB };

// A setting that is no fingerprint, beside the kinds of those (FingerprintKind).
inline constexpr std::uint32_t kMicroBatches = ~0U;

// ---- what differs: one of these for each stage, or for each way in which it can differ

// Settings of the configuration, or random generators: by their names in the run's facts, by kind.
struct OtherSettings {
  bool workers = false;                   // the numbers of workers differ
  std::vector<std::string> facts = {};    // keys, each once
  std::vector<std::uint32_t> kinds = {};  // of fingerprints, or kMicroBatches; ascending
};

// Samples, over all workers, that one run has more of than the other.
struct OtherSamples {
  std::size_t differing = 0;
  std::size_t of = 0;
};

// Parameters, and buffers or frozen parameters.
struct OtherStates {
  std::vector<std::string> parameters;  // layers, in the order of the backward pass
  std::vector<std::string> buffers;     // likewise
  std::size_t differing = 0;            // hashes
  std::size_t compared = 0;             // hashes of one worker, at most
};

// Gradients of workers; which layers they are of says Difference::layers.
struct OtherGradient {
  std::size_t layers = 0;  // that differ; 0: no layer shows it
  std::size_t of = 0;      // layers of run A
};

// What there is nothing more to say of.
enum class OtherThing : std::uint8_t {
  kDealing,    // all workers together were given the same samples, but not each of them its own
  kLabels,     // the same rows at the same places
  kPositions,  // in the data set, that samplers drew
  kLoss,
  kReducedGradient
};

using What = std::variant<OtherSettings, OtherThing, OtherSamples, OtherStates, OtherGradient>;

// ---- evidence: what was seen of a difference

// A setting that is recorded as a hash, so that its values say nothing.
struct SettingHash {
  std::uint32_t kind = 0;
};

// A setting's values: bits of a double where the kind is real.
struct SettingValues {
  std::uint32_t kind = 0;
  std::uint64_t a = 0;
  std::uint64_t b = 0;
};

// Values of a fact, by its key; of several workers each once, none where it is absent.
struct FactValues {
  std::string key;
  std::vector<std::string> a = {};
  std::vector<std::string> b = {};
};

// Numbers of workers.
struct WorkerCounts {
  std::uint32_t a = 0;
  std::uint32_t b = 0;
};

// Numbers of rows.
struct RowCounts {
  std::uint64_t a = 0;
  std::uint64_t b = 0;
};

// The first row that is another sample of the data set.
struct Position {
  std::size_t row = 0;
  std::uint64_t a = 0;
  std::uint64_t b = 0;
};

// As many rows, some of them other ones.
struct OtherRows {
  std::size_t differing = 0;  // rows that the other run does not have; 0: in another order
  std::size_t of = 0;
  std::vector<std::size_t> at = {};  // micro-batches with such rows, from 1; empty: not known
  std::size_t micro_batches = 0;
  std::optional<Position> first = {};
};

// Positions are equal as far as both runs have them.
struct MorePositions {};

// The batch differs, and no row that was kept does.
struct OtherTensors {
  bool rows_equal = false;  // every row was kept and is equal
};

// A worker differs from the others of its own run.
struct DissentingWorker {
  std::uint32_t rank = 0;
  Side run = Side::kA;
};

struct LossValues {
  double a = 0;
  double b = 0;
  std::vector<std::size_t> at = {};  // micro-batches whose losses differ, from 1
  std::size_t micro_batches = 0;     // 0: not compared
};

// A worker's gradient: norms, and layers in the order of the backward pass.
struct GradientValues {
  std::vector<std::string> layers;     // that differ
  std::size_t compared = 0;            // layers; 0: none is recorded
  std::vector<std::string> only_in_a;  // layers without a gradient in the other run
  std::vector<std::string> only_in_b;
  double norm_a = 0;
  double norm_b = 0;
};

// Norms of the gradient after the reduction.
struct ReducedNorms {
  double a = 0;
  double b = 0;
};

// What the last audits found of the reductions; none: not audited.
struct LastAudits {
  std::optional<AuditRecord> a;
  std::optional<AuditRecord> b;
};

using Detail = std::variant<SettingHash, SettingValues, FactValues, WorkerCounts, RowCounts,
                            OtherRows, Position, MorePositions, OtherTensors, DissentingWorker,
                            LossValues, GradientValues, ReducedNorms, LastAudits>;

struct Evidence {
  std::vector<std::uint32_t> ranks;  // whom it is about, ascending; empty: not single workers
  Detail detail;
};

}  // namespace presum::compare
