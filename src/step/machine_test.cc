// SPDX-License-Identifier: Apache-2.0
#include "step/machine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace presum::step {
namespace {

// States by enumerator; actions by bit.
constexpr std::array<std::string_view, 5> kStates = {"empty", "pass", "reducing", "window",
                                                     "reduced"};
constexpr std::array<std::string_view, 9> kEvents = {"forward",  "pass",           "reducing pass",
                                                     "pass end", "part end",       "reduction",
                                                     "zeroed",   "optimizer step", "closed"};
constexpr std::array<std::string_view, 7> kActions = {"fail",   "end",       "unreduced", "drop",
                                                      "number", "take back", "count"};

std::string trimmed(const std::string& text) {
  const auto begin = text.find_first_not_of(' ');
  return begin == std::string::npos ? ""
                                    : text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> out;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, at);) out.push_back(trimmed(part));
  return out;
}

struct Cell {
  std::string to;
  std::set<std::string> actions;
};
// By state and event, as in docs/step.md.
using Table = std::map<std::pair<std::string, std::string>, Cell>;

Table documented() {
  std::ifstream in(PRESUM_STEP_DOC);
  Table out;
  std::vector<std::string> states;
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] != '|') continue;
    const auto cells = split(line.substr(1), '|');
    if (states.empty()) {
      states.assign(cells.begin() + 1, cells.end());
      continue;
    }
    if (cells[0].starts_with("---")) continue;
    for (std::size_t i = 1; i < cells.size(); ++i) {
      const auto parts = split(cells[i], ':');
      Cell cell{parts[0], {}};
      if (parts.size() > 1) {
        for (const std::string& action : split(parts[1], ',')) cell.actions.insert(action);
      }
      out[{states[i - 1], cells[0]}] = cell;
    }
  }
  return out;
}

TEST(Machine, IsTheTableOfTheDocument) {
  const Table table = documented();
  ASSERT_EQ(table.size(), kStates.size() * kEvents.size());
  for (std::size_t s = 0; s < kStates.size(); ++s) {
    for (std::size_t e = 0; e < kEvents.size(); ++e) {
      const auto at = table.find({std::string(kStates[s]), std::string(kEvents[e])});
      ASSERT_NE(at, table.end()) << kStates[s] << ", " << kEvents[e];
      const auto found = transition(static_cast<State>(s), static_cast<Event>(e));
      EXPECT_EQ(kStates[static_cast<std::size_t>(found.to)], at->second.to)
          << kStates[s] << ", " << kEvents[e];
      std::set<std::string> actions;
      for (std::size_t a = 0; a < kActions.size(); ++a) {
        if ((found.actions >> a & 1U) != 0) actions.emplace(kActions[a]);
      }
      EXPECT_EQ(actions, at->second.actions) << kStates[s] << ", " << kEvents[e];
    }
  }
}

// A slow, literal implementation of the document: it keeps the whole history and recounts it each
// time.
class Reading {
 public:
  explicit Reading(const Table& table) : table_(table) {}

  struct Step {
    bool reduced;
    std::size_t reductions;  // before it
    std::size_t windows;     // windows that ended since the last reduction, before it
    std::size_t unreduced;   // steps before it
    std::size_t passes;
    bool whole;
  };

  void on(const std::string& event) {
    const Cell cell = table_.at({state_, event});
    const auto does = [&](const char* action) { return cell.actions.contains(action); };
    if (does("fail")) log_.push_back("failed");
    if (does("end")) leave("end");
    if (does("unreduced")) passes() > 0 ? leave("unreduced") : leave("nothing");
    if (does("drop")) leave(passes() > 0 ? "drop" : "nothing");
    if (does("number")) log_.push_back("reduction");
    if (does("take back"))
      log_.erase(std::next(std::find(log_.rbegin(), log_.rend(), "reduction")).base());
    if (does("count")) log_.push_back("pass");
    state_ = cell.to;
  }
  const std::string& state() const { return state_; }
  const std::vector<Step>& steps() const { return steps_; }

 private:
  static bool leaves(const std::string& entry) {
    return entry == "end" || entry == "unreduced" || entry == "drop" || entry == "nothing";
  }
  std::size_t count(const std::string& what) const {
    return static_cast<std::size_t>(std::ranges::count(log_, what));
  }
  std::vector<std::string> window() const {
    const auto last = std::find_if(log_.rbegin(), log_.rend(), leaves);
    return {last.base(), log_.end()};
  }
  std::size_t passes() const {
    const auto now = window();
    return static_cast<std::size_t>(std::ranges::count(now, "pass"));
  }
  void leave(const std::string& how) {
    const auto now = window();
    const bool reduced = how == "end";
    std::size_t windows = 0;
    for (auto at = log_.rbegin(); at != log_.rend() && *at != "reduction"; ++at) {
      windows += *at == "unreduced" || *at == "drop";
    }
    if (how == "end" || how == "unreduced") {
      steps_.push_back({reduced, count("reduction") - (reduced ? 1 : 0), windows,
                        count("unreduced"), passes(),
                        std::ranges::find(now, "failed") == now.end()});
    }
    log_.push_back(how);
  }

  const Table& table_;
  std::string state_ = "empty";
  std::vector<std::string> log_;
  std::vector<Step> steps_;
};

// Runs 1e6 sequences if PRESUM_DEEP is set (make test-deep).
TEST(Machine, AgreesWithALiteralReadingOnAnySequenceOfEvents) {
  const Table table = documented();
  std::mt19937_64 random(7);
  const int sequences = std::getenv("PRESUM_DEEP") != nullptr ? 1'000'000 : 20'000;
  for (int sequence = 0; sequence < sequences; ++sequence) {
    Machine machine;
    Reading reading(table);
    std::vector<Ended> ended;
    const std::uint64_t length = 1 + random() % 60;
    for (std::uint64_t i = 0; i < length; ++i) {
      const std::size_t event = random() % kEvents.size();
      machine.on(static_cast<Event>(event), [&](const Ended& step) { ended.push_back(step); });
      reading.on(std::string(kEvents[event]));
      ASSERT_EQ(kStates[static_cast<std::size_t>(machine.state())], reading.state());
    }
    ASSERT_EQ(ended.size(), reading.steps().size());
    for (std::size_t i = 0; i < ended.size(); ++i) {
      const Reading::Step& expected = reading.steps()[i];
      ASSERT_EQ(ended[i].number.is_reduced(), expected.reduced);
      ASSERT_EQ(ended[i].number.reductions, expected.reductions);
      if (!expected.reduced) {
        ASSERT_EQ(ended[i].number.window, expected.windows);
      }
      ASSERT_EQ(ended[i].number.unreduced, expected.unreduced);
      ASSERT_EQ(ended[i].passes, expected.passes);
      ASSERT_EQ(ended[i].whole, expected.whole);
    }
  }
}

}  // namespace
}  // namespace presum::step
