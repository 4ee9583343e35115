# SPDX-License-Identifier: Apache-2.0
"""The rooms of ARCHITECTURE.md: who may include whom, what is built, what the map says.

What C++ rooms may include is parsed from the CMake files, so that build and rules are one; what
Python parts may import from the map itself.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import chain
from pathlib import Path

import pytest
import torch

import presum

ROOT = Path(__file__).parents[1]
SOURCES = ("src", "include", "python", "tests", "bench", "cmake", "examples", "tools", "wheels")
MAPS = ("ARCHITECTURE.md", "CONTRIBUTING.md")
LICENCE = "SPDX-License-Identifier: Apache-2.0"
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
    for command, args in commands(text):
        room.listed.update(args)
        if command == "presum_room":
            assert args[0] == name
            keyword = ""
            for arg in args[1:]:
                if arg in ("SOURCES", "DEPS", "LIBS", "TESTS"):
                    keyword = arg
                elif keyword == "DEPS":
                    room.deps.append(arg)
                elif keyword == "TESTS":
                    room.tests.add(arg)
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
    assert {"presum/observer.h", "presum/aggregator.h"} <= owners.keys()
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
    allowed = {"wording", "wording_evidence", "wording_between", "document", "testing"}
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
TOP_MODULES_MAX = 11
CLASS_LINES_MAX = 250
FUNCTION_LINES_MAX = 60


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


# Of longer classes and functions, with the reason.
LONG_CLASSES = {"StepRecorder": "a short method for each of torch's events, and no state of a step"}
LONG_FUNCTIONS: dict[str, str] = {}


def lines_of(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Without a function's docstring."""
    assert node.end_lineno is not None
    count = node.end_lineno - node.lineno + 1
    first = node.body[0]
    if isinstance(node, ast.ClassDef) or ast.get_docstring(node) is None:
        return count
    assert first.end_lineno is not None
    return count - (first.end_lineno - first.lineno + 1)


# What Python keeps of one step or pass outside of presum.reduce, by class: the rest is C++'s
# (docs/step.md). Tensors that are still on a device, what torch calls back with, and what loaders'
# batches are found by.
STEP_STATE = {
    "StepRecorder": {
        "in_backward",  # these three are PassFlags, for each parameter
        "reads_sums",
        "reads_arrivals",
        "gathers",
        "pass_rows",
        "run_told",
        "held",
        "versions",
        "scale_of_pass",
        "end_queued",
        "run",
        "looked",
        "thread",
        "task",
    },
    "ReducingPasses": {"armed", "seen", "before", "waiting", "waits_for", "takes_no_part"},
    "DdpSource": {"reduces", "fresh"},
    "LateNumbers": {"chunks", "count", "scalars"},
    "GradientReader": {"device_step"},
    "EndedSteps": {"late", "samples", "windows", "late_steps"},
    "ForwardPasses": {"rows", "forwards"},
    "OptimizerTurn": {
        "forwards",
        "reached",
        "unknown",
        "of_pass",
        "waiting",
        "cleared",
        "emptied",
        "others",
        "sample",
        "factor",
        "found",
    },
    "Recomputation": {"kept", "passes", "forwards"},
    "Marks": {"known"},
    "RoundedUpdates": {"before"},
    "OtherOptimizers": {"empty", "in_vain", "sample", "steps"},
}
# And what stays for the recording.
LASTING = {
    "StepRecorder": {
        "source",
        "setup",
        "observer",
        "waiting",
        "marks",
        "off",
        "failed",
        "ended",  # whether it has, and the steps that have
        "fingerprints",
        "forwards",
        "aside",
        "moments",
        "turn",
        "rounded",
        "small",
        "others",
        "asks_others",
        "recomputation",
        "overhead",
        "reader",
        "scaled",
        "in_hook",
        "told_of_audit",
        "norms",
        "handles",
        "listening",
    },
    "OptimizerSteps": {"listeners"},
    "ReducingPasses": {"reference"},
    "OptimizerTurn": {"clears", "follows", "number", "own_steps", "setup", "source"},
    "Parameters": {"held"},
    "Recomputation": {"arrivals", "setup"},
    "RoundedUpdates": {"steps"},
    "SmallGradients": {"replicas", "steps"},
    "OtherOptimizers": {"astray", "held", "holder", "setup"},
    "ValueSample": {"places", "values"},
    "Arrivals": {"arrives", "handles"},
    "Waiting": {"open"},
    "_Arrival": {"arrives", "place"},
    "Overhead": {"first", "flags", "recorded", "setup"},
    "DdpSource": {"arrivals", "passes", "recorder", "views"},
    "JoinListeners": {"sources", "tap"},
    "GradientSource": {"inner", "recorder", "wrapper"},
    "Recording": {
        "ended",
        "ending",
        "finalizer",
        "model_is_gone",
        "error_before",  # of the interpreter, for the last note
        "module",
        "observer",
        "preflight",
        "process_group",
        "recorder",
        "session",
    },
    "GradientReader": {"setup", "observer", "told", "repeated"},
    "EndedSteps": {"setup"},
    "ForwardPasses": {"inner", "setup", "shifts_labels", "turn"},
}


