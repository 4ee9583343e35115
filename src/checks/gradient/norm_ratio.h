// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace presum::checks {

inline constexpr double kTrue = 0.05;  // what a norm in 16 bits may be off

bool near(double a, double b, double within);
bool is_power_of_two(double ratio);
// What makes a norm of a type so many times what it ought to be, most often.
std::string usual_cause(double ratio, double type, double workers, bool scaled);

}  // namespace presum::checks
