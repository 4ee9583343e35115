// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "packet/packet.h"
#include "step/gradients.h"
#include "step/machine.h"
#include "step/passes.h"
#include "step/phases.h"

namespace presum::step {

// Hashes `count` elements of `element_bytes` (2, 4 or 8) each. Errors (kInvalidArgument): no data,
// another width.
Result<std::uint64_t> hash_state(const void* data, std::size_t count, std::uint32_t element_bytes);

// What a step reports besides its gradients. A Number may still be on a device.
struct Contents {
  StepReport report;  // its samples are not yet thinned
  Passes passes;
  // Upper bound on the size of what `.grad` held before the first pass; NaN: unknown.
  Number over = 0.0;
  Number after = 0.0;       // the same bound at the end of the step
  bool after_step = false;  // an optimizer step took the previous window's gradient
  bool owns_known = true;
  bool read = true;  // the step's gradients were read
  std::optional<Number> scale;
  std::vector<double> gram;
  bool rows_known = true;
  // Sum of the hashes of all rows and of the rest of each batch.
  std::optional<std::uint64_t> row_sum;

  // Fills in the step's number and counts. Its own gradient is unknown if one of its passes failed.
  void ends(const Ended& step, std::uint64_t optimizer_steps);
  // `wrapped`: the step's forward passes went through the wrapper.
  void told(bool wrapped, StepTimes times);
  // Clears everything except the state hashes, which belong to the next step.
  void forget();
  // Reading of gradients begins: clears what earlier gradients left.
  void begin_reading() {
    report.skipped_parameters = 0;
    report.audit.reset();
    owns_known = true;
  }
  void fingerprint(std::uint32_t kind, std::uint64_t value);
  void samples(std::span<const std::uint64_t> hashes);
  void indices(std::span<const std::uint64_t> indices);
  // Sets this rank's share of the dot products of all pairs of ranks, before division by the loss
  // scale; the packet divides them by its square. The share is the upper triangle, with the
  // diagonal, of the W x W Gram matrix, row by row, indexed by replica. The shares of all ranks add
  // up to the matrix. NaN and Inf are sent. A second call replaces the first. Error
  // (kInvalidArgument): not W (W + 1) / 2 values, or more than 64 ranks.
  Status set_gram(std::span<const double> share, std::uint32_t workers);
  // See Session::state. `state_sum` takes the fingerprint of data that was hashed elsewhere.
  void begin_states() { report.states.clear(); }
  Status state(const Layout& layout, StateHash::Kind kind, std::uint32_t index, const void* data,
               std::size_t count, std::uint32_t element_bytes, std::uint32_t shard);
  Status state_sum(const Layout& layout, StateHash::Kind kind, std::uint32_t index,
                   std::uint64_t fingerprint, std::uint32_t shard);
  // kind: kWatched or kOutside
  void watched(std::string_view name, std::uint32_t index, std::uint64_t fingerprint,
               StateHash::Kind kind = StateHash::Kind::kWatched, std::uint32_t shard = 0);

 private:
  void add_state(StateHash of, std::uint64_t value);
};

// A step that has ended but has no packet yet. Independent of its recorder. May be used on any
// thread, by one thread at a time.
class EndedStep {
 public:
  EndedStep(std::shared_ptr<const Layout> layout, packet::Header header, std::uint32_t sketch_size,
            Contents contents);

  const Identity& identity() const { return out_.header.identity; }
  Contents& contents() { return contents_; }
  const Layout& layout() const { return *layout_; }

  // Takes gradients that were read in host memory.
  void put(Gradients& gradients);
  // Collects the gradients that were read on a device.
  Gradients& gradients();
  void numbers(std::vector<double> come) { numbers_ = std::move(come); }
  // Sets the step's times from the device's marks, which run from the end of the previous step to
  // the end of this one.
  void times(std::span<const Marked> marks);

  // Adds the row hashes of one micro-batch, and one hash of the rest of the batch. If any
  // micro-batch has no row hashes, the step has no batch hash.
  void rows(const std::vector<std::uint64_t>& hashes, std::uint64_t others);

  Packet packet();

 private:
  bool knows_own() const;
  void forget_unknown(packet::Step& out, bool scale_known) const;
  void put_fingerprints();

  std::shared_ptr<const Layout> layout_;
  std::uint32_t sketch_size_;
  packet::Step out_;
  Contents contents_;
  std::vector<double> numbers_;
  std::optional<Gradients> gradients_;
  double zero_share_ = kNaN;
};

}  // namespace presum::step
