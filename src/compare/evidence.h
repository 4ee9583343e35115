// SPDX-License-Identifier: Apache-2.0
// What differs between two runs at one step and stage, as facts; wording.h puts them into words.
// Names of layers and values of facts come from a run and are not trusted.
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

// A setting that is not a fingerprint; used next to the kinds of FingerprintKind.
inline constexpr std::uint32_t kMicroBatches = ~0U;

// ---- what differs: one type for each stage, or for each way in which a stage can differ

// Settings of the configuration, or random generators: by their keys in the run's facts, or by
// kind.
struct OtherSettings {
  bool workers = false;                   // the world sizes differ
  std::vector<std::string> facts = {};    // keys of facts, each once
  std::vector<std::uint32_t> kinds = {};  // kinds of fingerprints, or kMicroBatches; ascending
};

// Samples, over all ranks, that one run has more of than the other.
struct OtherSamples {
  std::size_t differing = 0;
  std::size_t of = 0;
};

// Parameters, and buffers or frozen parameters.
struct OtherStates {
  std::vector<std::string> parameters;  // layers, in backward order
  std::vector<std::string> buffers;     // layers, in backward order
  std::size_t differing = 0;            // number of hashes
  std::size_t compared = 0;             // number of hashes of one rank, at most
};

// Gradients of ranks; Difference::layers has the layers.
struct OtherGradient {
  std::size_t layers = 0;  // number that differ; 0: no single layer shows it
  std::size_t of = 0;      // number of layers of run A
};

// Differences without further detail.
enum class OtherThing : std::uint8_t {
  kDealing,    // all ranks together got the same samples, but distributed differently
  kLabels,     // the labels; the rows are the same, at the same places
  kPositions,  // positions in the dataset that samplers drew
  kTokenWeight,
  kLoss,
  kReducedGradient
};

using What = std::variant<OtherSettings, OtherThing, OtherSamples, OtherStates, OtherGradient>;

// ---- evidence for a difference

// A setting recorded as a hash, whose values are meaningless to a reader.
struct SettingHash {
  std::uint32_t kind = 0;
};

// The values of a setting: the bits of a double if the kind is real.
struct SettingValues {
  std::uint32_t kind = 0;
  std::uint64_t a = 0;
  std::uint64_t b = 0;
};

// The values of a fact, by key: the distinct values of several ranks; empty if the fact is absent.
struct FactValues {
  std::string key;
  std::vector<std::string> a = {};
  std::vector<std::string> b = {};
};

// World sizes.
struct WorkerCounts {
  std::uint32_t a = 0;
  std::uint32_t b = 0;
};

// Numbers of rows.
struct RowCounts {
  std::uint64_t a = 0;
  std::uint64_t b = 0;
};

// The first row that is another sample of the dataset.
struct Position {
  std::size_t row = 0;
  std::uint64_t a = 0;
  std::uint64_t b = 0;
};

// Equally many rows, some of them different.
struct OtherRows {
  // Rows that the other run does not have; 0: the same rows in another order.
  std::size_t differing = 0;
  std::size_t of = 0;
  std::vector<std::size_t> at = {};  // micro-batches with such rows, from 1; empty: not known
  std::size_t micro_batches = 0;
  std::optional<Position> first = {};
};

// Positions are equal as far as both runs have them; one run has more.
struct MorePositions {};

// The batch differs, but no row that was kept does.
struct OtherTensors {
  bool rows_equal = false;  // every row was kept and is equal
};

// A rank differs from the other ranks of its own run.
struct DissentingWorker {
  std::uint32_t rank = 0;
  Side run = Side::kA;
};

// What one target token weighs in a rank's loss.
struct TokenWeights {
  double a = 0;
  double b = 0;
  std::size_t micro_batch = 0;  // that these are of, from 1; 0: of all
};

struct LossValues {
  double a = 0;
  double b = 0;
  std::vector<std::size_t> at = {};  // micro-batches with different losses, from 1
  std::size_t micro_batches = 0;     // 0: not compared
};

// A rank's gradient: its norms, and its layers in backward order.
struct GradientValues {
  std::vector<std::string> layers;     // those that differ
  std::size_t compared = 0;            // number of layers; 0: none recorded
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

// The results of the last audits of the reduction; empty: not audited.
struct LastAudits {
  std::optional<AuditRecord> a;
  std::optional<AuditRecord> b;
};

using Detail = std::variant<SettingHash, SettingValues, FactValues, WorkerCounts, RowCounts,
                            OtherRows, Position, MorePositions, OtherTensors, DissentingWorker,
                            TokenWeights, LossValues, GradientValues, ReducedNorms, LastAudits>;

struct Evidence {
  // The ranks concerned, ascending; empty: not about single ranks.
  std::vector<std::uint32_t> ranks;
  Detail detail;
};

}  // namespace presum::compare
