// SPDX-License-Identifier: Apache-2.0
// **data-coverage.** Of map-style data sets, at the end of a pass that a loader was gone through in
// and of which every batch was seen at the model, in its order, from the first to the last (kind
// `data_ended`; the last pass by the final note): where a program changes rows on their way to the
// model nothing is known from there on. A pass that the program breaks off, or skips batches of,
// packets that were lost and `every` above 1 make it not possible, and nothing that was not seen
// counts as missing. Samples count by index, exactly, where the indices of every step are known (a
// step's first 4,096) and the data sets that are followed have 2^27 samples at most together; else
// rows count, which are no fewer than the samples: then samples that are left out because others
// are repeated are overlapping-data's alone. Where ranks read data sets that look different each is
// held against its own length, else all together against one. Dropped, filled-up and untrained
// batches are quiet: up to the most rows that a worker read in a step, and one, for each worker.
// Named apart: a pass that draws 1/W (the data is divided twice), samples of the end that are never
// drawn, and what none of the passes so drew. Samplers of torch and Accelerate are believed to deal
// every sample, and judged by one pass; one of the program's own by two in a row, for after a
// restart it may begin in the middle, and what it leaves out is information, but for 1/W. A
// `RandomSampler` that is asked for fewer samples is about as many. A `SubsetRandomSampler`'s
// positions are all that it is about. Samplers that draw with replacement, that repeat on purpose,
// or that skip (`Skip` in their class's name) are not judged. Data sets of each rank that look
// alike, with samplers that divide them again, are not seen.

#include "checks/data/data_coverage.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "checks/data/sampler_mismatch.h"
#include "checks/engine/rules.h"

namespace presum::checks {
namespace {

constexpr std::size_t kFollowed = 4096;                     // passes, readers and data sets
constexpr std::uint64_t kSamples = std::uint64_t{1} << 27;  // by index
constexpr std::uint64_t kSurePasses = 2;  // passes in a row, of a sampler that presum does not know
constexpr const char* kNoLength =
    "No loader over a data set that has a length and numbers its samples was found.";
constexpr const char* kNotWhole =
    "No pass was seen as a whole: batches were skipped, not recorded or not known.";
constexpr const char* kNoEnd = "No loader has ended a pass over its data yet.";
constexpr const char* kDesign =
    "The sampler draws with replacement, or repeats samples: a pass need not have all of them.";

// A worker's part of a sampler that deals every sample: torch's, and Accelerate's around them.
constexpr std::string_view kDealsAll[] = {"BatchSampler",
                                          "DistributedSampler",
                                          "RandomSampler",
                                          "SequentialSampler",
                                          "SeedableRandomSampler",
                                          "BatchSamplerShard",
                                          "DistributedLengthGroupedSampler"};

struct LeftOut {
  std::uint64_t samples_left_out = 0;  // in the last of the passes
  std::uint64_t of_samples = 0;
  std::uint64_t passes = 0;                          // in a row that left samples out
  std::optional<std::uint64_t> drawn_one_in;         // all that was drawn, where it is 1/ranks
  std::optional<std::uint64_t> from_index;           // where all of the end was left out
  std::optional<std::uint64_t> samples_never_drawn;  // in any of several passes

  static constexpr std::tuple kFields{field("samples_left_out", &LeftOut::samples_left_out),
                                      field("of_samples", &LeftOut::of_samples),
                                      field("passes", &LeftOut::passes),
                                      field("drawn_one_in", &LeftOut::drawn_one_in),
                                      field("from_index", &LeftOut::from_index),
                                      field("samples_never_drawn", &LeftOut::samples_never_drawn)};
};

std::string sentence(const LeftOut& seen, const Who& who) {
  if (seen.drawn_one_in) {
    return fmt::format(
        "{} together drew 1/{} of the data in a whole pass over it: the data is divided twice",
        who.words(), *seen.drawn_one_in);
  }
  if (seen.from_index) {
    return who.words() + " never came to the end of the data in a whole pass over it";
  }
  return who.words() + " left samples out in a whole pass over the data";
}

// "A(B(C)): x=1" is A, B and C.
std::vector<std::string_view> names_of(std::string_view sampler) {
  std::vector<std::string_view> out;
  sampler = sampler.substr(0, sampler.find(':'));
  while (!sampler.empty()) {
    const std::size_t end = std::min(sampler.find_first_of("()"), sampler.size());
    if (end > 0) out.push_back(sampler.substr(0, end));
    sampler.remove_prefix(std::min(end + 1, sampler.size()));
  }
  return out;
}

// Samplers that are about no more samples than they draw in a pass.
bool draws_some(const std::vector<std::string_view>& names) {
  return !names.empty() &&
         (names.back() == "SubsetRandomSampler" || names.back() == "RandomSampler");
}

// It goes on in the middle of a pass, as after a restart.
bool skips(std::string_view sampler) { return sampler.find("Skip") != std::string_view::npos; }

std::uint64_t rows_of(const WorkerRecord& worker) {
  return std::max<std::uint64_t>(worker.samples.rows, worker.indices.size());
}

// Samples that a whole pass over a data set left out, on all workers together: passes that a loader
// ended, of which every batch was seen. By index, where indices are known and the data sets that
// are followed have no more than 2^27 samples together; else by the number of rows, which is at
// least the number of samples.
class DataCoverage final : public Rule {
 public:
  void update(const StepContext& context, SignalLog& log) override {
    if (draws_with_replacement(context.roster) || repeats_by_design(context)) {
      return log.cannot(&kDataCoverage, kDesign);
    }
    for (const WorkerRecord& worker : context.record.workers) read(context, worker, log);
  }

