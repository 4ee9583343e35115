// SPDX-License-Identifier: Apache-2.0
#include "cli/cli.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <iostream>

#include "bindings.h"

namespace presum::python {

void bind_cli(nanobind::module_& m) {
  m.def(
      "cli_main",
      [](const std::vector<std::string>& args) {
        const int code = cli::main(args, std::cout, std::cerr);
        std::cout.flush();
        return code;
      },
      nanobind::arg("args"), "Runs a C++ verb; returns the exit code.");
}

}  // namespace presum::python
