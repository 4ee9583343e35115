// SPDX-License-Identifier: Apache-2.0
// The page's fixed text, assembled at build time from page/ and dygraphs (embed_page.cmake).
#pragma once

#include <string_view>

namespace presum::report {

extern const std::string_view kPageBeforeData;
extern const std::string_view kPageAfterData;

}  // namespace presum::report
