"""What every test gets: a shared-memory folder of its own and the leak guard; when asked for, ports and folders."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.leak_guard import SHARED, Snapshot, mark_descendants
from tests.ports import choose_block
from tests.tools import PYTHON_PATH
from tests.trial import THREADS, Settings, Trial

if TYPE_CHECKING:
    from tests.forge import Forge

# One arithmetic thread a process. Here, as conftests further down import torch before pytest_configure where they are
# named in the command.
os.environ.update(dict.fromkeys(THREADS, str(Settings.given().threads)))

pytest_plugins = ["tests.report", "tests.selection", "tests.total"]

LONG = ("test_lint", "test_readme", "flows", "learning", "clients", "k8s", "chaos", "launch")
"""Of tests/: files and folders that are begun first, since a process that begins with them at the end is waited for."""
MANY = 200
"""Modules, whose objects are worth being left out of looks for garbage."""
_RUN = uuid.uuid4().hex
_given: set[int] = set()
_imported = 0
"""Modules when what there is was left out last."""


@pytest.fixture
def as_a_worker() -> Iterator[None]:
    """This process computes as workers do."""
    import torch  # what needs none begins sooner without

    from workers.runtime import torch_setup

    threads = torch.get_num_threads()
    torch_setup.configure_torch()
    yield
    torch.set_num_threads(threads)
    torch.set_flush_denormal(False)


def pytest_configure(config: pytest.Config) -> None:
    """Before any test is imported: a mark on every process of this run, which hear of a hang-up also under nohup."""
    mark_descendants(_RUN)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Two more than processors: most tests wait now and then."""
    return 2 + len(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long files first; as they were named, where there is no time for all."""
    if config.option.seconds is not None:
        return
    places = {name: place for place, name in enumerate(LONG)}
    here = Path(__file__).parent
    items.sort(key=lambda item: places.get(item.path.relative_to(here).parts[0].removesuffix(".py"), len(LONG)))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """All that is imported now stays: it is not looked through for garbage, neither while it grows nor after a test."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, object, object]:
    """So does what tests have imported since, as torch's compiler is: each look through it takes half a second."""
    global _imported
    try:
        return (yield)
    finally:
        if len(sys.modules) > _imported + MANY:
            _imported = len(sys.modules)
            gc.collect()
            gc.freeze()


@pytest.fixture(autouse=True)
def memory_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for this test's shared memory; this process and all it starts find it through ROOKERY_MEMORY."""
    parent = SHARED if SHARED.is_dir() and os.access(SHARED, os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="test-rookery-", dir=parent))
    monkeypatch.setenv("ROOKERY_MEMORY", str(folder))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def leak_guard(memory_dir: Path) -> Iterator[None]:
    """Fails a test that leaves a process, thread, descriptor or shared-memory file behind."""
    before = Snapshot.take(memory_dir, _RUN)
    yield
    leaks = before.leaks()
    if leaks:
        leaks.clean()
        pytest.fail(f"this test left behind:\n{leaks.report()}\nclose, join or unlink it in the test", pytrace=False)


@pytest.fixture(autouse=True)
def denormals() -> Iterator[None]:
    """A worker's arithmetic that a test ran in this process flushes small numbers to zero; the next test's does not."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)


@pytest.fixture(scope="module")
def uncollected() -> Iterator[None]:
    """Trees of syntax that the tests of this module keep are not looked through for garbage again and again."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="session")
def forge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forge | None]:
    """Forks commands for all tests of this process; it has imported for all of them."""
    from tests.forge import forging  # imports the product

    with forging({**os.environ, "PYTHONPATH": PYTHON_PATH}, tmp_path_factory.mktemp("forge") / "forge.out") as forge:
        yield forge


@pytest.fixture(scope="module")
def forked_rookery(forge: Forge | None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The `rookery` of this module's tests is forked."""
    from tests.forge import program

    folder = tmp_path_factory.mktemp("forked")
    instead = {"PATH": os.environ["PATH"], "PYTHONPATH": PYTHON_PATH}
    with pytest.MonkeyPatch.context() as patch, program(folder, forge, instead):
        patch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        yield


@pytest.fixture(scope="module")
def forked_steppers(forge: Forge | None) -> Iterator[None]:
    """What steps copies for this module's tests is forked, unless they set ROOKERY_FORK=0."""
    from tests.forge import stepping

    with stepping(forge):
        yield


@pytest.fixture
def free_port_block() -> int:
    """The base of ten consecutive loopback ports that are free now and given to no other test of this run."""
    base = choose_block(_given)
    if base is None:
        pytest.fail("no ten consecutive loopback ports are free between 20000 and 32000", pytrace=False)
    _given.add(base)
    return base


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Where a run may write; it does not exist yet."""
    return tmp_path / "run"


@pytest.fixture
def trial(request: pytest.FixtureRequest) -> Iterator[Trial]:
    """What a short test of learning is given and has to reach."""
    trial = Trial(request.node.nodeid, Settings.given())
    yield trial
    trial.keep()
