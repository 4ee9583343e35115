# SPDX-License-Identifier: Apache-2.0
"""``presum doctor``: what works on this machine, and why not the rest."""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, NamedTuple

from presum._core import __version__, simd_target, simd_targets

if TYPE_CHECKING:
    import torch

SHARE, TOKENS = 0.01, 4096


class Capability(NamedTuple):
    """One thing that may be there."""

    part: str
    name: str
    available: bool
    detail: str  # the version, or why not


def main(argv: Sequence[str]) -> int:
    """Returns 0 where a model can be watched, else 2."""
    parser = argparse.ArgumentParser(
        prog="presum doctor",
        description="What is installed, and which models, devices and transports presum can use "
        "here; for the others, why not.",
    )
    parser.add_argument("--format", choices=("text", "json"), default="text")
    found = parser.parse_args(argv)
    rows = list(capabilities())
    if found.format == "json":
        parts = {part: [] for part in dict.fromkeys(row.part for row in rows)}  # type: dict[str, list[dict[str, object]]]
        for row in rows:
            parts[row.part].append(
                {"name": row.name, "available": row.available, "detail": row.detail}
            )
        print(json.dumps({"schema_version": 1, **parts}, indent=2))
    else:
        _print(rows)
    return 0 if any(row.available for row in rows if row.part == "collection") else 2


def _print(rows: Sequence[Capability]) -> None:
    part = ""
    width = max(len(row.name) for row in rows)
    for row in rows:
        if row.part != part:
            part = row.part
            print(part)
        print(f"  {'yes' if row.available else 'no ':3}  {row.name:{width}}  {row.detail}".rstrip())


def capabilities() -> Iterator[Capability]:
    yield Capability("installed", "presum", True, __version__)
    yield Capability("installed", "python", True, platform.python_version())
    for name in ("torch", "numpy", "pandas", "transformers", "trl", "accelerate", "lightning"):
        yield _installed(name)
    torch = _module("torch")
    if torch is None:
        yield Capability("collection", "anything", False, "torch is not installed")
        return
    for name, check in _COLLECTION:
        yield _row("collection", name, check)
    for name, check in _DEVICES:
        yield _row("devices", name, check)
    possible, impossible = simd_targets()
    for name in possible:
        used = "in use; PRESUM_SIMD forces another" if name == simd_target() else ""
        yield Capability("simd", name, True, used)
    for name in impossible:
        yield Capability("simd", name, False, "this processor does not have it")
    for name, check in _TRANSPORTS:
        yield _row("transports", name, check)


def _row(part: str, name: str, check: Callable[[], str]) -> Capability:
    """A check returns a detail, or raises what is missing."""
    try:
        return Capability(part, name, True, check())
    except Exception as error:
        return Capability(part, name, False, " ".join(str(error).split()) or type(error).__name__)


def _installed(name: str) -> Capability:
    try:
        return Capability("installed", name, True, metadata.version(name))
    except metadata.PackageNotFoundError:
        return Capability("installed", name, False, f"pip install {name}")


def _module(name: str) -> object | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _need(condition: object, why: str) -> None:
    if not condition:
        raise RuntimeError(why)


def _ddp() -> str:
    import torch.distributed as dist

    _need(dist.is_available(), "torch was built without torch.distributed")
    importlib.import_module("presum.parallel.ddp")
    backends = [n for n in ("gloo", "nccl", "mpi", "xccl") if dist.is_backend_available(n)]
    return "backends: " + ", ".join(backends)


def _ddp_hook() -> str:
    _ddp()
    importlib.import_module("presum.parallel.ddp_hook")
    return 'attach(mode="hook"): exact products'


def _fsdp2() -> str:
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group

    fsdp = importlib.import_module("presum.parallel.fsdp")
    _need(
        hasattr(_fsdp_param_group, "foreach_reduce"),
        "this torch reduces gradients in a place that presum does not know",
    )
    sums = "" if fsdp.CAN_STAND_IN else "; reduction= and audit_every= need torch 2.9"
    return f"fully_shard, HSDP, replicate{sums}"


def _fsdp1() -> str:
    raise RuntimeError("FullyShardedDataParallel reduces flat shards; use fully_shard")


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
    return "gradients are read where they are"


def _cuda() -> str:
    import torch

    from presum.devices.kernel_pass import why_not

    _need(torch.version.cuda, "this torch was built without CUDA")
    _need(torch.cuda.is_available(), "torch sees no CUDA device")
    device = torch.device("cuda", torch.cuda.current_device())
    lacks = why_not(device)
    passes = "CUDA kernels" if lacks is None else f"{_torch_operations(device)} ({lacks})"
    return f"{torch.cuda.get_device_name()}; {passes}"


def _torch_operations(device: torch.device) -> str:
    from presum.devices.cost import every_for

    every = every_for(device, SHARE, TOKENS)
    return (
        f"torch operations: with {TOKENS:,} tokens a worker and step, every={every} keeps them "
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
    return "packets go to rank 0 through a TCPStore of its own"


def _mpi() -> str:
    raise RuntimeError("in C++ only: presum/mpi.h, where the library was built with MPI")


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
