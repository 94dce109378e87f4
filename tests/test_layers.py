"""The layers and the things that must never be written, read from the syntax of every file."""

from __future__ import annotations

import ast
import fnmatch
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import protocol
from protocol.errors.distribution import DISTRIBUTION
from tests.tools import ROOT

LAYERS = ("protocol", "workers", "launch")
ALLOWED = {"protocol": {"protocol", "numpy", "zmq", "msgpack", "msgspec", "pydantic", "yaml", "zstandard", "gymnasium"}}
"""zstandard is optional: it may be missing where no field travels compressed; gymnasium is for those who convert."""
"""What a layer may import beside the standard library; a layer not named may import all but what is forbidden to it."""
FORBIDDEN = {"protocol": {"torch"}, "workers": {"launch"}, "launch": {"workers", "torch"}}
PICKLERS = {"pickle", "_pickle", "cloudpickle", "dill", "shelve", "marshal", "joblib"}
PICKLING = {"recv_pyobj", "send_pyobj"}
TOP_LEVEL = {"workers", "protocol", "launch", "tests", "k8s"}
TOP_LEVEL |= {"pyproject.toml", "README.md", "Makefile", "LICENSE", "CHANGELOG.md", "CITATION.cff"}
ROLES = ("actor", "learner", "coordinator", "relay", "evaluator", "hooks", "sequential")
PROGRAMS = (*ROLES, "fork_server")
"""Files of workers; the last imports the others."""
ROOMS = (
    *("runtime", "policies", "environments", "planning", "metrics", "rollout", "evaluation", "league"),
    *("algorithms", "learning", "coordination", "relaying", "roles", "tools"),
)
"""The folders of workers, each of which imports only what stands left of it; `roles` are its own files."""
LINES = {
    "protocol": 11_545,
    "workers/algorithms": 2_450,
    "workers/coordination": 1_955,
    "workers/learning": 4_645,
    "workers/policies": 4_190,
    "workers/policies/encoders": 786,
    "workers/rollout": 1_840,
    "": 52_310,
}
"""Lines with a token of code, docstrings aside, that a room has at most, and the product: they only fall."""
APART = "workers/policies/encoders"
"""Counted by itself alone: more kinds of encoders are no reason to squeeze the rest."""
IMPORTER = "workers/tools/import_weights.py"
"""The one file that may read what torch pickled, by the reader that runs nothing of it."""
LONGEST = 60
"""Lines of a function."""
WIDEST = 8
WIDE = {"protocol/simulator/client.py": 11}
"""Parameters of the constructors that take more than all others."""
BESIDE = ("__init__.py", "README.md", "py.typed")
ENTRIES = 15
"""The most files and folders of a folder, these aside."""
FACE = ROOT / "launch" / "face" / "rookery" / "__init__.py"
"""The public face, the one file of launch that names what lies in workers; tests/launch/test_face.py looks at it."""
TORCHLESS = ("workers.coordinator", "workers.relay", "launch.cli.train", "launch.cli.doctor", "launch.cli.status")
"""Must start without torch: it takes seconds and hundreds of megabytes."""


@cache
def nodes(source: str) -> list[ast.AST]:
    """All of its tree, which several tests look through."""
    return [*ast.walk(ast.parse(source))]


@pytest.fixture(scope="module", autouse=True)
def forgotten(uncollected: None) -> Iterator[None]:
    yield
    nodes.cache_clear()
    arrows.cache_clear()


def imports(source: str) -> Iterator[tuple[int, str]]:
    """(line, top package) of every import, those inside functions and by name included."""
    for node in nodes(source):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, "." if node.level else (node.module or "").partition(".")[0]
        elif isinstance(node, ast.Call) and node.args:
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            name = node.args[0].value if isinstance(node.args[0], ast.Constant) else None
            if called in ("import_module", "__import__") and isinstance(name, str):
                yield node.lineno, name.partition(".")[0]


def misplaced_imports(layer: str, source: str) -> Iterator[tuple[int, str]]:
    """Imports that the layer may not have."""
    for line, package in imports(source):
        allowed = ALLOWED.get(layer)
        strange = allowed is not None and package not in allowed and package not in sys.stdlib_module_names
        if package == ".":
            yield line, "a relative import; name the package"
        elif package in FORBIDDEN[layer] or strange:
            yield line, f"{layer} may not import {package}"


def unsafe_code(source: str) -> Iterator[tuple[int, str]]:
    """Pickle in any of its disguises, and code made from text."""
    yield from ((line, f"imports {package}") for line, package in imports(source) if package in PICKLERS)
    for node in nodes(source):
        if isinstance(node, ast.Attribute):
            if node.attr in PICKLING:
                yield node.lineno, f"{node.attr} pickles"
            if isinstance(node.value, ast.Name) and node.value.id == "torch" and node.attr in ("load", "save"):
                yield node.lineno, f"torch.{node.attr} pickles; use safetensors"
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec"):
                yield node.lineno, f"calls {node.func.id}"
            for keyword in node.keywords:
                value = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
                if (keyword.arg, value) in (("weights_only", False), ("allow_pickle", True)):
                    yield node.lineno, f"{keyword.arg}={value!r}"


