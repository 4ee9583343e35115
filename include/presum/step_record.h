// SPDX-License-Identifier: Apache-2.0
// What presum knows about one step of one model over all ranks. Plain values; docs/metrics.md has
// the formulas and their sources. NaN means "unknown" or "undefined" unless stated differently.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "presum/records.h"

namespace presum {

// How the cosines of a step were obtained, from least to most exact.
enum class CosineSource : std::uint8_t {
  kNone = 0,       // no sketch, or fewer than two ranks with a direction
  kSketch = 1,     // sketches only
  kTotalNorm = 2,  // sketches, corrected with the norm of the reduced gradient
  kExact = 3,      // two ranks, and the norm of the reduced gradient
  kGram = 4,       // the exact dot products of all pairs
};
const char* to_string(CosineSource source);  // "none", "sketch", "total-norm", ...

// One rank's step: what it reported, and what follows from that.
struct WorkerRecord : StepReport {
  std::uint32_t rank = 0;       // global rank
  std::uint32_t replica = 0;    // data-parallel rank
  double loss = kNaN;           // weighted mean over the micro-batches; NaN if none was reported
  bool loss_nonfinite = false;  // a reported loss is NaN or Inf
  double weight = 0;            // sum of the micro-batch weights
  std::uint64_t tokens = 0;     // number of target tokens; 0 if unknown
  std::uint64_t targets = 0;    // of the loss function, over all micro-batches; 0 if unknown
  double token_weight = kNaN;   // mean over these targets; NaN if that of a micro-batch is unknown
  // What the rank's targets weigh together in its loss, if a target weighs the same on all ranks;
  // else 1. Not stored.
  double targets_sum = 1;
  // L2 norm of the rank's own gradient; NaN or Inf if not all finite
  double grad_norm = kNaN;
  double grad_max = kNaN;          // largest finite |g|
  std::uint64_t nonfinite = 0;     // NaN and Inf elements in the rank's own gradient
  double cosine_to_others = kNaN;  // mean cosine with the other ranks
  double reduced_norm = kNaN;      // norm of the reduced gradient on this rank
  std::uint64_t fingerprint = 0;   // of the rank's own gradient
  // Of the reduced gradient; 0 if reduced_norm is NaN.
  std::uint64_t reduced_fingerprint = 0;
};

struct GroupRecord {
  std::uint64_t id = 0;
  double norm_mean = kNaN;  // over ranks with a finite norm
  double norm_std = kNaN;   // population standard deviation over the same ranks
  std::uint64_t nonfinite = 0;
  std::vector<float> norms;   // one per rank, in the order of StepRecord::workers
  std::vector<float> maxima;  // one per rank, in the same order
  // Low halves of the fingerprints of the ranks' own gradients of this group, in the same order; 0
  // for a rank without a report; empty if they were not kept.
  std::vector<std::uint32_t> fingerprints;
};

struct SnapshotRecord : TrainingSnapshot {
  ModelKey model;
  std::uint32_t replica = 0;
  // Number within its kind and step; a program may save several.
  std::uint32_t number = 0;
};

// What the reduction did to one group, measured with sketches at a step at which both sides were
// read (docs/metrics.md, "Layer by layer"). Sizes are relative to the mean of what the ranks
// contributed.
struct LayerReduction {
  std::uint64_t id = 0;  // id of the group
  bool alike = true;     // all ranks hold the same result
  double off = 0;        // largest distance from the mean of the contributions
  // Least-squares factor on that mean; NaN if not `alike`.
  double factor = 1;
  double factor_off = 0;  // distance from the mean times `factor`; NaN if not `alike`
  // Ranks that hold their own contribution instead of the mean.
  std::vector<std::uint32_t> kept_own;
  // If `alike`: ranks whose contribution has a different weight in the result than that of most
  // ranks, with their weight relative to that of most. For two ranks: relative to the weight in a
  // mean.
  std::vector<std::pair<std::uint32_t, double>> weighed;
  // If not `alike`: ranks grouped by result, where each result is the mean of some ranks'
  // contributions.
  std::vector<std::vector<std::uint32_t>> means_of;
};

struct StepRecord {
  ModelKey model;
  std::uint64_t step = 0;
  std::uint32_t workers_expected = 0;
  std::uint32_t workers_seen = 0;  // equals workers.size() if `workers` was read
  // In a step without a reduction: ranks that continued without it (a loss scaler skips on one
  // rank).
  std::uint32_t workers_left_out = 0;
  // Replicas that were awaited for long, or that had left, ascending. Other replicas may be absent
  // too: their packets may still have been under way when the step was closed.
  std::vector<std::uint32_t> missing_replicas;

  // Returns whether a replica is absent that is not listed as missing.
  bool lacks_packets() const {
    return workers_seen + workers_left_out + missing_replicas.size() < workers_expected;
  }

  // Returns whether no optimizer step used the step's gradient, on ranks with at least one
  // optimizer step: the step then gives no evidence about updates. If a rank has never made an
  // optimizer step, its optimizer may be unknown to presum.
  bool unused() const {
    for (const WorkerRecord& w : workers) {
      if (w.use != StepUse::kUnused || w.optimizer_step == 0) return false;
    }
    return !workers.empty();
  }

  // Over ranks with a finite loss; the dispersion of one rank is 0.
  double loss_mean = kNaN;
  double loss_std = kNaN;  // population standard deviation
  double loss_range = kNaN;
  // Over ranks with a finite norm.
  double grad_norm_mean = kNaN;
  double grad_norm_std = kNaN;
  double grad_norm_cv = kNaN;  // std / mean; NaN if the mean is 0
  // Mean over pairs of ranks with a finite, non-zero gradient, and its 95% interval.
  double cosine_mean = kNaN;
  double cosine_low = kNaN;
  double cosine_high = kNaN;
  CosineSource cosine_source = CosineSource::kNone;
  // Mean cosine weighted by norms, exact; needs reduced_norm or kGram.
  double consistency = kNaN;
  double reduced_norm = kNaN;  // norm of the reduced gradient, if all ranks agree on it
  // The reduced gradient differs from the mean of the contributed gradients, or between ranks, so
  // it was not used to correct the cosines.
  bool reduced_disagrees = false;
  // Norm of the mean of the ranks' own gradients, estimated from sketches, and its standard error;
  // the error is 0 if the norm follows from kGram.
  double mean_norm = kNaN;
  double mean_norm_error = kNaN;
  double signal = kNaN;       // estimate of |true gradient|^2 at this step
  double noise = kNaN;        // estimated variance of one rank's batch gradient at this step
  double noise_scale = kNaN;  // running noise / running signal, in batches of one rank
  double effective_workers = kNaN;
  double tokens_cv = kNaN;  // coefficient of variation of the token counts; NaN if unknown
  std::uint32_t distinct_gradients = 0;  // distinct fingerprints among non-zero gradients
  std::uint32_t sketch_size = 0;

  std::vector<WorkerRecord> workers;  // by replica, without missing ones
  std::vector<GroupRecord> groups;
  std::vector<LayerReduction> layers;  // empty unless all ranks reported them; not in run logs
  // Cosines of the pairs i < j of `workers`, row-major: (0,1), (0,2), ..., (1,2), ...; NaN for a
  // pair without a direction; empty if the matrix was not computed.
  std::vector<float> cosines;
};

// Seconds that the rank with the shortest wait spent waiting in a step. A longer wait of another
// rank is time spent on slower ranks. NaN if no rank's times are known.
double least_waited(std::span<const WorkerRecord> workers);

}  // namespace presum
