# SPDX-License-Identifier: Apache-2.0
"""Tests the wheels in dist on systems where nothing else is installed.

Each wheel is tested in a new environment of its Python; in Debian roots without compiler and
headers, and without the libraries that presum is built with except SQLite, which Python needs
(needs root and debootstrap); in a training of two ranks with torch; and its kernels are compared
with those of the build in .venv. Tests that cannot run here are reported as "not tried", and do not
count as passed. Exits with 1 if something failed.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pythons
from libraries import HERE, WheelError, run

ROOT = HERE.parent
DIST = ROOT / "dist"
WORK = ROOT / "build" / "wheels"
COMMAND = "presum-*-x86_64-linux.tar.gz"
RECORDED = WORK / "recorded"  # a run that the first installed wheel writes
TORCH = os.environ["TORCH"]  # set by the Makefile
FLOOR = (2, 28)
SYSTEM = {
    "libc.so.6",
    "libm.so.6",
    "libpthread.so.0",
    "libdl.so.2",
    "ld-linux-x86-64.so.2",
    "librt.so.1",
}
ROOTS = {"bookworm": "3.11", "trixie": "3.13", "bullseye": ""}  # with their Python versions
USES = {  # and the exit codes on the run of recorded.py
    ("--help",): 0,
    ("summary", "RUN"): 0,
    ("findings", "RUN"): 0,
    ("check", "RUN"): 1,
    ("compare", "RUN", "RUN"): 0,
    ("report", "RUN", "-o", "page.html"): 0,
}
LOAD = """
import presum
run = presum.load("RUN")
assert len(run.steps["step"]) == 40 and len(run.findings) > 0, (run.steps, run.findings)
"""


class Outcomes:
    """The outcomes, one line each."""

    def __init__(self) -> None:
        self.failed = False

    @contextmanager
    def of(self, what: str) -> Iterator[Callable[[str], None]]:
        """Print the outcome of the body, which may report details or raise WheelError."""
        said: list[str] = []
        began = time.monotonic()
        try:
            yield said.append
            ended = "passed"
        except NotTriedError as why:
            ended = f"not tried: {why}"
        except WheelError as error:
            self.failed = True
            ended = f"FAILED: {error}"
        took = f"{time.monotonic() - began:.0f} s"
        print(f"{what:44} {'; '.join([ended, *said])} ({took})", flush=True)


class NotTriedError(Exception):
    """Why a test cannot run on this machine."""


def main() -> int:
    """Returns 0 if nothing failed, else 1."""
    outcomes = Outcomes()
    wheels = sorted(DIST.glob("*.whl"))
    if len(wheels) != 3 or not [*DIST.glob(COMMAND)]:
        print("wheels: dist must contain three wheels and the command", file=sys.stderr)
        return 1
    for wheel in wheels:
        with outcomes.of(wheel.name) as say:
            say(f"{wheel.stat().st_size / 1e6:.2f} MB")
            _look_inside(wheel, say)
    with outcomes.of("command") as say:
        _look_at(_command(), say)
    shutil.rmtree(RECORDED, ignore_errors=True)
    for version in pythons.TRIED:
        with outcomes.of(f"Python {version}") as say:
            _in_environment(version, say)
    for suite, version in ROOTS.items():
        with outcomes.of(f"bare {suite}" + (f", Python {version}" if version else ", command")):
            _in_root(suite, version)
    with outcomes.of(f"bare bookworm, {TORCH}, two ranks") as say:
        _training_in_root("bookworm", "3.11", say)
    with outcomes.of("bits of the build in .venv") as say:
        _bits(say)
    with outcomes.of("time of kernels over the build in .venv") as say:
        _ratio(say)
    return int(outcomes.failed)


# ---- the contents of a file


def _look_inside(wheel: Path, say: Callable[[str], None]) -> None:
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder)
        licenses = [*Path(folder).glob("*.dist-info/licenses/**/*")]
        names = {path.stem.lower() for path in licenses}
        wanted = {"license", "highway", "fmtlib", "sqlite3", "xxhash", "cli11", "nlohmann-json3"}
        wanted |= {"libcxx", "libcxxabi", "libunwind", "zig", "nanobind", "robin_map", "dygraphs"}
        if not wanted <= names:
            raise WheelError(f"licenses are missing: {sorted(wanted - names)}")
        say(f"{len(wanted)} licenses")
        (core,) = Path(folder).glob("presum/_core*.so")
        _look_at(core, say)


def _look_at(program: Path, say: Callable[[str], None]) -> None:
    from elftools.elf.elffile import ELFFile

    with program.open("rb") as file:
        elf = ELFFile(file)
        needed = {tag.needed for tag in elf.get_section_by_name(".dynamic").iter_tags("DT_NEEDED")}
        versions = elf.get_section_by_name(".gnu.version_r")
        names = {aux.name for _, found in versions.iter_versions() for aux in found}
    if not needed <= SYSTEM:
        raise WheelError(f"{program.name} is linked to {sorted(needed - SYSTEM)}")
    floors = [
        tuple(map(int, n.removeprefix("GLIBC_").split("."))) for n in names if n[:5] == "GLIBC"
    ]
    if max(floors) > FLOOR:
        raise WheelError(f"{program.name} needs glibc {max(floors)}")
    say(
        f"linked to {', '.join(sorted(needed))}; "
        f"symbols up to GLIBC {'.'.join(map(str, max(floors)))}"
    )


def _command() -> Path:
    """The unpacked command."""
    (archive,) = DIST.glob(COMMAND)
    run("tar", "-xf", archive, "-C", WORK)
    return WORK / archive.name.removesuffix(".tar.gz") / "presum"


# ---- environments


def _in_environment(version: str, say: Callable[[str], None]) -> None:
    interpreter = pythons.find(version)
    if interpreter is None:
        raise NotTriedError(f"Python {version} is not installed")
    folder = WORK / "environments" / version
    shutil.rmtree(folder, ignore_errors=True)
    run(interpreter, "-m", "venv", folder)
    began = time.monotonic()
    python = folder / "bin" / "python"
    pip = [python, "-m", "pip", "install", "-q"]
    run(*pip, "--only-binary=:all:", "numpy")
    run(*pip, "--no-index", "--find-links", DIST, "presum")
    say(f"installed in {time.monotonic() - began:.0f} s")
    if not RECORDED.exists():
        run(python, HERE / "recorded.py", RECORDED)
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        shutil.copytree(RECORDED, work / "RUN")
        _use([folder / "bin" / "presum"], work)
        run(python, "-c", LOAD, cwd=work)
        code = (
            "from importlib.util import find_spec as f; assert not f('torch') and not f('pandas')"
        )
        run(python, "-c", code)


def _use(command: list[object], work: Path) -> None:
    for words, code in USES.items():
        _expect([*command, *words], code, work)
    page = work / "page.html"
    if not page.is_file() or "</html>" not in page.read_text():
        raise WheelError("the report is not an HTML page")


def _expect(command: list[object], code: int, work: Path) -> None:
    """Check that a command exits with the code and prints something."""
    script = 'ended=0; "$@" >said || ended=$?; [ $ended = $0 ] && [ -s said ]'
    run("sh", "-c", script, code, *command, cwd=work)


# ---- roots of Debian


def _root(suite: str, version: str) -> Path:
    if os.geteuid() != 0:
        raise NotTriedError("it needs root")
    if shutil.which("debootstrap") is None:
        raise NotTriedError("debootstrap is not installed")
    root = WORK / "roots" / suite
    if not root.is_dir():
        half = root.with_suffix(".half")
        shutil.rmtree(half, ignore_errors=True)
        half.parent.mkdir(parents=True, exist_ok=True)
        include = ["--include=python3,python3-venv"] if version else []
        run("debootstrap", "--variant=minbase", *include, suite, half, _archive())
        half.rename(root)
    for unwanted in ("bin/cc", "bin/c++", "include/*.h", "lib/*/libhwy*", "lib/*/libfmt*"):
        if [*(root / "usr").glob(unwanted)]:
            raise WheelError(f"{root} contains {unwanted}")
    return root


def _archive() -> str:
    """The Debian archive that this machine's packages come from."""
    texts = [p.read_text() for p in Path("/etc/apt").glob("sources.list*") if p.is_file()]
    texts += [p.read_text() for p in Path("/etc/apt/sources.list.d").glob("*")]
    pattern = r"(?:^URIs:|^deb)\s+(?:\[[^]]*\]\s+)?(\w+://[^/\s]+/debian/?)(?:\s|$)"
    found = re.findall(pattern, "\n".join(texts), re.MULTILINE)
    if not found:
        raise NotTriedError("this machine's packages do not come from a Debian archive")
    return str(found[0])


