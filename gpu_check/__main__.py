# SPDX-License-Identifier: Apache-2.0
"""Runs the sections, each in a process of its own with a time limit; each writes its JSON when it
is done."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SECONDS = 460  # for all
LIMITS = {  # of sections, in seconds, in the order in which they run
    "kernels": 70,
    "faults": 40,
    "training": 90,
    "speed": 60,
    "reductions": 60,
    "overhead": 90,
    "graphs": 40,
    "sanitizer": 90,
}
TOOLS = ("memcheck", "racecheck")


def main() -> int:
    """0 where all that was tried is right, 1 where something is not, 2 for bad use."""
    parser = argparse.ArgumentParser(
        prog="python3 -m gpu_check",
        description="Shows on a GPU that the kernels find what the host finds, that training is "
        "not disturbed, and what it costs; at most 8 minutes, no network. --dry: what can be "
        "shown without a GPU.",
    )
    parser.add_argument("--dry", action="store_true", help="on the host, as far as that goes")
    parser.add_argument("--wheels", type=Path, default=ROOT / "dist", help="where presum's lie")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu-check")
    parser.add_argument("--only", nargs="+", choices=LIMITS, help="of the sections")
    parser.add_argument("--section", choices=LIMITS, help=argparse.SUPPRESS)
    found = parser.parse_args()
    if found.section:
        return _section(found.section, found.out, dry=found.dry)
    if not found.dry and not _has_gpu():
        print("gpu_check: torch sees no CUDA device; --dry does what goes without", file=sys.stderr)
        return 2
    found.out.mkdir(parents=True, exist_ok=True)
    environment = _environment(found.wheels, found.out, dry=found.dry)
    if environment is None:
        return 2
    return _all(found.only or [*LIMITS], found.out, environment, dry=found.dry)


def _has_gpu() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def _environment(wheels: Path, out: Path, *, dry: bool) -> dict[str, str] | None:
    """With presum on the path: the installed one where it is dry, else a wheel's."""
    site = out / "site"
    path = [str(ROOT)] if dry else [str(site.resolve()), str(ROOT)]
    path += [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path)}
    if dry:
        return environment
    shutil.rmtree(site, ignore_errors=True)
    wanted = ["presum"] + ["numpy"] * (importlib.util.find_spec("numpy") is None)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps"]
    done = subprocess.run([*pip, "--find-links", wheels, "--target", site, *wanted], check=False)
    if done.returncode == 0:
        return environment
    print(f"gpu_check: {wheels} lacks {' or '.join(wanted)} for this Python", file=sys.stderr)
    return None


def _all(names: list[str], out: Path, environment: dict[str, str], *, dry: bool) -> int:
    until = time.monotonic() + SECONDS
    fine = True
    for name in names:
        print(f"== {name}", flush=True)
        written = out / f"{name}.json"
        written.unlink(missing_ok=True)
        command = [sys.executable, "-m", "gpu_check", "--section", name, "--out", str(out)]
        limit = min(LIMITS[name], until - time.monotonic())
        if limit < 5:
            print("   not tried: the time is over")
            continue
        _run([*command, *["--dry"] * dry], environment, limit)
        fine &= written.exists() and bool(json.loads(written.read_text())["ok"])
    print(f"== {'all right' if fine else 'NOT all right'}: {out}")
    return 0 if fine else 1


def _run(command: list[str], environment: dict[str, str], limit: float) -> None:
    """With all that it starts in a group of its own, of which nothing is left after the limit."""
    started = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        started.wait(limit)
    except subprocess.TimeoutExpired:
        print(f"   FAILED not done after {limit:.0f} s")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()


def _section(name: str, out: Path, *, dry: bool) -> int:
    """Writes what it found so far with each row; it is all right once it is done."""
    from gpu_check.place import Findings, Place

    began, machine, done = time.monotonic(), _machine(), False

    def write() -> None:
        ok = done and all(row["ok"] for row in findings.rows)
        told: dict[str, Any] = {"section": name, "ok": ok, "done": done, "dry": dry, "on": machine}
        told |= {"seconds": round(time.monotonic() - began, 1), "rows": findings.rows}
        (out / f"{name}.json").write_text(json.dumps(told, indent=1))

    findings = Findings(written=write)
    try:
        _check_of(name)(Place(dry), findings)
    except Exception as error:
        findings.say(name, f"{type(error).__name__}: {error}"[:500], ok=False)
    done = True
    write()
    return 0 if all(row["ok"] for row in findings.rows) else 1


def _check_of(name: str) -> Callable[[Any, Any], None]:
    from gpu_check import graphs, kernels, overhead, speed, training

    return {
        "kernels": kernels.check,
        "faults": training.check_faults,
        "training": training.check,
        "speed": speed.check,
        "reductions": training.check_reductions,
        "overhead": overhead.check,
        "graphs": graphs.check,
        "sanitizer": _sanitizer,
    }[name]


def _machine() -> dict[str, Any]:
    import torch

    import presum

    found: dict[str, Any] = {"presum": presum.__version__, "torch": torch.__version__}
    if torch.cuda.is_available():
        found["device"] = torch.cuda.get_device_name()
        found["capability"] = ".".join(map(str, torch.cuda.get_device_capability()))
        found["cuda"] = torch.version.cuda
    return found


def _sanitizer(place: Any, findings: Any) -> None:
    """The kernels under compute-sanitizer, where there is one."""
    tool = shutil.which("compute-sanitizer")
    if place.dry or tool is None:
        findings.say("compute-sanitizer", "not tried: " + ("no GPU" if place.dry else "not found"))
        return
    code = (
        "from gpu_check import kernels, place\n"
        "found = place.Findings()\n"
        "kernels.check(place.Place(False), found, small=True)\n"
    )
    for name in TOOLS:
        command = [tool, "--tool", name, "--error-exitcode", "9", sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = [line for line in done.stdout.splitlines() if "SUMMARY" in line]
        findings.say(name, lines[-1] if lines else "no summary", ok=done.returncode == 0)


if __name__ == "__main__":
    sys.exit(main())
