"""The cells of `make returns` are runs that can be made, each beside a figure that somebody published."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.returns import table as tables
from tests.returns.cells import SEEDS, Pair, pairs, tasks
from tests.returns.translation import LIBRARIES, translate
from tests.tools import ROOT, skip_or_fail
from workers.environments.registry import describe
from workers.planning.foreseen import foreseen
from workers.planning.league_plan import plan_league
from workers.planning.policy_plan import plan_policies

SOURCE = re.compile(r"https://\S+|\.\./\.\./launch/docs/environments/built-in\.md")

GAMES = {"MinAtar": "minatar", "MiniGrid": "minigrid", "Lunar": "Box2D", "Bipedal": "Box2D", "Cheetah": "mujoco"}
"""Part of an environment's id -> package that it needs."""


def test_there_are_at_least_twenty_pairs_each_with_three_seeds() -> None:
    names = [cell.name for pair in pairs() for cell in pair.cells()]
    assert len(pairs()) >= 20
    assert len(SEEDS) == 3
    assert len(names) == len({*names}) >= 60


@pytest.mark.parametrize("pair", pairs(), ids=lambda pair: f"{pair.task.name}-{pair.algorithm}")
def test_a_pair_has_a_source_and_its_runs_fit_their_world_and_foresee_nothing_wrong(pair: Pair) -> None:
    id = pair.task.config["environment"]["id"]
    if any(game in id and find_spec(package) is None for game, package in GAMES.items()):
        skip_or_fail("a game of `make returns` is not installed", id)
    assert SOURCE.fullmatch(pair.source)
    assert pair.published is None or SOURCE.fullmatch(pair.published["found"])
    for form in pair.forms:
        run = next(cell for cell in pair.cells() if cell.form == form).run()
        world = describe(run.environment)
        plans = plan_policies(run, world)
        plan_league(run, world)
        assert not any(foreseen(plans, world, run).values())


def test_keys_of_stable_baselines3_become_ours() -> None:
    """Its zoo's DQN on MountainCar: 8 updates each 16 steps; a target each 600 steps is one each 300 updates."""
    keys = {"n_timesteps": 1000, "train_freq": 16, "gradient_steps": 8, "batch_size": 128}
    ours = translate("stable-baselines3", "dqn", {**keys, "target_update_interval": 600})
    algorithm = ours["policy"]["algorithm"]
    assert ours["steps"] == 1000
    assert algorithm["replay_ratio"] == 64
    assert algorithm["target_update_freq"] == 300
    assert algorithm["kappa"] == 1.0
    ours = translate(
        "stable-baselines3", "ppo", {"n_envs": 8, "n_steps": 32, "batch_size": 64, "learning_rate": "lin_0.1"}
    )
    assert ours["policy"]["algorithm"]["minibatches"] == 4
    assert (ours["policy"]["segment_length"], ours["policy"]["algorithm"]["segments"]) == (32, 8)
    assert ours["policy"]["algorithm"]["anneal_learning_rate"]
    assert ours["policy"]["learning_rate"] == 0.1
    for more, expected in (({}, (128, 2)), ({"lstm_hidden_size": 64}, (64, 4))):
        keys = {"n_envs": 2, "n_steps": 128, "batch_size": 64, **more}
        policy = translate("stable-baselines3", "ppo", keys)["policy"]
        assert (policy["segment_length"], policy["algorithm"]["segments"]) == expected


def test_keys_of_cleanrl_become_ours() -> None:
    """Its DQN trains 128 rows each 10 steps, and copies the target each 500 steps, which are 50 updates."""
    keys = {"num_envs": 1, "batch_size": 128, "train_frequency": 10, "target_network_frequency": 500, "tau": 1.0}
    algorithm = translate("cleanrl", "dqn", {**keys, "start_e": 1})["policy"]["algorithm"]
    assert algorithm["replay_ratio"] == 12.8
    assert algorithm["target_update_freq"] == 50
    assert algorithm["target_update"] == "hard"
    assert algorithm["epsilon"] == 1
    keys = {"num_minibatches": 4, "update_epochs": 3, "clip_coef": 0.1, "clip_vloss": True}
    ours = translate("cleanrl", "ppo", keys)["policy"]
    assert ours["publish_interval"] == 12
    assert ours["algorithm"]["value_clip"] == 0.1


