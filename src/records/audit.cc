// SPDX-License-Identifier: Apache-2.0
#include "presum/audit.h"

#include "records/names.h"

namespace presum {

const char* to_string(Accumulation accumulation) {
  return records::name_of(records::kFormats, accumulation);
}

const char* to_string(SumOrder order) { return records::name_of(records::kOrders, order); }

const char* to_string(Division division) { return records::name_of(records::kDivisions, division); }

const char* to_string(Repeat repeat) { return records::name_of(records::kRepeats, repeat); }

int significand_bits(Accumulation accumulation) {
  switch (accumulation) {
    case Accumulation::kF64:
      return 53;
    case Accumulation::kF32:
      return 24;
    case Accumulation::kF16:
      return 11;
    case Accumulation::kBF16:
      return 8;
    case Accumulation::kUnknown:
      break;
  }
  return 0;
}

}  // namespace presum
