// SPDX-License-Identifier: Apache-2.0
#include "cli/cli.h"

#include <nanobind/stl/vector.h>

#include <iostream>
#include <string>
#include <vector>

#include "bindings.h"

namespace presum::python {

void bind_cli(nanobind::module_& m) {
  m.def(
      "cli_main",
      [](const std::vector<nanobind::bytes>& args) {
        std::vector<std::string> words;
        for (const nanobind::bytes& arg : args) words.emplace_back(arg.c_str(), arg.size());
        const int code = cli::main(words, std::cout, std::cerr);
        std::cout.flush();
        return code;
      },
      nanobind::arg("args"),
      "Runs a C++ verb, its words as the system has them; returns the exit code.");
}

}  // namespace presum::python
