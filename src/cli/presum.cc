// SPDX-License-Identifier: Apache-2.0
// The native binary: the C++ verbs, without Python.
#include <iostream>

#include "cli/cli.h"

int main(int argc, char** argv) {
  return presum::cli::main({argv + 1, argv + argc}, std::cout, std::cerr);
}
