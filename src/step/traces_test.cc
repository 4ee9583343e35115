// SPDX-License-Identifier: Apache-2.0
// Replays torch's events for some shapes of training (tests/shapes/) without torch, and expects the
// same ended steps.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "packet/packet.h"
#include "step/steps.h"

namespace presum::step {
namespace {

using Words = std::vector<std::string>;

std::vector<Words> lines_of(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::vector<Words> out;
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    out.emplace_back();
    for (std::string word; words >> word;) out.back().push_back(word);
  }
  return out;
}

double number(const Words& words, std::size_t at) { return std::stod(words.at(at)); }
std::uint64_t count(const Words& words, std::size_t at) { return std::stoull(words.at(at)); }
std::optional<Number> maybe(const Words& words, std::size_t at) {
  if (words.at(at) == "-") return std::nullopt;
  return number(words, at);
}

Steps started(const Words& words) {
  const Settings settings{.every = count(words, 1),
                          .reduced_every = count(words, 2),
                          .knows_optimizer = count(words, 3) != 0};
  std::vector<Parameter> parameters(16);
  for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].name = fmt::format("p{}", i);
  return std::move(*Steps::create({}, parameters, settings));
}

using Event = void (*)(Steps&, const Words&);
const std::map<std::string, Event> kReplayed = {
    {"forward", [](Steps& s, const Words& w) { s.forward(w.size() > 1 ? number(w, 1) : 0.0); }},
    {"enter_wrapper", [](Steps& s, const Words&) { s.enter_wrapper(); }},
    {"enter_module", [](Steps& s, const Words& w) { EXPECT_EQ(s.enter_module(), w.at(1) == "1"); }},
    {"reached",
     [](Steps& s, const Words& w) {
       s.reached(count(w, 1), {.loss = maybe(w, 2), .tokens = number(w, 3), .share = maybe(w, 4)});
     }},
    {"forget_reached", [](Steps& s, const Words&) { s.forget_reached(); }},
    {"pass_begins",
     [](Steps& s, const Words& w) {
       const auto read =
           s.pass_begins({count(w, 1) != 0, count(w, 2) != 0, count(w, 3) != 0, number(w, 4)});
       EXPECT_EQ(static_cast<std::uint64_t>(read), count(w, 5));
     }},
    {"pass_ends",
     [](Steps& s, const Words& w) {
       s.pass_ends({{}, maybe(w, 2), number(w, 1), number(w, 3), number(w, 4)}, count(w, 5) != 0);
     }},
    {"reduction", [](Steps& s, const Words&) { s.reduction(); }},
    {"shadow", [](Steps& s, const Words&) { s.shadow(); }},
    {"arrives", [](Steps&, const Words&) {}},  // the trace does not say which parameters were seen
    {"zeroed", [](Steps& s, const Words& w) { s.zeroed(count(w, 1) != 0); }},
    {"optimizer_begins", [](Steps& s, const Words&) { s.optimizer_begins(); }},
    {"optimizer_fails", [](Steps& s, const Words&) { s.optimizers().fail(); }},
    {"optimizer_steps", [](Steps& s, const Words& w) { s.optimizer_steps(count(w, 1)); }},
    {"closed", [](Steps& s, const Words&) { s.closed(); }},
    {"loss", [](Steps& s, const Words& w) { s.loss(number(w, 1), number(w, 2), count(w, 3)); }},
};

void expect_step(Steps& steps, const Words& words) {
  auto ended = steps.take_ended();
  ASSERT_TRUE(ended);
  const auto step = std::get<packet::Step>(*packet::decode(ended->packet().bytes));
  EXPECT_EQ(step.header.step, count(words, 1));
  EXPECT_EQ(step.number.window, count(words, 2));
  EXPECT_EQ(step.number.unreduced, count(words, 3));
  EXPECT_EQ(static_cast<std::uint64_t>(step.use), count(words, 4));
  EXPECT_EQ(step.optimizer_step, count(words, 5));
  EXPECT_EQ(step.micro_batches, count(words, 6));
  ASSERT_EQ(step.micro.size() + 7, words.size());
  for (std::size_t i = 0; i < step.micro.size(); ++i) {
    const double loss = number(words, 7 + i);
    EXPECT_TRUE(step.micro[i].loss == loss || (std::isnan(loss) && std::isnan(step.micro[i].loss)));
  }
}

std::vector<std::string> names() {
  std::vector<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(PRESUM_STEP_TRACES)) {
    out.push_back(entry.path().stem().string());
  }
  std::ranges::sort(out);
  return out;
}

class Trace : public testing::TestWithParam<std::string> {};

TEST_P(Trace, EndsInTheSameSteps) {
  const auto path = std::filesystem::path(PRESUM_STEP_TRACES) / fmt::format("{}.txt", GetParam());
  std::optional<Steps> steps;
  std::size_t ended = 0;
  for (const Words& words : lines_of(path)) {
    if (words.at(0) == "settings") {
      steps.emplace(started(words));
      continue;
    }
    ASSERT_TRUE(steps);
    if (words[0] == "step") {
      ASSERT_NO_FATAL_FAILURE(expect_step(*steps, words));
      ++ended;
      continue;
    }
    const auto event = kReplayed.find(words[0]);
    ASSERT_NE(event, kReplayed.end()) << words[0];
    ASSERT_FALSE(steps->take_ended()) << "before " << words[0];
    event->second(*steps, words);
  }
  EXPECT_GT(ended, 0U);
}

INSTANTIATE_TEST_SUITE_P(Shapes, Trace, testing::ValuesIn(names()), [](const auto& name) {
  std::string out = name.param;
  std::ranges::replace(out, '-', '_');
  return out;
});

}  // namespace
}  // namespace presum::step
