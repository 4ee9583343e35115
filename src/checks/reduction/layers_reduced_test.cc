// SPDX-License-Identifier: Apache-2.0
#include "checks/reduction/layers_reduced.h"

#include <gtest/gtest.h>

#include <functional>

#include "checks/engine/testing.h"

namespace presum::checks {
namespace {

using Change = std::function<void(std::vector<LayerReduction>&)>;

// Ten layers, at steps 0, 25, 50; `change` applies from step 25 on.
Watched reduced(const Change& change, std::uint64_t last = 25) {
  return played({.workers = 4}, last, [&](StepRecord& r) {
    if (r.step % 25 != 0) return;
    for (std::uint64_t id = 1; id <= 10; ++id) r.layers.push_back({.id = id, .off = 1e-6});
    if (r.step >= 25) change(r.layers);
  });
}

void apart(LayerReduction& layer) {
  layer.alike = false;
  layer.off = 1;
  layer.factor = layer.factor_off = kNaN;
}

TEST(LayersReduced, MeansAreMeans) {
  EXPECT_TRUE(reduced([](auto&) {}).findings().empty());
}

TEST(LayersReduced, NamesTheLayerThatIsAMultipleAndTheFactor) {
  Watched w = reduced([](auto& layers) {
    layers[2].off = 3;
    layers[2].factor = 4;
    layers[2].factor_off = 1e-6;
  });
  expect(w, "reduction-scale", {.count = 4, .first_step = 25, .title = "4 times"});
  EXPECT_NE(w.first().title.find("the sum instead of the mean"), std::string::npos);
  EXPECT_EQ(number_of(w.first(), "layers_affected"), 1);
  EXPECT_EQ(number_of(w.first(), "layers_of"), 10);
  EXPECT_FALSE(text_of(w.first(), "layers").empty());
}

TEST(LayersReduced, WhereAnAuditFoundWrongElementsItSaysSo) {
  Watched w = played({.workers = 4}, 25, [](StepRecord& r) {
    if (r.step != 25) return;
    for (std::uint64_t id = 1; id <= 4; ++id) r.layers.push_back({.id = id, .off = 1e-6});
    r.layers[2] = {.id = 3, .off = 1, .factor = 0, .factor_off = 0};
    for (WorkerRecord& x : r.workers) x.audit = AuditRecord{.elements = 100, .wrong = 12};
  });
  EXPECT_EQ(w.ids(), Ids{"reduction-error"});
}

TEST(LayersReduced, NamesWhoIsNotInIt) {
  Watched w = reduced([](auto& layers) {
    layers[4].off = 0.4;
    layers[4].factor_off = 0.4;
    layers[4].weighed = {{2, 0.001}};
  });
  expect(w, "reduced-gradient-mismatch", {.ranks = {2}, .title = "held nothing of rank 2"});
  Watched turned = reduced([](auto& layers) { layers[4].weighed = {{2, -1}}; });
  EXPECT_NE(turned.first().title.find("-1 times the part of rank 2"), std::string::npos);
}

TEST(LayersReduced, GroupsThatReducedApart) {
  Watched w = reduced([](auto& layers) {
    apart(layers[4]);
    layers[4].means_of = {{0, 1}, {2, 3}};
  });
  expect(w, "reduced-gradient-mismatch", {.count = 4});
  EXPECT_EQ(text_of(w.first(), "means_of"), "0-1; 2-3");
}

// Two of three layers are reduced among all ranks, the third in pairs; `change` is an additional
// change.
Watched in_pairs(const Change& change, bool apart_at_first = true) {
  return played({.workers = 4}, 60, [=](StepRecord& r) {
    for (WorkerRecord& w : r.workers) {
      const bool first = w.rank % 2 == 0;
      if (apart_at_first || r.step > 0) w.states[4].value += first ? 1 : 2;
    }
    if (r.step % 25 != 0) return;
    for (WorkerRecord& w : r.workers) w.reduced_fingerprint += w.rank % 2;
    for (std::uint64_t id = 1; id <= 3; ++id) r.layers.push_back({.id = id, .off = 1e-6});
    apart(r.layers[2]);
    r.layers[2].means_of = {{0, 2}, {1, 3}};
    if (r.step >= 25) change(r.layers);
  });
}

TEST(LayersReduced, GroupsThatHoldALayerApartFromTheStartReduceItByDesign) {
  Watched w = in_pairs([](auto&) {});
  ASSERT_EQ(w.ids(), Ids{"reduced-gradient-mismatch"});
  expect(w, "reduced-gradient-mismatch",
         {.count = 4,
          .severity = Severity::kInfo,
          .title = "in groups from the start, and reduced it within these: 0,2; 1,3"});
  EXPECT_EQ(number_of(w.first(), "layers_affected"), 1);
}

TEST(LayersReduced, GroupsWhoseLayerWasEqualAtTheStartDoNot) {
  Watched w = in_pairs([](auto&) {}, false);
  EXPECT_EQ(w.first().severity, Severity::kCritical);
}

TEST(LayersReduced, BesideSuchALayerTheOthersAreJudged) {
  Watched factor = in_pairs([](auto& layers) {
    for (auto& layer : {&layers[0], &layers[1]}) layer->off = layer->factor = 4;
  });
  expect(factor, "reduction-scale",
         {.also = {"reduced-gradient-mismatch"}, .title = "4 times the mean"});
  Watched kept = in_pairs([](auto& layers) {
    for (auto& layer : {&layers[0], &layers[1]}) {
      apart(*layer);
      layer->kept_own = {0, 1, 2, 3};
    }
  });
  EXPECT_EQ(kept.first().severity, Severity::kCritical);
}

TEST(LayersReduced, RanksOfOneGroupHoldOneCopyOfItsLayer) {
  Watched w = played({.workers = 4}, 60, [](StepRecord& r) {
    for (WorkerRecord& x : r.workers) {
      x.states[4].value += x.rank % 2 == 0 ? 1 : 2;
      if (x.rank == 2 && r.step > 30) x.states[4].value += 7;
    }
    if (r.step != 0) return;
    for (std::uint64_t id = 1; id <= 3; ++id) r.layers.push_back({.id = id, .off = 1e-6});
    apart(r.layers[2]);
    r.layers[2].means_of = {{0, 2}, {1, 3}};
  });
  EXPECT_EQ(w.first().check, "parameter-desync");
  EXPECT_EQ(w.first().first_step, 31);
}

TEST(LayersReduced, OwnGradientsThatWereKept) {
  const auto kept = [](RankList ranks) {
    return reduced([ranks](auto& layers) {
      apart(layers[1]);
      layers[1].kept_own = ranks;
    });
  };
  Watched all = kept({0, 1, 2, 3});
  EXPECT_EQ(all.ids(), Ids{"no-reduction"});
  Watched one = kept({2});
  expect(one, "reduced-gradient-mismatch", {.ranks = {2}});
}

TEST(LayersReduced, WhatIsSoInEveryLayerIsTheWholeGradients) {
  EXPECT_TRUE(reduced([](auto& layers) {
                for (auto& layer : layers) {
                  layer.off = 3;
                  layer.factor = 4;
                }
              })
                  .findings()
                  .empty());
  Watched kept = reduced([](auto& layers) {
    for (auto& layer : layers) layer.kept_own = {0, 1, 2, 3};
  });
  // with shards, fingerprints do not show it
  expect(kept, "no-reduction", {.title = "nothing was reduced"});
  EXPECT_TRUE(std::isnan(number_of(kept.first(), "distinct_reduced_gradients")));
}

// Some unexplained layers, beside others that are off by rounding.
auto strange(std::size_t many, double others) {
  return [=](auto& layers) {
    for (auto& layer : layers) layer.off = others;
    for (std::size_t i = 0; i < many; ++i) layers[i].off = layers[i].factor_off = 0.5;
  };
}

TEST(LayersReduced, WhatFitsNothingIsToldWhereItIsInFewLayersAndComesAgain) {
  EXPECT_TRUE(reduced(strange(2, 0.001), 25).findings().empty()) << "once";
  Watched w = reduced(strange(2, 0.001), 50);
  expect(w, "reduced-gradient-mismatch", {.severity = Severity::kInfo});
  EXPECT_TRUE(reduced(strange(7, 0.001), 75).findings().empty()) << "compression";
}

TEST(LayersReduced, WhatFitsNothingBesideExactLayersIsToldAtOnce) {
  Watched w = reduced(strange(2, 1e-6), 25);
  expect(w, "reduced-gradient-mismatch", {.severity = Severity::kWarning});
  EXPECT_TRUE(reduced(strange(7, 1e-6), 75).findings().empty()) << "compression";
}

TEST(LayersReduced, RoundingIsMeasuredByTheOtherLayers) {
  const auto rounded = [](double of_others, double of_one) {
    return [=](auto& layers) {
      for (auto& layer : layers) layer.off = of_others;
      layers[3].off = of_one;
      layers[3].factor = 1 + of_one;
    };
  };
  EXPECT_TRUE(reduced(rounded(0.01, 0.07)).findings().empty());
  EXPECT_EQ(reduced(rounded(0.01, 0.1)).ids(), Ids{"reduction-scale"});
}

}  // namespace
}  // namespace presum::checks
