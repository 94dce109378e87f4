"""The layers and the things that must never be written, read from the syntax of every file."""

from __future__ import annotations

import ast
import fnmatch
import io
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Callable, Iterator, Sequence

import pytest

import protocol
from tests.tools import ROOT

LAYERS = ("protocol", "workers", "launch")
ALLOWED = {"protocol": {"protocol", "numpy", "zmq", "msgpack", "msgspec", "pydantic", "yaml", "zstandard", "gymnasium"}}
"""zstandard is optional: it may be missing where no field travels compressed; gymnasium is for those who convert."""
"""What a layer may import beside the standard library; a layer not named may import all but what is forbidden to it."""
FORBIDDEN = {"protocol": {"torch"}, "workers": {"launch"}, "launch": {"workers", "torch"}}
PICKLERS = {"pickle", "_pickle", "cloudpickle", "dill", "shelve", "marshal", "joblib"}
PICKLING = {"recv_pyobj", "send_pyobj"}
TOP_LEVEL = {"workers", "protocol", "launch", "tests", "k8s"}
TOP_LEVEL |= {"pyproject.toml", "README.md", "Makefile", "LICENSE", "CHANGELOG.md"}
TORCHLESS = ("workers/coordinator.py", "workers/relay.py", "launch/cli/main.py")
"""Must start without torch: it takes seconds and hundreds of megabytes."""


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, top package) of every import, those inside functions and by name included."""
    for node in ast.walk(tree):
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
    for line, package in imports(ast.parse(source)):
        allowed = ALLOWED.get(layer)
        strange = allowed is not None and package not in allowed and package not in sys.stdlib_module_names
        if package == ".":
            yield line, "a relative import; name the package"
        elif package in FORBIDDEN[layer] or strange:
            yield line, f"{layer} may not import {package}"


def unsafe_code(source: str) -> Iterator[tuple[int, str]]:
    """Pickle in any of its disguises, and code made from text."""
    tree = ast.parse(source)
    yield from ((line, f"imports {package}") for line, package in imports(tree) if package in PICKLERS)
    for node in ast.walk(tree):
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


def swallowed_errors(source: str) -> Iterator[tuple[int, str]]:
    """Bare excepts, and excepts that do nothing without a comment that says why."""
    reasons = {
        token.start[0]
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
        and not token.string.lstrip("# ").startswith(("noqa", "type:", "pragma", "fmt"))
    }
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ExceptHandler):
            continue
        if node.type is None:
            yield node.lineno, "a bare except; name the error"
        empty = all(
            isinstance(part, ast.Pass) or (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))
            for part in node.body
        )
        if empty and reasons.isdisjoint(range(node.lineno, (node.body[-1].end_lineno or node.lineno) + 1)):
            yield node.lineno, "an error swallowed without a comment that says why"


def faults(check: Callable[[str], Iterator[tuple[int, str]]], *layers: str) -> list[str]:
    """`path:line: fault` for every file of the layers."""
    files = [path for layer in layers for path in sorted((ROOT / layer).rglob("*.py"))]
    assert files
    return [
        f"{path.relative_to(ROOT)}:{line}: {fault}"
        for path in files
        for line, fault in check(path.read_text(encoding="utf-8"))
    ]


@pytest.mark.parametrize("layer", LAYERS)
def test_layer_imports_only_what_it_may(layer: str) -> None:
    assert faults(lambda source: misplaced_imports(layer, source), layer) == []


def test_who_acts_and_learns_knows_no_socket_J8() -> None:
    """What carries their segments and weights is handed to them; the sequential reference hands them function calls."""

    def sockets(source: str) -> Iterator[tuple[int, str]]:
        yield from ((line, "knows sockets") for line, package in imports(ast.parse(source)) if package == "zmq")

    assert faults(sockets, *(f"workers/{part}" for part in ("rollout", "learning", "algorithms", "policies"))) == []


def test_nothing_pickles_or_evaluates_text() -> None:
    assert faults(unsafe_code, *LAYERS) == []


def test_no_error_is_swallowed_silently() -> None:
    assert faults(swallowed_errors, *LAYERS) == []


@pytest.mark.parametrize("file", TORCHLESS)
def test_worker_off_the_data_path_starts_without_torch(file: str) -> None:
    module = file.removesuffix(".py").replace("/", ".")
    assert loaded_with(module) == []


def test_worlds_of_others_are_imported_by_who_plays_them() -> None:
    assert loaded_with("workers.environments.registry", of=("gymnasium", "pettingzoo", "pyspiel")) == []


def test_protocol_loads_without_torch() -> None:
    modules = [path.relative_to(ROOT).with_suffix("") for path in (ROOT / "protocol").rglob("*.py")]
    ours = [module for module in modules if module.name != "__init__" and "clients" not in module.parts]
    assert loaded_with(*(".".join(module.parts) for module in ours)) == []


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


def test_package_has_the_release_that_the_wire_announces() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == protocol.RELEASE


@pytest.mark.parametrize(
    ("layer", "source"),
    [
        ("protocol", "import torch"),
        ("protocol", "def f():\n    from torch import nn"),
        ("protocol", "import psutil"),
        ("protocol", "from workers.runtime.process import Life"),
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
