"""What becomes of other libraries' environments here, by their ids: `python -m tests.libraries` writes the table of
workers/environments/LIBRARIES.md, which a nightly test compares.

In flow: every module of PettingZoo's families that need no ROMs, and of MPE2; some ids of other libraries. Out flow: a
row for each: whether it is built, and plays a thousand steps by the guard's checks and, where it has a plain loop, as
in that.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np

from protocol.config.run import EnvironmentConfig
from protocol.errors import RookeryError
from protocol.spaces.drawing import random_rows
from tests.tools import ROOT
from workers.environments.adapters.adapter_checks import copy_seeds
from workers.environments.adapters.gymnasium_multi_agent import TupleMultiAgent
from workers.environments.adapters.space_conversion import MASK
from workers.environments.base import AgentOutcome, AgentTimeStep, Turn
from workers.environments.checks.checked_environment import CheckedEnvironment
from workers.environments.known_ids import modules_of
from workers.environments.registry import make

__all__ = ["PATH", "main", "table"]

PATH = ROOT / "workers" / "environments" / "LIBRARIES.md"
FAMILIES = ("pettingzoo.classic", "pettingzoo.butterfly", "pettingzoo.sisl", "mpe2")
OTHERS = (
    "gymnasium_multi:Foraging-8x8-2p-2f-coop-v3",
    "gymnasium_multi:Foraging-2s-10x10-3p-3f-v3",
    "gymnasium_multi:rware-tiny-2ag-v2",
    "gymnasium_multi:rware-small-4ag-v2",
)
STEPS, FEWER = 1_000, 200
"""Turns of one copy; the fewer where a turn takes long."""
SLOW = ("cooperative_pong", "knights_archers_zombies", "pistonball", "pursuit", "multiwalker", "chess")
UNREPEATED = ("hanabi",)
"""Whose later episodes have generators of their own, which no seed repeats: the first is compared."""
BEGIN, END = "<!-- table: python -m tests.libraries -->\n", "<!-- end of the table -->\n"


def ids() -> list[str]:
    """All that are tried."""
    return [*(f"pettingzoo:{module}" for family in FAMILIES for module in modules_of(family)), *OTHERS]


def table() -> str:
    """A row for each id."""
    rows = ["| `environment.id` | agents | turns | masks | result |", "|---|---|---|---|---|"]
    return "\n".join([*rows, *map(_row, ids())]) + "\n"


def _row(id: str) -> str:
    try:
        environment = CheckedEnvironment(make(EnvironmentConfig(id=id, copies=1)))
    except RookeryError as fault:
        return f"| `{id}` | | | | {fault} |"
    agents = environment.world.agents
    plain = _plain(id)
    in_turn, steps = hasattr(plain, "agent_iter"), FEWER if _among(SLOW, id) else STEPS
    try:
        if in_turn:
            _in_turn(environment, plain, steps, _among(UNREPEATED, id))
        else:
            _at_once(environment, plain, steps)
        result = "plays as in its own loop" + ", whose later episodes no seed repeats" * _among(UNREPEATED, id)
    except (RookeryError, AssertionError) as fault:
        result = f"**{' '.join(str(fault).split())}**"
    finally:
        environment.close()
        plain.close()
    masks = "yes" if any(agent.action_mask for agent in agents) else ""
    return f"| `{id}` | {len(agents)} | {'one by one' if in_turn else 'at once'} | {masks} | {result} |"


def _among(names: tuple[str, ...], id: str) -> bool:
    return any(one in id for one in names)


def _plain(id: str) -> Any:
    """The library's own environment, begun as ours was to find out what it tells."""
    kind, _, name = id.partition(":")
    if kind == "pettingzoo":
        module = importlib.import_module(name)
        env = module.parallel_env() if hasattr(module, "parallel_env") else module.env()
    else:
        env = TupleMultiAgent(id, gymnasium.make(name, disable_env_checker=True))
    env.reset(seed=0)
    return env


def _at_once(environment: CheckedEnvironment, plain: Any, steps: int) -> None:
    """AssertionError where an observation, a reward or who is there is another."""
    turn, generator = environment.reset(7), np.random.default_rng(0)
    seen, _ = plain.reset(seed=copy_seeds(7, 1)[0])
    keys = {str(key): key for key in plain.possible_agents}
    names = [agent.name for agent in environment.world.agents]
    for _ in range(steps):
        there = {names[one.agent]: one for one in turn.present}
        assert {*there} == {*map(str, plain.agents)}
        for name, one in there.items():
            _same(one.observation[0], seen[keys[name]])
        actions = _actions(environment, turn, generator)
        chosen = {keys[name]: action[0] for name, action in zip(there, actions, strict=True)}
        turn = environment.step(actions)
        seen, rewards, *_ = plain.step(chosen)
        news: tuple[AgentOutcome | AgentTimeStep, ...] = (*turn.outcomes, *turn.present)
        told = {names[one.agent]: one.reward[0] for one in news}
        for name in there:
            assert told[name] == np.float32(rewards[keys[name]])
        if not plain.agents:
            seen, _ = plain.reset()


def _in_turn(environment: CheckedEnvironment, plain: Any, steps: int, once: bool) -> None:
    """AssertionError where whose turn it is, what is seen or what may be done is another; of `once`, in its first
    episode."""
    turn, generator = environment.reset(7), np.random.default_rng(0)
    plain.reset(seed=copy_seeds(7, 1)[0])
    compared = True
    for _ in range(steps):
        compared &= _bury(plain) or not once
        actions = _actions(environment, turn, generator)
        if compared:
            _compare(environment, turn, plain)
            plain.step(actions[0][0])
        turn = environment.step(actions)


def _compare(environment: CheckedEnvironment, turn: Turn, plain: Any) -> None:
    (one,) = turn.present
    assert environment.world.agents[one.agent].name == plain.agent_selection
    seen = plain.last()[0]
    _same(one.observation[0], seen)
    if one.action_mask is not None:
        np.testing.assert_array_equal(one.action_mask[0], np.asarray(seen[MASK]) != 0)


def _bury(plain: Any) -> bool:
    """On to an agent that lives, into the next episode if need be; whether the episode is the same."""
    same = True
    while True:
        if not plain.agents:
            plain.reset()
            same = False
        _, _, terminated, truncated, _ = plain.last()
        if not (terminated or truncated):
            return same
        plain.step(None)


def _actions(environment: CheckedEnvironment, turn: Turn, generator: np.random.Generator) -> list[Any]:
    places = environment.world.places
    return [random_rows(places[one.agent].acted, 1, generator, one.action_mask) for one in turn.present]


def _same(row: Any, seen: Any) -> None:
    own = seen["observation"] if isinstance(seen, dict) and MASK in seen else seen
    np.testing.assert_array_equal(row, np.asarray(own).astype(row.dtype))


def parts(document: str) -> Iterator[str]:
    """What stands before the table, the table, and what stands behind it."""
    before, _, rest = document.partition(BEGIN)
    found, _, after = rest.partition(END)
    yield from (before, found, after)


def main() -> None:
    """Writes the table anew."""
    before, _, after = parts(PATH.read_text(encoding="utf-8"))
    PATH.write_text(f"{before}{BEGIN}{table()}{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
