// SPDX-License-Identifier: Apache-2.0
#include "cli/tail_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/utf8.h"
#include "cli/text.h"
#include "cli/times.h"

namespace presum::cli {
namespace {

constexpr std::size_t kLeast = 4;  // lines that are drawn on any terminal: title, head, a step

std::string with_times(const std::string& columns, const std::string& own,
                       const std::string& slow) {
  return fmt::format("{} {:>9}  {}", columns, own, slow);
}

// The mean over workers, in milliseconds.
std::string own_time(const StepRecord& step) {
  constexpr double kMilliseconds = 1e3;
  MeanTimes mean;
  for (const WorkerRecord& w : step.workers) {
    if (w.times.known()) mean.add(w.times);
  }
  return number(kMilliseconds * mean.own());
}

}  // namespace

void TailTable::add(const StepRecord& step, bool several) {
  quiet_.reset();
  const auto slow = slow_rank(step.workers);
  const auto model = several ? fmt::format(" {:>5}", step.model.module) : "";
  const auto of_slow = slow ? fmt::format("{} x{:.2f}", slow->rank, slow->factor) : "-";
  const auto row = with_times(step_columns(step) + model, own_time(step), of_slow);
  rows_.push_back({.text = row,
                   .severity = slow ? Severity::kWarning : Severity::kInfo,
                   .plain = row.size() - of_slow.size()});
  several_ = several;
  if (rows_.size() > steps_) rows_.pop_front();
}

bool TailTable::show(std::span<const Finding> findings) {
  findings_.assign(findings.begin(), findings.end());
  bool any = false;
  for (const Finding& f : findings) any = told_.is_new(f) || any;
  if (any) quiet_.reset();
  return any;
}

bool TailTable::show(std::span<const StallRecord> stalls) {
  stalls_.assign(stalls.begin(), stalls.end());
  bool any = false;
  for (const StallRecord& s : stalls) any = told_.is_new(s) || any;
  if (any) quiet_.reset();
  return any;
}

// The last stalls, the worst findings, and how the run stands.
std::vector<TailTable::Line> TailTable::lines_below() const {
  constexpr std::size_t kStalls = 3;
  constexpr std::size_t kFindings = 8;
  std::vector<Line> out;
  const std::size_t old = stalls_.size() - std::min(stalls_.size(), kStalls);
  for (const StallRecord& s : std::span(stalls_).subspan(old)) {
    out.push_back({line_of(s), severity_of(s)});
  }
  for (const Finding& f : std::span(findings_).first(std::min(findings_.size(), kFindings))) {
    out.push_back({line_of(f), f.severity});
  }
  if (findings_.size() > kFindings) {
    out.push_back({fmt::format("and {} more: presum findings {}", findings_.size() - kFindings,
                               printable(run_))});
  }
  for (const std::string& note : notes_) out.push_back({"-- " + printable(note)});
  if (quiet_) out.push_back({"-- " + printable(*quiet_)});
  return out;
}

// Of that many lines at most; what is below makes room for one step at least.
std::vector<TailTable::Line> TailTable::frame(std::size_t lines) const {
  const std::string columns = step_header() + (several_ ? " model" : "");
  std::vector<Line> out = {{printable(run_)}, {with_times(columns, "own ms", "slow rank")}};
  auto below = lines_below();
  below.resize(std::min(below.size(), lines - out.size() - 1));
  const std::size_t rows = std::min(rows_.size(), lines - out.size() - below.size());
  out.insert(out.end(), rows_.end() - static_cast<std::ptrdiff_t>(rows), rows_.end());
  std::ranges::move(below, std::back_inserter(out));
  return out;
}

std::string TailTable::drawn(const Line& line, std::size_t columns) {
  const auto shown = cut(line.text, columns);
  const auto plain = cut(shown, line.plain);
  const auto rest = shown.substr(plain.size());
  return std::string(plain) +
         (rest.empty() ? "" : coloured(std::string(rest), line.severity, true));
}

void TailTable::end_look() {
  const TerminalSize size = size_();
  const auto lines = frame(std::max(size.lines, kLeast) - 1);
  std::string text = drawn_ == 0 ? "" : fmt::format("\r\x1b[{}A", drawn_);
  for (const Line& line : lines) {
    text += drawn(line, size.columns) + "\x1b[K\n";
  }
  drawn_ = lines.size();
  out_ << text << "\x1b[J" << std::flush;
}

std::string_view cut(std::string_view text, std::size_t characters) {
  std::size_t bytes = 0;
  for (; characters > 0 && bytes < text.size(); --characters) {
    bytes += std::max<std::size_t>(base::first_character(text.substr(bytes)).bytes, 1);
  }
  return text.substr(0, bytes);
}

}  // namespace presum::cli
