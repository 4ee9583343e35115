# SPDX-License-Identifier: Apache-2.0
"""The libraries inside a wheel: Debian's sources, verified, built as static archives."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
TARGET = "x86_64-linux-gnu.2.28"
APT = Path("/etc/apt")
SQLITE_FLAGS = (
    *("-O2", "-fPIC", "-fvisibility=hidden", "-DNDEBUG"),
    *("-DSQLITE_THREADSAFE=1", "-DSQLITE_OMIT_LOAD_EXTENSION", "-DHAVE_USLEEP=1"),
)
CMAKE_OPTIONS = {
    "highway": ("-DBUILD_TESTING=OFF", "-DHWY_ENABLE_EXAMPLES=OFF", "-DHWY_ENABLE_CONTRIB=OFF"),
    "fmtlib": ("-DFMT_TEST=OFF", "-DFMT_DOC=OFF"),
    "cli11": ("-DCLI11_BUILD_TESTS=OFF", "-DCLI11_BUILD_EXAMPLES=OFF", "-DCLI11_BUILD_DOCS=OFF"),
    "nlohmann-json3": ("-DJSON_BuildTests=OFF",),
}


class WheelError(Exception):
    """A one-line reason why there is no wheel."""


@dataclass(frozen=True)
class Source:
    """A library's release in Debian."""

    package: str
    file: str
    license: str  # a file in its top folder
    sha256: str


def sources() -> list[Source]:
    """The sources in sources.json."""
    return [Source(**one) for one in json.loads((HERE / "sources.json").read_text())]


