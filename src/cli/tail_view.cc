// SPDX-License-Identifier: Apache-2.0
#include "cli/tail_view.h"

#include <fmt/format.h>

#include "cli/findings_text.h"
#include "cli/text.h"
#include "cli/times.h"

namespace presum::cli {
namespace {

class LineView : public TailView {
 public:
  LineView(std::uint64_t lines, std::ostream& out, bool colour)
      : lines_(lines), out_(out), colour_(colour) {}

  void add(const StepRecord& step, bool several) override {
    const auto slow = slow_rank(step.workers);
    const auto of_slow = slow ? fmt::format("  slow {} x{:.2f}", slow->rank, slow->factor) : "";
    const auto model = several ? fmt::format("  model {}", step.model.module) : "";
    waiting_.push_back(step_columns(step) + model +
                       coloured(of_slow, slow ? Severity::kWarning : Severity::kInfo, colour_));
    // Before the first print only the last lines count.
    if (!printed_ && waiting_.size() > lines_) waiting_.pop_front();
  }

  void end_steps() override {
    if (!printed_) out_ << step_header() << '\n';
    printed_ = true;
    for (const std::string& line : waiting_) out_ << line << '\n';
    waiting_.clear();
  }

  bool show(std::span<const Finding> findings) override {
    bool any = false;
    for (const Finding& found : findings) {
      if (!told_.is_new(found)) continue;
      any = true;
      out_ << coloured(line_of(found), found.severity, colour_) << '\n';
    }
    return any;
  }

  bool show(std::span<const StallRecord> stalls) override {
    bool any = false;
    for (const StallRecord& stall : stalls) {
      if (!told_.is_new(stall)) continue;
      any = true;
      out_ << coloured(line_of(stall), severity_of(stall), colour_) << '\n';
    }
    return any;
  }

  void say(const std::string& text) override { out_ << "-- " << printable(text) << '\n'; }
  void say_quiet(const std::string& text) override { say(text); }
  void end_look() override { out_.flush(); }

 private:
  std::uint64_t lines_;
  std::ostream& out_;
  bool colour_;
  bool printed_ = false;
  std::deque<std::string> waiting_;
  Told told_;
};

}  // namespace

bool Told::is_new(const Finding& f) {
  return findings_.emplace(f.model, f.check, f.ranks, f.first_step).second;
}

bool Told::is_new(const StallRecord& s) {
  return stalls_.emplace(s.segment, s.number, s.harmless, s.over).second;
}

std::string step_header() {
  return fmt::format("{:>9} {:>7} {:>10} {:>10} {:>10} {:>8} {:>8} {:>8}", "step", "ranks", "loss",
                     "+- std", "|g|", "cv", "cosine", "W_eff");
}

std::string step_columns(const StepRecord& step) {
  const std::string ranks = fmt::format("{}/{}", step.workers.size(), step.workers_expected);
  return fmt::format("{:>9} {:>7} {:>10} {:>10} {:>10} {:>8} {:>8} {:>8}", step.step, ranks,
                     number(step.loss_mean), number(step.loss_std), number(step.grad_norm_mean),
                     number(step.grad_norm_cv), number(step.cosine_mean),
                     number(step.effective_workers));
}

std::string line_of(const Finding& found) {
  return fmt::format("{}: {} ({}, {}, from step {})", to_string(found.severity),
                     printable(found.title), printable(found.check), location_text(found),
                     found.first_step);
}

std::string line_of(const StallRecord& stall) {
  return fmt::format("{}: {}", stall.harmless ? "pause" : "stall", stall_text(stall));
}

std::string coloured(const std::string& text, Severity severity, bool colour) {
  if (!colour || severity == Severity::kInfo) return text;
  return fmt::format("\x1b[{}m{}\x1b[0m", severity == Severity::kCritical ? 31 : 33, text);
}

Severity severity_of(const StallRecord& stall) {
  if (stall.harmless) return Severity::kInfo;
  return stall.over || stall.busy ? Severity::kWarning : Severity::kCritical;
}

std::unique_ptr<TailView> line_view(std::uint64_t lines, std::ostream& out, bool colour) {
  return std::make_unique<LineView>(lines, out, colour);
}

}  // namespace presum::cli
