// SPDX-License-Identifier: Apache-2.0
// **overlapping-data.** Counts draws of a sample beyond its first in one pass over the data, by
// index where samplers split one data set, else by row hash. By row hash, records that are equal in
// the data set look like overlap: rows whose indices differ are not counted, and without indices
// draws by several workers must exceed those by one worker more than 4 (W - 1)-fold and be 1 % of
// all. What a pass repeats at its end to fill up the last batches (up to a whole step) is not
// counted: draws of samples of the pass's first step wait until the pass goes on. Steps with
// micro-batches of two passes are left out. An endless sampler's one long pass is cut where the
// data set's length was drawn, and an index counts within its data set, so loaders may be taken in
// turn. Sampling with replacement, and by a sampler that repeats on purpose, is not judged. At most
// 262,144 samples of a pass are remembered; in longer passes those whose hash is divisible by a
// power of two, and counts are scaled. Evidence: `samples_doubled`, `samples_drawn`; what a whole
// pass left out is data-coverage's. Where rows were compared and a rank's sampler is none that
// divides the data, the remedy says so. Workers that draw their own samples again are told how to
// resume. A batch that is that of the step before, three steps in a row and on half of the workers
// at most, is a loader that is stuck. Batches that a loader hands out several times in a row, two
// in five of 12 or more (not a batch that the program uses again), are processes of the loader that
// do not divide their stream. Rows that repeat within one worker's step in 2 steps in a row are a
// micro-batch that was fed twice; where the indices are not known, only if at most half of the
// workers show it.

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/hash.h"
#include "checks/data/sampler_mismatch.h"
#include "checks/engine/rules.h"
#include "checks/engine/text.h"

namespace presum::checks {
namespace {

constexpr std::size_t kSamples = std::size_t{1} << 18;
constexpr std::uint32_t kMaxBits = 60;
constexpr double kDoubled = 3;        // draws until it is a finding
constexpr double kOfChance = 4;       // times as many between workers as chance gives, and
constexpr double kFew = 2;            // beside as many within one,
constexpr double kShare = 0.01;       // of all draws, where only row hashes are known
constexpr double kOfOneRank = 0.9;    // of the doubled draws: then it is this rank
constexpr double kNearlyWhole = 0.9;  // of the data: then a pass may begin anew
constexpr double kDrawnAgain = 0.1;   // of them, that it drew after others
constexpr const char* kNoLoader =
    "No data loader was found, so passes over the data are not known.";
constexpr const char* kSharedRows =
    "The rows that were hashed are the same on all workers though their batches differ.";
constexpr const char* kNoSamples = "No samples were seen.";
constexpr const char* kFewDraws = "A sample or two may be drawn again to fill up batches.";
constexpr const char* kReplacement =
    "The sampler draws with replacement: a sample may come twice on purpose.";

constexpr const char* kRestarted =
    "After a restart go on where the pass was left: restore the loader's and the sampler's state "
    "on every rank, with the epoch, and skip the batches that are done.";
constexpr const char* kByDesign = "The sampler repeats samples: they come several times by design.";

struct DrawnAgain {
  std::uint64_t samples_doubled = 0;
  std::uint64_t samples_drawn = 0;
  std::uint64_t data_pass = 0;
  bool by_the_same_rank = false;  // nearly all that was doubled in this pass

  static constexpr std::tuple kFields{field("samples_doubled", &DrawnAgain::samples_doubled),
                                      field("samples_drawn", &DrawnAgain::samples_drawn),
                                      field("data_pass", &DrawnAgain::data_pass),
                                      field("by_the_same_rank", &DrawnAgain::by_the_same_rank)};
};

std::string sentence(const DrawnAgain& seen, const Who& who) {
  if (seen.by_the_same_rank) {
    return who.words() + " drew their own samples again in the same pass over the data";
  }
  return who.words() + " drew samples that had been drawn before in the same pass over the data";
}

bool divisible(std::uint64_t sample, std::uint32_t bits) {
  return (sample & ((std::uint64_t{1} << bits) - 1)) == 0;
}

// Draws of one pass over the data. At most 262,144 samples are remembered: where there are more,
// those whose hash is divisible by 2^m, and counts are scaled.
class DataPass {
 public:
  // How two draws are known to be of the same sample.
  enum class Identity : std::uint8_t {
    kIndex,  // by index: a sampler splits one data set among the workers
    kRow,    // by row hash; indices, where known, tell apart records that are equal
  };
  struct Draw {
    std::uint64_t sample = 0;  // hash
    std::uint64_t index = 0;   // or kNoIndex
    std::uint32_t rank = 0;
    std::uint64_t step = 0;
  };
  static constexpr std::uint64_t kNoIndex = ~std::uint64_t{0};

