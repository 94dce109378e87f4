"""The worlds that protocol/README.md declares for simulators, of one agent and of two, are what it says they are."""

from __future__ import annotations

import re

import yaml

from protocol.config.run import parse_run
from protocol.messages.simulator import facts_of
from tests.protocol.test_specification import TEXT
from workers.environments.simulators.simulator_settings import settings_of, world_of
from workers.planning.policy_plan import plan_policies

Column = tuple[str, str, list[int]]


def test_the_examples_of_declared_worlds_are_taken_and_have_the_columns_that_are_said() -> None:
    section = TEXT.split("\n### Declaring the world\n")[1].split("\n### ")[0]
    found: dict[str, list[Column]] = {}
    for text in re.findall(r"```yaml\n(.*?)```", section, re.DOTALL):
        run = parse_run(yaml.safe_load(text))
        world = world_of(settings_of(run.environment), lambda _: None)  # type: ignore[arg-type,return-value]
        assert len(plan_policies(run, world)) == len(world.places)
        for place in map(facts_of, world.places):
            columns = [*place.observation, *place.mask, *place.action]
            found[place.agent] = [(column.name, column.dtype, list(column.shape)) for column in columns]
    assert found == {
        "cart": [("observation", "<f4", [4]), ("action", "<i8", [])],
        "hunter": [("observation", "|u1", [3, 3]), ("action", "<f4", [2])],
        "hare": [
            ("observation.place", "<f4", [3]),
            ("observation.sign", "<i8", []),
            ("action_mask", "|b1", [5]),
            ("action", "<i8", []),
        ],
    }
