// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "presum/audit.h"
#include "presum/dtype.h"
#include "presum/fingerprint.h"
#include "presum/packet.h"
#include "presum/records.h"
#include "presum/status.h"

namespace presum {

// Position of a parameter in the list given to Observer::create.
using ParameterId = std::uint32_t;

struct Parameter {
  std::string name;            // as the framework calls it; wrapper prefixes are removed
  std::uint64_t elements = 0;  // of the whole parameter
  std::string group;           // empty: default_group(name)
};

// The name without the prefixes that wrappers add anywhere in the path ("module.", "_orig_mod.",
// "_fsdp_wrapped_module.", "_checkpoint_wrapped_module."), so that a parameter keeps its identity
// when the model is wrapped.
std::string canonical_name(std::string_view name);

// The layer of a parameter: its canonical path up to and with the first number, such as
// "model.layers.3", else its first two parts.
std::string default_group(std::string_view name);

struct ObserverOptions {
  Identity identity;
  // Floats per step that stand for the gradient's direction: 0 (off) or a power of two from 64 to
  // 65536. A pair's cosine has a standard error of about 1.2/sqrt(size); doubling the size doubles
  // the packet. The packet of a step has 4 bytes per float.
  std::uint32_t sketch_size = 4096;
  std::string host;
  // Facts about this worker that the run log should hold (versions, device, ...).
  std::vector<std::pair<std::string, std::string>> facts;
  // Tensors that are hashed besides the parameters: buffers and frozen parameters.
  std::vector<Parameter> buffers;
};

struct StepEnd {
  std::uint64_t optimizer_step = 0;
  std::uint32_t micro_batches = 1;
  std::uint32_t skipped_parameters = 0;  // gradients that could not be read (sparse)
  // The factor that a GradScaler put on the gradients; norms are divided by it. REQUIRES: > 0.
  double gradient_scale = 1;
  std::uint64_t dropped = 0;  // packets this worker could not send so far
};

// Watches the gradients of one model on one worker and turns each step into a packet: 4 bytes a
// float of its sketch, 64 a group, and up to some KB of the rest.
//
// Thread-safety: not synchronised; one thread at a time (it need not be the same one).
// Borrowed pointers are only read during the call. Nothing here allocates per gradient, blocks,
// throws or prints. A worker may live alone (replicas = 1).
class Observer {
 public:
  // Errors (kInvalidArgument): a sketch size outside its range, a replica outside the world, two
  // parameters of one canonical name, an unknown SIMD target in PRESUM_SIMD.
  static Result<Observer> create(ObserverOptions options, const std::vector<Parameter>& parameters);
  Observer(Observer&&) noexcept;
  Observer& operator=(Observer&&) noexcept;
  ~Observer();

  // The worker's identity, its facts and the names of its groups. Send it once before the first
  // step, and again after facts were added.
  Packet hello() const;
  // Adds a fact, or replaces the one of that name. Values longer than kFactBytesMax, here and in
  // ObserverOptions, are cut and end in their length and hash.
  static constexpr std::size_t kFactBytesMax = 1024;
  void fact(std::string_view key, std::string_view value);

  // Starts a step and forgets what was reported since the last end_step. Steps are numbered alike
  // on all workers, ascending; one that is not above the one before is refused where they meet.
  void begin_step(std::uint64_t step);

  // This worker's own gradient of one parameter, before any reduction: `count` contiguous elements
  // in any order that all workers share, at any alignment. Reads the memory once, at steps that are
  // a multiple of 25 twice (docs/metrics.md, "Layer by layer"). NaN and Inf are counted; empty is
  // fine. A parameter that is reported twice in a step replaces its first report (its direction is
  // left out of that first step's sketch, so that step has none). Errors (kInvalidArgument): an
  // unknown id, a null pointer with count > 0.
  Status gradient(ParameterId parameter, const void* data, std::size_t count, Dtype dtype);

  // Reports sums that were computed elsewhere, such as on a GPU, in place of `gradient` or (if
  // `reduced`) `reduced_gradient`. docs/packet_format.md defines the sums; the sketch is reported
  // by add_sketch. Error (kInvalidArgument): an unknown id.
  Status gradient_sums(ParameterId parameter, const GradientSums& sums, std::uint64_t elements,
                       bool reduced);
  // Adds a sketch that was made with sketch_seed. REQUIRES: as many values as the sketch size.
  void add_sketch(std::span<const float> values);
  // The sketch seed of a parameter at a step. REQUIRES: a known id. Safe from any thread.
  std::uint64_t sketch_seed(ParameterId parameter, std::uint64_t step) const;