  DataPass(std::uint64_t number, Identity identity) : number_(number), identity_(identity) {}

  void draw(const Draw& draw) {
    if (!divisible(draw.sample, bits_)) return;
    first_step_ = std::min(first_step_, draw.step);
    const First mine{draw.index, draw.step, draw.rank};
    const auto [found, fresh] = first_.try_emplace(draw.sample, mine);
    if (fresh) {
      if (first_.size() > kSamples) thin_to(bits_ + 1);
      return;
    }
    const First& first = found->second;
    const bool both = draw.index != kNoIndex && first.index != kNoIndex;
    if (both && draw.index != first.index) return;  // records that are equal in the data set
    const Double again{draw, first.rank, both};
    if (first.step == first_step_) {
      waiting_.push_back(again);
    } else {
      count(again);
    }
  }

  // Keeps only samples whose hash is divisible by 2^bits from here on.
  void thin_to(std::uint32_t bits) {
    bits = std::min(bits, kMaxBits);
    if (bits <= bits_) return;
    bits_ = bits;
    std::erase_if(first_, [&](const auto& entry) { return !divisible(entry.first, bits_); });
    std::erase_if(waiting_, [&](const Double& d) { return !divisible(d.draw.sample, bits_); });
  }

  // Rows that workers read, whether or not they are drawn one by one.
  void count_rows(std::uint64_t rows) { drawn_ += rows; }

  // What the pass repeats at its end to fill up the last batches is not overlap: a draw of a sample
  // of the first step counts once the pass goes on after it.
  void settle(std::uint64_t step) {
    if (std::exchange(settled_, step) == step) return;
    std::size_t kept = 0;
    for (const Double& again : waiting_) {
      if (again.draw.step < step) {
        count(again);
      } else {
        waiting_[kept++] = again;
      }
    }
    waiting_.resize(kept);
  }

  std::uint64_t number() const { return number_; }
  Identity identity() const { return identity_; }
  std::uint64_t drawn() const { return drawn_; }
  bool went_on() const { return settled_ != ~std::uint64_t{0} && settled_ > first_step_; }
  double doubled() const { return doubled_; }  // draws beyond a sample's first
  double between() const { return between_; }  // of them, by another worker than the first
  double exact() const { return exact_; }      // of them, with equal indices

  struct Part {
    double involved = 0;  // doubled draws in which the rank was the first to draw, or drew again
    double again = 0;     // of them, that it drew again
  };
  const std::map<std::uint32_t, Part>& by_rank() const { return by_rank_; }

 private:
  struct First {
    std::uint64_t index = 0;
    std::uint64_t step = 0;
    std::uint32_t rank = 0;
  };
  struct Double {
    Draw draw;
    std::uint32_t first_rank = 0;
    bool exact = false;
  };

  void count(const Double& again) {
    const double each = std::ldexp(1.0, static_cast<int>(bits_));
    doubled_ += each;
    if (again.exact) exact_ += each;
    by_rank_[again.draw.rank].involved += each;
    by_rank_[again.draw.rank].again += each;
    if (again.draw.rank == again.first_rank) return;
    between_ += each;
    by_rank_[again.first_rank].involved += each;
  }

