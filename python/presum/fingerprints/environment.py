# SPDX-License-Identifier: Apache-2.0
"""Facts about a rank's software and machine, for its first packet."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import torch

LIBRARIES = ("numpy", "transformers", "accelerate", "lightning", "datasets", "tokenizers")
VARIABLES = re.compile(
    r"(NCCL|TORCH|PYTORCH|GLOO|CUBLAS|CUDNN|MKL|OMP|KMP)_\w+|PYTHONHASHSEED|NVIDIA_TF32_OVERRIDE"
    r"|CUDA_LAUNCH_BLOCKING|CUDA_DEVICE_MAX_CONNECTIONS|ACCELERATE_MIXED_PRECISION"
)
VALUE_LENGTH_MAX = 200


def environment_facts(device: torch.device) -> dict[str, str]:
    """Versions, the device's model and environment variables. Missing values are omitted."""
    facts = {name: _version(name) for name in LIBRARIES}
    facts["seeded_by"] = _seeded_by()
    facts["threads"] = str(torch.get_num_threads())
    facts["device_model"] = _found_in("/proc/cpuinfo", r"^model name\s*:\s*(.*)$")
    if device.type == "cuda":
        facts |= _cuda_facts(device)
    for name in sorted(filter(VARIABLES.fullmatch, os.environ)):
        facts[f"env.{name}"] = os.environ[name][:VALUE_LENGTH_MAX]
    return {key: value for key, value in facts.items() if value}


def _version(library: str) -> str:
    return str(getattr(sys.modules.get(library), "__version__", ""))


def _seeded_by() -> str:
    """The framework that seeds all ranks alike, regardless of the program."""
    if "transformers.trainer" in sys.modules:
        return "transformers"
    return "lightning" if "PL_GLOBAL_SEED" in os.environ else ""


def _cuda_facts(device: torch.device) -> dict[str, str]:
    nccl: tuple[int, ...] = ()
    if torch.distributed.is_nccl_available():
        nccl = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return {
        "device_model": torch.cuda.get_device_name(device),
        "cuda": torch.version.cuda or "",
        "cudnn": str(torch.backends.cudnn.version() or ""),  # type: ignore[no-untyped-call]
        "nccl": ".".join(map(str, nccl)),
        "driver": _found_in("/proc/driver/nvidia/version", r"\b(\d+\.\d+(?:\.\d+)?)\b"),
    }


def _found_in(path: str, pattern: str) -> str:
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    found = re.search(pattern, text, re.MULTILINE)
    return found.group(1) if found else ""
