"""What lock-step refuses, in a sentence, and how it deals and counts (L1)."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.config import parse_run
from protocol.errors import ConfigurationError
from protocol.lockstep import dealt, round_before

IN_STEP: dict[str, Any] = {"schedule": "lockstep", "environment": {"copies": 64}, "actors": 4}
IQN = {"algorithm": {"name": "iqn"}}


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"policy": {"flow": "drop_oldest"}}, "flow drop_oldest, which drops; set flow to block"),
        ({"policies": {"agent_1": {"flow": "drop_newest"}}}, "flow drop_newest, which drops; set flow to block"),
        ({"policy": {"flush_after": 1.0}}, "flush_after, a time"),
        ({"policy": {"wire_weights": "bf16"}}, "rounds for some actors only"),
        ({"policy": {"compile": True}}, "other bits where there is no compiler; set compile to false"),
        ({"policy": {**IQN, "dataset": {"path": "x"}}}, "a dataset, where nobody acts"),
        ({"policies": {"agent_1": {"segment_length": 32}}}, "segments of 64 and 32 rows"),
        ({"seconds": 60}, "there is seconds"),
        ({"replay": "runs/x"}, "there is replay"),
        ({"auxiliaries": {"novelty": {}}}, "there is auxiliaries"),
        ({"environment": {"copies": 64, "processes": 2}}, "there is environment.processes"),
        ({"environment": {"copies": 60}}, "cannot be divided into blocks of 16"),
        ({"actors": 3}, "4 blocks of 16 copies cannot be dealt to 3 actors equally"),
        ({"actors": 0}, "cannot be dealt to 0 actors"),
    ],
)
def test_what_cannot_be_kept_in_step_is_refused_in_a_sentence_L1(keys: dict[str, Any], why: str) -> None:
    parse_run(IN_STEP)
    with pytest.raises(ConfigurationError, match=why):
        parse_run({**IN_STEP, **keys})


def test_every_block_is_dealt_once_whatever_the_number_of_actors_L1() -> None:
    for actors in (1, 2, 4):
        run = parse_run({**IN_STEP, "actors": actors})
        assert [block for actor in range(actors) for block in dealt(run, actor)] == [0, 1, 2, 3]


def test_a_round_ends_a_turn_after_its_last_row_L1() -> None:
    ends = {turn: number for turn in range(18) if (number := round_before(turn, 8)) is not None}
    assert ends == {9: 0, 17: 1}