def _in_root(suite: str, version: str) -> None:
    if not RECORDED.exists():
        raise NotTriedError("no wheel could be installed to write a run")
    root = _root(suite, version)
    work = root / "tried"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    shutil.copytree(RECORDED, work / "RUN")
    shutil.copy(_command(), work / "presum")
    inside = ["chroot", root, "env", "-C", "/tried", "PATH=/usr/bin:/bin"]
    if not version:
        _use([*inside, "./presum"], work)
        return
    python = _install_inside(root, version, [])
    _use([*inside, "/env/bin/presum"], work)
    run(*inside, python, "-c", LOAD)


def _install_inside(root: Path, version: str, more: list[str]) -> str:
    """Install presum, NumPy and ``more`` inside the root without a network. Returns its Python."""
    house = root / "wheelhouse"
    shutil.rmtree(house, ignore_errors=True)
    shutil.rmtree(root / "env", ignore_errors=True)
    only = [
        "--only-binary=:all:",
        "--python-version",
        version,
        "--platform",
        "manylinux_2_28_x86_64",
    ]
    only += ["--platform", "manylinux_2_17_x86_64", "--platform", "manylinux2014_x86_64"]
    own = pythons.find(version)
    if more and own is None:
        raise NotTriedError(f"Python {version} is not installed, which downloading needs")
    fetch = ["-m", "pip", "download", "-q", "-d", house]
    if more:
        run(own, *fetch, "numpy", *more)
    else:
        run(sys.executable, *fetch, *only, "numpy")
    for wheel in DIST.glob("*.whl"):
        shutil.copy(wheel, house)
    run("chroot", root, "python3", "-m", "venv", "/env")
    pip = ["chroot", root, "/env/bin/python", "-m", "pip", "install", "-q", "--no-index"]
    run(*pip, "--find-links", "/wheelhouse", "presum", *more)
    return "/env/bin/python"


