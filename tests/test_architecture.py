# SPDX-License-Identifier: Apache-2.0
"""The rooms of ARCHITECTURE.md: who may include whom, what is built, what the map says.

What C++ rooms may include is parsed from the CMake files, so that build and rules are one; what
Python parts may import from the map itself.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import chain
from pathlib import Path

import pytest
import torch

import presum

ROOT = Path(__file__).parents[1]
SOURCES = ("src", "include", "python", "tests", "bench", "cmake", "examples", "tools", "wheels")
LICENSE = "SPDX-License-Identifier: Apache-2.0"
COMMENT = {".h": "//", ".cc": "//", ".cu": "//", ".py": "#", ".pyi": "#", ".cmake": "#"}
TEXTS = {*COMMENT, ".md", ".txt", ".toml", ".json", ".css", ".js", ".html"}


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def files(*folders: str) -> list[Path]:
    """Source files below the folders, without caches and build products."""
    found = chain.from_iterable((ROOT / folder).rglob("*") for folder in folders)
    skipped = re.compile(r"/(\.[^/]+|__pycache__|[^/]*\.egg-info|build)/")
    return sorted(p for p in found if p.is_file() and not skipped.search("/" + relative(p)))


# ---- the CMake files


def commands(text: str) -> list[tuple[str, list[str]]]:
    """Calls without nested parentheses, as name and arguments."""
    text = re.sub(r"#.*", "", text)
    return [(name, body.split()) for name, body in re.findall(r"(\w+)\s*\(([^()]*)\)", text)]


@dataclass
class Room:
    name: str
    deps: list[str] = field(default_factory=list)
    test_deps: set[str] = field(default_factory=set)
    tests: set[str] = field(default_factory=set)
    listed: set[str] = field(default_factory=set)  # every argument of its CMakeLists.txt


def room_order() -> list[str]:
    text = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    loops = [args for name, args in commands(text) if name == "foreach" and args[0] == "room"]
    assert len(loops) == 1
    return loops[0][1:]


def parse_room(name: str) -> Room:
    room = Room(name)
    text = (ROOT / "src" / name / "CMakeLists.txt").read_text(encoding="utf-8")
    globs: dict[str, set[str]] = {}
    for command, args in commands(text):
        room.listed.update(args)
        if command == "file" and args[0] == "GLOB":
            folder = ROOT / "src" / name
            found = {p.relative_to(folder).as_posix() for p in folder.glob(args[-1])}
            globs[f"${{{args[1]}}}"] = found
            room.listed.update(found)
        elif command == "presum_room":
            assert args[0] == name
            keyword = ""
            for arg in args[1:]:
                if arg in ("SOURCES", "DEPS", "LIBS", "TESTS"):
                    keyword = arg
                elif keyword == "DEPS":
                    room.deps.append(arg)
                elif keyword == "TESTS":
                    room.tests.update(globs.get(arg, {arg}))
        elif command == "presum_executable" and args[0].endswith("_test"):
            room.tests.update(args[1:])
        elif command == "target_link_libraries" and args[0] == f"{name}_test":
            room.test_deps.update(a.removeprefix("presum_") for a in args if "presum_" in a)
    return room


ORDER = room_order()
ROOMS = {name: parse_room(name) for name in ORDER}
FOLDERS = sorted(p.name for p in (ROOT / "src").iterdir() if p.is_dir())


def includes(path: Path) -> list[tuple[int, str]]:
    lines = path.read_text(encoding="utf-8").splitlines()
    matches = (
        (n, re.match(r'\s*#\s*include\s+["<]([^">]+)[">]', line)) for n, line in enumerate(lines, 1)
    )
    return [(n, match[1]) for n, match in matches if match]


# ---- rooms


def test_every_folder_of_src_is_a_room_of_the_list() -> None:
    assert sorted(ORDER) == FOLDERS


def test_every_room_stands_below_the_rooms_it_uses() -> None:
    for name, room in ROOMS.items():
        above = ORDER[: ORDER.index(name)]
        for dep in room.deps:
            assert dep in above, f"src/{name}/CMakeLists.txt: {dep} does not stand above {name}"
        in_order = [dep for dep in ORDER if dep in room.deps]
        assert room.deps == in_order, f"src/{name}/CMakeLists.txt: DEPS in the order {in_order}"


def is_test(room: Room, path: Path) -> bool:
    return path.name in room.tests or path.name == "testing.h"


@pytest.mark.parametrize("name", ORDER)
def test_rooms_include_only_what_they_declare(name: str) -> None:
    room = ROOMS[name]
    wrong = []
    for path in files(f"src/{name}"):
        if path.suffix not in (".h", ".cc", ".cu"):
            continue
        allowed = {name, *room.deps, *(room.test_deps if is_test(room, path) else ())}
        for line, target in includes(path):
            owner = target.split("/")[0]
            if owner in FOLDERS and "/" in target and owner not in allowed:
                wrong.append(
                    f"{relative(path)}:{line}: {target}: add {owner} to DEPS, or do without"
                )
    assert not wrong, "\n".join(wrong)


def public_owners() -> dict[str, str]:
    """The room that implements a public header: its source includes the header first."""
    owners = {}
    for name in ORDER:
        for path in files(f"src/{name}"):
            found = includes(path)
            if path.suffix == ".cc" and not path.name.endswith("_test.cc") and found:
                header = found[0][1]
                if header.startswith("presum/") and path.stem == Path(header).stem:
                    owners[header] = name
    return owners


def test_public_headers_are_used_below_the_room_that_implements_them() -> None:
    owners = public_owners()
    assert {"presum/session.h", "presum/aggregator.h"} <= owners.keys()
    wrong = []
    for name in ORDER:
        above = ORDER[: ORDER.index(name) + 1]
        for path in files(f"src/{name}"):
            if path.suffix not in (".h", ".cc") or is_test(ROOMS[name], path):
                continue
            for line, target in includes(path):
                if owners.get(target, name) not in above:
                    wrong.append(f"{relative(path)}:{line}: {target} is of {owners[target]}")
    assert not wrong, "\n".join(wrong)


def test_the_public_folder_includes_nothing_private() -> None:
    wrong = []
    for path in files("include"):
        for line, target in includes(path):
            private = "/" in target and target.split("/")[0] in FOLDERS
            missing = target.startswith("presum/") and not (ROOT / "include" / target).exists()
            if private or missing or target.startswith("."):
                wrong.append(f"{relative(path)}:{line}: {target}")
    assert not wrong, "\n".join(wrong)


def test_what_compares_two_runs_does_not_word_it() -> None:
    """Facts become words in one place, for what shows them: no code reads words back."""
    allowed = {"wording", "wording_evidence", "document", "testing"}
    wrong = []
    for path in files("src/compare"):
        if path.stem in allowed or path.name.endswith("_test.cc"):
            continue
        wrong += [
            f"{relative(path)}:{line}"
            for line, target in includes(path)
            if target == "compare/wording.h"
        ]
    assert not wrong, "\n".join(wrong)


# ---- the Python parts

PACKAGE = ROOT / "python" / "presum"


def module_name(path: Path) -> str:
    parts = ["presum", *path.relative_to(PACKAGE).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in files("python/presum") if path.suffix == ".py"}


def part_of(module: str) -> str:
    """The package or module of python/presum/ that a module belongs to."""
    return module.split(".")[1] if "." in module else module


def imported_modules(path: Path) -> Iterator[tuple[int, str]]:
    """Line and name of each module of presum that a file imports, wherever in its code."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{relative(path)}:{node.lineno}: a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func):
            names = [a.value for a in node.args[:1] if isinstance(a, ast.Constant)]
        else:
            continue
        for name in names:
            found = name if name in MODULES else name.rpartition(".")[0]
            if found in MODULES and not name.startswith("presum._core"):
                yield node.lineno, found