def attributes_of(node: ast.ClassDef) -> set[str]:
    """Those that its methods set."""
    targets = [
        target
        for statement in ast.walk(node)
        if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign))
        for one in (statement.targets if isinstance(statement, ast.Assign) else [statement.target])
        for target in ast.walk(one)
    ]
    return {
        target.attr.lstrip("_")
        for target in targets
        if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self"
    }


def test_python_keeps_no_other_state_of_a_step() -> None:
    steps = [path for name, path in MODULES.items() if name.startswith("presum.steps.")]
    steps.append(MODULES["presum.parallel.ddp"])  # which passes reduce
    classes = {
        node.name: attributes_of(node)
        for path in steps
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and attributes_of(node)
    }
    known = STEP_STATE.keys() | LASTING.keys()
    expected = {name: STEP_STATE.get(name, set()) | LASTING.get(name, set()) for name in known}
    assert classes == expected


def python_definitions(kinds: tuple[type, ...]) -> Iterator[tuple[str, str, int]]:
    """Place, name and lines of each in the package."""
    for path in MODULES.values():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, kinds):
                yield f"{relative(path)}:{node.lineno}", node.name, lines_of(node)


@pytest.mark.parametrize(
    ("kinds", "limit", "exceptions"),
    [
        ((ast.ClassDef,), CLASS_LINES_MAX, LONG_CLASSES),
        ((ast.FunctionDef, ast.AsyncFunctionDef), FUNCTION_LINES_MAX, LONG_FUNCTIONS),
    ],
    ids=["classes", "functions"],
)
def test_python_classes_and_functions_are_short(
    kinds: tuple[type, ...], limit: int, exceptions: dict[str, str]
) -> None:
    long = [(place, name, n) for place, name, n in python_definitions(kinds) if n > limit]
    wrong = [f"{place}: {name} has {n} lines" for place, name, n in long if name not in exceptions]
    assert not wrong, f"at most {limit}; " + "\n".join(wrong)
    assert exceptions.keys() == {name for _, name, _ in long}, "an exception is not needed any more"


def test_few_python_modules_stand_outside_of_packages() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= TOP_MODULES_MAX


def test_no_python_module_is_called_as_a_public_function_is() -> None:
    functions = {name for name in presum.__all__ if name.islower() and name[0] != "_"} - {"reduce"}
    assert functions == {"attach", "load"}
    assert not functions & {part_of(module) for module in MODULES}


# ---- the Python tests


def private_names() -> set[str]:
    """What presum's Python code keeps to itself, but for what torch calls so too."""
    found: set[str] = set()
    for path in MODULES.values():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                found.add(node.name)
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self":
                found.add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
    torch_s_own = dir(torch.nn.Module())
    return {name for name in found if re.match(r"_[a-z]", name) and name not in torch_s_own}


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


def test_every_listed_source_exists() -> None:
    for name, room in ROOMS.items():
        for listed in room.listed:
            if listed.endswith((".cc", ".cu")) and "$" not in listed:
                assert (ROOT / "src" / name / listed).exists(), f"src/{name}/{listed}"


# ---- the maps


def code_spans(text: str) -> list[str]:
    fenceless = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"`([^`\n]+)`", fenceless)


def is_path(span: str) -> bool:
    """Something with a slash or the ending of a text file."""
    whole = re.fullmatch(r"[\w.*-]+(/[\w.*-]*)*", span)
    return bool(whole) and ("/" in span or Path(span).suffix in TEXTS)


