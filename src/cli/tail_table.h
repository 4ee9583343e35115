// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/tail_view.h"

namespace presum::cli {

struct TerminalSize {
  std::size_t columns = 80;
  std::size_t lines = 24;
};

// The last steps, findings and stalls as one table that is drawn again in its place: on a terminal,
// with nothing but ANSI.
class TailTable : public TailView {
 public:
  using SizeFunction = std::function<TerminalSize()>;
  TailTable(std::string run, std::uint64_t steps, std::ostream& out, SizeFunction size)
      : run_(std::move(run)), steps_(steps), out_(out), size_(std::move(size)) {}

  void add(const StepRecord& step, bool several) override;
  void end_steps() override {}
  bool show(std::span<const Finding> findings) override;
  bool show(std::span<const StallRecord> stalls) override;
  void say(const std::string& text) override { notes_.push_back(text); }
  void say_quiet(const std::string& text) override { quiet_ = text; }
  void end_look() override;

 private:
  struct Line {
    std::string text;  // printable
    Severity severity = Severity::kInfo;
    std::size_t plain = 0;  // characters that have no colour all the same
  };
  static std::string drawn(const Line& line, std::size_t columns);
  std::vector<Line> lines_below() const;
  std::vector<Line> frame(std::size_t lines) const;

  std::string run_;
  std::uint64_t steps_;
  std::ostream& out_;
  SizeFunction size_;
  std::deque<Line> rows_;
  bool several_ = false;  // models
  std::vector<Finding> findings_;
  std::vector<StallRecord> stalls_;
  std::vector<std::string> notes_;
  std::optional<std::string> quiet_;
  Told told_;
  std::size_t drawn_ = 0;  // lines of the last frame
};

// The first so many characters.
std::string_view cut(std::string_view text, std::size_t characters);

}  // namespace presum::cli
