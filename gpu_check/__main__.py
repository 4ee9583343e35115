# SPDX-License-Identifier: Apache-2.0
"""Runs the sections, each in a separate process with a time limit. Each section writes its results
as JSON."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LIMITS = {  # of sections on a GPU, in seconds, in the order of execution: 8 minutes in total
    "kernels": 60,
    "faults": 40,
    "training": 90,
    "speed": 60,
    "reductions": 40,
    "overhead": 80,
    "graphs": 40,
    "sanitizer": 70,
}
TOOLS = ("memcheck", "racecheck")


def main() -> int:
    """Returns 0 if all checks passed, 1 if one failed, 2 for invalid use."""
    parser = argparse.ArgumentParser(
        prog="python3 -m gpu_check",
        description="Checks on a GPU that the kernels find what the host finds and that training "
        "is not disturbed, and measures the cost; at most 8 minutes, no network. --dry: the checks "
        "that need no GPU.",
    )
    parser.add_argument("--dry", action="store_true", help="run on the host, as far as possible")
    parser.add_argument("--wheels", type=Path, default=ROOT / "dist", help="folder of the wheels")
    parser.add_argument(
        "--out", type=Path, help="folder of the results (default: build/gpu-check or -dry)"
    )
    parser.add_argument("--only", nargs="+", choices=LIMITS, help="run only these sections")
    parser.add_argument("--section", choices=LIMITS, help=argparse.SUPPRESS)
    found = parser.parse_args()
    if found.section:
        return _section(found.section, found.out, dry=found.dry)
    out = found.out or ROOT / "build" / ("gpu-check-dry" if found.dry else "gpu-check")
    wrong = _wrong_place(found.wheels, dry=found.dry)
    if wrong is None:
        wrong = _unusable(out)
    if wrong is None and not found.dry:
        wrong = _install(found.wheels, out)
    if wrong is not None:
        print(f"gpu_check: {wrong}", file=sys.stderr)
        return 2
    try:
        return _all(list(dict.fromkeys(found.only or LIMITS)), out, dry=found.dry)
    except KeyboardInterrupt:
        print("gpu_check: interrupted", file=sys.stderr)
        return 2


def _wrong_place(wheels: Path, *, dry: bool) -> str | None:
    """Why the checks cannot run on this machine, or None."""
    if importlib.util.find_spec("torch") is None:
        return "this Python has no torch"
    if dry:
        installed = importlib.util.find_spec("presum") is not None
        return None if installed else "--dry needs a Python with presum installed"
    import torch

    if not torch.cuda.is_available():
        return "torch sees no CUDA device; --dry runs the checks that need none"
    return None if wheels.is_dir() else f"there is no folder {wheels}"


def _unusable(out: Path) -> str | None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "tried").touch()
        (out / "tried").unlink()
    except OSError as error:
        return f"cannot write into {out}: {error.strerror}"
    return None


def _install(wheels: Path, out: Path) -> str | None:
    """Install presum next to the results. Returns the reason if that fails."""
    site = out / "site"
    shutil.rmtree(site, ignore_errors=True)
    if importlib.util.find_spec("pip") is None:
        return "this Python has no pip"
    wanted = ["presum"] + ["numpy"] * (importlib.util.find_spec("numpy") is None)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps"]
    places = ["--only-binary=:all:", "--find-links", str(wheels), "--target", str(site)]
    if subprocess.run([*pip, *places, *wanted], check=False).returncode == 0:
        return None
    return f"{wheels} has no wheel of {' or '.join(wanted)} for this Python"


def _environment(out: Path, *, dry: bool) -> dict[str, str]:
    path = [] if dry else [str((out / "site").resolve())]
    path += [str(ROOT), str(ROOT / "bench")]
    path += [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    return os.environ | {"PYTHONPATH": os.pathsep.join(path)}


def _all(names: list[str], out: Path, *, dry: bool) -> int:
    environment, fine = _environment(out, dry=dry), True
    for name in names:
        print(f"== {name}", flush=True)
        written = out / f"{name}.json"
        command = [sys.executable, "-m", "gpu_check", "--section", name, "--out", str(out)]
        _write(written, name, dry=dry, done=False, rows=[])
        _run([*command, *["--dry"] * dry], environment, None if dry else LIMITS[name])
        fine &= bool(json.loads(written.read_text())["ok"])
    print(f"== {'all right' if fine else 'NOT all right'}: {out}")
    return 0 if fine else 1


def _run(command: list[str], environment: dict[str, str], limit: float | None) -> None:
    """Run a command in a new process group, and kill the whole group at the limit."""
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
    """Run a section. It writes its results with each row; it can only be ok once it is done."""
    from gpu_check.place import Findings, Place

    began, machine, done = time.monotonic(), _machine(), False

    def write() -> None:
        spent = round(time.monotonic() - began, 1)
        path, rows = out / f"{name}.json", findings.rows
        _write(path, name, dry=dry, done=done, rows=rows, on=machine, seconds=spent)

    findings = Findings(written=write)
    try:
        _check_of(name)(Place(dry), findings)
    except Exception:
        findings.say(name, traceback.format_exc()[-2000:], ok=False)
    done = True
    write()
    return 0 if all(row["ok"] for row in findings.rows) else 1


def _write(path: Path, section: str, *, done: bool, rows: list[Any], **more: Any) -> None:
    """Replace the file atomically."""
    ok = done and all(row["ok"] for row in rows)
    told = {"section": section, "ok": ok, "done": done, **more, "rows": rows}
    new = path.with_suffix(".new")
    new.write_text(json.dumps(told, indent=1))
    new.replace(path)


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
    from presum.devices.kernel_pass import why_not

    found: dict[str, Any] = {"presum": presum.__version__, "torch": torch.__version__}
    found |= {"python": platform.python_version(), "date": time.strftime("%Y-%m-%d")}
    if torch.cuda.is_available():
        found["device"] = torch.cuda.get_device_name()
        found["capability"] = ".".join(map(str, torch.cuda.get_device_capability()))
        found |= {"cuda": torch.version.cuda, "devices": torch.cuda.device_count()}
        found["pass"] = why_not(torch.device("cuda", 0)) or "CUDA kernels"
    return found


def _sanitizer(place: Any, findings: Any) -> None:
    """Run the kernels under compute-sanitizer, if it is installed."""
    tool = shutil.which("compute-sanitizer")
    if place.dry or tool is None:
        findings.say("compute-sanitizer", "not tried: " + ("no GPU" if place.dry else "not found"))
        return
    code = (
        "from gpu_check import kernels, place\n"
        "found = place.Findings()\n"
        "kernels.check(place.Place(False), found, small=True)\n"
        "raise SystemExit(not all(row['ok'] for row in found.rows))\n"
    )
    for name in TOOLS:
        command = [tool, "--tool", name, "--error-exitcode", "9", sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = [line for line in done.stdout.splitlines() if "SUMMARY" in line]
        findings.say(name, lines[-1] if lines else "no summary", ok=done.returncode == 0)


if __name__ == "__main__":
    sys.exit(main())
