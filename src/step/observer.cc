// SPDX-License-Identifier: Apache-2.0
#include "presum/observer.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/hash.h"
#include "base/simd.h"
#include "base/try.h"
#include "observe/gradient_pass.h"
#include "packet/packet.h"
#include "step/micro_batches.h"

namespace presum {
namespace {

constexpr std::uint64_t kSketchSeed = 0x70726573756D736BULL;
constexpr std::string_view kWrapperParts[] = {"module", "_orig_mod", "_fsdp_wrapped_module",
                                              "_checkpoint_wrapped_module"};

std::vector<std::string_view> split_path(std::string_view name) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    parts.push_back(name.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::string join_path(std::span<const std::string_view> parts) {
  return fmt::format("{}", fmt::join(parts, "."));
}

bool is_number(std::string_view part) {
  return !part.empty() && std::all_of(part.begin(), part.end(),
                                      [](unsigned char c) { return std::isdigit(c) != 0; });
}

void add(GradientSums& into, const GradientSums& sums, std::uint64_t id) {
  into.sum_squares += sums.sum_squares;
  into.max_abs = std::max(into.max_abs, sums.max_abs);
  into.nonfinite += sums.nonfinite;
  into.fingerprint += mix64(sums.fingerprint ^ id);
}

void unscale(GradientSums& sums, double scale) {
  sums.sum_squares /= scale * scale;
  sums.max_abs /= scale;
}

// The beginning, the length and the hash of a fact that is too long to read.
std::string shortened(std::string_view text) {
  if (text.size() <= Observer::kFactBytesMax) return std::string(text);
  auto kept = Observer::kFactBytesMax - 64;
  while (kept > 0 && (static_cast<unsigned char>(text[kept]) & 0xC0U) == 0x80U) --kept;  // UTF-8
  return fmt::format("{}... ({} bytes, hash {:016x})", text.substr(0, kept), text.size(),
                     name_hash(text));
}

}  // namespace

std::string canonical_name(std::string_view name) {
  auto parts = split_path(name);
  const auto is_wrapper = [](std::string_view part) {
    return std::find(std::begin(kWrapperParts), std::end(kWrapperParts), part) !=
           std::end(kWrapperParts);
  };
  // The last part is the parameter's own name, whatever it is called.
  const auto last = parts.back();
  parts.pop_back();
  std::erase_if(parts, is_wrapper);
  parts.push_back(last);
  return join_path(parts);
}

std::string default_group(std::string_view name) {
  const std::string canonical = canonical_name(name);
  const auto parts = split_path(canonical);
  const auto number = std::find_if(parts.begin(), parts.end(), is_number);
  const auto kept = number != parts.end() ? static_cast<std::size_t>(number - parts.begin()) + 1
                                          : std::min<std::size_t>(2, parts.size());
  return join_path(std::span(parts).first(kept));
}

std::uint64_t count_targets(std::span<const std::int64_t> labels, std::int64_t ignored) {
  const auto left_out = std::count(labels.begin(), labels.end(), ignored);
  return labels.size() - static_cast<std::size_t>(left_out);
}

Result<std::string_view> simd_target() { return base::simd_target(); }

SimdTargets simd_targets() { return {base::simd_targets(), base::impossible_simd_targets()}; }

struct Observer::State {
  struct GradientSlot {
    std::uint64_t id = 0;
    std::uint32_t group = 0;
    bool seen = false;
    bool reduced_seen = false;
    GradientSums sums;
    GradientSums reduced;
    std::vector<float> own_sketch;  // only of parameters that were once reported twice in a step
  };

  ObserverOptions options;
  std::vector<GradientSlot> slots;
  std::vector<GroupName> groups;  // those with gradients first
  std::size_t gradient_groups = 0;
  std::unordered_map<std::string, std::uint32_t> group_index;
  std::uint64_t step = 0;
  std::uint64_t elements = 0;
  std::vector<float> sketch;
  bool sketch_valid = true;
  // But for its micro-batches; its samples are not thinned yet, its states are of the next packet.
  StepReport report;
  step::MicroBatches micro_batches;
  double mean_dot = kNaN;
  std::vector<double> gram;

  struct HashedTensor {
    std::uint64_t id = 0;
    std::uint64_t group = 0;
  };
  std::vector<HashedTensor> parameters;
  std::vector<HashedTensor> buffers;

  packet::Header header() const { return {.identity = options.identity, .step = step}; }

