// SPDX-License-Identifier: Apache-2.0
// Lists and evidence as JSON in a text column. What a stranger wrote there must not end the reader:
// what is malformed, of another type or nested deeper than 16 is left out. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "presum/finding.h"

namespace presum::runlog {

std::string json_text(const std::vector<std::string>& list);
std::string json_text(const std::vector<std::uint32_t>& list);
std::string json_text(const Finding::Evidence& evidence);

std::vector<std::string> texts_of(const std::string& json);
std::vector<std::uint32_t> numbers_of(const std::string& json);
Finding::Evidence evidence_of(const std::string& json);

}  // namespace presum::runlog
