"""What worlds tell of their episodes in `info`: which numbers are taken, in each form that a world may have."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from protocol.config.environment import EnvironmentConfig
from protocol.spaces import Agent, World
from protocol.spaces import Box as Seen
from protocol.spaces import Discrete as Done
from workers.environments.adapters.batched.gymnasium_vector import GymnasiumVector
from workers.environments.adapters.gymnasium_adapter import GymnasiumEnvironment
from workers.environments.adapters.gymnasium_multi_agent import TupleMultiAgent
from workers.environments.adapters.pettingzoo_parallel import wrap_pettingzoo
from workers.environments.base import Environment, Episodes, Turn
from workers.environments.collections import Collection
from workers.environments.lockstep_blocks import LockstepBlocks
from workers.environments.registry import make
from workers.environments.wrappers.team import TeamEnvironment
from workers.metrics.infos import InfoCurves

AGENTS = ("left", "right")


class Plain(Environment):
    """Nobody steps it."""

    def __init__(self, agents: Sequence[str] = AGENTS) -> None:
        self.world = World(
            id="plain", agents=tuple(Agent(name=one, observation=Seen(shape=(1,)), action=Done(n=2)) for one in agents)
        )
        self.copies = 1

    def reset(self, seed: int) -> Turn:
        raise NotImplementedError

    def step(self, actions: Sequence[NDArray]) -> Turn:
        raise NotImplementedError


class Laps(gymnasium.Env):
    """Episodes of 2, 3, 2, 3 ... steps, each of which tells whether it was long, and at each step something else."""

    observation_space = Box(0, 9, (1,), np.float32)
    action_space = Discrete(2)
    first = episodes = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.episodes = self.first
        self.left = 2 + self.episodes % 2
        self.long, self.episodes = self.left == 3, self.episodes + 1
        return np.zeros(1, np.float32), {"begun": 1.0}

    def step(self, action: Any) -> Any:
        self.left -= 1
        info: dict[str, Any] = {"left": self.left}
        if not self.left:
            info |= {"long": self.long, "cost": -2.5, "said": "yes", "path": np.ones(3), "episode": {"r": 9.0, "x": 4}}
        return np.zeros(1, np.float32), 0.0, not self.left, False, info


class Pair:
    """Both end after three steps, `left` with -1 and `right` with 5 and a truth, in the manner of PettingZoo."""

    possible_agents = [*AGENTS]  # noqa: RUF012

    def observation_space(self, agent: str) -> Any:
        return Box(0, 9, (1,), np.float32)

    def action_space(self, agent: str) -> Any:
        return Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self.time = [*AGENTS], 0
        return self._seen(), {agent: {} for agent in AGENTS}

    def step(self, actions: Any) -> Any:
        self.time += 1
        over = self.time == 3
        infos: dict[str, dict[str, Any]] = {"left": {"gold": -1 if over else 7}, "right": {"gold": 5, "won": np.True_}}
        if over:
            self.agents = []
        ends, never = dict.fromkeys(AGENTS, over), dict.fromkeys(AGENTS, False)
        return self._seen(), dict.fromkeys(AGENTS, 0.0), ends, never, infos

    def close(self) -> None:
        pass

    def _seen(self) -> Any:
        return {agent: np.zeros(1, np.float32) for agent in AGENTS}


PAIR = {("info/gold", 0): (1, -1.0), ("info/gold", 1): (1, 5.0), ("info/won", 1): (1, 1.0)}


def played(environment: Environment, steps: int) -> Episodes:
    """What is told of the episodes that end in so many steps, in which all choose their first action."""
    turn = environment.reset(0)
    for _ in range(steps):
        turn = environment.step([np.zeros(len(one.observation), np.int64) for one in turn.present])
    told = environment.take_episodes()
    assert environment.take_episodes() == {}, "told once"
    environment.close()
    return told


def test_numbers_and_truths_are_taken_and_all_else_is_passed_over() -> None:
    world = Plain()
    info = {"won": True, "lost": np.False_, "gold": -3, "far": np.float32(0.5), "r": 2, 7: 1.0, "": 1.0, "text": "one"}
    world.tell(
        0, {**info, "list": [1], "array": np.ones(2), "none": None, "more": {"x": 1.0}, "took": np.timedelta64(1)}
    )
    world.tell(0, {"won": False, "episode": {"r": 1.0, "l": 9, "t": 0.1, "kills": 2}, "final_info": {"gold": 5}})
    world.tell(1, {"won": True, "score": np.array(2.0)})
    world.tell(np.int64(1), {"score": torch.tensor(3)})
    world.tell(1, None)
    assert world.take_episodes() == {
        ("info/won", 0): (2, 1.0),
        ("info/lost", 0): (1, 0.0),
        ("info/gold", 0): (2, 2.0),
        ("info/far", 0): (1, 0.5),
        ("info/r", 0): (1, 2.0),
        ("info/kills", 0): (1, 2.0),
        ("info/won", 1): (1, 1.0),
        ("info/score", 1): (2, 5.0),
    }
    assert world.take_episodes() == {}


@pytest.mark.parametrize(("agent", "fault"), [(2, IndexError), (-1, IndexError), ("left", TypeError)])
def test_who_is_no_agent_is_told_where_it_is_told(agent: Any, fault: type[Exception]) -> None:
    with pytest.raises(fault):
        Plain().tell(agent, {"won": True})


def test_the_many_names_of_one_agent_leave_room_for_others() -> None:
    world = Plain()
    world.tell(0, {f"n{number}": 1 for number in range(500)})
    world.tell(1, {"won": True})
    assert ("info/won", 1) in world.take_episodes()


def test_what_was_told_is_no_part_of_a_worlds_state() -> None:
    """It was counted when it was taken: a world that goes on from there does not tell it again."""
    world = Plain()
    world.tell(0, {"won": True})
    state = world.get_state()
    world.take_episodes()
    world.set_state(state)
    assert world.take_episodes() == {}


def test_curves_go_on_where_a_coordinator_before_this_one_was() -> None:
    """Also while not all actors are back."""
    before = InfoCurves(["a"])
    before.look({"infos.a/won": 10, "info_sums.a/won": 10.0})
    after = InfoCurves(["a"])
    after.restore(json.loads(json.dumps(before.to_plain())))
    for count, total in ((6, 6.0), (10, 10.0)):
        after.look({"infos.a/won": count, "info_sums.a/won": total})
        assert after.newest["a"] == {}
    after.look({"infos.a/won": 12, "info_sums.a/won": 10.0})
    assert after.newest["a"] == {"info/won": 0.0}
    assert after.whole() == {"a": {"won": {"episodes": 12, "mean": pytest.approx(10 / 12)}}}


def test_a_sum_that_comes_behind_its_count_is_put_right() -> None:
    curves = InfoCurves(["a"])
    for total in (0.0, 4.0):
        curves.look({"infos.a/won": 4, "info_sums.a/won": total})
    assert curves.whole() == {"a": {"won": {"episodes": 4, "mean": 1.0}}}


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, np.float32("nan"), np.float16("inf"), 10**400, -1.1e12])
def test_what_would_spoil_a_mean_is_left_out_and_counted(odd: Any) -> None:
    world = Plain()
    for value in (1.0, odd, 2.0):
        world.tell(0, {"far": value})
    assert world.take_episodes() == {("info/far", 0): (2, 3.0), ("info/", 0): (1, 0.0)}


def test_names_without_end_take_no_memory_without_end() -> None:
    world = Plain()
    for number in range(1_000):
        world.tell(0, {f"episode {number}": 1.0})
    assert len(world.take_episodes()) == 100


LAPS = {
    ("info/left", 0): (3, 0.0),
    ("info/long", 0): (3, 1.0),
    ("info/cost", 0): (3, -7.5),
    ("info/x", 0): (3, 12.0),
}
"""Of the three episodes of one copy that end in seven steps."""


def test_an_episode_of_gymnasium_tells_what_its_last_step_told() -> None:
    assert played(GymnasiumEnvironment("laps", Laps, 2), 7) == {
        place: (2 * count, 2 * total) for place, (count, total) in LAPS.items()
    }


@pytest.mark.parametrize(("mode", "steps"), [("SAME_STEP", 8), ("NEXT_STEP", 9), ("DISABLED", 8)])
def test_a_vector_of_gymnasium_tells_each_copys_in_each_way_to_restart(mode: str, steps: int) -> None:
    """The second copy begins with a long episode: not all end at once."""

    def ahead() -> Laps:
        laps = Laps()
        laps.first = 1
        return laps

    vector = SyncVectorEnv([Laps, ahead], autoreset_mode=AutoresetMode[mode])
    told = played(GymnasiumVector("laps", vector), steps)
    assert told["info/long", 0] == (6, 3.0)
    assert told["info/cost", 0] == (6, -15.0)
    assert told["info/x", 0] == (6, 24.0)
    assert told["info/left", 0] == (6, 0.0)
    assert len(told) == len(LAPS)


def test_agents_of_pettingzoo_tell_each_their_own() -> None:
    environment = wrap_pettingzoo("pair", Pair(), Pair, 1, None)
    assert played(environment, 4) == PAIR


def test_agents_in_turn_tell_each_their_own() -> None:
    from pettingzoo.utils.conversions import parallel_to_aec

    def make_one() -> Any:
        pair = Pair()
        pair.metadata, pair.render_mode, pair.unwrapped = {}, None, pair  # type: ignore[attr-defined]
        return parallel_to_aec(pair)

    assert played(wrap_pettingzoo("pair", make_one(), make_one, 1, None), 7) == PAIR


def test_one_info_for_all_agents_is_told_of_each() -> None:
    class Both(Laps):
        observation_space = gymnasium.spaces.Tuple([Laps.observation_space] * 2)  # type: ignore[assignment]
        action_space = gymnasium.spaces.Tuple([Laps.action_space] * 2)  # type: ignore[assignment]

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return (super().reset(seed=seed)[0],) * 2, {}

        def step(self, action: Any) -> Any:
            seen, _, over, cut, info = super().step(action)
            return (seen, seen), [0.0, 0.0], over, cut, info

    def make_one() -> Any:
        return TupleMultiAgent("both", Both())

    told = played(wrap_pettingzoo("both", make_one(), make_one, 1, None), 7)
    assert told == {(name, agent): of for (name, _), of in LAPS.items() for agent in (0, 1)}


def test_what_lies_around_a_world_hands_on_what_it_tells() -> None:
    one, other = Plain(), Plain()
    for world in (one, other):
        world.tell(0, {"gold": 3})
        world.tell(1, {"gold": -1})
    assert LockstepBlocks([one, other], range(2)).take_episodes() == {
        ("info/gold", 0): (2, 6.0),
        ("info/gold", 1): (2, -2.0),
    }
    one.tell(0, {"gold": 3})
    one.tell(1, {"gold": -1})
    team = TeamEnvironment(one, {"t": "all"}, "mean")
    assert team.take_episodes() == {("info/gold", 0): (2, 2.0)}, "whatever the team earns, each member has its own"


def pair() -> Pair:
    """For `environment.id`."""
    return Pair()


WHERE = f"{__name__}:pair"


@pytest.mark.parametrize("form", [{"id": WHERE, "processes": 1}, {"members": {"m": {"id": WHERE}}}])
def test_processes_and_collections_hand_on_what_their_worlds_tell(form: dict[str, Any]) -> None:
    config = EnvironmentConfig.model_validate({"copies": 2, **form})
    told = played(Collection(config, make) if "members" in form else make(config), 4)
    assert {place: of for place, of in told.items() if place[0] != "m"} == {
        place: (2 * count, 2 * total) for place, (count, total) in PAIR.items()
    }