  void begin(std::uint64_t new_step) {
    step = new_step;
    elements = 0;
    sketch_valid = true;
    std::fill(sketch.begin(), sketch.end(), 0.0F);
    micro_batches.clear();
    report.fingerprints.clear();
    report.samples.hashes.clear();
    report.indices.clear();
    report.audit.reset();
    mean_dot = kNaN;
    gram.clear();
    for (GradientSlot& slot : slots) {
      slot.seen = slot.reduced_seen = false;
      slot.sums = slot.reduced = {};
    }
  }

  static std::uint64_t seed(const GradientSlot& slot, std::uint64_t at_step) {
    return splitmix64(splitmix64(kSketchSeed ^ at_step) ^ slot.id);
  }

  observe::SketchSpan sketch_of(GradientSlot& slot) {
    if (sketch.empty()) return {};
    if (slot.seen && slot.own_sketch.empty()) {
      slot.own_sketch.resize(sketch.size());
      sketch_valid = false;
    }
    auto& target = slot.own_sketch.empty() ? sketch : slot.own_sketch;
    if (!slot.own_sketch.empty()) std::fill(target.begin(), target.end(), 0.0F);
    return {.values = target.data(),
            .size = static_cast<std::uint32_t>(target.size()),
            .seed = seed(slot, step)};
  }

  std::vector<float> finish_sketch() {
    if (!sketch_valid) return {};
    for (const GradientSlot& slot : slots) {
      if (!slot.seen || slot.own_sketch.empty()) continue;
      for (std::size_t i = 0; i < sketch.size(); ++i) sketch[i] += slot.own_sketch[i];
    }
    return sketch;
  }

  void sum_gradients(packet::Step& out, double scale) const {
    out.groups.resize(gradient_groups);
    for (std::size_t g = 0; g < gradient_groups; ++g) out.groups[g].id = groups[g].id;
    for (const GradientSlot& slot : slots) {
      if (!slot.seen) continue;
      add(out.total, slot.sums, slot.id);
      add(out.groups[slot.group].sums, slot.sums, slot.id);
    }
    unscale(out.total, scale);
    for (packet::Group& group : out.groups) unscale(group.sums, scale);
  }

  void put_products(packet::Step& out, double scale) const {
    out.mean_dot = mean_dot / (scale * scale);
    out.gram = gram;
    for (double& product : out.gram) product /= scale * scale;
  }

  const HashedTensor* hashed_tensor(StateHash::Kind kind, std::uint32_t index) const {
    if (kind != StateHash::Kind::kParameters && kind != StateHash::Kind::kBuffers) return nullptr;
    const auto& all = kind == StateHash::Kind::kParameters ? parameters : buffers;
    return index < all.size() ? &all[index] : nullptr;
  }

  void add_state(StateHash::Kind kind, const HashedTensor& what, std::uint64_t fingerprint) {
    auto& states = report.states;
    auto at = std::find_if(states.begin(), states.end(), [&](const StateHash& s) {
      return s.kind == kind && s.group == what.group;
    });
    if (at == states.end()) at = states.insert(at, {.group = what.group, .kind = kind, .value = 0});
    at->value += mix64(fingerprint ^ what.id);
  }

  Samples thinned_samples() const {
    Samples out = report.samples;
    out.rows = out.hashes.size();
    while (out.hashes.size() > packet::kSamplesMax && out.thinned < packet::kThinnedMax) {
      ++out.thinned;
      const std::uint64_t mask = (std::uint64_t{1} << out.thinned) - 1;
      std::erase_if(out.hashes, [&](std::uint64_t hash) { return (hash & mask) != 0; });
    }
    return out;
  }

  // The group's position; a group that is new is added.
  std::uint32_t group_of(const Parameter& p, const std::string& name, bool with_elements) {
    const std::string group = p.group.empty() ? default_group(name) : p.group;
    const auto [at, fresh] = group_index.emplace(group, static_cast<std::uint32_t>(groups.size()));
    if (fresh) groups.push_back({.id = name_hash(group), .elements = 0, .name = group});
    if (with_elements) groups[at->second].elements += p.elements;
    return at->second;
  }