def test_keys_of_epymarl_become_ours() -> None:
    """It counts episodes where we count rows, and trains once for each."""
    keys = {"episode_limit": 25, "batch_size": 32, "buffer_size": 5000, "epsilon_anneal_time": 50_000, "hidden_dim": 64}
    ours = translate("epymarl", "qmix", keys)["policy"]
    assert ours["algorithm"]["batch_size"] == 800
    assert ours["algorithm"]["replay_ratio"] == 32
    assert ours["algorithm"]["buffer_capacity"] == 125_000
    assert ours["algorithm"]["exploration_steps"] == 50_000
    assert ours["network"]["hidden"] == [64, 64]


def test_keys_of_gymnax_and_minatar_become_ours() -> None:
    keys = {"epoch_ppo": 4, "n_minibatch": 8, "lr_begin": 5e-4, "lr_end": 5e-4, "clip_eps": 0.2}
    ours = translate("gymnax-blines", "ppo", {**keys, "num_hidden_units": 256, "num_hidden_layers": 2})["policy"]
    assert (ours["publish_interval"], ours["network"]["hidden"]) == (32, [256, 256])
    assert (ours["algorithm"]["anneal_learning_rate"], ours["algorithm"]["value_clip"]) == (False, 0.2)
    ours = translate("minatar", "dqn", {"BATCH_SIZE": 32, "TRAINING_FREQ": 1, "TARGET_NETWORK_UPDATE_FREQ": 1000})
    assert (ours["policy"]["algorithm"]["replay_ratio"], ours["policy"]["algorithm"]["target_update_freq"]) == (
        32,
        1000,
    )


def test_a_reference_is_another_run_with_as_many_steps() -> None:
    pair = next(pair for pair in pairs() if pair.single_file)
    bare, reference = (next(cell for cell in pair.cells() if cell.form == form) for form in ("bare", "single-file"))
    assert reference.command[:1] == [pair.single_file]
    assert str(bare.config["steps"]) in reference.command
    assert reference.digest != bare.digest


def test_a_key_that_no_rule_knows_is_refused() -> None:
    with pytest.raises(KeyError, match="tau_decay"):
        translate("cleanrl", "dqn", {"tau_decay": 0.5})


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_key_stands_in_the_table_for_readers(library: str) -> None:
    page = (ROOT / "launch" / "docs" / "moving" / f"{library}.md").read_text(encoding="utf-8")
    written = {word for code in re.findall(r"`([^`]+)`", page) for word in re.findall(r"\w+", code)}
    published = [pair.published for pair in pairs() if pair.published and pair.published["library"] == library]
    assert {*LIBRARIES[library]}.union(*(one["keys"] for one in published)) - written == set()


def test_what_was_measured_is_shown_beside_random_and_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "RESULTS", tmp_path / "returns.jsonl")
    (pair,) = [pair for pair in pairs() if (pair.task.name, pair.algorithm) == ("cartpole", "dqn")]
    line: dict[str, Any] = {
        "steps": 500_000,
        "seconds": 60.0,
        "findings": [],
        "last": 488.69,
        "greedy": 500.0,
        "commit": "a",
    }
    lines = [{**line, "name": cell.name, "digest": cell.digest} for cell in pair.cells() if cell.form == "bare"]
    lines.append({"name": "cartpole random", "digest": tasks()["cartpole"].digest, "return": 22.0})
    tables.RESULTS.write_text("".join(f"{tables.json.dumps(one)}\n" for one in lines) + '{"name": "cut o')
    (row,) = [row for row in tables.table().splitlines() if row.startswith("| cartpole")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[4:7] == ["3", "488.7, 488.7, 488.7", "500, 500, 500"]
    assert cells[9:13] == ["1.00", "1.00 to 1.00", "yes", "yes"]


def test_a_form_is_compared_with_the_single_file_that_had_as_many_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "RESULTS", tmp_path / "returns.jsonl")
    pair = next(pair for pair in pairs() if pair.single_file and pair.by == "last")
    line = {"steps": 1, "seconds": 1.0, "findings": [], "greedy": 0.0}
    earned = {"bare": 8.0, "single-file": 10.0}
    lines = [
        {**line, "name": cell.name, "digest": cell.digest, "last": earned[cell.form]}
        for cell in pair.cells()
        if cell.form in earned
    ]
    lines.append({"name": pair.task.random, "digest": pair.task.digest, "return": 2.0})
    tables.RESULTS.write_text("".join(f"{tables.json.dumps(one)}\n" for one in lines))
    rows = [
        [cell.strip() for cell in row.strip("|").split("|")] for row in tables.table().splitlines() if "| ppo |" in row
    ]
    assert {row[2]: row[9] for row in rows} == {"bare": "0.75", "single-file": f"{8 / (pair.reference - 2):.2f}"}


def test_the_table_is_made_of_what_was_measured() -> None:
    assert (tables.HERE / "TABLE.md").read_text() == tables.table()
