"""Rookery from Python.

    import rookery

    run = rookery.train("cartpole", steps=10_000)
    print(run.summary["returns"])

`train` makes the run that the command `rookery train` makes, `load` finds one that is there, and `Run` is what both
return. An `EpisodePlayer` is a policy of a run as a function. `Environment` is the form of a world that steps many
copies at once. `Simulator` and `serve` let a program of yours be the environment of a run. `StreamAlgorithm` and
`ReplayAlgorithm` are the bases of an algorithm of your own, whose `loss` returns a `Loss`, and which may declare an
`Output` and a `Column` of its own. `Hook` is the base of a
class of yours that is told what happens, by events. Each is imported when it is
first asked for: `import rookery` alone costs nothing.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from launch.api import load, train
    from launch.local.run_handle import RunHandle as Run
    from protocol.simulator.client import Simulator
    from protocol.simulator.serve import serve
    from workers.algorithms.common.loss import Loss
    from workers.algorithms.off_policy import ReplayAlgorithm
    from workers.algorithms.stream import StreamAlgorithm
    from workers.environments.base import Environment
    from workers.metrics.hooks.hook import (
        BatchEvent,
        CheckpointEvent,
        CommandEvent,
        EpisodeEvent,
        EvaluationEvent,
        FindingEvent,
        Hook,
        PolicyEvent,
        PublishEvent,
        RunEvent,
        UpdateEvent,
        WorkerEvent,
    )
    from workers.policies.action_encoding import ActionSpec
    from workers.policies.encoders.observation_spec import ObservationSpec
    from workers.policies.networks.declared_outputs import Output
    from workers.policies.networks.declared_outputs import RowColumn as Column
    from workers.rollout.players.episode_player import EpisodePlayer

__all__ = ["ActionSpec", "Column", "Environment", "EpisodePlayer", "Loss", "ObservationSpec", "Output"]
__all__ += ["ReplayAlgorithm", "Run", "Simulator", "StreamAlgorithm", "load", "serve", "train"]
__all__ += ["BatchEvent", "CheckpointEvent", "CommandEvent", "EpisodeEvent", "EvaluationEvent", "FindingEvent", "Hook"]
__all__ += ["PolicyEvent", "PublishEvent", "RunEvent", "UpdateEvent", "WorkerEvent"]

_PLACES = {
    "ActionSpec": ("workers.policies.action_encoding", "ActionSpec"),
    "Column": ("workers.policies.networks.declared_outputs", "RowColumn"),
    "Environment": ("workers.environments.base", "Environment"),
    "EpisodePlayer": ("workers.rollout.players.episode_player", "EpisodePlayer"),
    "Loss": ("workers.algorithms.common.loss", "Loss"),
    "ObservationSpec": ("workers.policies.encoders.observation_spec", "ObservationSpec"),
    "Output": ("workers.policies.networks.declared_outputs", "Output"),
    "ReplayAlgorithm": ("workers.algorithms.off_policy", "ReplayAlgorithm"),
    "Run": ("launch.local.run_handle", "RunHandle"),
    "Simulator": ("protocol.simulator.client", "Simulator"),
    "StreamAlgorithm": ("workers.algorithms.stream", "StreamAlgorithm"),
    "load": ("launch.api", "load"),
    "serve": ("protocol.simulator.serve", "serve"),
    "train": ("launch.api", "train"),
    **{name: ("workers.metrics.hooks.hook", name) for name in __all__ if name == "Hook" or name.endswith("Event")},
}
_PACKAGES = ("protocol", "workers", "launch")
_HOME = next(path for path in Path(__file__).resolve().parents if all((path / name).is_dir() for name in _PACKAGES))
"""Where our packages lie: beside this one where it is installed, above it in the repository."""


def __getattr__(name: str) -> Any:
    """Imported when it is first asked for."""
    if name not in _PLACES:
        raise AttributeError(f"module 'rookery' has no attribute {name!r}; it has {', '.join(__all__)}")
    for package in _PACKAGES:
        _import_ours(package)
    module, attribute = _PLACES[name]
    found = globals()[name] = getattr(importlib.import_module(module), attribute)
    return found


def __dir__() -> list[str]:
    return __all__


def _import_ours(package: str) -> None:
    """Imports our own `package`, though the program's folder may have one that is called so.

    ImportError if the program has imported its own already; a warning if from here on it would get ours instead.
    """
    ours = _HOME / package / "__init__.py"
    known = sys.modules.get(package)
    if known is not None:
        theirs = getattr(known, "__file__", None)
        if theirs is None or Path(theirs).resolve() != ours:
            said = f"the program has imported {theirs} as {package!r}, which is Rookery's {ours}; rename yours"
            raise ImportError(said, name=package, path=theirs)
        return
    other = PathFinder.find_spec(package)
    if other is not None and other.origin is not None and Path(other.origin).resolve() != ours:
        said = f"{package!r} is {other.origin} and Rookery's {ours}, which the program gets from here on; rename yours"
        warnings.warn(said, RuntimeWarning, stacklevel=3)
    spec = importlib.util.spec_from_file_location(package, ours)
    if spec is None or spec.loader is None:
        raise ImportError(f"Rookery's {ours} is missing; install it again", name=package, path=str(ours))
    module = sys.modules[package] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
