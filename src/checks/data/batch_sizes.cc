// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checks/data/token_targets.h"
#include "checks/engine/mean.h"
#include "checks/engine/rules.h"
#include "checks/engine/split.h"
#include "checks/engine/text.h"
#include "detect/e_values.h"

namespace presum::checks {
namespace {

constexpr std::uint64_t kSureOfSizes = 5;  // records in a row
constexpr double kOff = 0.05;   // of the others' mean: a smaller difference does not move the loss
constexpr double kOften = 0.2;  // of all steps
constexpr double kErrors = 5;   // standard errors; the test runs a few times per run
constexpr std::uint64_t kFirstLook = 20;  // steps; doubles after each look
constexpr const char* kWeighted =
    "Nothing, if the sizes differ on purpose: the losses are weighted by them.";
constexpr const char* kUnweighted =
    "Give every rank the same batch size and number of micro-batches, or weight each loss by the "
    "number of samples or tokens that it averages: the reduction gives every rank the same weight.";

struct UnequalSizes {
  enum class Of : std::uint8_t { kMicroBatches, kSamples };

  Of of = Of::kMicroBatches;
  std::string by_rank;

  std::string what() const { return of == Of::kMicroBatches ? "micro-batches" : "samples"; }
  std::uint64_t key() const { return static_cast<std::uint64_t>(of); }
  static constexpr std::tuple kFields{field("what", &UnequalSizes::what),
                                      field("by_rank", &UnequalSizes::by_rank)};
};

std::string sentence(const UnequalSizes& seen, const Who& who) {
  if (who.everyone) {
    return fmt::format("{} had different numbers of {} in every step", who.words(), seen.what());
  }
  return fmt::format("{} used a different number of {} in every step than the others", who.words(),
                     seen.what());
}

template <typename SizeOf>
Split sizes(const StepRecord& record, const SizeOf& size_of) {
  std::vector<RankValue> held;
  for (const WorkerRecord& w : record.workers) {
    const std::uint64_t size = size_of(w);
    if (size == 0) return {};
    held.push_back({size, w.rank});
  }
  return split(std::move(held));
}

bool weighs_alike(const StepRecord& record) {
  return weighs_targets_alike(record) || weighs_samples_alike(record);
}

// `is_weighted`: losses are weighted by the sizes.
Signal weighted(Signal signal, bool is_weighted) {
  if (is_weighted) signal.severity = Severity::kInfo;
  signal.remedy = is_weighted ? kWeighted : kUnweighted;
  return signal;
}

void report(const StepContext& context, const Split& sizes, UnequalSizes::Of of,
            std::uint64_t first_step, bool rows_known, SignalLog& log) {
  Signal signal = sighting(&kTokenImbalance, context, sizes.blame(), 0.9,
                           UnequalSizes{.of = of, .by_rank = sizes.text()});
  signal.first_step = first_step;
  log.add(weighted(std::move(signal), rows_known && weighs_alike(context.record)), kAllSteps);
}

// A rank's mean number of samples per step, where the number varies.
struct OtherMean {
  double samples = kNaN;         // with two ranks, the first rank's
  double samples_others = kNaN;  // the median of the others; with two ranks, the second rank's
  std::uint64_t steps = 0;
  std::optional<std::uint32_t> of_rank;  // only with two ranks
  std::optional<std::uint32_t> beside_rank;

  static constexpr std::tuple kFields{
      field("samples", &OtherMean::samples), field("samples_others", &OtherMean::samples_others),
      field("steps", &OtherMean::steps), field("of_rank", &OtherMean::of_rank),
      field("beside_rank", &OtherMean::beside_rank)};
};

std::string sentence(const OtherMean& seen, const Who& who) {
  if (seen.of_rank) {
    return fmt::format("{} had different numbers of samples a step: {} and {} on average of {}",
                       who.words(), number(seen.samples), number(seen.samples_others), seen.steps);
  }
  return fmt::format("{} had {} samples a step on average of {}, the others {}", who.words(),
                     number(seen.samples), seen.steps, number(seen.samples_others));
}

// Numbers of rows that vary from step to step, by rank.
class MeanSizes {
 public:
  void update(const StepContext& context, SignalLog& log) {
    const auto& workers = context.record.workers;
    const auto unknown = [](const WorkerRecord& w) { return w.samples.rows == 0; };
    if (!context.complete() || context.alone() || std::ranges::any_of(workers, unknown)) return;
    for (const WorkerRecord& w : workers) {
      Size& size = sizes_[w.replica];
      size.rows.add(static_cast<double>(w.samples.rows));
      size.most = std::max(size.most, w.samples.rows);
      size.fewer += w.samples.rows < size.most ? 1 : 0;
      size.tokens += static_cast<double>(w.tokens);
    }
    weighted_ = weighted_ && weighs_alike(context.record);
    if (steps_++ == 0) first_step_ = context.record.step;
    if (steps_ < next_) return;
    next_ *= 2;
    judge(context, log);
  }

