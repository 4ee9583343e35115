// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/cli.h"

namespace presum::cli {
namespace {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

struct Outcome {
  int code = 0;
  std::string out;
  std::string err;
};

Outcome audit(Words words) {
  words.insert(words.begin(), "audit");
  std::ostringstream out;
  std::ostringstream err;
  const int code = main(words, out, err);
  return {code, out.str(), err.str()};
}

class AuditVerb : public testing::Test {
 protected:
  AuditVerb() { std::filesystem::create_directories(folder_); }
  ~AuditVerb() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  template <class T>
  std::string npy_of(const std::string& name, const char* descr,
                     const std::vector<T>& values) const {
    std::ostringstream text;
    text << "{'descr': '" << descr << "', 'fortran_order': False, 'shape': (" << values.size()
         << ",), }";
    const std::string header = text.str();
    const auto length = static_cast<std::uint16_t>(header.size());
    std::ofstream out(path(name), std::ios::binary);
    out << "\x93NUMPY" << '\x01' << '\0';
    out.write(reinterpret_cast<const char*>(&length), 2);
    out << header;
    out.write(reinterpret_cast<const char*>(values.data()),
              static_cast<std::streamsize>(values.size() * sizeof(T)));
    return path(name);
  }
  std::string npy(const std::string& name, const std::vector<float>& values) const {
    return npy_of(name, "<f4", values);
  }
  // As two raw bytes an element.
  std::string bf16(const std::string& name, const std::vector<float>& values) const {
    std::vector<std::uint16_t> words;
    for (const float x : values) {
      words.push_back(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16));
    }
    return npy_of(name, "|V2", words);
  }

  // One tensor of a single zero.
  std::string safetensors(const std::string& name, const std::string& tensor) const {
    const std::string header =
        "{\"" + tensor + R"(":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
    const std::uint64_t length = header.size();
    std::ofstream out(path(name), std::ios::binary);
    out.write(reinterpret_cast<const char*>(&length), 8);
    out << header << std::string(4, '\0');
    return path(name);
  }

  // Files of four workers.
  Words workers(std::size_t count) {
    Words files;
    for (int w = 0; w < 4; ++w) {
      std::vector<float> values;
      for (std::size_t i = 0; i < count; ++i) {
        values.push_back(1.F /
                         static_cast<float>(3 + (i * 7 + static_cast<std::size_t>(w) * 5) % 101));
      }
      values_.push_back(values);
      files.push_back(npy(std::string(1, static_cast<char>('a' + w)), values));
    }
    return files;
  }
  // Their mean, as ((0 + 1) + 2) + 3.
  std::vector<float> mean() const {
    std::vector<float> out;
    for (std::size_t i = 0; i < values_[0].size(); ++i) {
      out.push_back((((values_[0][i] + values_[1][i]) + values_[2][i]) + values_[3][i]) / 4);
    }
    return out;
  }

