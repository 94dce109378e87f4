"""`rookery doctor`: which layer of a run's learning fails first, and what to do.

python -m workers.tools.doctor runs/first

In flow: the folder of a run that is over, or that goes on. Out flow: a line for each layer of each policy, in the order
in which to look: data, sharing, shape, computation, gradient, update, learning; exit code 1 if one fails.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import click

from protocol.config.yaml_file import read_run_in
from protocol.control.run_summary import read_summary
from protocol.errors import ConfigurationError, one_sentence
from protocol.memory.shared_file import read_counters
from workers import freeze_startup_objects
from workers.metrics.diagnostics import LAYERS, LOOKED_AT, batches_checked, findings_of
from workers.metrics.hooks.findings import hook_findings
from workers.metrics.run_metrics import findings_of_run
from workers.metrics.segment_accounting import Page, sum_counters
from workers.runtime.entry_points import add_cwd_to_path
from workers.runtime.last_words import watch_user_code

_LOOKS = 3
"""Batches after which the absence of a finding says something."""
_WORDS = re.compile(r"event=(?:failed kind=(\S+)|crashed) error=(.+)")
_SHAPES = {
    "array_form_mismatch",
    "array_is_ragged",
    "array_shape_wrong",
    "behavior_observation_shapes",
    "row_shape_wrong",
    "shape_differs_from_layout",
    "vector_array_mismatch",
}
"""Kinds of errors."""
_FORM = re.compile(r"\b(?:bool|u?int\d+|float\d+)\[")
"""Of an array, among what a world's data should be."""
State = Literal["ok", "FAILS", "not judged"]


@dataclass(frozen=True, slots=True)
class DiagnosedLayer:
    """One layer of one policy's learning."""

    policy: str
    name: str
    state: State
    says: str = ""

    @property
    def line(self) -> str:
        """For people."""
        return f"  {self.name:12} {self.state:10} {self.says}".rstrip()


@dataclass(frozen=True, slots=True)
class _Evidence:
    """What a run's books say of one policy; `batches_checked` batches."""

    policy: str
    findings: list[dict[str, Any]]
    batches_checked: int
    produced: int
    received: int
    train_steps: int


def examine(folder: Path) -> list[DiagnosedLayer]:
    """The layers of every policy of the run in `folder`, policy after policy; ConfigurationError if it is no run's."""
    words = _last_words(folder / read_run_in(folder).log_dir)
    found: list[DiagnosedLayer] = []
    for evidence in _evidence(folder):
        faults, notes = _by_layer(evidence, "fault"), _by_layer(evidence, "note")
        if not faults:
            layer, says = _stopped(evidence, words)
            faults = {layer: says} if layer else {}
        found += _layers(evidence, faults, notes)
    found += _of_hooks(folder)
    if not found:
        raise ConfigurationError.heard(words) if words else ConfigurationError("nothing_to_examine", file=folder)
    return found


def _evidence(folder: Path) -> list[_Evidence]:
    """From the pages of the workers; from the summary where these cannot be seen from here."""
    actors, learners = _pages(folder, "actor"), _pages(folder, "learner")
    names = (name.partition(".") for page in learners.values() for name in page)
    policies = list(dict.fromkeys(policy for kind, _, policy in names if kind == LOOKED_AT))
    if policies:
        of_run = findings_of_run(folder)
        return [
            _Evidence(
                policy,
                findings_of([policy], learners, actors, of_run),
                batches_checked(policy, learners),
                sum_counters(actors.values(), f"produced.{policy}"),
                sum_counters(learners.values(), f"received.{policy}"),
                sum_counters(learners.values(), f"steps_made.{policy}"),
            )
            for policy in policies
        ]
    summary = read_summary(folder)
    if summary is None:
        return []
    health, segments = summary["health"], summary["segments"]
    return [
        _Evidence(
            policy,
            [one for one in health["findings"] if one["policy"] == policy],
            looked,
            segments["produced"],
            segments["received"],
            summary["train_steps"][policy],
        )
        for policy, looked in health["batches_checked"].items()
    ]


