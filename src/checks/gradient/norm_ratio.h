// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace presum::checks {

inline constexpr double kTrue = 0.05;  // relative error of a norm in 16 bits

bool near(double a, double b, double within);
bool is_power_of_two(double ratio);
// The most likely reason why a norm is off by this ratio.
std::string usual_cause(double ratio, double type, double workers, bool scaled);

}  // namespace presum::checks