 private:
  struct Size {
    Mean rows;
    double tokens = 0;
    std::uint64_t most = 0;   // rows in one step
    std::uint64_t fewer = 0;  // steps with fewer rows than the most so far
  };

  void judge(const StepContext& context, SignalLog& log) {
    for (const WorkerRecord& w : context.record.workers) {
      const Size& own = sizes_[w.replica];
      std::vector<double> others;
      std::vector<double> others_tokens;
      double error = own.rows.error();
      double least_error = error;
      std::uint64_t fewer = own.fewer;
      for (const WorkerRecord& other : context.record.workers) {
        if (other.replica == w.replica && context.workers() == 2) continue;  // else all count
        const Size& size = sizes_[other.replica];
        others.push_back(size.rows.value());
        others_tokens.push_back(size.tokens);
        error = std::max(error, size.rows.error());
        least_error = std::min(least_error, size.rows.error());
        fewer = std::max(fewer, size.fewer);
      }
      const double middle = detect::median(others);
      const double tokens = detect::median(others_tokens);
      const double off = std::abs(own.rows.value() - middle);
      const bool as_many_tokens = tokens > 0 && std::abs(own.tokens - tokens) < kOff * tokens;
      // If one rank's number is constant and another rank often has fewer, that is no coincidence.
      // The short last batch of a pass is too rare to count as often.
      const bool often = least_error == 0 && static_cast<double>(fewer) >= kOften * double(steps_);
      const bool by_chance = !often && off < kErrors * error;
      if (error == 0 || by_chance || off < kOff * middle || as_many_tokens) continue;
      report(context, w, own.rows.value(), middle, log);
      if (context.workers() == 2) return;
    }
  }

  void report(const StepContext& context, const WorkerRecord& worker, double own, double others,
              SignalLog& log) const {
    OtherMean seen{.samples = own, .samples_others = others, .steps = steps_};
    Blame blame{{worker.rank}, false};
    if (context.workers() == 2) {
      blame = of_all(context.record);
      seen.of_rank = blame.ranks.front();
      seen.beside_rank = blame.ranks.back();
    }
    Signal signal = sighting(&kTokenImbalance, context, std::move(blame), 0.9, seen);
    signal.first_step = first_step_;
    log.add(weighted(std::move(signal), weighted_), kAllSteps);
  }

  PerWorker<Size> sizes_;
  std::uint64_t steps_ = 0;
  std::uint64_t first_step_ = 0;
  std::uint64_t next_ = kFirstLook;
  bool weighted_ = true;
};

// Micro-batches and rows per step that differ between ranks in the same way, step after step.
class LastingSizes {
 public:
  void update(const StepContext& context, SignalLog& log) {
    if (!context.complete()) return;
    const StepRecord& record = context.record;
    const Split micro = sizes(record, [](const WorkerRecord& w) { return w.micro_batches; });
    const Split rows = sizes(record, [](const WorkerRecord& w) { return w.samples.rows; });
    const bool rows_known = rows.known > 0;
    const bool equal_work = rows_known && !rows.differs();
    if (lasts(micro_batches_, equal_work ? Split{} : micro, record.step)) {
      report(context, micro, UnequalSizes::Of::kMicroBatches, micro_batches_.same.first_step,
             rows_known, log);
    }
    if (lasts(rows_, rows, record.step) && !micro.differs()) {
      report(context, rows, UnequalSizes::Of::kSamples, rows_.same.first_step, true, log);
    }
  }

 private:
  struct Lasting {
    std::string held;  // which ranks hold which value
    Streak same;
  };

  static bool lasts(Lasting& lasting, const Split& sizes, std::uint64_t step) {
    const std::string held = sizes.differs() ? sizes.text() : "";
    if (held != lasting.held) lasting = {held, {}};
    return lasting.same.see(!held.empty(), step) >= kSureOfSizes;
  }

  Lasting micro_batches_;
  Lasting rows_;
};

// Batch sizes that differ between ranks. Reports them as token-imbalance.
class BatchSizes final : public Rule {
 public:
  void update(const StepContext& context, SignalLog& log) override {
    lasting_.update(context, log);
    means_.update(context, log);
  }

 private:
  LastingSizes lasting_;
  MeanSizes means_;
};

}  // namespace

std::unique_ptr<Rule> make_batch_sizes() { return std::make_unique<BatchSizes>(); }

}  // namespace presum::checks