  void farewell(std::uint32_t rank, const FinalState& last, const Roster& roster,
                SignalLog& log) override {
    const std::uint64_t pass = last.fingerprint_or_zero(FingerprintKind::kDataPass);
    if (farewells_.size() >= kFollowed) return;
    farewells_[rank] = {pass, last.fingerprint_or_zero(FingerprintKind::kDataBatch),
                        last.fingerprint_or_zero(FingerprintKind::kDataEnded) == pass + 1};
    take_leave(rank, roster, log);
  }

 private:
  using Data = std::uint64_t;  // which data set
  // Where a worker stands in a data set.
  struct Reader {
    std::uint32_t rank = 0;
    std::uint64_t pass = 0;
    std::uint64_t batch = 0;  // the last of the step before
    bool reading = false;
  };
  // Where a worker stood when it left.
  struct Farewell {
    std::uint64_t pass = 0;
    std::uint64_t batch = 0;
    bool ended = false;
  };
  // One pass of all workers.
  struct Pass {
    std::uint64_t length = 0;
    std::uint64_t first_step = 0;
    std::uint64_t last_step = 0;
    std::uint64_t rows = 0;
    std::uint64_t rows_at_once = 0;  // the most that a worker read in a step
    std::uint64_t own = 0;           // what the sampler says of its length; 0: unknown
    std::uint32_t workers = 0;       // of the run
    std::size_t open = 0;            // workers that have not ended it
    Ranks ranks;
    SampleSet drawn{0};
    bool indexed = false;
    bool whole = true;
  };
  // What was found of a data set so far.
  struct History {
    std::uint64_t passes = 0;  // in a row that left samples out
    std::uint64_t first_step = 0;
    SampleSet drawn{0};  // in any of them
    std::uint64_t length = 0;
    bool indexed = false;
    std::size_t readers = 0;
  };
  struct Missing {
    std::uint64_t samples = 0;  // left out
    std::uint64_t length = 0;   // of those that the sampler is about
    std::uint64_t slack = 0;    // what dropped and filled-up batches account for
  };

  void read(const StepContext& context, const WorkerRecord& worker, SignalLog& log) {
    using enum FingerprintKind;
    const std::uint64_t* length = worker.fingerprint_of(kDataLength);
    const std::uint64_t* number = worker.fingerprint_of(kDataPass);
    const std::uint64_t* batch = worker.fingerprint_of(kDataBatch);
    if (length == nullptr || *length == 0 || number == nullptr || batch == nullptr) {
      return log.cannot(&kDataCoverage, kNoLength);
    }
    log.waits(&kDataCoverage, kNoEnd);
    const Data data = data_of(worker);
    const std::pair key{worker.replica, data};
    if (readers_.size() >= kFollowed && !readers_.contains(key)) return;
    const auto [at, fresh] = readers_.try_emplace(key);
    if (fresh) ++histories_[data].readers;
    Reader reader = at->second;
    const bool further = reader.reading && *number == reader.pass;
    if (reader.reading && !further) {
      if (*batch + 1 < worker.micro_batches) {  // the step began in the pass before
        draw(worker, context.record.step, passes_.at({data, reader.pass}));
      }
      const std::uint64_t* ended = worker.fingerprint_of(kDataEnded);
      leave(data, reader, ended != nullptr && *ended == reader.pass + 1, context.roster, log);
    }
    const std::uint64_t before = further ? reader.batch + 1 : 0;
    reader = {worker.rank, *number, *batch, true};
    Pass& pass = further ? passes_.at({data, *number}) : enter(context, worker, data, reader);
    readers_[key] = reader;
    pass.whole = pass.whole && *batch + 1 >= before && *batch < before + worker.micro_batches;
    draw(worker, context.record.step, pass);
    take_leave(worker.rank, context.roster, log);
  }

