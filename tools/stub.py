# SPDX-License-Identifier: Apache-2.0
"""Writes python/presum/_core.pyi, as nanobind derives it from the extension module. With --check,
only checks that it is up to date. Arrays of any library are typed by their export protocol."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from nanobind.stubgen import StubGen  # type: ignore[import-untyped]

from presum import _core

STUB = Path(__file__).parents[1] / "python" / "presum" / "_core.pyi"
ARRAY = re.compile(r"Annotated\[NDArray.*?, dict\(.*?\)\]")
HEAD = "# SPDX-License-Identifier: Apache-2.0\nimport typing\n"
TYPES = """__version__: str

class DLPack(typing.Protocol):
    \"\"\"An array of NumPy, torch or any other library.\"\"\"

    def __dlpack__(self) -> typing.Any: ...
    def __dlpack_device__(self) -> tuple[typing.Any, typing.Any]: ...
"""


def main() -> int:
    generated = StubGen(_core)
    generated.put(_core)
    body = ARRAY.sub("DLPack", generated.get())
    body = re.sub(r"os\.PathLike\b(?!\[)", "os.PathLike[str]", body)
    # depends on the build
    body = re.sub(r"^(CUDA_\w+: int) = \d+", r"\1", body, flags=re.MULTILINE)
    # nanobind does not know the types of the slots that Python itself calls.
    body = body.replace(
        "(self, /, *args, **kwargs):", "(self, /, *args: object, **kwargs: object) -> None:"
    )
    imports, first, rest = body.partition("class ")
    text = HEAD + imports + TYPES + first + rest
    command = [sys.executable, "-m", "ruff"]
    for verb in (["check", "-q", "--fix", "--select", "I,F401"], ["format", "-q"]):
        done = subprocess.run(
            [*command, *verb, "--stdin-filename", STUB, "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        )
        text = done.stdout
    if "--check" in sys.argv:
        if text == STUB.read_text():
            return 0
        print(f"{STUB.name} is out of date with the bindings: run tools/stub.py", file=sys.stderr)
        return 1
    STUB.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