  Status add_parameters(const std::vector<Parameter>& list) {
    std::unordered_set<std::uint64_t> ids;
    for (const Parameter& p : list) {
      const std::string name = canonical_name(p.name);
      const std::uint64_t id = name_hash(name);
      if (!ids.insert(id).second) {
        return fail(ErrorCode::kInvalidArgument, fmt::format("two parameters are called {}", name));
      }
      const std::uint32_t group = group_of(p, name, true);
      slots.push_back({.id = id, .group = group});
      parameters.push_back({.id = id, .group = groups[group].id});
    }
    gradient_groups = groups.size();
    return {};
  }

  void add_buffers() {
    for (const Parameter& b : options.buffers) {
      const std::string name = canonical_name(b.name);
      const std::uint32_t group = group_of(b, name, false);
      buffers.push_back({.id = name_hash(name), .group = groups[group].id});
    }
  }

  std::optional<GradientSums> sum_reduced(double scale) const {
    std::optional<GradientSums> out;
    for (const GradientSlot& slot : slots) {
      if (!slot.reduced_seen) continue;
      if (!out) out.emplace();
      add(*out, slot.reduced, slot.id);
    }
    if (out) unscale(*out, scale);
    return out;
  }
};

Observer::Observer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Observer::Observer(Observer&&) noexcept = default;
Observer& Observer::operator=(Observer&&) noexcept = default;
Observer::~Observer() = default;

Result<Observer> Observer::create(ObserverOptions options,
                                  const std::vector<Parameter>& parameters) {
  PRESUM_TRY(base::simd_target());
  const std::uint32_t size = options.sketch_size;
  if (size != 0 &&
      (!std::has_single_bit(size) || size < packet::kSketchMin || size > packet::kSketchMax)) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("sketch size {} is not 0 or a power of two from {} to {}", size,
                            packet::kSketchMin, packet::kSketchMax));
  }
  if (options.identity.replica >= options.identity.replicas) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("replica {} is not below the number of replicas {}",
                            options.identity.replica, options.identity.replicas));
  }
  auto state = std::make_unique<State>();
  state->sketch.resize(size);
  state->options = std::move(options);
  for (auto& [key, value] : state->options.facts) value = shortened(value);
  PRESUM_TRY(state->add_parameters(parameters));
  state->add_buffers();
  return Observer(std::move(state));
}

Packet Observer::hello() const {
  return packet::encode(packet::Hello{
      .header = {.identity = state_->options.identity},
      .facts = {
          .host = state_->options.host, .facts = state_->options.facts, .groups = state_->groups}});
}

void Observer::fact(std::string_view key, std::string_view value) {
  auto& facts = state_->options.facts;
  const auto known =
      std::find_if(facts.begin(), facts.end(), [&](const auto& f) { return f.first == key; });
  if (known != facts.end()) {
    known->second = shortened(value);
  } else {
    facts.emplace_back(key, shortened(value));
  }
}

void Observer::begin_step(std::uint64_t step) { state_->begin(step); }

Status Observer::gradient(ParameterId parameter, const void* data, std::size_t count, Dtype dtype) {
  if (parameter >= state_->slots.size() || (data == nullptr && count > 0)) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("gradient of unknown parameter {} or without data", parameter));
  }
  State::GradientSlot& slot = state_->slots[parameter];
  const auto sketch = state_->sketch_of(slot);
  slot.sums = observe::gradient_pass(data, count, dtype, sketch);
  if (!slot.seen) state_->elements += count;
  slot.seen = true;
  return {};
}

Status Observer::reduced_gradient(ParameterId parameter, const void* data, std::size_t count,
                                  Dtype dtype) {
  if (parameter >= state_->slots.size() || (data == nullptr && count > 0)) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("reduced gradient of unknown parameter {} or without data", parameter));
  }
  State::GradientSlot& slot = state_->slots[parameter];
  slot.reduced = observe::gradient_pass(data, count, dtype, {});
  slot.reduced_seen = true;
  return {};
}

Status Observer::gradient_sums(ParameterId parameter, const GradientSums& sums,
                               std::uint64_t elements, bool reduced) {
  if (parameter >= state_->slots.size()) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("unknown parameter {}", parameter));
  }
  State::GradientSlot& slot = state_->slots[parameter];
  if (!reduced && !slot.seen) state_->elements += elements;
  (reduced ? slot.reduced : slot.sums) = sums;
  (reduced ? slot.reduced_seen : slot.seen) = true;
  return {};
}

void Observer::add_sketch(std::span<const float> values) {
  const std::size_t count = std::min(values.size(), state_->sketch.size());
  for (std::size_t i = 0; i < count; ++i) state_->sketch[i] += values[i];
}