def reasons(source: str) -> set[int]:
    """The lines with a comment that says something."""
    return {
        token.start[0]
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
        and not token.string.lstrip("# ").startswith(("noqa", "type:", "pragma", "fmt"))
    }


def swallowed_errors(source: str) -> Iterator[tuple[int, str]]:
    """Bare excepts, and excepts that do nothing without a comment that says why."""
    for node in nodes(source):
        if not isinstance(node, ast.ExceptHandler):
            continue
        if node.type is None:
            yield node.lineno, "a bare except; name the error"
        empty = all(
            isinstance(part, ast.Pass) or (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))
            for part in node.body
        )
        lines = range(node.lineno, (node.body[-1].end_lineno or node.lineno) + 1)
        if empty and reasons(source).isdisjoint(lines):
            yield node.lineno, "an error swallowed without a comment that says why"


def faults(check: Callable[[str], Iterator[tuple[int, str]]], *layers: str) -> list[str]:
    """`path:line: fault` for every file of the layers."""
    files = [path for layer in layers for path in sorted((ROOT / layer).rglob("*.py")) if path != FACE]
    assert files
    return [
        f"{path.relative_to(ROOT)}:{line}: {fault}"
        for path in files
        for line, fault in check(path.read_text(encoding="utf-8"))
    ]


