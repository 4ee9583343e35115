// SPDX-License-Identifier: Apache-2.0
#include "report/report.h"

#include <gtest/gtest.h>

#include <array>

#include "judge/testing.h"

namespace presum::report {
namespace {

using testing::Recorded;
using testing::RunOnDisk;
using testing::step_record;

using testing::TempFolder;

std::string page_of(RunOnDisk& run) {
  std::vector<RunLog> logs;
  logs.push_back(run.log());
  auto html = page(logs);
  EXPECT_TRUE(html) << html.error().message;
  return *html;
}

std::size_t occurrences(const std::string& text, const std::string& what) {
  std::size_t count = 0;
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

// The page's own text. Its data is removed: tags cannot occur there, but quoted code may contain
// "src=".
std::string without_data(std::string html) {
  const std::string mark = R"(id="presum-data">)";
  const auto begin = html.find(mark) + mark.size();
  return html.erase(begin, html.find("</script>", begin) - begin);
}

TEST(Page, HoldsItsLibraryAndLoadsNothing) {
  Recorded run(2, 1);
  const auto html = page_of(run);
  EXPECT_TRUE(html.starts_with("<!DOCTYPE html>"));
  EXPECT_NE(html.find("default-src 'none'"), std::string::npos);
  EXPECT_NE(html.find("Dygraph"), std::string::npos);
  EXPECT_NE(html.find("Permission is hereby granted"), std::string::npos);
  for (const char* loads : {" src=", "<link", "@import", "url("}) {
    EXPECT_EQ(without_data(html).find(loads), std::string::npos) << loads;
  }
  EXPECT_LT(html.size(), 300'000U);
}

TEST(Page, StringsOfARunCannotLeaveTheData) {
  TempFolder folder;
  const std::string hostile = "</script><script>alert(1)</script><!--";
  RunOnDisk plain(folder / "plain", "text", 2);
  RunOnDisk run(folder / "<!--<script>", hostile, 2);
  run.add(step_record(run.segment(), 0, 2));
  plain.add(step_record(plain.segment(), 0, 2));
  const auto html = page_of(run);
  const auto expected = page_of(plain);
  EXPECT_EQ(html.find("alert(1)</script>"), std::string::npos);
  for (const char* tag : {"<script", "</script", "<!--"}) {
    EXPECT_EQ(occurrences(html, tag), occurrences(expected, tag)) << tag;
  }
}

TEST(Page, DamageIsAnError) {
  TempFolder folder;
  {
    RunOnDisk run(folder / "run", "text", 4);
    for (std::uint64_t s = 0; s < 600; ++s) run.add(step_record(run.segment(), s, 4));
    run.log();
  }
  const auto file = folder / "run" / "presum.db";
  auto bytes = testing::read_file(file);
  const auto half = static_cast<std::ptrdiff_t>(bytes.size() / 2);  // the schema comes first
  std::fill(bytes.begin() + half, bytes.end(), '\x5A');
  testing::write_file(file, bytes);
  auto log = RunLog::open(folder / "run");
  ASSERT_TRUE(log);
  std::array<RunLog, 1> logs = {std::move(*log)};
  const auto html = page(logs);
  ASSERT_FALSE(html);
  EXPECT_EQ(html.error().code, ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace presum::report
