// SPDX-License-Identifier: Apache-2.0
#include "compare/inputs.h"

#include <array>
#include <bit>
#include <cmath>
#include <map>
#include <set>

namespace presum::compare {
namespace {

using Kind = FingerprintKind;

using enum FingerprintKind;

constexpr std::array kRandomKinds = {kRngTorch, kRngDevice, kRngNumpy, kRngPython};
// Kinds that describe the progress of reading, which a restart begins again, and kinds that are
// compared elsewhere.
constexpr std::array kNoSettings = {
    kDataPass,      kDataBatch,         kWrapperForward, kGradientWeight, kBatch,
    kUnreadInputs,  kNormBatches,       kForwardDraws,   kLabels,         kZeroShare,
    kDataEnded,     kClipNorm,          kClippedNorm,    kGradNormTold,   kGradNormThen,
    kPassesCleared, kForwardsDetached,  kGradChanged,    kUnchangedShare, kRecomputed,
    kClipLimit,     kComparedDifferent, kStepsOfOthers,  kStepsInVain,    kBelowFp16,
    kLossScale,     kClippedShare,      kInputMean,      kInputSpread,    kAsStepped,
    kDataShare,     kLeftOver,          kRowsCut,        kRowsPassedOver, kBatchAgain,
    kGradFactor,    kBackwardOrder,     kRowsChanged};
// These include the name of a folder; the samples themselves decide.
constexpr std::array kDescriptions = {kDataAttributes};
constexpr std::array kHashes = {
    kRngTorch,        kRngDevice,      kRngNumpy,          kRngPython, kSamplerClass,
    kDataClass,       kDataSubset,     kDataContents,      kModes,     kDropouts,
    kTiedParameters,  kOptimizerClass, kOptimizerSettings, kDtype,     kDeterminism,
    kForwardPrecision};
// Necessarily different if the world size is.
constexpr std::array kOfWorld = {kSamplerRank, kSamplerReplicas, kSamplerLength};

template <std::size_t N>
bool is_one_of(std::uint32_t kind, const std::array<Kind, N>& kinds) {
  return std::ranges::find(kinds, static_cast<Kind>(kind)) != kinds.end();
}

bool is_setting(std::uint32_t kind) {
  return !is_one_of(kind, kRandomKinds) && !is_one_of(kind, kNoSettings) &&
         !is_one_of(kind, kDescriptions);
}

// Independent of the world size.
bool is_setting_of_all(std::uint32_t kind) {
  return is_setting(kind) && !is_one_of(kind, kOfWorld);
}

bool is_hash(std::uint32_t kind) {
  const bool unknown = find_fingerprint_kind(kind) == nullptr && kind != kMicroBatches;
  return unknown || is_one_of(kind, kHashes);
}

// Two NaN count as equal.
bool same_value(std::uint32_t kind, std::uint64_t a, std::uint64_t b) {
  const FingerprintInfo* info = find_fingerprint_kind(kind);
  const bool real = info != nullptr && info->real;
  return a == b ||
         (real && std::isnan(std::bit_cast<double>(a)) && std::isnan(std::bit_cast<double>(b)));
}

// Kinds whose values differ at some rank and, unless they apply to all, which ranks have the same
// values.
class Settings {
 public:
  explicit Settings(bool of_all = false) : of_all_(of_all) {}
  void add(const WorkerPair& workers, std::uint32_t kind, std::uint64_t a, std::uint64_t b) {
    auto& all = values_[kind];
    const auto same = [&](const Values& v) {
      return is_hash(kind) || (same_value(kind, v.a, a) && same_value(kind, v.b, b));
    };
    auto values = std::ranges::find_if(all, same);
    if (values == all.end()) values = all.insert(all.end(), {.a = a, .b = b});
    if (!of_all_) values->ranks.push_back(workers.first->rank);
  }
  // The value of a hash adds nothing to its kind, which kinds() reports, except which ranks differ.
  void report(std::size_t workers, DifferenceBuilder& difference) const {
    for (const auto& [kind, all] : values_) {
      for (const Values& v : all) {
        if (!is_hash(kind)) {
          difference.add_evidence(v.ranks, SettingValues{kind, v.a, v.b});
        } else if (!of_all_ && v.ranks.size() != workers) {
          difference.add_evidence(v.ranks, SettingHash{kind});
        }
      }
    }
  }
  bool empty() const { return values_.empty(); }
  std::vector<std::uint32_t> kinds() const {
    std::vector<std::uint32_t> out;
    for (const auto& [kind, all] : values_) out.push_back(kind);
    return out;
  }

