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

constexpr std::uint64_t kSureOfSizes = 5;    // records in a row
constexpr std::uint64_t kMicroBatches = 32;  // keys, beside those of the other statistics
constexpr std::uint64_t kRows = 33;
constexpr const char* kEqual =
    "Give every rank the same batch size and number of micro-batches, or weight each loss by what "
    "it is the mean of: the reduction counts all ranks alike.";

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

void report(const StepContext& context, const Split& sizes, std::uint64_t key, const char* what,
            std::uint64_t first_step, bool rows_known, SignalLog& log) {
  Signal signal = sighting({&kTokenImbalance, key}, context, sizes.blame(), 0.9);
  signal.first_step = first_step;
  if (rows_known && weighted_by_rows(context.record)) signal.severity = Severity::kInfo;
  signal.title =
      signal.everyone
          ? fmt::format("{{Ranks}} had different numbers of {} in every step", what)
          : fmt::format("{{Ranks}} had another number of {} in every step than the others", what);
  signal.remedy = kEqual;
  signal.evidence = {{"by_rank", sizes.text()}};
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
      report(context, micro, kMicroBatches, "micro-batches", micro_batches_.first_step, rows_known,
             log);
    }
    if (lasts(rows_, rows, record.step) && !micro.differs()) {
      report(context, rows, kRows, "samples", rows_.first_step, true, log);
    }
  }

 private:
  struct Lasting {
    std::string held;  // which ranks hold what
    std::uint64_t length = 0;
    std::uint64_t first_step = 0;
  };

  bool lasts(Lasting& lasting, const Split& sizes, std::uint64_t step) const {
    const std::string held = sizes.differs() ? sizes.text() : "";
    if (held.empty() || held != lasting.held) lasting = {held, 0, step};
    return !held.empty() && ++lasting.length >= kSureOfSizes;
  }

  Lasting micro_batches_;
  Lasting rows_;
};

}  // namespace

std::unique_ptr<Rule> make_batch_sizes() { return std::make_unique<BatchSizes>(); }

}  // namespace presum::checks
