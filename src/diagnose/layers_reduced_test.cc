// SPDX-License-Identifier: Apache-2.0
#include "diagnose/layers_reduced.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "diagnose/testing.h"

namespace presum::diagnose {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

using Change = std::function<void(std::vector<LayerReduction>&)>;

// Of ten layers, at steps 0, 25, 50; `change` is what happens to them from step 25 on.
Watched played(const Change& change, std::uint64_t last = 25, RunOptions options = {.workers = 4}) {
  Watched w(options);
  w.play(0, last, [&](StepRecord& r) {
    if (r.step % 25 != 0) return;
    for (std::uint64_t id = 1; id <= 10; ++id) r.layers.push_back({.id = id, .off = 1e-6});
    if (r.step >= 25) change(r.layers);
  });
  return w;
}

void apart(LayerReduction& layer) {
  layer.alike = false;
  layer.off = 1;
  layer.factor = layer.factor_off = kNan;
}

TEST(LayersReduced, MeansAreMeans) {
  EXPECT_TRUE(played([](auto&) {}).findings().empty());
}

TEST(LayersReduced, NamesTheLayerThatIsAMultipleAndTheFactor) {
  Watched w = played([](auto& layers) {
    layers[2].off = 3;
    layers[2].factor = 4;
    layers[2].factor_off = 1e-6;
  });
  ASSERT_EQ(w.ids(), Ids{"reduction-scale"});
  EXPECT_EQ(w.first().first_step, 25U);
  EXPECT_EQ(w.first().ranks.size(), 4U);
  EXPECT_NE(w.first().title.find("4 times"), std::string::npos);
  EXPECT_NE(w.first().title.find("the sum instead of the mean"), std::string::npos);
  EXPECT_EQ(number_of(w.first(), "layers_of"), 10);
  EXPECT_FALSE(text_of(w.first(), "layers").empty());
}

TEST(LayersReduced, WhereAnAuditFoundWrongElementsItSaysSo) {
  Watched w({.workers = 4});
  w.play(0, 25, [](StepRecord& r) {
    if (r.step != 25) return;
    for (std::uint64_t id = 1; id <= 4; ++id) r.layers.push_back({.id = id, .off = 1e-6});
    r.layers[2] = {.id = 3, .off = 1, .factor = 0, .factor_off = 0};
    for (WorkerRecord& x : r.workers) x.audit = AuditRecord{.elements = 100, .wrong = 12};
  });
  EXPECT_EQ(w.ids(), Ids{"reduction-error"});
}

TEST(LayersReduced, NamesWhoIsNotInIt) {
  Watched w = played([](auto& layers) {
    layers[4].off = 0.4;
    layers[4].factor_off = 0.4;
    layers[4].weighed = {{2, 0.001}};
  });
  ASSERT_EQ(w.ids(), Ids{"reduced-gradient-mismatch"});
  EXPECT_EQ(w.first().ranks, RankList{2});
  EXPECT_NE(w.first().title.find("held nothing of rank 2"), std::string::npos);
  Watched turned = played([](auto& layers) { layers[4].weighed = {{2, -1}}; });
  EXPECT_NE(turned.first().title.find("-1 times the part of rank 2"), std::string::npos);
}

TEST(LayersReduced, GroupsThatReducedApart) {
  Watched w = played([](auto& layers) {
    apart(layers[4]);
    layers[4].means_of = {{0, 1}, {2, 3}};
  });
  ASSERT_EQ(w.ids(), Ids{"reduced-gradient-mismatch"});
  EXPECT_EQ(w.first().ranks.size(), 4U);
  EXPECT_EQ(text_of(w.first(), "means_of"), "0-1; 2-3");
}

TEST(LayersReduced, OwnGradientsThatWereKept) {
  const auto kept = [](RankList ranks) {
    return played([ranks](auto& layers) {
      apart(layers[1]);
      layers[1].kept_own = ranks;
    });
  };
  Watched all = kept({0, 1, 2, 3});
  EXPECT_EQ(all.ids(), Ids{"no-reduction"});
  Watched one = kept({2});
  ASSERT_EQ(one.ids(), Ids{"reduced-gradient-mismatch"});
  EXPECT_EQ(one.first().ranks, RankList{2});
}

TEST(LayersReduced, WhatIsSoInEveryLayerIsTheWholeGradients) {
  EXPECT_TRUE(played([](auto& layers) {
                for (auto& layer : layers) {
                  layer.off = 3;
                  layer.factor = 4;
                }
              })
                  .findings()
                  .empty());
  Watched kept = played([](auto& layers) {
    for (auto& layer : layers) layer.kept_own = {0, 1, 2, 3};
  });
  ASSERT_EQ(kept.ids(), Ids{"no-reduction"}) << "of shards no fingerprints tell it";
  EXPECT_NE(kept.first().title.find("nothing was reduced"), std::string::npos);
  EXPECT_EQ(evidence(kept.first(), "distinct_reduced_gradients"), nullptr);
}

TEST(LayersReduced, WhatFitsNothingIsToldWhereItIsInFewLayersAndComesAgain) {
  const auto strange = [](std::size_t many) {
    return [many](auto& layers) {
      for (auto& layer : layers) layer.off = 0.001;  // 16-bit sums
      for (std::size_t i = 0; i < many; ++i) layers[i].off = layers[i].factor_off = 0.5;
    };
  };
  EXPECT_TRUE(played(strange(2), 25).findings().empty()) << "once";
  Watched w = played(strange(2), 50);
  ASSERT_EQ(w.ids(), Ids{"reduced-gradient-mismatch"});
  EXPECT_EQ(w.first().severity, Severity::kInfo);
  EXPECT_TRUE(played(strange(7), 75).findings().empty()) << "compression";
}

TEST(LayersReduced, WhatFitsNothingBesideExactLayersIsToldAtOnce) {
  const auto strange = [](std::size_t many) {
    return [many](auto& layers) {
      for (std::size_t i = 0; i < many; ++i) layers[i].off = layers[i].factor_off = 0.5;
    };
  };
  Watched w = played(strange(2), 25);
  ASSERT_EQ(w.ids(), Ids{"reduced-gradient-mismatch"});
  EXPECT_EQ(w.first().severity, Severity::kWarning);
  EXPECT_TRUE(played(strange(7), 75).findings().empty()) << "compression";
}

TEST(LayersReduced, RoundingIsMeasuredByTheOtherLayers) {
  const auto rounded = [](double of_others, double of_one) {
    return [=](auto& layers) {
      for (auto& layer : layers) layer.off = of_others;
      layers[3].off = of_one;
      layers[3].factor = 1 + of_one;
    };
  };
  EXPECT_TRUE(played(rounded(0.01, 0.07)).findings().empty());
  EXPECT_EQ(played(rounded(0.01, 0.1)).ids(), Ids{"reduction-scale"});
}

}  // namespace
}  // namespace presum::diagnose