def modules(*layers: str) -> dict[str, Path]:
    """Dotted name -> file; a client is no module of ours, nor what only the site's generator reads."""
    found = {}
    for layer in layers:
        for path in sorted((ROOT / layer).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if not {"clients", "docs", "node_modules"} & {*parts}:
                found[".".join(parts).removesuffix(".__init__")] = path
    return found


@cache
def arrows(layer: str) -> dict[str, set[str]]:
    """Module -> the modules of its layer that it imports, inside functions included, for types alone left out."""
    files, found = modules(layer), dict[str, set[str]]()
    for module, path in files.items():
        wanted = found.setdefault(module, set())
        every = nodes(path.read_text(encoding="utf-8"))
        for_types = {id(part) for node in every if _for_types(node) for part in ast.walk(node)}
        for node in every:
            if id(node) in for_types:
                continue
            if isinstance(node, ast.Import):
                wanted.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                whole = {f"{node.module}.{alias.name}" for alias in node.names} & files.keys()
                wanted.update(whole or {node.module})
        wanted &= files.keys() - {module}
    return found


def _for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def circles(graph: Mapping[str, set[str]]) -> list[str]:
    """One circle, if there is any."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as found:
        return list(found.args[1])
    return []


def upward(graph: Mapping[str, set[str]]) -> list[str]:
    """The imports between rooms of workers that point right."""

    def place(module: str) -> int:
        name = module.split(".")[1]
        return ROOMS.index("roles" if name in PROGRAMS else name)

    inside = {module: wanted - {"workers"} for module, wanted in graph.items() if module != "workers"}
    return [f"{one} -> {other}" for one in inside for other in inside[one] if place(other) > place(one)]


def entries(graph: Mapping[str, set[str]], files: Mapping[str, Path]) -> dict[Path, dict[str, set[str]]]:
    """Folder -> its files and folders, each with those of them that it imports."""
    found: dict[Path, dict[str, set[str]]] = {}
    for module, wanted in graph.items():
        for other in wanted:
            one, two = files[module].relative_to(ROOT).parts, files[other].relative_to(ROOT).parts
            at = next(i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b)
            if "__init__.py" not in (one[at], two[at]):
                found.setdefault(Path(*one[:at]), {}).setdefault(one[at], set()).add(two[at])
    return found


def test_no_arrow_between_rooms_points_up() -> None:
    assert upward(arrows("workers")) == []


def test_an_arrow_that_points_up_is_seen() -> None:
    graph = {"workers.rollout.collector": {"workers.learning.batch"}, "workers.learner": {"workers.learning.batch"}}
    assert upward({**graph, "workers.learning.batch": set()}) == ["workers.rollout.collector -> workers.learning.batch"]


@pytest.mark.parametrize("layer", LAYERS)
def test_no_files_import_each_other_in_a_circle(layer: str) -> None:
    assert circles(arrows(layer)) == []


def test_no_entries_of_a_folder_of_workers_import_each_other_in_a_circle() -> None:
    found = entries(arrows("workers"), modules("workers"))
    assert {folder: circles(graph) for folder, graph in found.items() if circles(graph)} == {}


def test_a_circle_is_seen() -> None:
    files = {
        f"workers.a.{name}": ROOT / f"workers/a/{name.replace('.', '/')}.py" for name in ("b.one", "b.two", "c.one")
    }
    graph = {"workers.a.b.one": {"workers.a.c.one"}, "workers.a.c.one": {"workers.a.b.two"}, "workers.a.b.two": set()}
    assert circles(graph) == []
    assert set(circles(entries(graph, files)[Path("workers/a")])) == {"b", "c"}


def test_folders_are_small_enough_to_be_read_at_a_glance() -> None:
    sizes: Counter[Path] = Counter()
    for layer in LAYERS:
        for path in (ROOT / layer).rglob("*"):
            parts = path.relative_to(ROOT).parts
            if path.name not in BESIDE and not {"__pycache__", "node_modules"} & {*parts}:
                sizes[path.parent.relative_to(ROOT)] += 1
    data = {Path("protocol/golden"), Path("launch/presets"), Path("launch/docs/site/gallery")}
    assert {name: size for name, size in sizes.items() if size > ENTRIES and name not in data} == {
        Path("workers"): len(ROOMS) - 1 + len(PROGRAMS)
    }


def code_lines(source: str) -> int:
    """Lines with a token of code; a string that is a statement is a docstring."""
    rows = enumerate(map(str.strip, source.splitlines()), 1)
    lines = {number for number, row in rows if row and not row.startswith("#")}
    for node in nodes(source):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """All of the product's, each with its file."""
    for path in sorted(path for layer in LAYERS for path in modules(layer).values()):
        for node in nodes(path.read_text(encoding="utf-8")):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield path.relative_to(ROOT).as_posix(), node


def test_rooms_and_the_product_become_smaller() -> None:
    """Where one is far below, its number falls as well."""
    every = [path for layer in LAYERS for path in modules(layer).values()]
    counts = {path.relative_to(ROOT).as_posix(): code_lines(path.read_text(encoding="utf-8")) for path in every}
    apart = {path for path in counts if path.startswith(APART)}
    inside = {room: [path for path in counts if path.startswith(room)] for room in LINES}
    sizes = {room: sum(counts[path] for path in inside[room] if room == APART or path not in apart) for room in LINES}
    assert {room: size for room, size in sizes.items() if not LINES[room] - 100 < size <= LINES[room]} == {}


def test_a_line_counts_for_code_and_not_for_what_is_said_of_it() -> None:
    assert code_lines('"""Doc."""\n\n# why\nx = (\n    1,\n)\n"""Of x."""\ny = """a\nb"""\n') == 5


def test_functions_are_short_enough_to_be_seen_whole() -> None:
    sizes = {f"{path}:{node.name}": (node.end_lineno or 0) - node.lineno + 1 for path, node in functions()}
    assert {name: size for name, size in sizes.items() if size > LONGEST} == {}


def test_constructors_take_few_parts() -> None:
    made = [(path, node.args) for path, node in functions() if node.name == "__init__"]
    sizes = [(path, len([*args.posonlyargs, *args.args, *args.kwonlyargs]) - 1) for path, args in made]
    assert {path: size for path, size in sizes if size > WIDEST} == WIDE


def test_a_public_class_has_a_name_of_its_own() -> None:
    """In clients too."""
    owners: dict[str, list[Path]] = {}
    for path in [path for layer in LAYERS for path in (ROOT / layer).rglob("*.py") if "node_modules" not in path.parts]:
        for node in nodes(path.read_text(encoding="utf-8")):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                owners.setdefault(node.name, []).append(path)
    assert {name: found for name, found in owners.items() if len(found) > 1} == {}


@pytest.mark.parametrize("layer", LAYERS)
def test_layer_imports_only_what_it_may(layer: str) -> None:
    assert faults(lambda source: misplaced_imports(layer, source), layer) == []


def test_who_acts_and_learns_knows_no_socket_J8() -> None:
    """What carries their segments and weights is handed to them; the sequential reference hands them function calls."""

    def sockets(source: str) -> Iterator[tuple[int, str]]:
        yield from ((line, "knows sockets") for line, package in imports(source) if package == "zmq")

    assert faults(sockets, *(f"workers/{part}" for part in ("rollout", "learning", "algorithms", "policies"))) == []


def test_nothing_pickles_or_evaluates_text() -> None:
    """But what one file reads, by torch's restricted reader."""
    (read,) = faults(unsafe_code, *LAYERS)
    assert re.fullmatch(rf"{IMPORTER}:\d+: torch\.load pickles; use safetensors", read)
    (call,) = (
        node
        for node in nodes((ROOT / IMPORTER).read_text(encoding="utf-8"))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load"
    )
    assert {one.arg: ast.unparse(one.value) for one in call.keywords}["weights_only"] == "True"


def test_no_error_is_swallowed_silently() -> None:
    assert faults(swallowed_errors, *LAYERS) == []


def test_who_is_off_the_data_path_starts_without_torch() -> None:
    assert loaded_with(*modules("protocol"), *TORCHLESS) == []


def test_worlds_of_others_are_imported_by_who_plays_them() -> None:
    assert loaded_with("workers.environments.registry", of=("gymnasium", "pettingzoo", "pyspiel")) == []


def loaded_with(*modules: str, of: Sequence[str] = ("torch",)) -> list[str]:
    """Which packages `of` these come along when `modules` are imported in a fresh interpreter."""
    statements = "; ".join(f"import {module}" for module in modules)
    command = [sys.executable, "-c", f"import sys; {statements}; print(*sys.modules.keys() & {{*{of}}})"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


def test_top_level_holds_only_what_belongs_there() -> None:
    ignored = [line.rstrip("/") for line in (ROOT / ".gitignore").read_text().split()]
    names = {path.name for path in ROOT.iterdir() if not path.name.startswith(".")}
    strange = {name for name in names - TOP_LEVEL if not any(fnmatch.fnmatch(name, pattern) for pattern in ignored)}
    assert strange == set()


def test_package_has_the_name_and_the_release_that_the_code_knows() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (project["name"], project["version"]) == (DISTRIBUTION, protocol.RELEASE)
    extras = {name for path in texts(".py") for name in re.findall(r"\binstall\([\"'](\w+)", path.read_text("utf-8"))}
    assert extras
    assert extras <= {*project["optional-dependencies"]}


def texts(*endings: str) -> list[Path]:
    """The files of the repository that a person may read."""
    folders = [path for path in ROOT.iterdir() if path.name in TOP_LEVEL | {".ci"}]
    every = [path for folder in folders for path in (folder.rglob("*") if folder.is_dir() else [folder])]
    return [path for path in every if path.suffix in endings and not {"node_modules", "__pycache__"} & {*path.parts}]


def misnamed(text: str) -> list[str]:
    """Where `text` has an extra of ours under another name than that of the distribution."""
    return [name for name in re.findall(r"(?<![\w.-])(rookery[\w-]*)\[[a-z]", text) if name != DISTRIBUTION]


def test_extras_are_of_the_distribution_and_code_asks_its_constant() -> None:
    assert [path for path in texts(".md", ".html", ".toml", ".yaml", ".txt") if misnamed(path.read_text("utf-8"))] == []
    code = [path for path in texts(".py") if path.relative_to(ROOT).parts[0] in LAYERS]
    assert [path for path in code if re.search(r"pip install '?rookery", path.read_text("utf-8"))] == []


@pytest.mark.parametrize("text", ["pip install 'rookery[x]'", "the extra `rookery-r[x]`", 'all = ["rookery[x,y]"]'])
def test_another_name_of_the_distribution_is_seen(text: str) -> None:
    assert misnamed(text)
    assert not misnamed(text.replace(misnamed(text)[0], DISTRIBUTION))


@pytest.mark.parametrize(
    ("layer", "source"),
    [
        ("protocol", "import torch"),
        ("protocol", "def f():\n    from torch import nn"),
        ("protocol", "import psutil"),
        ("protocol", "from workers.runtime.process import WorkerProcess"),
        ("protocol", "from . import ring"),
        ("workers", "import launch.plan"),
        ("launch", "from workers import actor"),
        ("launch", "import importlib\nimportlib.import_module('torch.nn')"),
    ],
)
def test_misplaced_import_is_seen(layer: str, source: str) -> None:
    assert len(list(misplaced_imports(layer, source))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from cloudpickle import dumps",
        "eval('1')",
        "exec('pass')",
        "socket.recv_pyobj()",
        "load(path, weights_only=False)",
        "np.load(path, allow_pickle=True)",
        "torch.save(model, path)",
    ],
)
def test_unsafe_code_is_seen(source: str) -> None:
    assert len(list(unsafe_code(source))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "try:\n    f()\nexcept:\n    g()",
        "try:\n    f()\nexcept OSError:\n    pass",
        "try:\n    f()\nexcept OSError:\n    ...  # noqa: S110",
    ],
)
def test_swallowed_error_is_seen(source: str) -> None:
    assert len(list(swallowed_errors(source))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "model.eval()",
        "try:\n    f()\nexcept OSError:\n    pass  # the peer may be gone already",
        "try:\n    f()\nexcept OSError:\n    # gone already\n    pass",
        "import numpy, zmq, json",
    ],
)
def test_honest_code_is_let_through(source: str) -> None:
    assert not [*misplaced_imports("protocol", source), *unsafe_code(source), *swallowed_errors(source)]
