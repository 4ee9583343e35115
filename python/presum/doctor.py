# SPDX-License-Identifier: Apache-2.0
"""``presum doctor``: what presum can use on this machine, and the reason for what it cannot."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from presum import _core
from presum._core import __version__, simd_target, simd_targets

if TYPE_CHECKING:
    import torch

SHARE, TOKENS = 0.01, 4096
TORCH = (2, 8)  # the oldest supported release


class Capability(NamedTuple):
    """A feature that may be available."""

    part: str
    name: str
    available: bool
    detail: str  # the version, or the reason it is unavailable


def main(argv: Sequence[str]) -> int:
    """Returns 0 if presum can record a model here, else 2."""
    parser = argparse.ArgumentParser(
        prog="presum doctor",
        description="What is installed, and which models, devices and transports presum can use "
        "here; for the rest, the reason.",
    )
    parser.add_argument("--format", choices=("text", "json"), default="text")
    found = parser.parse_args(argv)
    rows = list(capabilities())
    try:
        print(_as_json(rows) if found.format == "json" else _as_text(rows), flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print("presum: cannot write to standard output", file=sys.stderr)
        return 2
    return 0 if any(row.available for row in rows if row.part == "collection") else 2


def _as_json(rows: Sequence[Capability]) -> str:
    parts: dict[str, list[dict[str, object]]] = {row.part: [] for row in rows}
    for row in rows:
        told = {"name": row.name, "available": row.available, "detail": row.detail}
        parts[row.part].append(told)
    return json.dumps({"schema_version": 1, **parts}, indent=2)


def _as_text(rows: Sequence[Capability]) -> str:
    lines: list[str] = []
    width = max(len(row.name) for row in rows)
    for part, of_part in groupby(rows, lambda row: row.part):
        lines.append(part)
        for row in of_part:
            has = "yes" if row.available else "no "
            lines.append(f"  {has:3}  {row.name:{width}}  {row.detail}".rstrip())
    return "\n".join(lines)


def capabilities() -> Iterator[Capability]:
    yield Capability("installed", "presum", True, __version__)
    yield Capability("installed", "python", True, _which_python())
    for name in ("torch", "numpy", "pandas", "transformers", "trl", "accelerate", "lightning"):
        yield _installed(name)
    try:
        importlib.import_module("torch")
    except Exception as error:  # a broken installation can raise anything
        yield Capability("collection", "anything", False, _why_no_torch(error))
        return
    yield from (_row("collection", *check) for check in _COLLECTION)
    yield from (_row("devices", *check) for check in _DEVICES)
    yield from _simd()
    yield from (_row("transports", *check) for check in _TRANSPORTS)


def _which_python() -> str:
    """This interpreter, and the one that ``python`` starts if it is a different one."""
    found = f"{platform.python_version()}, {sys.executable}"
    first = shutil.which("python") or shutil.which("python3")
    if first is None or Path(first).parent.resolve() == Path(sys.executable).parent.resolve():
        return found
    return f"{found}; the first on PATH is {first}"


def _simd() -> Iterator[Capability]:
    try:
        chosen = simd_target()
    except ValueError as error:  # PRESUM_SIMD has an invalid value
        yield Capability("simd", "PRESUM_SIMD", False, str(error))
        return
    possible, impossible = simd_targets()
    for name in possible:
        used = "in use; PRESUM_SIMD forces another" if name == chosen else ""
        yield Capability("simd", name, True, used)
    for name in impossible:
        yield Capability("simd", name, False, "this processor does not have it")


def _why_no_torch(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        return "torch is not installed: pip install 'presum[torch]'; runs can be read without it"
    return f"torch is installed, but cannot be imported: {_line(error)}"


def _row(part: str, name: str, check: Callable[[], str]) -> Capability:
    """``check`` returns a detail, or raises an error that says what is missing."""
    try:
        return Capability(part, name, True, check())
    except Exception as error:
        return Capability(part, name, False, _line(error))


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _installed(name: str) -> Capability:
    try:
        return Capability("installed", name, True, metadata.version(name))
    except metadata.PackageNotFoundError:
        install = f"{shlex.quote(sys.executable)} -m pip install {name}"
        return Capability("installed", name, False, f"not in this Python: {install}")


def _need(condition: object, why: str) -> None:
    if not condition:
        raise RuntimeError(why)


def _ddp() -> str:
    import torch.distributed as dist
    from torch import __version__ as release

    old = tuple(map(int, release.split("+")[0].split(".")[:2])) < TORCH
    _need(not old, f"torch {release} is older than {TORCH[0]}.{TORCH[1]}")
    _need(dist.is_available(), "torch was built without torch.distributed")
    importlib.import_module("presum.parallel.ddp")
    backends = [n for n in ("gloo", "nccl", "mpi", "xccl") if dist.is_backend_available(n)]
    return "backends: " + ", ".join(backends)


def _ddp_hook() -> str:
    _ddp()
    importlib.import_module("presum.parallel.ddp_hook")
    return 'attach(audit=), attach(reduction="exact")'


def _fsdp2() -> str:
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group

    fsdp = importlib.import_module("presum.parallel.fsdp")
    _need(
        hasattr(_fsdp_param_group, "foreach_reduce"),
        "presum does not know where this torch release reduces gradients",
    )
    sums = "" if fsdp.CAN_STAND_IN else "; reduction= and audit= need torch 2.9"
    return f"fully_shard, HSDP, replicate{sums}"


def _fsdp1() -> str:
    raise RuntimeError("FullyShardedDataParallel reduces flat shards; use fully_shard instead")


def _by_hand() -> str:
    importlib.import_module("presum.parallel.by_hand")
    return 'attach(mode="manual"), before_reduction, after_reduction'


def _transformers() -> str:
    importlib.import_module("presum.frameworks.transformers")
    return "presum.TransformersCallback()"


def _lightning() -> str:
    importlib.import_module("presum.frameworks.lightning")
    return "presum.LightningCallback()"


def _cpu() -> str:
    return "gradients are read in place"


def _cuda() -> str:
    import torch

    from presum.devices.kernel_pass import why_not

    _need(torch.version.cuda, f"this torch was built without CUDA{_kernels_inside()}")
    _need(torch.cuda.is_available(), f"torch sees no CUDA device{_kernels_inside()}")
    device = torch.device("cuda", torch.cuda.current_device())
    lacks = why_not(device)
    passes = "CUDA kernels" if lacks is None else f"{_torch_operations(device)} ({lacks})"
    return f"{torch.cuda.get_device_name()}; {passes}"


def _kernels_inside() -> str:
    return f"; presum holds {'kernels for it' if _core.CUDA_KERNELS else 'no kernels'}"


def _torch_operations(device: torch.device) -> str:
    from presum.devices.cost import every_for

    every = every_for(device, SHARE, TOKENS)
    return (
        f"torch operations: with {TOKENS:,} tokens a rank and step, every={every} keeps them "
        f"within {SHARE:.0%} of a transformer's steps"
    )


def _other(name: str) -> Callable[[], str]:
    def check() -> str:
        import torch

        module = getattr(torch, name, None) or getattr(torch.backends, name, None)
        _need(module is not None, f"this torch has no torch.{name}")
        _need(module.is_available(), f"torch sees no {name} device")  # type: ignore[union-attr]
        return _torch_operations(torch.device(name))

    return check


def _store() -> str:
    from torch._C._distributed_c10d import TCPStore

    _need(hasattr(TCPStore, "queue_push"), "torch is older than 2.8: its store has no queues")
    return "packets go to rank 0 through presum's own TCPStore"


def _mpi() -> str:
    raise RuntimeError("C++ only: presum/mpi.h, if the library was built with MPI")


_COLLECTION: tuple[tuple[str, Callable[[], str]], ...] = (
    ("DDP, passive", _ddp),
    ("DDP, communication hook", _ddp_hook),
    ("FSDP2", _fsdp2),
    ("FSDP1", _fsdp1),
    ("by hand", _by_hand),
    ("transformers Trainer, TRL", _transformers),
    ("Lightning", _lightning),
)
_DEVICES: tuple[tuple[str, Callable[[], str]], ...] = (
    ("cpu", _cpu),
    ("cuda", _cuda),
    ("mps", _other("mps")),
    ("xpu", _other("xpu")),
    ("npu", _other("npu")),
)
_TRANSPORTS: tuple[tuple[str, Callable[[], str]], ...] = (
    ("torch store", _store),
    ("MPI", _mpi),
)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
