# SPDX-License-Identifier: Apache-2.0
"""Compiles the CUDA kernels with NVRTC, without a toolkit or a GPU.

tools/cubins.py OUT: writes, for every room with kernels, one file per kind of GPU
(observe.sm_75.cubin ...) and one that later GPUs compile at load time (observe.compute_75.ptx).
NVRTC comes from PyPI's nvidia-cuda-nvrtc-cu12 12.9, whose cubins need driver 525 or newer; install
that package for this Python.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
STANDARD = "device/rtc_std.h"
GPUS = ("75", "80", "90", "100", "120")
# The same bits as on the host: products are not fused into sums.
FLAGS = ("--std=c++20", "--fmad=false", "--device-int128", "--device-as-default-execution-space")


class CompileError(Exception):
    """The log of NVRTC."""


def main() -> int:
    """Returns 0, or 1 if something does not compile."""
    parser = argparse.ArgumentParser(description="Compiles the CUDA kernels with NVRTC.")
    parser.add_argument("out", type=Path, help="output folder")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for old in (*out.glob("*.sm_*.cubin"), *out.glob("*.compute_*.ptx")):
        old.unlink()
    try:
        nvrtc = _load()
        for source in sorted(ROOT.glob("src/*/cuda/kernels.cu")):
            room = source.parent.parent.name
            for gpu in GPUS:
                _write(
                    out / f"{room}.sm_{gpu}.cubin", _compiled(nvrtc, source, f"sm_{gpu}", "CUBIN")
                )
            _write(out / f"{room}.compute_75.ptx", _compiled(nvrtc, source, "compute_75", "PTX"))
    except CompileError as error:
        print(f"cubins: {error}", file=sys.stderr)
        return 1
    return 0


def _write(path: Path, code: bytes) -> None:
    path.write_bytes(code)
    print(f"{path.name:24} {len(code):7,} bytes")


def _load() -> ctypes.CDLL:
    try:
        package = importlib.util.find_spec("nvidia.cuda_nvrtc")
    except ModuleNotFoundError:
        package = None
    if package is None or not package.submodule_search_locations:
        raise CompileError("NVRTC is missing: pip install 'nvidia-cuda-nvrtc-cu12==12.9.*'")
    folder = Path(package.submodule_search_locations[0]) / "lib"
    return ctypes.CDLL(str(folder / "libnvrtc.so.12"))


def _standard_headers(source: Path) -> list[bytes]:
    """Every <header> that kernels or their includes name."""
    names: set[str] = set()
    todo, seen = [source], set()
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        seen.add(path)
        text = path.read_text(encoding="utf-8")
        names |= set(re.findall(r"#include <([^>]+)>", text))
        for name in re.findall(r'#include "([^"]+)"', text):
            todo += [p for p in (ROOT / "src" / name, ROOT / "include" / name) if p.is_file()]
    return [name.encode() for name in sorted(names)]


def _compiled(nvrtc: ctypes.CDLL, source: Path, architecture: str, kind: str) -> bytes:
    names = _standard_headers(source)
    shims = [f'#include "{STANDARD}"\n'.encode()] * len(names)
    program = ctypes.c_void_p()
    strings = ctypes.c_char_p * len(names)
    _check(
        nvrtc,
        nvrtc.nvrtcCreateProgram(
            ctypes.byref(program),
            source.read_bytes(),
            source.name.encode(),
            len(names),
            strings(*shims),
            strings(*names),
        ),
    )
    options = [f"--gpu-architecture={architecture}", *FLAGS]
    options += [f"-I{ROOT / folder}" for folder in ("src", "include")]
    flags = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    result = nvrtc.nvrtcCompileProgram(program, len(options), flags)
    log = _text(nvrtc, program, "ProgramLog").decode().strip("\0\n ")
    if result != 0 or log:  # warnings are errors
        raise CompileError(f"{source}, {architecture}:\n{log}")
    return _text(nvrtc, program, kind)


def _text(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}")(program, buffer))
    return buffer.raw[: size.value]


def _check(nvrtc: ctypes.CDLL, result: int) -> None:
    if result != 0:
        nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise CompileError(nvrtc.nvrtcGetErrorString(result).decode())


if __name__ == "__main__":
    sys.exit(main())
