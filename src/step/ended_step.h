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

// Of `count` elements of `element_bytes` (2, 4 or 8). Errors (kInvalidArgument): no data, another
// width.
Result<std::uint64_t> hash_state(const void* data, std::size_t count, std::uint32_t element_bytes);

// What a step brought besides its gradients. Numbers may still be on a device.
struct Contents {
  StepReport report;  // its samples are not thinned yet
  Passes passes;
  Number over = 0.0;        // how large what `.grad` held before its first pass is at most
  Number after = 0.0;       // likewise where the step ended
  bool after_step = false;  // an optimizer step took the gradient of the window before
  bool owns_known = true;
  bool read = true;  // its gradients were
  std::optional<Number> scale;
  std::vector<double> gram;
  bool rows_known = true;
  std::optional<std::uint64_t> row_sum;  // of their hashes, and of what lies beside them

  // They are those of this step, whole.
  void ends(const Ended& step, std::uint64_t optimizer_steps);
  // `wrapped`: its forward passes went through the wrapper.
  void told(bool wrapped, StepTimes times);
  // All but what was hashed of the model's state, which is of the coming step.
  void forget();
  // Gradients come: what was known of others is not of these.
  void begin_reading() {
    report.skipped_parameters = 0;
    report.audit.reset();
    owns_known = true;
  }
  void fingerprint(std::uint32_t kind, std::uint64_t value);
  void samples(std::span<const std::uint64_t> hashes);
  void indices(std::span<const std::uint64_t> indices);
  // This worker's share of the dot products of all pairs of workers, of gradients as they lie in
  // memory: a packet has them over the scale's square. The upper triangle of the W x W Gram matrix
  // with its diagonal, row by row, by replica. The shares of all workers add up to the matrix. NaN
  // and Inf are sent. A second report replaces the first. Error (kInvalidArgument): not W (W + 1) /
  // 2 values, or more than 64 workers.
  Status set_gram(std::span<const double> share, std::uint32_t workers);
  // See Session::state; `fingerprint`: of what was hashed elsewhere.
  void begin_states() { report.states.clear(); }
  Status state(const Layout& layout, StateHash::Kind kind, std::uint32_t index, const void* data,
               std::size_t count, std::uint32_t element_bytes, std::uint32_t shard);
  Status state_sum(const Layout& layout, StateHash::Kind kind, std::uint32_t index,
                   std::uint64_t fingerprint, std::uint32_t shard);
  // kind: kWatched or kOutside
  void watched(std::string_view name, std::uint32_t index, std::uint64_t fingerprint,
               StateHash::Kind kind = StateHash::Kind::kWatched);

 private:
  void add_state(StateHash of, std::uint64_t value);
};

// A step that has ended, until its packet is made. Apart from the recorder that it comes from: on
// any thread, one at a time.
class EndedStep {
 public:
  EndedStep(std::shared_ptr<const Layout> layout, packet::Header header, std::uint32_t sketch_size,
            Contents contents);

  const Identity& identity() const { return out_.header.identity; }
  Contents& contents() { return contents_; }
  const Layout& layout() const { return *layout_; }

  // Gradients that were read in host memory.
  void put(Gradients& gradients);
  // Those of a device go here, and the numbers that were late, by place.
  Gradients& gradients();
  void numbers(std::vector<double> come) { numbers_ = std::move(come); }
  // Where the device's clock tells what it took, from the end of the step before to its own.
  void times(std::span<const Marked> marks);

  // The row hashes of one of its micro-batches, and one hash of what lies beside them. A step of
  // which one has none has no batch hash.
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