  std::uint64_t number_;
  Identity identity_;
  std::uint32_t bits_ = 0;
  std::uint64_t first_step_ = ~std::uint64_t{0};
  std::uint64_t settled_ = ~std::uint64_t{0};
  std::unordered_map<std::uint64_t, First> first_;
  std::vector<Double> waiting_;
  std::uint64_t drawn_ = 0;
  double doubled_ = 0;
  double between_ = 0;
  double exact_ = 0;
  std::map<std::uint32_t, Part> by_rank_;
};

// A step whose micro-batches belong to two passes over the data.
bool straddles(const WorkerRecord& worker) {
  if (worker.micro_batches < 2) return false;
  const std::uint64_t last = value_of(worker, FingerprintKind::kDataBatch);
  return last + 1 < worker.micro_batches;
}

// By chance, records that are equal in the data set fall to other workers W - 1 times as often as
// to the same one again. Overlap is far beyond that.
bool beyond_equal_records(const DataPass& pass, double workers) {
  const double within = pass.doubled() - pass.between();
  return pass.between() > kOfChance * (workers - 1) * (within + kFew) &&
         pass.between() > kShare * static_cast<double>(pass.drawn());
}

// Whether the pass went on after its first step, and has draws enough, for any overlap to show.
bool could_show(const DataPass& pass, double workers) {
  const bool by_index = pass.identity() == DataPass::Identity::kIndex;
  const double least = by_index ? kDoubled : kOfChance * kFew * (workers - 1);
  return pass.went_on() && static_cast<double>(pass.drawn()) > least;
}

// The one rank that takes part in nearly all, if it also draws what others drew before: else they
// follow it, and all that take part are named.
Blame blame_of(const DataPass& pass, const StepRecord& record) {
  Blame out;
  for (const auto& [rank, part] : pass.by_rank()) {
    const bool one = part.involved >= kOfOneRank * pass.doubled() &&
                     part.again >= kDrawnAgain * pass.doubled() && pass.between() > 0;
    if (one && record.workers.size() > 2) out.ranks.push_back(rank);
  }
  if (out.ranks.size() == 1) return out;
  out.ranks.clear();
  for (const auto& [rank, part] : pass.by_rank()) out.ranks.push_back(rank);
  out.everyone = out.ranks.size() >= record.workers.size();
  return out;
}

// One of each place of the sampler: ranks that share a place draw the same samples.
std::vector<const WorkerRecord*> drawing(const StepRecord& record) {
  const bool grouped = ranks_per_place(record) > 1;
  std::vector<const WorkerRecord*> out;
  for (const WorkerRecord& w : record.workers) {
    const auto shares = [&](const WorkerRecord* other) {
      using enum FingerprintKind;
      return *other->fingerprint_of(kSamplerRank) == *w.fingerprint_of(kSamplerRank);
    };
    if (!grouped || std::ranges::none_of(out, shares)) out.push_back(&w);
  }
  return out;
}

std::uint64_t whole(double count) {
  return static_cast<std::uint64_t>(std::llround(std::min(count, 9e18)));
}

// Whether most of the data was drawn in the pass.
bool nearly_whole(const WorkerRecord& worker, const DataPass& pass) {
  const auto length = static_cast<double>(value_of(worker, FingerprintKind::kDataLength));
  return static_cast<double>(pass.drawn()) >= kNearlyWhole * length;
}

class Overlap final : public Rule {
 public:
  void update(const StepContext& context, SignalLog& log) override {
    if (context.workers() == 0) return;
    if (draws_with_replacement(context.roster)) {
      return log.cannot(&kOverlappingData, kReplacement);
    }
    if (repeats_by_design(context)) return log.cannot(&kOverlappingData, kByDesign);
    repeats_->update(context, log);
    const bool shared = rows_are_shared(context.record, context.batches);
    const std::vector<const WorkerRecord*> workers = drawing(context.record);
    begin_anew(context.record);
    std::vector<std::uint64_t> ending;
    for (DataPass& pass : passes_) {
      if (ends_within(context.record, workers, pass)) ending.push_back(pass.number());
    }
    for (const WorkerRecord* each : workers) {
      const WorkerRecord& w = *each;
      if (w.samples.hashes.empty() && w.indices.empty()) {
        log.cannot(&kOverlappingData, kNoSamples);
      } else if (DataPass* pass = pass_of(context, w); pass == nullptr) {
        log.cannot(&kOverlappingData, kNoLoader);
      } else if (std::ranges::find(ending, pass->number()) != ending.end()) {
        continue;
      } else if (shared && pass->identity() == DataPass::Identity::kRow) {
        log.cannot(&kOverlappingData, kSharedRows);
      } else {
        draw(context, w, *pass);
      }
    }
    if (passes_.empty() || passes_.back().drawn() == 0) return;
    log.checked(&kOverlappingData);
    const auto count = static_cast<double>(workers.size());
    could_show_ = could_show_ || std::ranges::any_of(passes_, [&](const DataPass& pass) {
                    return could_show(pass, count);
                  });
    if (!could_show_) log.needs(&kOverlappingData, 1, kFewDraws);
    for (DataPass& pass : passes_) {
      const bool exact = pass.exact() >= kDoubled;
      if (exact || beyond_equal_records(pass, count)) report(context, pass, log);
    }
  }

