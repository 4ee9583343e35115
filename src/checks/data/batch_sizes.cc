// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "checks/engine/rules.h"
#include "checks/engine/split.h"

namespace presum::checks {
namespace {

constexpr std::uint64_t kSureOfSizes = 5;  // records in a row
constexpr const char* kEqual =
    "Give every rank the same batch size and number of micro-batches, or weight each loss by what "
    "it is the mean of: the reduction counts all ranks alike.";

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
  return fmt::format("{} had another number of {} in every step than the others", who.words(),
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

bool weighted_by_rows(const StepRecord& record) {
  const auto each = [](const WorkerRecord& w) {
    return w.weight / static_cast<double>(w.samples.rows);
  };
  const double first = each(record.workers.front());
  return std::ranges::all_of(record.workers, [&](const WorkerRecord& w) {
    return std::abs(each(w) - first) <= 1e-3 * first;
  });
}

void report(const StepContext& context, const Split& sizes, UnequalSizes::Of of,
            std::uint64_t first_step, bool rows_known, SignalLog& log) {
  Signal signal = sighting(&kTokenImbalance, context, sizes.blame(), 0.9,
                           UnequalSizes{.of = of, .by_rank = sizes.text()});
  signal.first_step = first_step;
  if (rows_known && weighted_by_rows(context.record)) signal.severity = Severity::kInfo;
  signal.remedy = kEqual;
  log.add(std::move(signal), kAllSteps);
}

// Micro-batches of a step, and rows, that are others on some ranks, step after step.
class BatchSizes final : public Rule {
 public:
  // Says it as a token-imbalance.
  void update(const StepContext& context, SignalLog& log) override {
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
    std::string held;  // which ranks hold what
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

}  // namespace

std::unique_ptr<Rule> make_batch_sizes() { return std::make_unique<BatchSizes>(); }

}  // namespace presum::checks
