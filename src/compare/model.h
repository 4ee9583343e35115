// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "compare/compare.h"
#include "compare/run.h"

namespace presum::compare {

struct ComparedModel {
  ModelComparison model;
  std::vector<FactDifference> facts;
};

// One model of two runs, step by step. REQUIRES: both runs have steps of it.
Result<ComparedModel> compare_model(const Run& a, const Run& b, ModuleShard key);

}  // namespace presum::compare
