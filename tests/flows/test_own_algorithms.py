"""Algorithms of a user's own, as the document has them, in a folder of the user's: from the command line to the log."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from launch.run_dir import write_config
from protocol.config.run import parse_run
from protocol.errors import ConfigurationError
from tests.faults import raises
from tests.flows import runs
from tests.flows.test_deaths import finished, killed, log_of
from tests.readme import blocks
from tests.tools import ROOT
from workers.policies.export.from_checkpoint import find_checkpoint
from workers.sequential import Sequential

DOCUMENT = (ROOT / "launch" / "docs" / "networks" / "algorithm.md").read_text()
EXAMPLES = ("spo", "munchausen", "horizons")
REPLAY = {"batch_size": 16, "buffer_capacity": 2_000, "learning_starts": 200, "replay_ratio": 0.5}


def written(folder: Path) -> dict[str, dict[str, Any]]:
    """The document's modules lie in `folder`; their configurations by name."""
    for name in EXAMPLES:
        (code,) = [one.text for one in blocks(DOCUMENT) if one.text.startswith(f"# {name}.py\n")]
        assert len(code.splitlines()) < 80
        (folder / f"{name}.py").write_text(code)
    said = re.findall(r"^```yaml\n# (\w+)\.yaml\n(.*?)^```", DOCUMENT, re.DOTALL | re.MULTILINE)
    return {name: yaml.safe_load(text) for name, text in said}


@pytest.mark.slow
def test_both_examples_train_tell_their_metrics_and_go_on_after_a_death(tmp_path: Path, memory_dir: Path) -> None:
    spo, munchausen = (written(tmp_path)[name]["policy"]["algorithm"] for name in EXAMPLES[:2])
    data = runs.paced(
        tmp_path,
        6_400,
        pause=0.004,
        checkpoint_interval=0.3,
        log_interval=5,
        policies={
            "agent_0": {"algorithm": {**spo, "epochs": 1, "minibatches": 2}},
            "agent_1": {"algorithm": {**munchausen, **REPLAY}},
        },
    )
    names, metrics = ("agent_0", "agent_1"), ("away", "bonus")
    with runs.training(data, tmp_path) as worker:
        for name in names:
            saved = tmp_path / "run" / "checkpoints" / name
            runs.until(lambda folder=saved: list(folder.glob("[0-9]*")), what="checkpoints")  # type: ignore[misc]
        for number, name in enumerate(names):
            killed(tmp_path, f"learner-{name}", at=1_600 + 800 * number)
        finished(tmp_path, worker, memory_dir, {f"learner-{name}": 1 for name in names})
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    for name, metric, entry in zip(
        names, metrics, ("spo:SPO algorithm=ppo", "munchausen:Munchausen algorithm=dqn"), strict=True
    ):
        log = log_of(tmp_path, f"learner-{name}")
        assert f"event=algorithm policy={name} entry={entry}" in log
        assert re.search(rf"event=update .*\b{metric}=", log)
        assert any(metric in line.get(name, {}) for line in lines), lines[-1]
        (resumed,) = [line for line in log.splitlines() if "event=resumed" in line]
        assert "from=checkpoint" in resumed


def test_it_is_found_by_all_workers_of_a_run_which_keep_what_it_declares(tmp_path: Path, memory_dir: Path) -> None:
    written(tmp_path)
    algorithm = {**runs.PPO, "entry": "horizons:TwoHorizons", "near": 0.5}
    result = runs.train(runs.config(algorithm, steps=400, num_learner_processes=1, log_interval=1), tmp_path)
    assert result.returncode == 0, result.stderr
    log = log_of(tmp_path, "learner-0")
    assert "entry=horizons:TwoHorizons algorithm=ppo near=0.5 share=0.25" in log
    assert "soon_loss=" in log
    _, manifest, _ = find_checkpoint(tmp_path / "run", "agent_0", "newest")
    assert "output.soon" in [port.name for port in manifest.outputs]
    assert "horizons" not in sys.modules, "a checkpoint is no reason to import code"


def sequential(
    folder: Path, steps: int, algorithms: dict[str, Any], caplog: pytest.LogCaptureFixture, **keys: Any
) -> str:
    """The log of a run in one process, of policies with these algorithms."""
    (folder / "run").mkdir(exist_ok=True)
    policies = {name: {"algorithm": algorithm} for name, algorithm in algorithms.items()}
    run = parse_run(runs.config(steps=steps, **{"log_interval": 5, "policies": policies, **keys}))
    write_config(run, folder / "run")
    caplog.clear()
    with caplog.at_level("INFO"):
        worker = Sequential(run, folder / "run")
        worker.finish(worker.run())
    return caplog.text


def test_both_examples_train_tell_their_metrics_and_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spo, munchausen = (written(tmp_path)[name]["policy"]["algorithm"] for name in EXAMPLES[:2])
    monkeypatch.chdir(tmp_path)
    algorithms = {"agent_0": {**spo, "epochs": 1, "minibatches": 2}, "agent_1": {**munchausen, **REPLAY}}
    first = sequential(tmp_path, 800, algorithms, caplog)
    again = sequential(tmp_path, 1_600, algorithms, caplog)
    for name, metric in (("agent_0", "away"), ("agent_1", "bonus")):
        assert re.search(rf"event=update policy={name} .*\b{metric}=", first)
        assert re.search(rf"event=resumed policy={name} from=checkpoint", again)


