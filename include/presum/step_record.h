// SPDX-License-Identifier: Apache-2.0
// What presum knows about one step of one model over all its workers. Plain values; formulas and
// their sources are in docs/metrics.md. NaN means "not known" or "undefined" unless said otherwise.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "presum/records.h"

namespace presum {

// How the cosines of a step were found, from least to most exact.
enum class CosineSource : std::uint8_t {
  kNone = 0,       // no sketch, or fewer than two workers with a direction
  kSketch = 1,     // sketches alone
  kTotalNorm = 2,  // sketches, corrected by the norm of the reduced gradient
  kExact = 3,      // two workers and the norm of the reduced gradient
  kGram = 4,       // the exact dot products of all pairs
};
const char* to_string(CosineSource source);  // "none", "sketch", "total-norm", ...

// One worker's step: what it reported, and what follows from that.
struct WorkerRecord : StepReport {
  std::uint32_t rank = 0;          // global rank
  std::uint32_t replica = 0;       // data-parallel rank
  double loss = kNaN;              // weighted mean over its micro-batches; NaN if none was reported
  bool loss_nonfinite = false;     // a loss was reported and it is NaN or Inf
  double weight = 0;               // sum of the micro-batch weights
  std::uint64_t tokens = 0;        // target tokens; 0 if unknown
  double grad_norm = kNaN;         // L2 norm of its own gradient; NaN or Inf if not all finite
  double grad_max = kNaN;          // largest finite |g|
  std::uint64_t nonfinite = 0;     // NaN and Inf elements in its gradient
  double cosine_to_others = kNaN;  // mean cosine with the other workers
  double reduced_norm = kNaN;      // norm of the reduced gradient as this worker sees it
  std::uint64_t fingerprint = 0;   // of its own gradient
  std::uint64_t reduced_fingerprint = 0;  // of the reduced gradient; 0 where reduced_norm is NaN
};

struct GroupRecord {
  std::uint64_t id = 0;
  double norm_mean = kNaN;  // over workers with a finite norm
  double norm_std = kNaN;   // population standard deviation, likewise
  std::uint64_t nonfinite = 0;
  std::vector<float> norms;   // one per worker, in the order of StepRecord::workers
  std::vector<float> maxima;  // likewise
  // Low halves of the fingerprints of the workers' own gradients of the group, likewise; 0 where
  // nothing was reported; empty where they were not kept.
  std::vector<std::uint32_t> fingerprints;
};

struct SnapshotRecord : TrainingSnapshot {
  ModelKey model;
  std::uint32_t replica = 0;
  std::uint32_t number = 0;  // of those of its kind and step: a program may save several
};

// What the reduction made of one group, at a step at which both were read, by sketches
// (docs/metrics.md, "Layer by layer"). Sizes are over that of the mean of what the workers put in.
struct LayerReduction {
  std::uint64_t id = 0;   // of the group
  bool alike = true;      // all workers hold the same
  double off = 0;         // distance from the mean of what the workers put in; the largest
  double factor = 1;      // of the mean, by least squares; NaN where not alike
  double factor_off = 0;  // distance from the mean times it; NaN likewise
  std::vector<std::uint32_t> kept_own;  // ranks that hold what they put in, and not the mean
  // Where alike: the ranks whose part had another weight than most in what came out, with that
  // weight over most's; of two ranks, than in a mean.
  std::vector<std::pair<std::uint32_t, double>> weighed;
  // Where not: what came out is a mean of what some put in; the ranks, by what came out.
  std::vector<std::vector<std::uint32_t>> means_of;
};

struct StepRecord {
  ModelKey model;
  std::uint64_t step = 0;
  std::uint32_t workers_expected = 0;
  std::uint32_t workers_seen = 0;  // = workers.size() where these are read
  // Of a step that was not reduced: workers that went on without it (a loss scaler skips alone).
  std::uint32_t workers_left_out = 0;
  // Who was awaited for long, or had left, ascending. Of others that are not in this step nothing
  // is said: their packets may still have been on the way when it was given up.
  std::vector<std::uint32_t> missing_replicas;

  // Somebody is absent of whom nothing is said.
  bool lacks_packets() const {
    return workers_seen + workers_left_out + missing_replicas.size() < workers_expected;
  }

  // No optimizer step took its gradient, on workers that have made some: it says nothing of
  // updates. Where none was ever seen, the optimizer may well be another than presum knows.
  bool unused() const {
    for (const WorkerRecord& w : workers) {
      if (w.use != StepUse::kUnused || w.optimizer_step == 0) return false;
    }
    return !workers.empty();
  }

  // Over workers with a finite loss; 0 dispersion for one worker.
  double loss_mean = kNaN;
  double loss_std = kNaN;  // population standard deviation
  double loss_range = kNaN;
  // Over workers with a finite norm.
  double grad_norm_mean = kNaN;
  double grad_norm_std = kNaN;
  double grad_norm_cv = kNaN;  // std / mean; NaN where the mean is 0
  // Mean over pairs of workers with a finite, non-zero gradient, and its 95% interval.
  double cosine_mean = kNaN;
  double cosine_low = kNaN;
  double cosine_high = kNaN;
  CosineSource cosine_source = CosineSource::kNone;
  double consistency = kNaN;   // norm-weighted mean cosine, exact; needs reduced_norm or kGram
  double reduced_norm = kNaN;  // norm of the reduced gradient, where all workers agree on it
  // The reduced gradient is not the mean of the gradients that went in (or workers hold different
  // ones), so it was not used to correct the cosines.
  bool reduced_disagrees = false;
  // Norm of the mean of the workers' own gradients from their sketches, and its standard error: 0
  // where the norm follows from kGram.
  double mean_norm = kNaN;
  double mean_norm_error = kNaN;
  double signal = kNaN;       // estimate of |true gradient|^2 at this step
  double noise = kNaN;        // estimate of one worker batch's gradient variance at this step
  double noise_scale = kNaN;  // running noise / running signal, in worker batches
  double effective_workers = kNaN;
  double tokens_cv = kNaN;  // coefficient of variation of the token counts; NaN if unknown
  std::uint32_t distinct_gradients = 0;  // different fingerprints among non-zero gradients
  std::uint32_t sketch_size = 0;

  std::vector<WorkerRecord> workers;  // by replica; missing ones are left out
  std::vector<GroupRecord> groups;
  std::vector<LayerReduction> layers;  // where all workers told them; run logs do not keep these
  // Cosines of pairs i < j of `workers`, row by row (0,1), (0,2), ..., (1,2), ...; NaN for a pair
  // without a direction; empty where the matrix was not computed.
  std::vector<float> cosines;
};

// What the worker that waited least in a step waited there, in seconds: whatever others waited
// beyond it, they waited for slower ones. NaN where no worker's times are known.
double least_waited(std::span<const WorkerRecord> workers);

}  // namespace presum