  Pass& enter(const StepContext& context, const WorkerRecord& worker, Data data,
              const Reader& reader) {
    if (passes_.size() >= kFollowed) {  // some worker never goes on: of its passes nothing is said
      passes_.clear();
      readers_.clear();
      histories_.clear();
      histories_[data].readers = 1;
    }
    std::erase_if(passes_, [&](const auto& entry) {  // that not all workers came to
      return entry.first.first == data && entry.second.open == 0;
    });
    const auto [at, fresh] = passes_.try_emplace({data, reader.pass});
    Pass& pass = at->second;
    if (fresh) {
      pass.length = *worker.fingerprint_of(FingerprintKind::kDataLength);
      pass.first_step = context.record.step;
      pass.workers = context.record.workers_expected;
      pass.own = value_of(worker, FingerprintKind::kSamplerLength);
      pass.indexed = pass.length <= kSamples - std::min(kSamples, samples_followed());
      if (pass.indexed) pass.drawn = SampleSet(pass.length);
    }
    ++pass.open;
    insert(pass.ranks, worker.rank);
    return pass;
  }

  // Once its last step has come.
  void take_leave(std::uint32_t rank, const Roster& roster, SignalLog& log) {
    const auto farewell = farewells_.find(rank);
    if (farewell == farewells_.end()) return;
    const auto [pass, batch, ended] = farewell->second;
    for (auto& [key, reader] : readers_) {
      if (reader.rank != rank || !reader.reading || reader.pass != pass || reader.batch != batch) {
        continue;
      }
      leave(key.second, reader, ended, roster, log);
      farewells_.erase(farewell);
      return;
    }
  }

  void leave(Data data, Reader& reader, bool ended, const Roster& roster, SignalLog& log) {
    reader.reading = false;
    const auto at = passes_.find({data, reader.pass});
    if (at == passes_.end()) return;
    Pass& pass = at->second;
    pass.whole = pass.whole && ended;
    --pass.open;
    if (pass.open > 0 || pass.ranks.size() < histories_[data].readers) return;
    if (pass.whole && !skips(roster.fact("sampler"))) {
      judge(data, pass, roster, log);
    } else {
      log.cannot(&kDataCoverage, kNotWhole);
    }
    passes_.erase(at);
  }

  void judge(Data data, const Pass& pass, const Roster& roster, SignalLog& log) {
    log.checked(&kDataCoverage);
    const std::string sampler = roster.fact("sampler");
    const Missing missing = missing_of(pass, sampler);
    History& history = histories_[data];
    if (missing.samples <= missing.slack) {
      history.passes = 0;
      history.drawn = SampleSet(0);
      history.indexed = false;
      return;
    }
    if (history.passes++ == 0) {
      history.drawn = pass.drawn;
      history.length = pass.length;
      history.indexed = pass.indexed;
      history.first_step = pass.first_step;
    } else {
      history.indexed = history.indexed && pass.indexed;
      if (history.indexed) history.drawn.unite(pass.drawn);
    }
    const bool known = deals_all(sampler, pass.own, pass.length);
    if (!known && history.passes < kSurePasses) return;
    log.add(signal_of(pass, history, missing, known), kAllSteps);
  }

  static void draw(const WorkerRecord& worker, std::uint64_t step, Pass& pass) {
    const std::uint64_t rows = rows_of(worker);
    pass.whole = pass.whole && rows > 0;
    pass.rows += rows;
    pass.rows_at_once = std::max(pass.rows_at_once, rows);
    pass.last_step = step;
    pass.indexed = pass.indexed && !worker.indices.empty() && worker.indices.size() < kIndicesMax &&
                   worker.indices.size() >= rows && std::ranges::max(worker.indices) < pass.length;
    if (!pass.indexed) return;
    for (const std::uint64_t index : worker.indices) pass.drawn.insert(index);
  }

  // A subset that a sampler was given, or as many as it was asked for, is all that it is about.
  static Missing missing_of(const Pass& pass, std::string_view sampler) {
    const bool subset = draws_some(names_of(sampler)) && pass.own > 0;
    const std::uint64_t length = subset ? std::min(pass.length, pass.own) : pass.length;
    const std::uint64_t drawn = pass.indexed ? pass.drawn.count() : pass.rows;
    const std::uint64_t workers = pass.ranks.size();
    return {length - std::min(length, drawn), length, workers * (pass.rows_at_once + 1)};
  }

