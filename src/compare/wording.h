// SPDX-License-Identifier: Apache-2.0
// The facts of a comparison in words: pure functions, for code that shows a comparison. Code that
// compares does not include this header. Each text is one line and may contain names from a run,
// which are not trusted. An empty text means that there is nothing to say.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compare/compare.h"

namespace presum::compare {

// "A", "B".
const char* name_of(Side run);
// "model 0, data-parallel group 0".
std::string model_name(std::uint32_t model_index, std::uint32_t dp_group);

// ---- wording_evidence.cc

// What differs, in a few words: "samples (1 of 12 over all workers)".
std::string what_text(const Difference& difference);
std::string evidence_text(const Evidence& evidence);
// Settings or random generators: "optimizer_settings, learning_rate".
std::string kinds_text(const std::vector<std::uint32_t>& kinds);
// Values of ranks: "Adam or SGD".
std::string fact_text(const std::vector<std::string>& values);

// ---- wording.cc

// Since when the first difference exists, if that is not a single step.
std::string bracket_text(const ModelComparison& model);
// What happens between the last step that was seen equal and the first difference. Empty if the
// first difference is an input of the step.
std::string between_text(const ModelComparison& model);

std::vector<std::string> remark_texts(const ModelComparison& model);
std::vector<std::string> not_compared_texts(const ModelComparison& model);
// How long steps took, in one sentence; empty if unknown.
std::string times_text(const ModelComparison& model);
std::string obstacle_text(const Comparison& comparison);
// What is identical: one sentence, or one per model if the models differ in that.
std::string agreement_text(const Comparison& comparison);
// Models that only one run has.
std::vector<std::string> not_compared_texts(const Comparison& comparison);

}  // namespace presum::compare