def test_a_mistake_in_it_is_told_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written(tmp_path)
    monkeypatch.chdir(tmp_path)
    code = (tmp_path / "spo.py").read_text()
    (tmp_path / "mistaken.py").write_text(code.replace("rows.ratio *", "rows.rati *"))
    with raises(ConfigurationError, "algorithm_failed", function="loss", file=str(tmp_path / "mistaken.py")):
        sequential(tmp_path, 400, {"agent_0": {"entry": "mistaken:SPO"}}, caplog)


KEEPING = """
import rookery
from rookery import Column, Loss, Output


class Kept:
    outputs = (Output("pair", (2,)), Output("scores", lambda action: (sum(action.sizes),)))
    columns = (Column("hint"), Column("pair", "f8"), Column("scores", "f2"))

    def off(self, then, now):
        assert then.keys() == now.keys() == {"hint", "pair", "scores"}
        assert all(then[name].shape == now[name].shape for name in then) and then["pair"].shape[-1] == 2
        gap = max(((then[name] - now[name]).abs() / (1 + now[name].abs())).max() for name in then)
        return {"off": gap.detach(), **{name: one.abs().mean() for name, one in then.items()}}


class Stream(Kept, rookery.StreamAlgorithm):
    rows_apart = True

    def loss(self, policy, batch, rows):
        found, now = self.advantages(batch, rows), rows.outputs
        total = rows.ratio.mean() + rows.head.square().mean() + sum(one.square().mean() for one in now.values())
        return Loss(total, self.off(self.own_columns(batch), now), targets=found.target)


class Replay(Kept, rookery.ReplayAlgorithm):
    def loss(self, policy, batch):
        now, error = self.own_outputs(policy, batch), self.evaluate(policy, batch).value - batch.reward
        total = error.square().mean() + sum(one.square().mean() for one in now.values())
        return Loss(total, self.off(self.own_columns(batch), now))
"""
KEPT: dict[str, dict[str, Any]] = {
    "rows of all segments": {"algorithm": {**runs.PPO, "entry": "keeping:Stream", "epochs": 1, "minibatches": 8}},
    "memory": {
        "algorithm": {"name": "impala", "entry": "keeping:Stream", "frames": 2},
        "network": {"core": "lstm"},
        "segment_length": 10,
    },
    "a whole network": {"algorithm": {**runs.PPO, "entry": "keeping:Stream"}, "network": {"entry": "whole:Whole"}},
    "replay": {"algorithm": {"name": "dqn", "entry": "keeping:Replay", "frames": 2, **REPLAY}},
}
WHOLE = """
from torch import nn


class Whole(nn.Module):
    def __init__(self, observation, action, outputs):
        super().__init__()
        self.forms, sizes = outputs, {name: max(1, sum(form)) for name, form in outputs.items()}
        self.heads = nn.ModuleDict({name: nn.LazyLinear(size) for name, size in sizes.items()})

    def forward(self, observation):
        x, far = observation.flatten(1).float(), {"pair": 100.0}
        return {name: self.heads[name](x).reshape(-1, *form) + far.get(name, 0) for name, form in self.forms.items()}
"""


@pytest.mark.parametrize("how", KEPT)
def test_columns_hold_what_the_policy_said_of_their_row_when_it_acted(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of weights that hardly move, so that it says the same when it learns."""
    (tmp_path / "keeping.py").write_text(KEEPING)
    (tmp_path / "whole.py").write_text(WHOLE)
    monkeypatch.chdir(tmp_path)
    policies = {"agent_0": {**KEPT[how], "learning_rate": 1e-12}}
    log = sequential(tmp_path, 800, {}, caplog, policies=policies, log_interval=1)
    found = {name: [*map(float, re.findall(rf"\b{name}=(\S+)", log))] for name in ("off", "hint", "pair", "scores")}
    assert len(found["off"]) > 2
    assert max(found.pop("off")) < 2e-3  # of a column of f2
    assert min(map(max, found.values())) > 0
    assert [name for name, sizes in found.items() if max(sizes) > 50] == ["pair"] * (how == "a whole network")


STATES = """
import torch
from spo import SPO


class Remembering(SPO):
    def state(self):
        return {**super().state(), "mine": torch.ones(1)}

    def load_state(self, state):
        super().load_state(state)
        self.mine = state["mine"]
"""


def test_a_checkpoint_of_another_class_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory_dir: Path
) -> None:
    written(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "remembering.py").write_text(STATES)

    def run_of(entry: str) -> Sequential:
        told = parse_run(runs.config({**runs.PPO, "entry": entry, "epsilon": 0.1}, steps=400))
        write_config(told, tmp_path / "run")
        return Sequential(told, tmp_path / "run")

    (tmp_path / "run").mkdir()
    first = run_of("spo:SPO")
    first.finish(first.run())
    other = "remembering:Remembering"
    with raises(ConfigurationError, "checkpoint_of_other_algorithm", value="spo:SPO", expected=other):
        run_of(other)
    for manifest in (tmp_path / "run" / "checkpoints").glob("*/*/manifest.json"):
        told = json.loads(manifest.read_text())
        told["config"]["algorithm"]["entry"] = other  # as if the class had been so called before it was changed
        manifest.write_text(json.dumps(told))
    with raises(ConfigurationError, "checkpoint_does_not_fit_policy"):
        run_of(other)
