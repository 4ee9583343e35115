// SPDX-License-Identifier: Apache-2.0
// reduction-error, reduction-dtype, reduction-nondeterministic: from audits of the reduction.
#pragma once

#include "diagnose/book.h"
#include "diagnose/look.h"

namespace presum::diagnose {

// An audit is of the sum that all workers share, whoever made it.
void watch_audits(const Look& look, Book& book);

}  // namespace presum::diagnose