 private:
  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("presum_audit_" + std::to_string(getpid()));
  std::vector<std::vector<float>> values_;
};

TEST_F(AuditVerb, ShowsWhatOrdersChangeAndThatTheExactSumDoesNot) {
  const Outcome run = audit({"--elements", "2e4", "--workers", "8"});
  EXPECT_EQ(run.code, kOk) << run.err;
  EXPECT_NE(run.out.find("gradients fp32 values of 8 workers, seed 1, 20,000 elements"),
            std::string::npos);
  EXPECT_NE(run.out.find("of the elements change; of the exact sum none."), std::string::npos);
  EXPECT_NE(run.out.find("8 x 1 | 4 x 2"), std::string::npos);
  EXPECT_EQ(run.err, "");
}

TEST_F(AuditVerb, WritesJsonForEveryDtypeAndDistribution) {
  for (const char* dtype : {"fp32", "fp64", "bf16", "fp16"}) {
    for (const char* distribution : {"gradients", "gaussian", "lognormal", "wide"}) {
      const Outcome run = audit({"--elements", "3000", "--workers", "4", "--dtype", dtype,
                                 "--distribution", distribution, "--format", "json"});
      ASSERT_EQ(run.code, kOk) << run.err;
      const Json json = Json::parse(run.out);
      EXPECT_EQ(json["dtype"], dtype);
      EXPECT_EQ(json["ways"].back()["way"], "exact");
      EXPECT_EQ(json["ways"].back()["differing"], 0);
      EXPECT_EQ(json["changes"].back()["elements"], 0);
    }
  }
}

TEST_F(AuditVerb, DrawsAPageThatLoadsNothing) {
  const Outcome run = audit({"--elements", "5000", "-o", path("audit.html")});
  EXPECT_EQ(run.code, kOk);
  std::ifstream in(path("audit.html"));
  const std::string html{std::istreambuf_iterator<char>(in), {}};
  EXPECT_NE(html.find("<svg"), std::string::npos);
  EXPECT_EQ(html.find("<script"), std::string::npos);
  EXPECT_EQ(html.find("http:"), std::string::npos);
  EXPECT_EQ(html.find("https:"), std::string::npos);
}

// An fp32 sum in 16 bits is up to 2^31 ulps off: ten digits push the last column out of the page.
TEST_F(AuditVerb, WritesLargeDistancesOfThePageAsPowers) {
  EXPECT_EQ(audit({"--elements", "5000", "-o", path("audit.html")}).code, kOk);
  std::ifstream in(path("audit.html"));
  const std::string html{std::istreambuf_iterator<char>(in), {}};
  std::size_t digits = 0;
  std::size_t longest = 0;
  for (const char c : html.substr(html.find("<tbody>"))) {
    digits = c >= '0' && c <= '9' ? digits + 1 : 0;
    longest = std::max(longest, digits);
  }
  EXPECT_LE(longest, 5U);
}

TEST_F(AuditVerb, SaysHowAResultWasMade) {
  Words words = workers(20'000);
  words.insert(words.end(), {"--result", npy("r.npy", mean()), "--format", "json"});
  const Outcome run = audit(words);
  EXPECT_EQ(run.code, kOk) << run.err;
  const Json result = Json::parse(run.out)["result"];
  EXPECT_EQ(result["operation"], "mean");
  EXPECT_EQ(result["order"], "sequential");
  EXPECT_EQ(result["accumulation"], "fp32");
  EXPECT_EQ(result["wrong"], 0);
}

TEST_F(AuditVerb, EndsWithOneWhereElementsAreNoSums) {
  Words words = workers(20'000);
  auto values = mean();
  std::fill(values.end() - 100, values.end(), 0.F);
  words.insert(words.end(), {"--result", npy("r.npy", values)});
  const Outcome run = audit(words);
  EXPECT_EQ(run.code, kFindings);
  EXPECT_NE(run.out.find("FINDING: 100 of 20,000 elements are further off than rounding explains"),
            std::string::npos)
      << run.out;
}

TEST_F(AuditVerb, TellsASumFromAMeanByAllElements) {
  Words words = workers(90'000);
  auto sum = mean();
  for (float& x : sum) x *= 4;
  std::fill(sum.begin(), sum.begin() + 40'000, 0.F);  // nearer to the mean
  words.insert(words.end(), {"--result", npy("r.npy", sum), "--format", "json"});
  EXPECT_EQ(Json::parse(audit(words).out)["result"]["operation"], "sum");
}

TEST_F(AuditVerb, ComparesTensorsOfOneNameOnly) {
  const auto one = safetensors("1.safetensors", "a");
  const auto two = safetensors("2.safetensors", "a");
  EXPECT_EQ(audit({one, two, "--result", safetensors("r.safetensors", "a")}).code, kOk);
  const Outcome run = audit({one, two, "--result", safetensors("r.safetensors", "b")});
  EXPECT_EQ(run.code, kNoVerdict);
  EXPECT_TRUE(run.err.ends_with("tensors a and b\n")) << run.err;
}

// Results that are no reduction of the workers' gradients.
TEST_F(AuditVerb, SaysWhatIsNoSumAndNoMean) {
  const Words files = workers(20'000);
  const auto told = [&](const std::vector<float>& values, const std::string& what) {
    Words words = files;
    words.insert(words.end(), {"--result", npy("r.npy", values)});
    const Outcome run = audit(words);
    EXPECT_EQ(run.code, kFindings);
    EXPECT_NE(run.out.find(what), std::string::npos) << run.out;
    EXPECT_EQ(run.out.find(", added in"), std::string::npos);
    EXPECT_EQ(run.out.find("accumulated"), std::string::npos);
    words.insert(words.end(), {"--format", "json"});
    const Json result = Json::parse(audit(words).out)["result"];
    EXPECT_EQ(result["operation"], "unknown");
    EXPECT_EQ(result["accumulation"], "unknown");
    EXPECT_EQ(result["order"], "unknown");
    return result;
  };
  std::vector<float> other;
  for (std::size_t i = 0; i < 20'000; ++i) other.push_back(std::sin(static_cast<float>(i * i)));
  told(other, "r.npy: not the sum or mean of these gradients\n");
  told(other, " of the elements are further off than any order or format explains\n");
  told(std::vector<float>(20'000, std::nanf("")), "100 % of the elements are NaN or infinite\n");
  std::vector<float> own;
  for (std::size_t i = 0; i < 20'000; ++i) {
    own.push_back(1.F / static_cast<float>(3 + (i * 7 + 10) % 101));
  }
  const Json result = told(
      own, "the gradients of worker 2 alone, not the sum or mean of all\nFINDING: nothing was");
  EXPECT_EQ(result["copy_of"], 2);
}

// bf16 gradients whose sum was kept in fp32, as two raw bytes.
TEST_F(AuditVerb, TakesAResultInAWiderFormatThanTheGradients) {
  Words words;
  std::vector<float> sum(20'000);
  for (int w = 0; w < 4; ++w) {
    std::vector<float> values;
    for (std::size_t i = 0; i < sum.size(); ++i) {
      const float x = 1.F / static_cast<float>(3 + (i * 7 + static_cast<std::size_t>(w) * 5) % 101);
      values.push_back(std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) & 0xFFFF0000U));
      sum[i] += values.back();
    }
    words.push_back(bf16(std::string(1, static_cast<char>('a' + w)), values));
  }
  words.insert(words.end(), {"--dtype", "bf16", "--result", npy("r.npy", sum), "--format", "json"});
  const Outcome run = audit(words);
  EXPECT_EQ(run.code, kOk) << run.out << run.err;
  const Json json = Json::parse(run.out);
  EXPECT_EQ(json["dtype"], "fp32");
  EXPECT_EQ(json["result"]["operation"], "sum");
  EXPECT_EQ(json["result"]["accumulation"], "fp32");
  EXPECT_EQ(json["result"]["wrong"], 0);
}

TEST_F(AuditVerb, RefusesAResultThatIsNarrowerThanTheGradients) {
  Words words = workers(10);
  words.insert(words.end(), {"--result", bf16("r.npy", std::vector<float>(10)), "--dtype", "fp32"});
  const Outcome run = audit(words);
  EXPECT_EQ(run.code, kNoVerdict);
  EXPECT_NE(
      run.err.find("r.npy: holds bf16, which does not hold sums of fp32 gradients; give what"),
      std::string::npos)
      << run.err;
}

TEST_F(AuditVerb, NoticesBeforeItComputesThatAPageCannotBeWritten) {
  for (const std::string& page :
       {path("nowhere/audit.html"), path(""), path("r.npy"), std::string("/dev/null")}) {
    npy("r.npy", {1});
    const Outcome run = audit({"--elements", "1e12", "-o", page});  // for ever
    EXPECT_EQ(run.code, kNoVerdict);
    EXPECT_TRUE(run.err.starts_with("presum audit: cannot write " + page)) << run.err;
  }
}

TEST_F(AuditVerb, SaysThatZerosDoNotTell) {
  const std::vector<float> zeros(100);
  const Words words = {npy("x", zeros), npy("y", zeros), "--result", npy("r", zeros)};
  const Outcome run = audit(words);
  EXPECT_EQ(run.code, 0);
  EXPECT_NE(run.out.find("r: a sum or a mean: these elements do not tell which, nor how\n"),
            std::string::npos)
      << run.out;
  EXPECT_EQ(run.out.find("reproduces"), std::string::npos);
  Words json = words;
  json.insert(json.end(), {"--format", "json"});
  EXPECT_EQ(Json::parse(audit(json).out)["result"]["operation"], "unknown");
}

TEST_F(AuditVerb, ThePageOfAResultAnswersWhatBecameOfIt) {
  Words words = workers(20'000);
  words.insert(words.end(), {"--result", npy("r.npy", mean()), "-o", path("audit.html")});
  ASSERT_EQ(audit(words).code, kOk);
  std::ifstream in(path("audit.html"));
  const std::string html{std::istreambuf_iterator<char>(in), {}};
  EXPECT_NE(html.find("<h1>What did your all-reduce do?</h1>"), std::string::npos);
  EXPECT_NE(html.find("a mean, added in fp32, in the order &quot;sequential&quot;"),
            std::string::npos);
  EXPECT_NE(html.find("<h2>Which arithmetic gives these bits</h2>"), std::string::npos);
  EXPECT_NE(html.find(">sequential in fp32, after-divide<"), std::string::npos);
  EXPECT_EQ(html.find("2^"), std::string::npos);
  EXPECT_NE(html.find("×10⁻"), std::string::npos);
}

TEST_F(AuditVerb, RefusesBadUseInOneLine) {
  const auto refused = [](const Words& words) {
    const Outcome run = audit(words);
    EXPECT_EQ(run.code, kNoVerdict);
    EXPECT_EQ(run.out, "");
    EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1);
    return run.err;
  };
  EXPECT_EQ(refused({"--dtype", "int8"}), "presum audit: --dtype is fp32, fp64, bf16 or fp16\n");
  EXPECT_EQ(refused({"--elements", "0"}),
            "presum audit: --elements is a whole number from 1 to 1e12\n");
  EXPECT_EQ(refused({"--elements", "nan"}),
            "presum audit: --elements is a whole number from 1 to 1e12\n");
  EXPECT_EQ(refused({"--elements", "1.5"}),
            "presum audit: --elements is a whole number from 1 to 1e12\n");
  EXPECT_EQ(refused({"--elements", "-3"}),
            "presum audit: --elements is a whole number from 1 to 1e12\n");
  EXPECT_NE(refused({"--seed", "-1"}).find("--seed"), std::string::npos);
  EXPECT_NE(refused({"--workers", "2.5"}).find("--workers"), std::string::npos);
  EXPECT_NE(refused({"--workers", "-2"}).find("--workers"), std::string::npos);
  EXPECT_EQ(refused({"--workers", "5000"}),
            "presum audit: 5000 workers (1 to 1024 are possible)\n");
  EXPECT_EQ(refused({"--workers", "0"}), "presum audit: 0 workers (1 to 1024 are possible)\n");
  EXPECT_EQ(refused({"--result", "r.npy"}),
            "presum audit: --result needs the files of the workers' gradients\n");
  EXPECT_EQ(refused({"nowhere.npy"}), "presum audit: nowhere.npy: no such file\n");
  EXPECT_TRUE(refused({npy("0.npy", {}), npy("1.npy", {}), "--result", npy("2.npy", {})})
                  .ends_with("0.npy: no elements to judge\n"));
  Words words = workers(10);
  EXPECT_NE(refused({words[0]}).find("one worker's values"), std::string::npos);
  Words both = words;
  both.insert(both.end(), {"--elements", "100", "--workers", "4"});
  EXPECT_EQ(refused(both),
            "presum audit: --workers, --elements is of made-up gradients; with files leave it "
            "out\n");
  words.insert(words.end(), {"--result", npy("r.npy", {1, 2})});
  EXPECT_NE(refused(words).find("2 elements, and every worker has 10"), std::string::npos);
}

}  // namespace
}  // namespace presum::cli