 private:
  struct Totals {
    double doubled = 0;
    double drawn = 0;
  };
  struct Place {
    std::uint64_t pass = 0;
    std::uint64_t batch = 0;
    std::uint64_t first_rows = 0;  // of its first step in a pass, all of them
  };

  // A loader that is made anew for each pass, over data that is made anew too, is always in its
  // first. Not where it replays the pass's first batch before that has ended.
  void begin_anew(const StepRecord& record) {
    std::vector<std::uint64_t> anew;
    for (const WorkerRecord& w : record.workers) {
      const std::uint64_t number = value_of(w, FingerprintKind::kDataPass);
      const std::uint64_t batch = value_of(w, FingerprintKind::kDataBatch);
      Place& place = places_[w.replica];
      const std::uint64_t rows = value_of(w, FingerprintKind::kBatch);
      const bool first = batch + 1 == w.micro_batches;
      const auto pass = std::ranges::find(passes_, number, &DataPass::number);
      const bool replays = first && rows != 0 && rows == place.first_rows &&
                           pass != passes_.end() && !nearly_whole(w, *pass);
      if (number == place.pass && batch < place.batch && !replays) anew.push_back(number);
      place = {number, batch, first ? rows : place.first_rows};
    }
    for (DataPass& pass : passes_) {
      if (std::ranges::find(anew, pass.number()) == anew.end()) continue;
      finish(pass);
      pass = DataPass(pass.number(), pass.identity());
    }
  }

  void draw(const StepContext& context, const WorkerRecord& w, DataPass& pass) const {
    const std::uint64_t step = context.record.step;
    pass.settle(step);
    const bool by_index = pass.identity() == DataPass::Identity::kIndex;
    if (straddles(w)) return;
    pass.count_rows(std::max<std::uint64_t>(w.samples.rows,
                                            by_index ? w.indices.size() : w.samples.hashes.size()));
    if (by_index) {
      const std::uint64_t data = data_of(w);
      for (const std::uint64_t i : w.indices) pass.draw({mix64(i + 1 + data), i, w.rank, step});
      return;
    }
    pass.thin_to(w.samples.thinned);
    const bool indexed = aligned(w);
    for (std::size_t i = 0; i < w.samples.hashes.size(); ++i) {
      pass.draw({w.samples.hashes[i], indexed ? w.indices[i] : DataPass::kNoIndex, w.rank, step});
    }
  }

  // The pass that a worker is in; null where that is unknown, or long gone.
  DataPass* pass_of(const StepContext& context, const WorkerRecord& worker) {
    const std::uint64_t* number = worker.fingerprint_of(FingerprintKind::kDataPass);
    if (number == nullptr) return nullptr;
    for (DataPass& pass : passes_) {
      if (pass.number() == *number) return &pass;
    }
    if (!passes_.empty() && *number < passes_.back().number()) return nullptr;
    if (passes_.size() == 2) {
      finish(passes_.front());
      passes_.erase(passes_.begin());
    }
    const bool shared = distributed_sampling(context.record) &&
                        std::ranges::all_of(context.record.workers,
                                            [](const auto& w) { return !w.indices.empty(); });
    passes_.emplace_back(*number, shared ? DataPass::Identity::kIndex : DataPass::Identity::kRow);
    return &passes_.back();
  }