def _training_in_root(suite: str, version: str, say: Callable[[str], None]) -> None:
    root = _root(suite, version)
    began = time.monotonic()
    python = _install_inside(root, version, [TORCH])
    say(f"installed in {time.monotonic() - began:.0f} s")
    shutil.copy(HERE / "first_finding.py", root / "tried")
    run("mount", "-t", "proc", "proc", root / "proc")
    try:
        inside = ["chroot", root, "env", "-C", "/tried", "PATH=/usr/bin:/bin", "OMP_NUM_THREADS=1"]
        launch = [python, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
        # A bare root cannot resolve the name of its machine.
        launch += ["--rdzv-backend", "static", "--master-addr", "127.0.0.1"]
        launch += ["--master-port", str(_free_port())]
        said = run(*inside, *launch, "first_finding.py", "/tried/trained")
    finally:
        run("umount", root / "proc")
    found = re.search(r"first finding after ([\d.]+) s", said)
    if found is None:
        raise WheelError(f"no finding:\n{said[-2000:]}")
    say(f"first finding {found[1]} s after the program's first line")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


# ---- comparison with the GCC build


def _own_python() -> Path:
    python = ROOT / ".venv" / "bin" / "python"
    if not python.exists():
        raise NotTriedError("there is no .venv: run make build first")
    return python


def _installed_beside() -> Path:
    """The Python of the environment with the wheel for .venv's Python version."""
    version = run(_own_python(), "-c", "import sys; print(*sys.version_info[:2], sep='.')").strip()
    python = WORK / "environments" / version / "bin" / "python"
    if not python.exists():
        raise NotTriedError(f"the wheel was not installed for Python {version}")
    return python


def _targets(wheels: Path, own: Path) -> list[str]:
    """The instruction sets that both builds have and this machine supports, best first."""
    listed = "from presum._core import simd_targets; print(*simd_targets()[0])"
    theirs = run(wheels, "-c", listed).split()
    targets = [target for target in run(own, "-c", listed).split() if target in theirs]
    if not targets:
        raise WheelError(f"the build in .venv has no instruction set of {theirs}")
    return targets


def _bits(say: Callable[[str], None]) -> None:
    wheels, own = _installed_beside(), _own_python()
    targets = _targets(wheels, own)
    for target in targets:
        found, expected = (run(p, HERE / "bits.py", PRESUM_SIMD=target) for p in (wheels, own))
        if found != expected:
            raise WheelError(f"on {target}:\n{found}\nbut expected\n{expected}")
    say(f"{len(expected.splitlines()) - 1} results on each of {', '.join(targets)}")


def _ratio(say: Callable[[str], None]) -> None:
    where = "import presum._core as c; print(c.__file__)"
    both = _installed_beside(), _own_python()
    cores = [run(python, "-c", where).strip() for python in both]
    for target in _targets(*both):
        if target == "EMU128":  # emulated vectors, for processors without any
            continue
        found = run(_own_python(), HERE / "kernel_ratio.py", *cores, PRESUM_SIMD=target)
        say(f"\n{target}\n{found.rstrip()}")


if __name__ == "__main__":
    sys.exit(main())