def run(*command: object, cwd: Path | None = None, **environment: str) -> str:
    """Run a command and return its output. If it fails, raises WheelError with the end of the
    output."""
    words = [*map(str, command)]
    try:
        done = subprocess.run(
            words,
            cwd=cwd,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    except OSError as error:
        raise WheelError(f"{words[0]}: {error.strerror}") from None
    if done.returncode != 0:
        raise WheelError(f"{' '.join(words)[:300]} failed:\n{done.stdout[-4000:]}")
    return done.stdout


# ---- sources


def fetch(folder: Path) -> None:
    """Download missing sources, from the archives of this machine's packages.

    Raises:
        WheelError: an archive has another release or other bytes by now.
    """
    folder.mkdir(parents=True, exist_ok=True)
    missing = [one for one in sources() if not (folder / one.file).is_file()]
    if missing:
        options = _apt_options(folder / "apt")
        run("apt-get", *options, "update")
        names = [one.package for one in missing]
        run("apt-get", *options, "source", "--download-only", "--tar-only", *names, cwd=folder)
    for one in sources():
        path = folder / one.file
        if not path.is_file():
            found = sorted(p.name for p in folder.glob(f"{one.package}_*.orig.tar.*"))
            raise WheelError(f"wheels/sources.json needs {one.file}, but the archive has {found}")
        if hashlib.sha256(path.read_bytes()).hexdigest() != one.sha256:
            raise WheelError(f"{path} does not have the SHA-256 in wheels/sources.json")


def _apt_options(state: Path) -> list[str]:
    """Options that make apt use source packages, without changing the machine."""
    parts = state / "parts"
    for each in (parts, state / "lists" / "partial", state / "cache" / "archives" / "partial"):
        each.mkdir(parents=True, exist_ok=True)
    for path in [APT / "sources.list", *(APT / "sources.list.d").glob("*")]:
        if not path.is_file():
            continue
        text = path.read_text(encoding="utf-8")
        of_packages = re.sub(r"^deb(?=\s)", "deb-src", text, flags=re.MULTILINE)
        of_packages = re.sub(r"^Types:.*$", "Types: deb-src", of_packages, flags=re.MULTILINE)
        (parts / path.name).write_text(of_packages, encoding="utf-8")
    places = {
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": parts,
        "Dir::State::lists": state / "lists",
        "Dir::Cache": state / "cache",
        "APT::Sandbox::User": "root",
    }
    return [word for key, value in places.items() for word in ("-o", f"{key}={value}")]


def _unpack(archive: Path, folder: Path) -> Path:
    """Unpack an archive. Returns the folder in it."""
    top = run("tar", "-tf", archive).split("/", 1)[0]
    run("tar", "-xf", archive, "-C", folder)
    return folder / top


# ---- the compiler


def write_wrappers(zig: Path, folder: Path) -> Path:
    """Write programs that compile, archive and link for the wheels' target."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, verb in (("c", "cc"), ("cxx", "c++"), ("ar", "ar"), ("ranlib", "ranlib")):
        target = f" -target {TARGET}" if verb.startswith("c") else ""
        wrapper = folder / f"zig-{name}"
        text = f'#!/bin/sh\nexec "{zig}" {verb}{target} "$@"\n'
        if not wrapper.is_file() or wrapper.read_text(encoding="utf-8") != text:
            wrapper.write_text(text, encoding="utf-8")  # compiler caches check its date
            wrapper.chmod(0o755)
    return folder


def toolchain(wrappers: Path, prefix: Path) -> list[str]:
    """Options of CMake for the toolchain."""
    return [
        f"-DCMAKE_TOOLCHAIN_FILE={HERE / 'zig.cmake'}",
        f"-DZIG_BIN={wrappers}",
        f"-DLIBRARIES={prefix}",
    ]


# ---- building


def build(archives: Path, wrappers: Path, work: Path, prefix: Path) -> None:
    """Install all libraries under the prefix, with their licenses in its folder ``licenses``."""
    licenses = prefix / "licenses"
    shutil.rmtree(prefix, ignore_errors=True)
    licenses.mkdir(parents=True)
    work.mkdir(parents=True, exist_ok=True)
    for one in sources():
        source = _unpack(archives / one.file, work)
        if one.package == "sqlite3":
            _build_sqlite(source, wrappers, prefix)
        elif one.package == "xxhash":
            shutil.copy(source / "xxhash.h", prefix / "include")
        else:
            _build_with_cmake(one.package, source, wrappers, prefix)
        shutil.copy(source / one.license, licenses / f"{one.package}.txt")


def _build_with_cmake(name: str, source: Path, wrappers: Path, prefix: Path) -> None:
    shared = (
        *("-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF"),
        *("-DCMAKE_POSITION_INDEPENDENT_CODE=ON", "-DCMAKE_CXX_VISIBILITY_PRESET=hidden"),
        *("-DCMAKE_POLICY_VERSION_MINIMUM=3.10", f"-DCMAKE_INSTALL_PREFIX={prefix}"),
        "-DCMAKE_INSTALL_LIBDIR=lib",
    )
    folder = source / "build"
    options = CMAKE_OPTIONS[name]
    run("cmake", "-S", source, "-B", folder, *shared, *options, *toolchain(wrappers, prefix))
    run("cmake", "--build", folder)
    run("cmake", "--install", folder)


def _build_sqlite(source: Path, wrappers: Path, prefix: Path) -> None:
    run("./configure", cwd=source)
    run("make", "sqlite3.c", "sqlite3.h", cwd=source)
    run(wrappers / "zig-c", *SQLITE_FLAGS, "-c", "sqlite3.c", "-o", "sqlite3.o", cwd=source)
    (prefix / "lib").mkdir(exist_ok=True)
    run(wrappers / "zig-ar", "rcs", prefix / "lib" / "libsqlite3.a", "sqlite3.o", cwd=source)
    for header in ("sqlite3.h", "src/sqlite3ext.h"):
        shutil.copy(source / header, prefix / "include")


def copy_licenses(folders: Iterable[tuple[str, Path]], into: Path) -> None:
    """Copy the licenses of compiler and bindings. Raises WheelError if one is missing."""
    for name, path in folders:
        if not path.is_file():
            raise WheelError(f"{name} has no license at {path}")
        shutil.copy(path, into / f"{name}.txt")


def found_tools(names: Sequence[str]) -> None:
    """Raises WheelError if a program is not installed."""
    absent = [name for name in names if shutil.which(name) is None]
    if absent:
        raise WheelError(f"not installed: {', '.join(absent)}")
