"""The cells of `make returns`, as `cells.yaml` lists them. Pure.

A cell is one run: an algorithm on a task with a seed, in the `bare` form with nothing but the algorithm's name, or in
the `published` form with hyperparameters that are translated from another library's. In the form `single-file` it is
one of a reference in a single file, with the steps of the bare form.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

from protocol.config.run import Run, parse_run
from protocol.config.yaml_file import read_mapping
from tests.returns.translation import merged, translate

__all__ = ["SEEDS", "Cell", "Pair", "Task", "pairs", "tasks"]

SEEDS = (0, 1, 2)
_TABLE = Path(__file__).parent / "cells.yaml"
Form = Literal["bare", "published", "single-file"]


@dataclass(frozen=True)
class Task:
    """What is played; returns are a mean over agents times `agents`."""

    name: str
    config: dict[str, Any]
    agents: int = 1

    @property
    def random(self) -> str:
        """The name of what is measured of players that choose by chance."""
        return f"{self.name} random"

    @property
    def digest(self) -> str:
        """As a cell's."""
        return _digest(self.config)


@dataclass(frozen=True)
class Pair:
    """An algorithm on a task, and what is published of it."""

    task: Task
    algorithm: str
    steps: int
    reference: float
    by: Literal["last", "greedy", "exploitability"]
    source: str
    config: dict[str, Any]
    published: dict[str, Any] | None
    single_file: str | None
    """The module of the reference."""

    @property
    def forms(self) -> tuple[Form, ...]:
        there = {"bare": True, "published": self.published, "single-file": self.single_file}
        return tuple(form for form in get_args(Form) if there[form])

    def cells(self) -> list[Cell]:
        """Of all forms and seeds."""
        return [Cell(self, form, seed) for form in self.forms for seed in SEEDS]


@dataclass(frozen=True)
class Cell:
    """One run."""

    pair: Pair
    form: Form
    seed: int

    @property
    def name(self) -> str:
        return f"{self.pair.task.name} {self.pair.algorithm} {self.form} {self.seed}"

    @property
    def config(self) -> dict[str, Any]:
        """What `rookery train` is given."""
        pair = self.pair
        own = merged(merged(pair.task.config, pair.config), {"seed": self.seed})
        if self.form != "published":
            return merged(own, {"steps": pair.steps})
        assert pair.published is not None
        algorithm = own["policy"]["algorithm"]["name"]
        theirs = translate(pair.published["library"], algorithm, pair.published["keys"])
        return merged(merged(theirs, pair.published.get("besides", {})), own)

    @property
    def digest(self) -> str:
        """Of the configuration with its defaults: what was measured with others is measured again. A reference knows no
        more of it than `command` says."""
        if self.form == "single-file":
            assert self.pair.single_file is not None
            spec = find_spec(self.pair.single_file)
            assert spec is not None
            assert spec.origin is not None
            return _digest({"code": Path(spec.origin).read_text(), "arguments": self.command})
        return _digest(self.run().model_dump(mode="json", exclude_none=True, exclude={"hooks"}))

    @property
    def command(self) -> list[str]:
        """The command of the reference, behind `python -m`."""
        assert self.pair.single_file is not None
        id = self.config["environment"]["id"].removeprefix("gymnasium:")
        return [self.pair.single_file, id, "--steps", str(self.pair.steps), "--seed", str(self.seed)]

    def run(self) -> Run:
        """The configuration, checked."""
        return parse_run(self.config)


def _digest(config: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:12]


def tasks() -> dict[str, Task]:
    """By name."""
    return {name: Task(name, **told) for name, told in read_mapping(_TABLE)["tasks"].items()}


def pairs() -> list[Pair]:
    """In the order in which they are run."""
    known = tasks()
    return [
        Pair(
            task=known[one["task"]],
            algorithm=one["algorithm"],
            steps=one["steps"],
            reference=one["reference"],
            by=one["by"],
            source=one["source"],
            config=one.get("config", {"policy": {"algorithm": {"name": one["algorithm"]}}}),
            published=one.get("published"),
            single_file=one.get("single_file"),
        )
        for one in read_mapping(_TABLE)["pairs"]
    ]