def _by_layer(evidence: _Evidence, level: str) -> dict[str, str]:
    """The first finding of `level` of each layer."""
    found: dict[str, str] = {}
    for one in evidence.findings:
        if one["level"] == level:
            found.setdefault(one["layer"], f"{one['says']}; {one['remedy']}")
    return found


def _layers(evidence: _Evidence, faults: dict[str, str], notes: dict[str, str]) -> Iterator[DiagnosedLayer]:
    """In order. What lies above the first layer that fails shows its symptoms only and is not judged, nor is the world
    where its data were not read from the actor's memory."""
    policy, looked = evidence.policy, evidence.batches_checked
    first = "sharing" if "sharing" in faults else next((name for name in LAYERS if name in faults), "")
    for name in LAYERS:
        above = bool(first) and LAYERS.index(name) > LAYERS.index(first)
        if name == first:
            yield DiagnosedLayer(policy, name, "FAILS", faults[name])
        elif above or first == "sharing":
            yield DiagnosedLayer(policy, name, "not judged", f"see to the {first} first")
        elif looked < _LOOKS and not first:
            yield DiagnosedLayer(
                policy, name, "not judged", f"{looked} batches were trained on; let the run go on for longer"
            )
        else:
            yield DiagnosedLayer(policy, name, "ok", f"note: {notes[name]}" if name in notes else "")


def _of_hooks(folder: Path) -> Iterator[DiagnosedLayer]:
    """What is found of the run's hooks, with their tracebacks."""
    pages = {key: page for role in ("actor", "learner", "hooks") for key, page in _pages(folder, role).items()}
    for one in hook_findings(read_run_in(folder), pages, folder):
        says = f"{one['says']}; {one['remedy']}\n{one.get('traceback', '')}".strip()
        yield DiagnosedLayer(one["policy"], one["layer"], "FAILS" if one["level"] == "fault" else "ok", says)


def _stopped(evidence: _Evidence, words: str) -> tuple[str, str]:
    """The layer, and what to do, where a worker failed or a policy got no update at all; both empty otherwise."""
    if words:
        layer = "computation" if words.startswith("learner") else "data"
        return ("shape" if _of_shape(words) else layer), words
    if evidence.train_steps:
        return "", ""
    made, received = evidence.produced, evidence.received
    if not made:
        return "data", "no actor finished a segment; see the actors' logs, or let the run go on for longer"
    if not received:
        return "sharing", f"{made} segments were finished and none arrived; see what the learner's log says it refused"
    return "data", f"{received} segments make no batch; lower segments, batch_size or learning_starts, or train longer"


def _pages(folder: Path, role: str) -> dict[tuple[str, int], Page]:
    found: dict[tuple[str, int], Any] = {}
    for path in sorted((folder / "counters").glob(f"{role}*.*")):
        name, _, incarnation = path.name.rpartition(".")
        found[name, int(incarnation)] = read_counters(path)
    return found


def _last_words(logs: Path) -> str:
    """What the first worker said that failed, with the remedy in it; empty if none did."""
    for path in sorted(logs.glob("*.log")):
        said = _WORDS.search(path.read_text(errors="replace"))
        if said:
            kind = f" [{said[1]}]" if said[1] else ""
            return f"{path.stem}: {said[2]}{kind}"
    return ""


def _of_shape(words: str) -> bool:
    kind = ConfigurationError.heard(words).kind
    return kind in _SHAPES or (kind in ("agent_data_invalid", "world_data_invalid") and bool(_FORM.search(words)))


@click.command(name="doctor", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("run", metavar="RUN", type=click.Path(file_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def main(run: Path, as_json: bool) -> None:
    """Says which layer of the learning in the run's folder RUN fails first, and what to do."""
    add_cwd_to_path()
    watch_user_code()
    with one_sentence():
        layers = examine(run)
    if as_json:
        click.echo(json.dumps({"layers": [asdict(layer) for layer in layers], "run": str(run)}))
    else:
        for before, layer in zip([None, *layers], layers, strict=False):
            if before is None or before.policy != layer.policy:
                click.echo(f"policy {layer.policy}")
            click.echo(layer.line)
        click.echo(f"run folder: {run}")
    sys.exit(0 if all(layer.state == "ok" for layer in layers) else 1)


if __name__ == "__main__":
    freeze_startup_objects()
    main()