  // An endless sampler begins the data anew within what its loader takes for one pass. Of the step
  // in which it does, nobody knows which draws are of which.
  bool ends_within(const StepRecord& record, const std::vector<const WorkerRecord*>& workers,
                   DataPass& pass) {
    const WorkerRecord& any = record.workers.front();
    const std::uint64_t length = value_of(any, FingerprintKind::kDataLength);
    const std::uint64_t own = value_of(any, FingerprintKind::kSamplerLength);
    const std::uint64_t replicas = value_of(any, FingerprintKind::kSamplerReplicas, 1);
    const bool undivided = any.fingerprint_of(FingerprintKind::kSamplerReplicas) == nullptr;
    const std::uint64_t most = std::max<std::uint64_t>({replicas, workers.size(), 1});
    if (length == 0 || std::max(length, own) > UINT64_MAX / most) return false;
    std::uint64_t rows = 0;
    for (const WorkerRecord* w : workers) {
      if (value_of(*w, FingerprintKind::kDataPass, ~pass.number()) != pass.number()) continue;
      rows += std::max<std::uint64_t>(w->samples.rows, w->indices.size());
    }
    const std::uint64_t whole =
        std::max(undivided ? length * workers.size() : length, own * replicas);
    if (rows > 0 && pass.drawn() >= whole) {
      finish(pass);
      pass = DataPass(pass.number(), pass.identity());
      return false;
    }
    if (pass.drawn() + rows <= whole) return false;
    pass.count_rows(rows);
    return true;
  }

  void finish(const DataPass& pass) {
    if (pass.doubled() < kDoubled) return;
    finished_.doubled += pass.doubled();
    finished_.drawn += static_cast<double>(pass.drawn());
  }

  void report(const StepContext& context, const DataPass& pass, SignalLog& log) const {
    const double doubled = finished_.doubled + pass.doubled();
    const double drawn = finished_.drawn + static_cast<double>(pass.drawn());
    const DrawnAgain seen{.samples_doubled = whole(doubled),
                          .samples_drawn = whole(drawn),
                          .data_pass = pass.number(),
                          .by_the_same_rank = pass.between() < kDrawnAgain * pass.doubled()};
    Signal signal = sighting(&kOverlappingData, context, blame_of(pass, context.record),
                             pass.exact() >= kDoubled ? 0.99 : 0.9, seen);
    if (seen.by_the_same_rank) {
      signal.remedy = kRestarted;
    } else if (pass.identity() == DataPass::Identity::kRow) {
      signal.remedy = undivided_remedy(context.record);
    }
    log.add(std::move(signal), kAllSteps);
  }

  std::vector<DataPass> passes_;  // at most two, ascending
  Totals finished_;               // of finished passes in which samples were doubled
  PerWorker<Place> places_;       // at the record before
  std::unique_ptr<Rule> repeats_ = make_repeated_batches();
  bool could_show_ = false;  // some pass was long enough
};

}  // namespace

constexpr Check kOverlappingDataExplains[] = {&kDataCoverage, &kRankOutlier, &kPairTooSimilar,
                                              &kTooConsistent};
constinit const CheckInfo kOverlappingData{
    .id = "overlapping-data",
    .severity = Severity::kWarning,
    .compares = "whether a sample is drawn twice in one pass over the data",
    .fires = "after 3 samples by index; without an index, see below",
    .consequence = "Samples that are read again count again, and take the place of others.",
    .cannot_see =
        "Steps in which a pass ends; samplers that draw with replacement or repeat by design.",
    .mistake = "sampler = DistributedSampler(data, seed=int(time.time()))",
    .fix =
        "Give every rank's sampler the same seed and epoch, or split the data into disjoint "
        "shards, and feed each micro-batch once. Samples read twice take the place of others that "
        "are not read.",
    .resembles = "karpathy/llm.c#792",
    .precedence = 130,
    .explains = kOverlappingDataExplains,
    .make = make<Overlap>,
};

}  // namespace presum::checks