def python_parts() -> dict[str, list[str]]:
    """What each part may import, as ARCHITECTURE.md says."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    table = text.partition("\n| part | may import |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \|([^|]*)\|", table, re.MULTILINE)
    return {name: re.findall(r"`(\w+)`", cell) for name, cell in rows}


PARTS = python_parts()


def test_the_map_has_every_python_part_below_those_it_imports() -> None:
    assert set(PARTS) == {part_of(module) for module in MODULES}
    order = list(PARTS)
    for name, deps in PARTS.items():
        above = order[: order.index(name)]
        assert deps == [part for part in above if part in deps], f"ARCHITECTURE.md: {name}"


@pytest.mark.parametrize("part", PARTS)
def test_python_parts_import_only_what_the_map_says(part: str) -> None:
    wrong, used = [], set()
    for module in (module for module in MODULES if part_of(module) == part):
        for line, target in imported_modules(MODULES[module]):
            used.add(part_of(target))
            if part_of(target) not in (part, *PARTS[part]):
                wrong.append(f"{relative(MODULES[module])}:{line}: {target} is of no part below")
    assert not wrong, "\n".join(wrong)
    unused = set(PARTS[part]) - used
    assert not unused, f"ARCHITECTURE.md: {part} imports nothing of {sorted(unused)}"


def test_no_two_python_modules_import_each_other() -> None:
    below = {name: {m for _, m in imported_modules(path)} for name, path in MODULES.items()}
    try:
        list(TopologicalSorter(below).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_no_python_module_is_called_as_a_public_function_is() -> None:
    functions = {name for name in presum.__all__ if name.islower() and name[0] != "_"} - {"reduce"}
    assert functions == {"attach", "load"}
    assert not functions & {part_of(module) for module in MODULES}


# ---- the Python tests


def private_names() -> set[str]:
    """What presum's Python code keeps to itself, but for names of torch and of notebooks."""
    found: set[str] = set()
    for path in MODULES.values():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                found.add(node.name)
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self":
                found.add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
    others = {*dir(torch.nn.Module()), "_repr_html_"}
    return {name for name in found if re.match(r"_[a-z]", name) and name not in others}