@pytest.mark.parametrize("name", MAPS)
def test_paths_on_the_map_exist(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    paths = [span for span in code_spans(text) if is_path(span)]
    assert paths
    missing = [p for p in paths if not any(ROOT.glob(p.rstrip("/")))]
    assert not missing, f"{name}: {missing}"


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


def test_every_source_begins_with_its_licence() -> None:
    wrong = []
    for path in [*files(*SOURCES), ROOT / "CMakeLists.txt", ROOT / "Makefile"]:
        comment = comment_of(path)
        first = path.read_text(encoding="utf-8").partition("\n")[0] if comment else ""
        if comment and first != f"{comment} {LICENCE}":
            wrong.append(f"{relative(path)}:1: {comment} {LICENCE}")
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


# ---- sizes of C++: functions are held to 60 lines by clang-tidy (.clang-tidy), classes here

# Lines of code of its body and of its member functions outside of it. Comments and blank lines are
# free: a header is its documentation.
CPP_CLASS_LINES_MAX = 250
# Classes above the limit, each with the reason. One that no longer is has to leave.
LARGE_CPP_CLASSES: dict[str, str] = {}

NOT_CODE = re.compile(
    r"""//[^\n]* | /\*.*?\*/ | R"(\w*)\(.*?\)\1" | "(?:\\.|[^"\\\n])*" | (?<!\w)'(?:\\.|[^'\\\n])+'
    | ^[ \t]*\#(?:\\\n|[^\n])*""",
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
CLASS = re.compile(
    r"(?:template\s*<.*>\s*)?(?:class|struct|union)\s+(?:(?:\[\[.*?\]\]|alignas\(.*?\))\s*)*"
    r"([\w:]+)(?:<.*>)?(?:\s+final)?\s*(?::(?!:).*)?",
    re.DOTALL,
)
MEMBER = re.compile(r"((?:\w+(?:<[^<>()]*>)?::)+)(?:~?\w+|operator[^\w]*)\s*$")


def closing_brace(code: str, opening: int) -> int:
    depth = 0
    for brace in re.finditer(r"[{}]", code[opening:]):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return opening + brace.start()
    return len(code) - 1


def cpp_definitions(text: str) -> Iterator[tuple[str, int, bool]]:
    """Of every class, and of every member function outside of it: the class, its lines of code,
    whether it is the class itself."""
    code = NOT_CODE.sub(lambda noise: re.sub(r"[^\n]", " ", noise[0]), text)
    begin = 0
    while found := re.compile(r"[{};]").search(code, begin):
        end = found.start()
        head = code[begin:end].strip()
        if found[0] == "{" and not re.search(r"\bnamespace\b|^extern\b", head):
            end = closing_brace(code, end)
            # Members that a constructor initialises with braces, then its body.
            while more := re.compile(r"\s*[,{][^{;]*").match(code, end + 1):
                end = closing_brace(code, code.index("{", more.start()))
            lines = sum(1 for line in code[begin : end + 1].splitlines() if line.strip())
            if is_class := CLASS.fullmatch(head):
                yield is_class[1], lines, True
            elif owner := MEMBER.search(head.partition("(")[0]):
                yield re.sub(r"<.*?>", "", owner[1])[:-2], lines, False
        begin = end + 1


def class_sizes(sources: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Lines of code by "folder: class". A public class counts where its functions are, too."""
    bodies: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    for folder, text in sources:
        for name, lines, is_class in cpp_definitions(text):
            sizes[folder, name] += lines
            bodies[folder, name] += lines if is_class else 0
    for folder, name in sizes:
        if not bodies[folder, name]:
            sizes[folder, name] += bodies["include/presum", name]
    return {f"{folder}: {name}": lines for (folder, name), lines in sizes.items()}


def cpp_sources() -> Iterator[tuple[str, str]]:
    for path in files("src", "include"):
        if path.suffix in (".h", ".cc", ".cu") and not path.name.endswith("_test.cc"):
            folder = "/".join(path.relative_to(ROOT).parts[:2])
            yield folder, path.read_text(encoding="utf-8")


def complaints_about_sizes(sizes: dict[str, int], exceptions: Iterable[str]) -> list[str]:
    large = {name for name, lines in sizes.items() if lines > CPP_CLASS_LINES_MAX}
    wrong = [f"{name}: {sizes[name]} lines: make parts of it" for name in large - {*exceptions}]
    return sorted(wrong + [f"{name}: is no exception" for name in {*exceptions} - large])


def test_no_class_of_the_core_is_large() -> None:
    sizes = class_sizes(cpp_sources())
    assert len(sizes) > 200
    wrong = complaints_about_sizes(sizes, LARGE_CPP_CLASSES)
    assert not wrong, "\n".join(wrong)


def test_a_large_class_is_noticed_and_so_is_an_exception_that_is_none() -> None:
    half = "void A::{}() {{\n" + "  f();\n" * (CPP_CLASS_LINES_MAX // 2) + "}}\n"
    sizes = class_sizes([("src/a", "struct A {};\n" + half.format("f") + half.format("g"))])
    assert complaints_about_sizes(sizes, []) == [
        f"src/a: A: {CPP_CLASS_LINES_MAX + 5} lines: make parts of it"
    ]
    assert complaints_about_sizes(sizes, ["src/a: A"]) == []
    assert complaints_about_sizes({"src/a: A": 3}, ["src/a: A"]) == ["src/a: A: is no exception"]


def test_sizes_of_classes_count_bodies_and_member_functions() -> None:
    header = """\
namespace a {
// class Comment { "
template <class T>
class Queue final : public Base<T> {
  // A comment.
  struct Item { int x; };

  const char* text = "}";
};
Queue make();
enum class Kind { kOne };
}  // namespace a
"""
    source = """\
namespace a {
Queue::Queue(int n) : items_{1, 2}, n_{n} {
  if (n) { f(); }
}
std::vector<Queue::Item> Queue::items() const
{
  return {};
}
bool Queue::operator==(const Queue&) const { return Other::get(1); }
static std::size_t free_function(Queue::Item item) {
  return item.x;
}
struct Queue::State {
  int a;
};
}  // namespace a
"""
    sizes = class_sizes([("include/presum", header), ("src/a", source)])
    assert sizes == {
        "include/presum: Queue": 5,
        "src/a: Queue": 5 + 3 + 4 + 1,
        "src/a: Queue::State": 3,
    }
