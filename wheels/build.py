# SPDX-License-Identifier: Apache-2.0
"""Builds the source distribution, the wheels and the native command for x86-64 Linux.

For ``make wheels``, in an environment with ziglang, cmake, ninja, auditwheel and build. Needs
apt-get with Debian's sources, make, a C compiler and tclsh, for SQLite's source.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import libraries
import pythons
from libraries import WheelError, run

ROOT = Path(__file__).parents[1]
WORK = ROOT / "build" / "wheels"
CUBINS = WORK / "cubins"
OUT = ROOT / "dist"
PLATFORM = "manylinux_2_28_x86_64"
BUILT_FOR = ("3.10", "3.11", "3.12")  # the wheel for 3.12 serves later versions too
BUILD_PACKAGES = ("scikit-build-core", "nanobind")  # in the releases that make wheels pins
WHEEL_BYTES_MAX = 5_000_000


def main() -> int:
    """Returns 0 if everything was built, else 2."""
    try:
        libraries.found_tools(("git", "apt-get", "make", "cc", "tclsh", "cmake", "ninja", "tar"))
        version = checked_version()
        shutil.rmtree(OUT, ignore_errors=True)
        shutil.rmtree(WORK / "built", ignore_errors=True)
        build_all(version, OUT)
    except WheelError as error:
        print(f"wheels: {error}", file=sys.stderr)
        return 2
    return 0


def checked_version() -> str:
    """The version in the file VERSION. Raises WheelError if the tree has uncommitted changes, or if
    its commit is tagged with another version."""
    version = (ROOT / "VERSION").read_text(encoding="utf-8").strip()
    changed = run("git", "status", "--porcelain", cwd=ROOT).splitlines()
    if changed:
        raise WheelError(
            f"the tree has uncommitted changes ({len(changed)} files, {changed[0].strip()})"
        )
    tags = run("git", "tag", "--points-at", "HEAD", "--list", "v[0-9]*", cwd=ROOT).split()
    if tags and f"v{version}" not in tags:
        raise WheelError(f"the commit is tagged {', '.join(tags)}, but VERSION says {version}")
    return version


@contextmanager
def phase(what: str) -> Iterator[None]:
    print(f"== {what}", end=" ", flush=True)
    began = time.monotonic()
    yield
    print(f"({time.monotonic() - began:.0f} s)", flush=True)


def build_all(version: str, out: Path) -> None:
    """Build everything into a folder."""
    prefix, wrappers = WORK / "libraries", WORK / "bin"
    zig = Path(importlib.util.find_spec("ziglang").origin).parent / "zig"  # type: ignore[union-attr, arg-type]
    libraries.write_wrappers(zig, wrappers)
    with phase("sources of the bundled libraries"):
        libraries.fetch(WORK / "sources")
    with phase("libraries"):
        _build_libraries(zig, wrappers, prefix)
    with phase("CUDA kernels"):
        shutil.rmtree(CUBINS, ignore_errors=True)
        run(sys.executable, ROOT / "tools" / "cubins.py", CUBINS)
    with phase("source distribution"):
        source = _sdist(version, out)
    with phase("command"):
        _build_command(version, source, wrappers, prefix, out)
    found = {python: pythons.find(python) for python in BUILT_FOR}
    for python, interpreter in found.items():
        if interpreter is not None:
            with phase(f"wheel for {python}"):
                _build_wheel(interpreter, python, source, wrappers, prefix)
    for built in sorted((WORK / "built").glob("*.whl")):
        _repair(built, version, out)
    for path in sorted(out.iterdir()):
        print(f"   {path.name}  {path.stat().st_size / 1e6:.2f} MB")
    absent = [python for python, interpreter in found.items() if interpreter is None]
    if absent:
        raise WheelError(f"no wheel for {', '.join(absent)}: that Python is not installed")


def _build_libraries(zig: Path, wrappers: Path, prefix: Path) -> None:
    parts = [libraries.HERE / name for name in ("libraries.py", "sources.json", "zig.cmake")]
    state = "\n".join([run(zig, "version"), *(p.read_text(encoding="utf-8") for p in parts)])
    stamp = prefix / "built-from"
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == state:
        return
    shutil.rmtree(WORK / "work", ignore_errors=True)
    libraries.build(WORK / "sources", wrappers, WORK / "work", prefix)
    lib = zig.parent / "lib"
    nanobind = importlib.metadata.files("nanobind") or []
    license = next(path for path in nanobind if path.name == "LICENSE" and "dist-info" in str(path))
    robin_map = next(path for path in nanobind if path.name == "robin_map.h")
    inside = [
        ("libcxx", lib / "libcxx" / "LICENSE.TXT"),
        ("libcxxabi", lib / "libcxxabi" / "LICENSE.TXT"),
        ("libunwind", lib / "libunwind" / "LICENSE.TXT"),
        ("zig", zig.parent / "LICENSE"),
        ("nanobind", Path(str(license.locate()))),
        ("dygraphs", ROOT / "src" / "report" / "dygraphs" / "LICENSE.txt"),
    ]
    libraries.copy_licenses(inside, prefix / "licenses")
    notice = Path(str(robin_map.locate())).read_text(encoding="utf-8").split("*/")[0]
    (prefix / "licenses" / "robin_map.txt").write_text(notice + "*/\n", encoding="utf-8")
    stamp.write_text(state, encoding="utf-8")


def _sdist(version: str, out: Path) -> Path:
    """Build the source distribution. Returns its unpacked folder."""
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", out, ROOT)
    archive = out / f"presum-{version}.tar.gz"
    if not archive.is_file():
        raise WheelError(f"the build made no source distribution presum-{version}.tar.gz")
    shutil.rmtree(WORK / "source", ignore_errors=True)
    (WORK / "source").mkdir()
    run("tar", "-xf", archive, "-C", WORK / "source")
    return WORK / "source" / f"presum-{version}"


def _build_command(version: str, source: Path, wrappers: Path, prefix: Path, out: Path) -> None:
    folder = WORK / "command"
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DPRESUM_TESTS=OFF", "-DPRESUM_MPI=OFF"]
    options += ["-DCMAKE_UNITY_BUILD=ON", "-DCMAKE_UNITY_BUILD_BATCH_SIZE=6"]
    options += libraries.toolchain(wrappers, prefix)
    run("cmake", "--fresh", "-G", "Ninja", "-S", source, "-B", folder, *options)
    run("cmake", "--build", folder, "--target", "presum")
    name = f"presum-{version}-x86_64-linux"
    shutil.rmtree(WORK / name, ignore_errors=True)
    shutil.copytree(prefix / "licenses", WORK / name / "licenses")
    shutil.copy(ROOT / "LICENSE", WORK / name)
    shutil.copy(folder / "src" / "cli" / "presum", WORK / name)
    run("tar", "-czf", out / f"{name}.tar.gz", "-C", WORK, name)


def _build_wheel(
    interpreter: Path, python: str, source: Path, wrappers: Path, prefix: Path
) -> None:
    environment, folder = WORK / f"build-{python}", WORK / f"wheel-{python}"
    shutil.rmtree(folder, ignore_errors=True)
    own = environment / "bin" / "python"
    pinned = [f"{name}=={importlib.metadata.version(name)}" for name in BUILD_PACKAGES]
    run(interpreter, "-m", "venv", environment)
    run(own, "-m", "pip", "install", "-q", *pinned)
    defines = [*libraries.toolchain(wrappers, prefix), f"-DPRESUM_LICENSES={prefix / 'licenses'}"]
    defines.append(f"-DPRESUM_CUBINS={CUBINS}")
    settings = [f"--config-settings=cmake.args={';'.join(defines)}"]
    settings += [f"--config-settings=build-dir={folder}"]
    run(
        *(own, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"),
        *(*settings, "-w", WORK / "built", source),
        PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    )


def _repair(wheel: Path, version: str, out: Path) -> None:
    """Tag a wheel with its platform, after checking that it needs nothing more than that platform
    provides."""
    run("auditwheel", "repair", "--plat", PLATFORM, "--only-plat", "-w", out, wheel)
    (repaired,) = out.glob("-".join([*wheel.name.split("-")[:4], "*.whl"]))
    with zipfile.ZipFile(repaired) as packed:
        inside = packed.namelist()
        text = packed.read(f"presum-{version}.dist-info/METADATA").decode()
    if f"\nVersion: {version}\n" not in text:
        raise WheelError(f"{repaired.name} does not have version {version}")
    if any(".libs/" in name for name in inside):
        raise WheelError(f"{repaired.name} contains a dynamically linked library")
    if repaired.stat().st_size > WHEEL_BYTES_MAX:
        raise WheelError(f"{repaired.name} is larger than {WHEEL_BYTES_MAX:,} bytes")


if __name__ == "__main__":
    sys.exit(main())
