// SPDX-License-Identifier: Apache-2.0
#include "cli/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/try.h"
#include "cli/rows.h"
#include "cli/text.h"
#include "presum/times.h"
#include "presum/version.h"

namespace presum::cli {
namespace {

using Json = nlohmann::ordered_json;
using Nanoseconds = std::int64_t;

constexpr const char* kClocks =
    "Clocks of ranks are never compared. A step of all ranks begins at one common time, which is "
    "the sum over the steps before it of the longest that a rank took; so the spaces between a "
    "rank's steps are no measurement, and lengths are. Steps whose times are not known (the first "
    "one of a model has none) and steps that were not recorded take no time here.";

constexpr double kPerSecond = 1e9;
constexpr Nanoseconds kPerMicrosecond = 1000;

Nanoseconds nanoseconds(double seconds) {
  constexpr double kMax = 1e6 * kPerSecond;  // eleven days: no sum of steps overflows
  if (!(seconds > 0)) return 0;
  return std::llround(std::min(seconds * kPerSecond, kMax));
}

// In microseconds, as the format has it.
std::string microseconds(Nanoseconds time) {
  return fmt::format("{}.{:03}", time / kPerMicrosecond, time % kPerMicrosecond);
}

// What is known before the first event.
struct Contents {
  std::map<ModelKey, std::set<std::uint32_t>> models;  // with the ranks whose times are known
  std::map<std::uint32_t, std::string> ranks;          // all of these, with their hosts
  bool several = false;                                // models in one segment
  std::map<ModelKey, std::vector<Finding>> findings;   // by their first step
};

Result<Contents> contents_of(const RunLog& log) {
  Contents out;
  PRESUM_TRY(log.for_each_workers([&](const StepKey& step, std::span<const WorkerRecord> workers) {
    for (const WorkerRecord& w : workers) {
      if (w.times.known()) out.models[step.model].insert(w.rank);
    }
  }));
  const ModelKey* last = nullptr;
  for (const auto& [model, ranks] : out.models) {
    for (const std::uint32_t rank : ranks) out.ranks[rank];
    out.several = out.several || (last != nullptr && last->segment == model.segment);
    last = &model;
  }
  PRESUM_ASSIGN(const auto modules, log.modules());
  for (const ModuleInfo& module : modules) {
    for (const WorkerInfo& w : module.workers) out.ranks[w.rank] = w.host;
  }
  PRESUM_ASSIGN(auto findings, log.findings());
  std::ranges::stable_sort(findings, {}, &Finding::first_step);
  for (Finding& f : findings) out.findings[f.model].push_back(std::move(f));
  return out;
}

class TraceWriter {
 public:
  TraceWriter(const Contents& contents, std::ostream& out) : contents_(contents), out_(out) {}

  void begin(const std::string& run) {
    const Json about = {
        {"recorded_by", std::string("presum ") + version()}, {"run", run}, {"clocks", kClocks}};
    out_ << fmt::format("{{\"displayTimeUnit\":\"ms\",\"otherData\":{},\"traceEvents\":[",
                        json_line(about));
    for (const auto& [rank, host] : contents_.ranks) name_rank(rank, host);
  }
  // Where not, who opened the stream says so.
  bool can_write() const { return out_.good(); }
  void end() { out_ << "\n]}\n"; }

  // Segments follow each other; the models of one begin together.
  void begin_model(const ModelKey& model) {
    if (model.segment != model_.segment) segment_begin_ = segment_end_;
    model_ = model;
    now_ = segment_begin_;
    const auto known = contents_.findings.find(model);
    findings_ = known == contents_.findings.end() ? std::span<const Finding>() : known->second;
    for (const std::uint32_t rank : contents_.models.at(model)) {
      metadata("thread_name", rank, {{"name", model_name()}});
    }
  }

  void add(const StepRecord& step) {
    mark_findings(step.step);
    Nanoseconds longest = 0;
    for (const WorkerRecord& w : step.workers) {
      if (!w.times.known()) continue;
      count("loss", w.rank, w.loss);
      count("grad_norm", w.rank, w.grad_norm);
      longest = std::max(longest, add_phases(w, step.step));
    }
    now_ += longest;
    segment_end_ = std::max(segment_end_, now_);
  }

  void end_model() { mark_findings(std::numeric_limits<std::uint64_t>::max()); }

 private:
  void event(std::string_view text) {
    out_ << (first_ ? "\n" : ",\n") << text;
    first_ = false;
  }

