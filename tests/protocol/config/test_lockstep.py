"""What lock-step refuses, in a sentence, and how it deals and counts (L1)."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.config.checks import dealt, round_before
from protocol.config.run import parse_run
from protocol.errors import ConfigurationError
from tests.faults import raises

IN_STEP: dict[str, Any] = {"schedule": "lockstep", "environment": {"copies": 64}, "actors": 4}
IQN = {"algorithm": {"name": "iqn"}}


@pytest.mark.parametrize(
    ("keys", "kind", "facts"),
    [
        ({"policy": {"flow": "drop_oldest"}}, "lockstep_flow_drops", {"value": "drop_oldest"}),
        ({"policies": {"agent_1": {"flow": "drop_newest"}}}, "lockstep_flow_drops", {"value": "drop_newest"}),
        ({"policy": {"flush_after": 1.0}}, "lockstep_with_flush_after", {}),
        ({"policy": {"wire_weights": "bf16"}}, "lockstep_wire_weights_rounded", {"value": "bf16"}),
        ({"policy": {"compile": True}}, "lockstep_with_compile", {}),
        ({"policy": {**IQN, "dataset": {"path": "x"}}}, "lockstep_with_dataset", {}),
        (
            {"policies": {"agent_1": {"segment_length": 32}}},
            "lockstep_segment_lengths_differ",
            {"expected": 64, "value": 32},
        ),
        ({"seconds": 60}, "lockstep_setting_forbidden", {"setting": "seconds"}),
        ({"replay": "runs/x"}, "lockstep_setting_forbidden", {"setting": "replay"}),
        ({"auxiliaries": {"novelty": {}}}, "lockstep_setting_forbidden", {"setting": "auxiliaries"}),
        (
            {"environment": {"copies": 64, "processes": 2}},
            "lockstep_setting_forbidden",
            {"setting": "environment.processes"},
        ),
        ({"environment": {"copies": 60}}, "lockstep_copies_do_not_divide", {"copies": 60, "act_block": 16}),
        ({"actors": 3}, "lockstep_blocks_do_not_divide", {"blocks": 4, "act_block": 16, "actors": 3}),
        ({"actors": 0}, "lockstep_blocks_do_not_divide", {"actors": 0}),
    ],
)
def test_what_cannot_be_kept_in_step_is_refused_in_a_sentence_L1(
    keys: dict[str, Any], kind: str, facts: dict[str, Any]
) -> None:
    parse_run(IN_STEP)
    with raises(ConfigurationError, kind, **facts):
        parse_run({**IN_STEP, **keys})


def test_only_a_run_in_lock_step_repeats_commands() -> None:
    parse_run({**IN_STEP, "commands": "runs/first"})
    with raises(ConfigurationError, "commands_without_lockstep", key="commands"):
        parse_run({"commands": "runs/first"})


def test_every_block_is_dealt_once_whatever_the_number_of_actors_L1() -> None:
    for actors in (1, 2, 4):
        run = parse_run({**IN_STEP, "actors": actors})
        assert [block for actor in range(actors) for block in dealt(run, actor)] == [0, 1, 2, 3]


def test_a_round_ends_a_turn_after_its_last_row_L1() -> None:
    ends = {turn: number for turn in range(18) if (number := round_before(turn, 8)) is not None}
    assert ends == {9: 0, 17: 1}
