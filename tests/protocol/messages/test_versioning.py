"""Two releases speak the highest schema that both know, or part in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol import RELEASE, SCHEMA
from protocol.errors import Refused
from protocol.messages import versioning
from protocol.messages.versioning import Schemas, agreed, disagreement, spoken_with
from tests.faults import raises
from tests.protocol.parts import Actor, Learner, a_route, closing
from tests.waiting import until


@pytest.mark.parametrize(
    ("ours", "theirs", "number"),
    [((1, 1), (1, 2), 1), ((1, 1), (2, 3), None), ((2, 3), (1, 2), 2), ((1, 5), (2, 3), 3), ((1, 5), (4, 2), None)],
)
def test_Z4_the_highest_common_number_is_chosen(
    monkeypatch: pytest.MonkeyPatch, ours: tuple[int, int], theirs: tuple[int, int], number: int | None
) -> None:
    """Z4: from either side the same."""
    monkeypatch.setattr(versioning, "SPOKEN", Schemas(*ours))
    assert agreed(Schemas(*theirs)) == number
    assert bool(disagreement("it", Schemas(*theirs))) == (number is None)
    if theirs[0] <= theirs[1]:
        monkeypatch.setattr(versioning, "SPOKEN", Schemas(*theirs))
        assert agreed(Schemas(*ours)) == number


def test_Z4_a_learner_of_another_release_is_sent_to_in_a_common_schema_or_refused() -> None:
    """Z4: its routes say what it speaks."""
    assert spoken_with(a_route(oldest_schema=SCHEMA, newest_schema=SCHEMA + 1)) == SCHEMA
    facts = {"value": f"schemas {SCHEMA + 1} to {SCHEMA + 2}", "release": RELEASE, "expected": f"schema {SCHEMA}"}
    with raises(Refused, "schemas_differ", peer="the learner 'learner-gem'", **facts):
        spoken_with(a_route(oldest_schema=SCHEMA + 1, newest_schema=SCHEMA + 2))


def test_Z4_segments_go_in_the_schema_of_the_route(memory_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Z4: and a learner of both schemas takes them in."""
    monkeypatch.setattr(versioning, "SPOKEN", Schemas(SCHEMA, SCHEMA + 1))
    learner, actor = Learner(), Actor(None)
    with closing(actor, learner):
        for newest in (SCHEMA, SCHEMA + 1):
            actor.sender.route(learner.route.model_copy(update={"newest_schema": newest}), inline=True)
            assert actor.sender._header is not None
            assert actor.sender._header.schema_number == newest
        actor.write()
        until(lambda: learner.uses(2))
        assert learner.wrong == 0
