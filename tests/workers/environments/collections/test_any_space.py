"""Nested observations and actions, and masks of what is legal, go through a collection to the member they are of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.workers.environments.adapters.masked_games import Alone, InTurn, Together
from tests.workers.environments.adapters.test_masked_games import played
from tests.workers.environments.collections.worlds import collection
from workers.environments.adapters.gymnasium_adapter import GymnasiumEnvironment
from workers.environments.adapters.pettingzoo_aec import PettingZooAEC
from workers.environments.adapters.pettingzoo_parallel import PettingZooEnvironment
from workers.environments.base import Environment

ADAPTERS: dict[Any, Callable[..., Environment]] = {
    Alone: GymnasiumEnvironment,
    Together: PettingZooEnvironment,
    InTurn: PettingZooAEC,
}


@pytest.mark.parametrize(
    ("kind", "games"), [("plain", (Together, InTurn)), ("nested", (Alone, Alone)), ("nested", (Together, InTurn))]
)
def test_every_action_is_legal_in_the_member_that_it_reaches_I3_I9(kind: str, games: tuple[Any, Any]) -> None:
    """The games themselves refuse an action that is outside their space or mask."""
    made: list[list[Any]] = [[], []]

    def maker(number: int) -> Callable[[], Environment]:
        def make_one() -> Any:
            made[number].append(games[number](kind, seed=10 * number + len(made[number])))
            return made[number][-1]

        return lambda: ADAPTERS[games[number]]("masked", make_one, 1)

    environment, _ = collection({"a": maker(0), "b": maker(1)}, 3, prior={"a": 1, "b": 1})
    played(environment, 60)
    for number in (0, 1):
        assert sum(one.rules.moves for one in made[number]) > 20