  void metadata(const char* what, std::uint32_t rank, const Json& args) {
    event(json_line(
        {{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", model_.module}, {"args", args}}));
  }

  void name_rank(std::uint32_t rank, const std::string& host) {
    const auto of_host = host.empty() ? "" : fmt::format(" ({})", printable(host));
    metadata("process_name", rank, {{"name", fmt::format("rank {}{}", rank, of_host)}});
    metadata("process_sort_index", rank, {{"sort_index", rank}});
  }

  std::string model_name() const {
    const auto shard = model_.shard == 0 ? "" : fmt::format(" shard {}", model_.shard);
    return fmt::format("module {}{}", model_.module, shard);
  }

  void count(const char* what, std::uint32_t rank, double value) {
    if (!std::isfinite(value)) return;  // JSON has no such numbers
    const auto of = contents_.several ? " of " + model_name() : "";
    event(fmt::format(R"({{"ph":"C","name":"{}{}","pid":{},"tid":{},"ts":{},"args":{{"{}":{}}}}})",
                      what, of, rank, model_.module, microseconds(now_), what, value));
  }

  // How long all of them took.
  Nanoseconds add_phases(const WorkerRecord& w, std::uint64_t step) {
    PhaseSpans spans(*this, w, step);
    spans.add_passes();
    for (const Phase phase : {Phase::kReduction, Phase::kRest, Phase::kOptimizer}) {
      spans.add(phase, nanoseconds(w.times.of(phase)));
    }
    return spans.length();
  }

  // The phases of one worker's step, one after the other.
  class PhaseSpans {
   public:
    PhaseSpans(TraceWriter& writer, const WorkerRecord& worker, std::uint64_t step)
        : writer_(writer), worker_(worker), step_(step) {}

    Nanoseconds length() const { return length_; }

    void add(Phase phase, Nanoseconds duration, const std::string& more_args = "") {
      if (duration == 0) return;
      writer_.event(fmt::format(
          R"({{"ph":"X","name":"{}","pid":{},"tid":{},"ts":{},"dur":{},"args":{{"step":{}{}}}}})",
          to_string(phase), worker_.rank, writer_.model_.module,
          microseconds(writer_.now_ + length_), microseconds(duration), step_, more_args));
      length_ += duration;
    }

    // Data, forward and backward: of each micro-batch where they are known, then what is left.
    void add_passes() {
      std::array left = {nanoseconds(worker_.times.of(Phase::kData)),
                         nanoseconds(worker_.times.of(Phase::kForward)),
                         nanoseconds(worker_.times.of(Phase::kBackward))};
      const auto& micro = worker_.times.micro;
      for (std::size_t m = 0; m < micro.size(); ++m) {
        const bool last = m + 1 == micro.size();
        const std::array parts = {micro[m].data, micro[m].forward, micro[m].backward};
        for (std::size_t p = 0; p < left.size(); ++p) {
          const Nanoseconds taken = part_of(left[p], nanoseconds(parts[p]), last);
          add(static_cast<Phase>(p), taken, fmt::format(R"(,"micro_batch":{})", m));
          left[p] -= taken;
        }
      }
      for (std::size_t p = 0; p < left.size(); ++p) add(static_cast<Phase>(p), left[p]);
    }

   private:
    // Times of micro-batches are rounded: the last one takes what that leaves.
    static Nanoseconds part_of(Nanoseconds left, Nanoseconds part, bool last) {
      const bool rounded = last && std::abs(left - part) < kPerMicrosecond;
      return rounded ? left : std::min(left, part);
    }

    TraceWriter& writer_;
    const WorkerRecord& worker_;
    std::uint64_t step_;
    Nanoseconds length_ = 0;
  };

  // Those that begin at this step or before.
  void mark_findings(std::uint64_t step) {
    while (!findings_.empty() && findings_.front().first_step <= step) {
      mark(findings_.front());
      findings_ = findings_.subspan(1);
    }
  }

  void mark(const Finding& found) {
    Json out = {{"ph", "i"},
                {"s", "p"},
                {"cat", "finding"},
                {"name", found.title},
                {"ts", static_cast<double>(now_) / kPerMicrosecond},
                {"pid", 0},
                {"tid", model_.module},
                {"args",
                 {{"check", found.check},
                  {"severity", to_string(found.severity)},
                  {"step", found.first_step},
                  {"ranks", found.ranks},
                  {"remedy", found.remedy}}}};
    for (const std::uint32_t rank : found.ranks) {
      out["pid"] = rank;
      event(json_line(out));
    }
    if (!found.ranks.empty()) return;
    out["s"] = "g";  // of all
    event(json_line(out));
  }

  const Contents& contents_;
  std::ostream& out_;
  bool first_ = true;
  ModelKey model_ = {};
  std::span<const Finding> findings_;  // of the model, those that are not marked yet
  Nanoseconds now_ = 0;                // where the next step begins
  Nanoseconds segment_begin_ = 0;
  Nanoseconds segment_end_ = 0;
};

Status write_model(const RunLog& log, const ModelKey& model, TraceWriter& writer) {
  writer.begin_model(model);
  PRESUM_ASSIGN(auto cursor, log.cursor(model));
  while (writer.can_write()) {
    PRESUM_ASSIGN(const StepRecord* step, cursor.next());
    if (step == nullptr) break;
    writer.add(*step);
  }
  writer.end_model();
  return {};
}

}  // namespace

Status write_trace(const RunLog& log, std::ostream& out) {
  PRESUM_ASSIGN(const auto contents, contents_of(log));
  if (contents.models.empty()) {
    return fail(ErrorCode::kNotFound,
                fmt::format("{} has no times of steps, so there is nothing to draw", log.name()));
  }
  TraceWriter writer(contents, out);
  writer.begin(log.name());
  for (const auto& [model, ranks] : contents.models) {
    PRESUM_TRY(write_model(log, model, writer));
  }
  writer.end();
  return {};
}

}  // namespace presum::cli