def names_used(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Attributes of others, names that are imported, and texts that name attributes to replace."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) not in ("self", "cls"):
            yield node.lineno, node.attr
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("presum"):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value.rpartition(".")[2]


def test_tests_and_benchmarks_use_nothing_private_of_presum() -> None:
    private = private_names()
    wrong = []
    for path in files("python/tests", "tests", "bench"):
        if path.suffix != ".py":
            continue
        for line, name in names_used(ast.parse(path.read_text(encoding="utf-8"))):
            if name in private:
                wrong.append(f"{relative(path)}:{line}: {name}")
    assert not wrong, "\n".join(wrong)


# ---- what is built


def test_every_source_is_built() -> None:
    """A test that is not built is worse than none."""
    wrong = []
    for name, room in ROOMS.items():
        for path in files(f"src/{name}"):
            inside = path.relative_to(ROOT / "src" / name).as_posix()
            if path.suffix == ".cc" and inside not in room.listed:
                wrong.append(f"{relative(path)} is not in src/{name}/CMakeLists.txt")
            if inside.endswith("_test.cc") and inside not in room.tests:
                wrong.append(f"{relative(path)} is not among the TESTS of its room")
    assert not wrong, "\n".join(wrong)


EXAMPLES = sorted(relative(p) for p in (ROOT / "examples").iterdir() if p.is_dir())


@pytest.mark.parametrize("folder", ["bench", "python/bindings", *EXAMPLES])
def test_every_source_beside_the_rooms_is_built(folder: str) -> None:
    text = (ROOT / folder / "CMakeLists.txt").read_text(encoding="utf-8")
    listed = set(chain.from_iterable(args for _, args in commands(text)))
    for path in (ROOT / folder).glob("*.cc"):
        # bench lists names and adds the ending.
        assert listed & {path.name, path.stem.removesuffix("_bench")}, relative(path)


@pytest.mark.parametrize("folder", EXAMPLES)
def test_every_example_is_built_and_run_by_a_test(folder: str) -> None:
    tests = (ROOT / "tests" / "test_examples.py").read_text(encoding="utf-8")
    assert f'build("{Path(folder).name}")' in tests


# ---- the map


def test_the_map_has_every_room_and_its_dependencies() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `src/(\w+)/` \|([^|]*)\|", text, re.MULTILINE)
    assert [name for name, _ in rows] == ORDER
    for name, cell in rows:
        assert re.findall(r"`(\w+)`", cell) == ROOMS[name].deps, f"ARCHITECTURE.md: {name}"


# ---- every file


def comment_of(path: Path) -> str | None:
    if path.name in ("CMakeLists.txt", "Makefile"):
        return "#"
    return COMMENT.get(path.suffix)


def test_every_source_begins_with_its_license() -> None:
    wrong = []
    for path in [*files(*SOURCES), ROOT / "CMakeLists.txt", ROOT / "Makefile"]:
        comment = comment_of(path)
        first = path.read_text(encoding="utf-8").partition("\n")[0] if comment else ""
        if comment and first != f"{comment} {LICENSE}":
            wrong.append(f"{relative(path)}:1: {comment} {LICENSE}")
    assert not wrong, "\n".join(wrong)


def test_no_file_knows_the_machine_it_was_written_on() -> None:
    machine = re.compile(r"(?<![\w.<~-])/(?:work|root|home)(?=[/\s\"'`]|$)", re.MULTILINE)
    top = [p for p in ROOT.iterdir() if p.is_file() and not p.name.startswith(".git")]
    wrong = []
    for path in [*files(*SOURCES, "docs"), *top]:
        named = path.suffix in TEXTS or path.name in ("Makefile", "LICENSE", "VERSION")
        if not named or path.resolve() == Path(__file__).resolve():
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if machine.search(line):
                wrong.append(f"{relative(path)}:{number}: {line.strip()}")
    assert not wrong, "\n".join(wrong)