  static bool divided_twice(const Pass& pass, const Missing& missing) {
    const std::uint64_t drawn = missing.length - missing.samples;
    const std::uint64_t off = drawn * pass.workers > missing.length
                                  ? drawn * pass.workers - missing.length
                                  : missing.length - drawn * pass.workers;
    return pass.workers > 1 && off <= pass.workers * missing.slack &&
           drawn * 3 < missing.length * 2;
  }

  static LeftOut left_out(const Pass& pass, const History& history, const Missing& missing) {
    LeftOut out{.samples_left_out = missing.samples,
                .of_samples = missing.length,
                .passes = history.passes};
    if (divided_twice(pass, missing)) {
      out.drawn_one_in = pass.workers;
    } else if (pass.indexed && pass.drawn.end() + missing.samples == missing.length) {
      out.from_index = pass.drawn.end();
    }
    if (history.passes > 1 && history.indexed) {
      out.samples_never_drawn = missing.length - std::min(missing.length, history.drawn.count());
    }
    return out;
  }

  static Signal signal_of(const Pass& pass, const History& history, const Missing& missing,
                          bool told) {
    const LeftOut seen = left_out(pass, history, missing);
    Signal signal =
        sighting(&kDataCoverage, pass.last_step, {pass.ranks, pass.ranks.size() == pass.workers},
                 pass.indexed ? 0.95 : 0.9, seen);
    signal.first_step = history.first_step;
    if (!told && !seen.drawn_one_in) {
      signal.severity = Severity::kInfo;
      signal.remedy = "Nothing, where the sampler is meant to leave samples out.";
    }
    return signal;
  }

  std::uint64_t samples_followed() const {
    std::uint64_t out = 0;
    for (const auto& [key, pass] : passes_) out += pass.indexed ? pass.length : 0;
    for (const auto& [data, history] : histories_) out += history.indexed ? history.length : 0;
    return out;
  }

  std::map<std::pair<std::uint32_t, Data>, Reader> readers_;  // by replica
  std::map<std::pair<Data, std::uint64_t>, Pass> passes_;     // by number
  std::map<Data, History> histories_;
  std::map<std::uint32_t, Farewell> farewells_;  // by rank; their last steps may be yet to come
};

}  // namespace

bool deals_all(std::string_view sampler, std::uint64_t own, std::uint64_t length) {
  const auto names = names_of(sampler);
  if (draws_some(names) && own > 0 && own < length) return false;
  return !names.empty() && std::ranges::all_of(names, [](std::string_view name) {
    return std::ranges::find(kDealsAll, name) != std::end(kDealsAll);
  });
}

void SampleSet::unite(const SampleSet& other) {
  for (std::size_t i = 0; i < words_.size(); ++i) words_[i] |= other.words_[i];
}

std::uint64_t SampleSet::count() const {
  std::uint64_t out = 0;
  for (const std::uint64_t word : words_) out += static_cast<std::uint64_t>(std::popcount(word));
  return out;
}

std::uint64_t SampleSet::end() const {
  for (std::size_t i = words_.size(); i > 0; --i) {
    const auto zeros = static_cast<std::uint64_t>(std::countl_zero(words_[i - 1]));
    if (zeros < 64) return 64 * i - zeros;
  }
  return 0;
}

constinit const CheckInfo kDataCoverage{
    .id = "data-coverage",
    .severity = Severity::kWarning,
    .compares = "samples drawn in a whole pass against the data set's length",
    .fires = "at the end of the pass",
    .consequence =
        "Samples that are never drawn are never learned from, and an epoch is shorter than it is "
        "believed to be.",
    .cannot_see =
        "Passes that the program breaks off, samplers that draw with replacement or repeat, data "
        "sets without a length; shards of each rank whose data sets look alike; where indices are "
        "unknown, samples that are left out because others are repeated. A pass is judged where "
        "its last batch was seen at the model: not where the program changes rows on their way "
        "(augmentation on a device). Batches that are cut before the model leave samples out, and "
        "are told as such.",
    .mistake =
        "sampler = DistributedSampler(data)\n"
        "loader = accelerator.prepare(DataLoader(data, sampler=sampler))  # divides it again",
    .fix =
        "Divide the data once: hand Accelerate or the Trainer a loader without a "
        "DistributedSampler, and a data set that is not split by rank already. A sampler of your "
        "own has to deal every sample.",
    .resembles = "huggingface/accelerate#3520",
    .precedence = 140,
    .dates_finding = false,
    .make = make<DataCoverage>,
};

}  // namespace presum::checks