  // The loss of one micro-batch (NaN and Inf are kept and named later), its weight in the worker's
  // mean (REQUIRES: weight >= 0 and finite) and its number of target tokens, 0 if unknown. Any
  // number of them; of more than 1,024 in a step the weighted mean is sent as one.
  void loss(double value, double weight = 1, std::uint64_t tokens = 0);

  // A 64-bit value that workers are compared by (presum/fingerprint.h); kinds below 1,024 belong to
  // presum. Reported between begin_step and end_step; one that is reported twice counts as its
  // last.
  void fingerprint(std::uint32_t kind, std::uint64_t value);
  // Row hashes of a micro-batch (hash_rows) and the positions of its samples in the data set;
  // reported between begin_step and end_step. At most 256 hashes are sent, sampled by their value,
  // and the first 4,096 positions (kIndicesMax).
  void samples(std::span<const std::uint64_t> hashes);
  void indices(std::span<const std::uint64_t> indices);

  // Forgets the states reported so far. Call it before the first state of a step's forward pass.
  void begin_states();
  // Hashes `count` contiguous elements of `element_bytes` (2, 4 or 8) of a parameter, or of a
  // buffer (its position in ObserverOptions::buffers). The hashes are sent with the next end_step,
  // or with a final note. All workers must report the same tensors at a step.
  // Of kOptimizer the index is a parameter's. `shard`: which part of a sharded model this worker
  // holds, from 1; only workers of equal shards are compared. 0: the whole.
  // Errors (kInvalidArgument): an unknown index, a null pointer with count > 0, another width, a
  // shard above StateHash::kShardsMax, kWatched.
  Status state(StateHash::Kind kind, std::uint32_t index, const void* data, std::size_t count,
               std::uint32_t element_bytes, std::uint32_t shard = 0);
  // Reports a fingerprint that was computed elsewhere, such as on a GPU.
  Status state_sum(StateHash::Kind kind, std::uint32_t index, std::uint64_t fingerprint,
                   std::uint32_t shard = 0);
  // Something else that must be equal on all workers, by a name that no group of parameters has;
  // the next hello tells it. Its tensors are reported by their number, as fingerprints.
  void watch(std::string_view name);
  void watched(std::string_view name, std::uint32_t index, std::uint64_t fingerprint);

  // The gradient of one parameter after the reduction and before clipping. Works as `gradient`, but
  // makes no sketch. Report all parameters of a step or none.
  Status reduced_gradient(ParameterId parameter, const void* data, std::size_t count, Dtype dtype);

  // The exact dot product of this worker's gradient with the reduced mean gradient, over all
  // parameters and of both as they lie in memory: end_step divides it by gradient_scale^2. Inf is
  // sent; NaN means unknown and is not sent. A second report replaces the first.
  void mean_dot(double value);
  // This worker's share of the dot products of all pairs of workers, scaled likewise: the upper
  // triangle of the W x W Gram matrix with its diagonal, row by row, by replica. The shares of all
  // workers add up to the matrix. NaN and Inf are sent. A second report replaces the first.
  // Error (kInvalidArgument): not W (W + 1) / 2 values, or more than 64 workers.
  Status gram(std::span<const double> share);

  // The result of an audit of the step's reduction.
  void audit(const AuditRecord& audit);

  // Ends the step. REQUIRES: begin_step was called; else the packet is empty.
  Packet end_step(const StepEnd& end);

  // That the recording on this worker has failed: no step follows, and the run is not called
  // consistent. `text` says how.
  Packet broken(std::uint64_t sent, std::uint64_t dropped, std::string_view text) const;

  // A message in words. The `final` one says that no step will follow, and carries the states
  // reported since end_step, which are those after `clock` optimiser steps.
  Packet note(bool final, std::uint64_t sent, std::uint64_t dropped, std::string_view text,
              std::uint64_t clock = 0) const;

 private:
  struct State;
  explicit Observer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// How many labels take part in the loss: those that are not `ignored`.
std::uint64_t count_targets(std::span<const std::int64_t> labels, std::int64_t ignored);

// Name of the SIMD target in use ("AVX3", "AVX2", "SSE4", ...). The environment variable
// PRESUM_SIMD, read once, forces one. Error (kInvalidArgument): the name is unknown or not
// possible on this machine; the message lists those that are.
Result<std::string_view> simd_target();

// The targets that are compiled in, the best first: those of this processor (never empty), and
// those that it lacks. Thread-safe; the names live for ever.
struct SimdTargets {
  std::vector<std::string_view> possible;
  std::vector<std::string_view> impossible;
};
SimdTargets simd_targets();

}  // namespace presum
