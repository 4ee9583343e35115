// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "presum/dtype.h"
#include "presum/fingerprint.h"
#include "presum/packet.h"
#include "presum/records.h"
#include "presum/status.h"

namespace presum {

// Position of a parameter in the list given to Observer::create.
using ParameterId = std::uint32_t;

struct Parameter {
  std::string name;            // as the framework calls it; parts that wrappers add are removed
  std::uint64_t elements = 0;  // of the whole parameter
  // Its layer. Empty: the path up to and with the first number, such as "model.layers.3", else its
  // first two parts.
  std::string group;
};

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
  std::optional<std::uint64_t> optimizer_step;  // none: the step's number and one
  std::uint32_t micro_batches = 1;
  std::uint32_t skipped_parameters = 0;  // gradients that could not be read (sparse)
  // The factor that a GradScaler put on the gradients; norms are divided by it. REQUIRES: > 0.
  double gradient_scale = 1;

  // Those finished at the end of a step.
  std::uint64_t optimizer_steps(std::uint64_t step) const {
    return optimizer_step.value_or(step + 1);
  }
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
  // or with the goodbye. All workers must report the same tensors at a step.
  // Of kOptimizer the index is a parameter's. `shard`: which part of a sharded model this worker
  // holds, from 1; only workers of equal shards are compared. 0: the whole.
  // Errors (kInvalidArgument): an unknown index, a null pointer with count > 0, another width, a
  // shard above StateHash::kShardsMax, kWatched.
  Status state(StateHash::Kind kind, std::uint32_t index, const void* data, std::size_t count,
               std::uint32_t element_bytes, std::uint32_t shard = 0);

  // The gradient of one parameter after the reduction and before clipping. Works as `gradient`, but
  // makes no sketch. Report all parameters of a step or none.
  Status reduced_gradient(ParameterId parameter, const void* data, std::size_t count, Dtype dtype);

  // Ends the step. REQUIRES: begin_step was called; else the packet is empty.
  Packet end_step(const StepEnd& end);

  // The last packet: no step will follow. It carries the states reported since end_step, which are
  // those after that many optimiser steps.
  Packet goodbye(std::uint64_t optimizer_steps) const;

 private:
  struct State;
  explicit Observer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace presum