 private:
  struct Values {
    std::uint64_t a = 0;
    std::uint64_t b = 0;
    std::vector<std::uint32_t> ranks = {};
  };
  bool of_all_;
  std::map<std::uint32_t, std::vector<Values>> values_;
};

// Adds the kinds that differ among those that `wanted` accepts. Returns whether both ranks have any
// of these kinds.
template <class Wanted>
bool add_differing(const WorkerPair& workers, Wanted&& wanted, Settings& settings) {
  bool known = false;
  for (const FingerprintValue& f : workers.first->fingerprints) {
    const std::uint64_t* other = workers.second->fingerprint_of(static_cast<Kind>(f.kind));
    if (!wanted(f.kind) || other == nullptr) continue;
    known = true;
    if (*other != f.value) settings.add(workers, f.kind, f.value, *other);
  }
  return known;
}

// Returns whether they differ.
bool add_micro_batches(const WorkerPair& workers, Settings& settings) {
  const auto [a, b] = std::pair(workers.first->micro_batches, workers.second->micro_batches);
  if (a != b) settings.add(workers, kMicroBatches, a, b);
  return a != b;
}

// ---- settings and generators

// `add` adds the differing kinds of a pair that `wanted` accepts, and returns whether any is known.
template <class Wanted, class Add>
StageResult compare_kinds(const StepPair& pair, Wanted&& wanted, Add&& add) {
  Settings settings;
  DifferenceBuilder difference(pair);
  bool known = false;
  std::size_t differing = 0;
  difference.compare(
      pair.workers, [](const WorkerRecord&) { return true; },
      [&](const WorkerPair& w) {
        Settings own;
        known = add(w, own) || known;
        return own.empty();
      },
      [&](const WorkerPair& w) {
        ++differing;
        add(w, settings);
      });
  if (!known) {
    return not_recorded(pair, [&](const WorkerRecord& w) {
      return std::ranges::any_of(w.fingerprints, wanted, &FingerprintValue::kind);
    });
  }
  settings.report(differing, difference);
  return std::move(difference).finish(OtherSettings{.kinds = settings.kinds()});
}

// ---- samples

// The number of rows of `a` that are not in `b`.
std::size_t left_over(std::vector<std::uint64_t> a, std::vector<std::uint64_t> b) {
  std::ranges::sort(a);
  std::ranges::sort(b);
  std::vector<std::uint64_t> only;
  std::ranges::set_difference(a, b, std::back_inserter(only));
  return only.size();
}

bool has_rows(const WorkerRecord& w) { return w.samples.rows > 0; }

// Micro-batches with a row that differs, if rows fill them evenly.
std::vector<std::size_t> micro_batches(const WorkerRecord& a, const WorkerRecord& b) {
  const std::uint32_t count = a.micro_batches;
  const bool even =
      count > 1 && b.micro_batches == count && a.samples.hashes.size() == a.samples.rows &&
      b.samples.hashes.size() == a.samples.hashes.size() && a.samples.hashes.size() % count == 0;
  if (!even) return {};
  std::set<std::size_t> at;
  for (std::size_t i = 0; i < a.samples.hashes.size(); ++i) {
    if (a.samples.hashes[i] != b.samples.hashes[i])
      at.insert(i / (a.samples.hashes.size() / count) + 1);
  }
  return {at.begin(), at.end()};
}

// The first place at which the samplers drew different positions.
std::optional<Position> first_position(const WorkerRecord& a, const WorkerRecord& b) {
  const auto [x, y] = std::ranges::mismatch(a.indices, b.indices);
  if (x == a.indices.end() || y == b.indices.end()) return std::nullopt;
  return Position{static_cast<std::size_t>(x - a.indices.begin()), *x, *y};
}

Detail rows_that_differ(const WorkerRecord& a, const WorkerRecord& b) {
  if (a.samples.rows != b.samples.rows) return RowCounts{a.samples.rows, b.samples.rows};
  return OtherRows{.differing = left_over(a.samples.hashes, b.samples.hashes),
                   .of = a.samples.hashes.size(),
                   .at = micro_batches(a, b),
                   .micro_batches = a.micro_batches,
                   .first = first_position(a, b)};
}

bool differs(const WorkerRecord& a, const WorkerRecord& b, Kind kind) {
  const std::uint64_t* of_a = a.fingerprint_of(kind);
  const std::uint64_t* of_b = b.fingerprint_of(kind);
  return of_a != nullptr && of_b != nullptr && *of_a != *of_b;
}

// What differs in one rank's rows.
std::optional<Detail> difference_of_rows(const WorkerRecord& a, const WorkerRecord& b) {
  const bool alike = a.samples.thinned == b.samples.thinned;
  if (a.samples.rows != b.samples.rows || (alike && a.samples.hashes != b.samples.hashes))
    return rows_that_differ(a, b);
  if (!differs(a, b, Kind::kBatch) && !differs(a, b, Kind::kLabels)) return std::nullopt;
  return OtherTensors{.rows_equal = alike && a.samples.thinned == 0};
}

std::vector<std::uint64_t> all_samples(const StepRecord& step) {
  std::vector<std::uint64_t> out;
  for (const WorkerRecord& w : step.workers) {
    out.insert(out.end(), w.samples.hashes.begin(), w.samples.hashes.end());
  }
  return out;
}

What other_samples(const StepPair& pair) {
  const auto a = all_samples(pair.a);
  const auto b = all_samples(pair.b);
  const std::size_t other = left_over(a, b);
  if (other == 0 && a.size() == b.size()) {
    return OtherThing::kDealing;
  }
  return OtherSamples{std::max(other, left_over(b, a)), std::max(a.size(), b.size())};
}

StageResult compare_rows(const StepPair& pair) {
  DifferenceBuilder difference(pair);
  bool rows_equal = true;
  const bool known = difference.compare(
      pair.workers, has_rows,
      [](const WorkerPair& w) { return !difference_of_rows(*w.first, *w.second); },
      [&](const WorkerPair& w) {
        auto detail = *difference_of_rows(*w.first, *w.second);
        const auto* tensors = std::get_if<OtherTensors>(&detail);
        rows_equal = rows_equal && tensors != nullptr && tensors->rows_equal;
        difference.add_evidence({w.first->rank}, std::move(detail));
      });
  if (!known) return not_recorded(pair, has_rows);
  return std::move(difference).finish(rows_equal ? What(OtherThing::kLabels) : other_samples(pair));
}

// For different world sizes: compares all rows of the step together.
StageResult compare_all_rows(const StepPair& pair) {
  const auto whole = [](const StepRecord& s) {
    return s.workers.size() == s.workers_expected &&
           std::ranges::all_of(s.workers, [](const WorkerRecord& w) {
             return has_rows(w) && w.samples.hashes.size() == w.samples.rows;
           });
  };
  if (!whole(pair.a) || !whole(pair.b)) return not_compared(whole(pair.a), whole(pair.b));
  const auto a = all_samples(pair.a);
  const auto b = all_samples(pair.b);
  if (left_over(a, b) == 0 && a.size() == b.size()) return {};
  DifferenceBuilder difference(pair);
  difference.add_evidence({}, RowCounts{a.size(), b.size()});
  return std::move(difference).finish(other_samples(pair));
}

// Used without a common salt.
StageResult compare_positions(const StepPair& pair) {
  DifferenceBuilder difference(pair);
  const bool known = difference.compare(
      pair.workers, [](const WorkerRecord& w) { return !w.indices.empty(); },
      [](const WorkerPair& w) { return w.first->indices == w.second->indices; },
      [&](const WorkerPair& w) {
        const auto first = first_position(*w.first, *w.second);
        difference.add_evidence({w.first->rank}, first ? Detail(*first) : Detail(MorePositions{}));
      });
  return known ? std::move(difference).finish(OtherThing::kPositions) : not_compared(true, true);
}

}  // namespace

StageResult compare_configuration(const StepPair& pair) {
  if (pair.same_world()) {
    return compare_kinds(pair, is_setting, [](const WorkerPair& w, Settings& settings) {
      const bool known = add_differing(w, is_setting, settings);
      return add_micro_batches(w, settings) || known;
    });
  }
  DifferenceBuilder difference(pair);
  Settings settings(true);
  difference.add_evidence({}, WorkerCounts{pair.a.workers_expected, pair.b.workers_expected});
  const auto tells = [](const WorkerRecord& w) { return !w.fingerprints.empty(); };
  for (const WorkerPair& w : pairs_across_runs(pair.a, pair.b, tells)) {
    add_differing(w, is_setting_of_all, settings);
  }
  settings.report(0, difference);
  return std::move(difference).finish(OtherSettings{.workers = true, .kinds = settings.kinds()});
}

StageResult compare_data(const StepPair& pair) {
  if (!pair.same_salt) return compare_positions(pair);
  return pair.same_world() ? compare_rows(pair) : compare_all_rows(pair);
}

StageResult compare_random_generators(const StepPair& pair, const FingerprintKinds& ignored) {
  const auto wanted = [&](std::uint32_t kind) {
    return is_one_of(kind, kRandomKinds) && !ignored.contains(kind);
  };
  return compare_kinds(pair, wanted, [&](const WorkerPair& w, Settings& settings) {
    return add_differing(w, wanted, settings);
  });
}

FingerprintKinds unseeded_generators(const StepPair& pair) {
  FingerprintKinds out;
  for (const Kind kind : {Kind::kRngNumpy, Kind::kRngPython}) {
    const auto differ = [&](const WorkerPair& w) { return differs(*w.first, *w.second, kind); };
    if (std::ranges::any_of(pair.workers, differ)) out.insert(static_cast<std::uint32_t>(kind));
  }
  return out;
}

}  // namespace presum::compare