std::uint64_t Observer::sketch_seed(ParameterId parameter, std::uint64_t step) const {
  return State::seed(state_->slots[parameter], step);
}

void Observer::loss(double value, double weight, std::uint64_t tokens) {
  state_->micro_batches.add({value, weight, tokens});
}

void Observer::fingerprint(std::uint32_t kind, std::uint64_t value) {
  auto& all = state_->report.fingerprints;
  const auto known = std::find_if(all.begin(), all.end(),
                                  [&](const FingerprintValue& f) { return f.kind == kind; });
  if (known != all.end()) {
    known->value = value;
  } else {
    all.push_back({kind, value});
  }
}

void Observer::samples(std::span<const std::uint64_t> hashes) {
  auto& all = state_->report.samples.hashes;
  all.insert(all.end(), hashes.begin(), hashes.end());
}

void Observer::indices(std::span<const std::uint64_t> indices) {
  auto& all = state_->report.indices;
  const std::size_t room = packet::kSamplesMax - std::min(packet::kSamplesMax, all.size());
  const auto kept = indices.first(std::min(room, indices.size()));
  all.insert(all.end(), kept.begin(), kept.end());
}

void Observer::mean_dot(double value) { state_->mean_dot = value; }

Status Observer::gram(std::span<const double> share) {
  const std::uint32_t workers = state_->options.identity.replicas;
  if (share.empty() || share.size() != packet::gram_size(workers)) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} values are no Gram matrix of {} workers (at most {})", share.size(),
                            workers, packet::kGramWorkersMax));
  }
  state_->gram.assign(share.begin(), share.end());
  return {};
}

void Observer::audit(const AuditRecord& audit) { state_->report.audit = audit; }

void Observer::begin_states() { state_->report.states.clear(); }

Status Observer::state(StateHash::Kind kind, std::uint32_t index, const void* data,
                       std::size_t count, std::uint32_t element_bytes) {
  const auto dtype = element_bytes == 2   ? Dtype::kBF16
                     : element_bytes == 4 ? Dtype::kF32
                                          : Dtype::kF64;
  if (data == nullptr && count > 0) {
    return fail(ErrorCode::kInvalidArgument, "a state without data");
  }
  if (element_bytes != 2 && element_bytes != 4 && element_bytes != 8) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("a state of {} bytes an element", element_bytes));
  }
  return state_sum(kind, index, observe::gradient_pass(data, count, dtype, {}).fingerprint);
}

Status Observer::state_sum(StateHash::Kind kind, std::uint32_t index, std::uint64_t fingerprint) {
  const State::HashedTensor* what = state_->hashed_tensor(kind, index);
  if (what == nullptr) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("unknown parameter or buffer {}", index));
  }
  state_->add_state(kind, *what, fingerprint);
  return {};
}

Packet Observer::end_step(const StepEnd& end) {
  packet::Step out{state_->report};
  state_->report.states.clear();
  out.header = state_->header();
  out.micro = state_->micro_batches.bounded();
  out.optimizer_step = end.optimizer_step;
  out.micro_batches = end.micro_batches;
  out.skipped_parameters = end.skipped_parameters;
  out.gradient_scale = end.gradient_scale;
  out.dropped = end.dropped;
  out.elements = state_->elements;
  state_->sum_gradients(out, end.gradient_scale);
  out.sketch = state_->finish_sketch();
  out.reduced = state_->sum_reduced(end.gradient_scale);
  out.samples = state_->thinned_samples();
  state_->put_products(out, end.gradient_scale);
  return packet::encode(out);
}

Packet Observer::broken(std::uint64_t sent, std::uint64_t dropped, std::string_view text) const {
  return packet::encode(packet::Note{.header = {.identity = state_->options.identity},
                                     .broken = true,
                                     .sent = sent,
                                     .dropped = dropped,
                                     .text = std::string(text),
                                     .state = {}});
}

Packet Observer::note(bool final, std::uint64_t sent, std::uint64_t dropped, std::string_view text,
                      std::uint64_t clock) const {
  FinalState state{.optimizer_steps = clock, .states = {}};
  if (final) state.states = state_->report.states;
  return packet::encode(packet::Note{.header = {.identity = state_->options.identity},
                                     .final = final,
                                     .sent = sent,
                                     .dropped = dropped,
                                     .text = std::string(text),
                                     .state = std::move(state)});
}

}  // namespace presum
