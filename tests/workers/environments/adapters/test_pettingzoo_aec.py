"""PettingZoo's agents in turn: a game worked out by hand, PettingZoo's own loop, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from mpe2 import simple_spread_v3
from pettingzoo import AECEnv

from protocol.errors import ConfigurationError, EnvironmentFault
from tests.faults import raises
from workers.environments.adapters.adapter_checks import copy_seeds
from workers.environments.adapters.pettingzoo_aec import PettingZooAEC
from workers.environments.adapters.pettingzoo_parallel import from_id
from workers.environments.checks.checked_environment import CheckedEnvironment


class Duel(AECEnv):
    """`script`: what happens after each action: who is next, rewards, who terminated, who was truncated."""

    possible_agents = ["left", "right"]  # noqa: RUF012
    metadata: dict[str, Any] = {}  # noqa: RUF012
    render_mode = None
    spaces = Box(0, 99, (1,)), Discrete(2, start=5)

    def __init__(self, script: list[tuple[str, dict[str, float], str, str]]) -> None:
        self.script, self.time, self.taken = script, 0, []  # type: ignore[var-annotated]

    def observation_space(self, agent: str) -> Any:
        return self.spaces[0]

    def action_space(self, agent: str) -> Any:
        return self.spaces[1]

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.time, self.agents = 0, list(self.possible_agents)
        self.rewards, self._cumulative_rewards = ({"left": 0.0, "right": 0.0} for _ in range(2))
        self.terminations, self.truncations = ({"left": False, "right": False} for _ in range(2))
        self.infos: dict[str, dict[str, Any]] = {"left": {}, "right": {}}
        self.agent_selection, self._skip_agent_selection = "left", None

    def observe(self, agent: str) -> Any:
        return np.array([self.time + (0.5 if agent == "right" else 0)], np.float32)

    def step(self, action: Any) -> None:
        name = self.agent_selection
        if self.terminations[name] or self.truncations[name]:
            self._was_dead_step(action)
            return
        self.taken.append((name, action))
        self._cumulative_rewards[name] = 0
        following, rewards, over, cut = self.script[self.time]
        self.time += 1
        self.rewards = {agent: rewards.get(agent, 0.0) for agent in self.agents}
        self._accumulate_rewards()
        if over in self.agents:
            self.terminations[over] = True
        if cut in self.agents:
            self.truncations[cut] = True
        self.agent_selection = following
        self._deads_step_first()


def both(r: float) -> dict[str, float]:
    return {"left": r, "right": 10 * r}


def test_rewards_between_turns_and_deaths_in_mid_game_are_told_as_worked_out_by_hand() -> None:
    """K5 D2: left acts twice in a row, right dies first; both copies at the same agent are one slice."""
    script = [
        ("left", both(1), "", ""),
        ("right", both(2), "", ""),  # right was given 10 and 20 before it ever acted
        ("left", both(3), "", ""),
        ("left", both(4), "", "right"),
        ("left", both(5), "left", ""),  # right is gone: its 50 is nobody's, and PettingZoo drops it
    ]
    games: list[Any] = []

    def make_one() -> Any:
        games.append(Duel(script))
        return games[-1]

    environment = CheckedEnvironment(PettingZooAEC("duel", make_one, 2))
    turn, steps = environment.reset(0), []
    told: list[Any] = []
    for k in range(6):
        for one in turn.outcomes:
            assert one.copies.tolist() == [0, 1]
            final = None if one.final_observation is None else one.final_observation[1].item()
            told.append(("gone", one.agent, one.reward[1].item(), bool(one.terminated[1]), final))
        (present,) = turn.present
        assert present.copies is None
        ends = bool(present.terminated[1]), bool(present.truncated[1])
        told.append((present.observation[1].item(), present.agent, present.reward[1].item(), *ends))
        turn = environment.step([np.array([5, 5 + k % 2])])
        steps.append(turn.env_steps)
    assert told == [
        (0.0, 0, 0.0, False, False),
        (1.0, 0, 1.0, False, False),
        (2.5, 1, 0.0, False, False),
        (3.0, 0, 2.0 + 3.0, False, False),
        ("gone", 1, 10.0 + 20.0 + 30.0 + 40.0, False, 4.5),
        (4.0, 0, 4.0, False, False),
        (0.0, 0, 5.0, True, False),
    ]
    assert steps == [2, 0, 2, 2, 2, 2]
    assert games[1].taken == [("left", 5), ("left", 6), ("right", 5), ("left", 6), ("left", 5), ("left", 6)]
    environment.close()


def test_simple_spread_in_turns_gives_what_pettingzoos_own_loop_gives() -> None:
    copies, seed = 2, 4
    environment = from_id("pettingzoo:mpe2.simple_spread_v3", copies, {"max_cycles": 4}, "sequential")
    plain = [simple_spread_v3.env(max_cycles=4) for _ in range(copies)]
    for one, first in zip(plain, copy_seeds(seed, copies), strict=True):
        one.reset(seed=first)
    generator, turn, ends = np.random.default_rng(0), environment.reset(seed), 0
    for _ in range(40):
        (present,) = turn.present
        gone = {outcome.agent: outcome for outcome in turn.outcomes}
        for i, one in enumerate(plain):
            while True:  # the dead first
                if not one.agents:
                    one.reset()
                seen, reward, terminated, truncated, _ = one.last()
                if not (terminated or truncated):
                    break
                k = int(one.agent_selection[-1])
                news = gone.get(k, present)
                assert news.agent == k
                assert news.reward[i] == np.float32(reward)
                assert news.truncated[i]
                assert news.final_observation is not None
                assert np.array_equal(news.final_observation[i], seen)
                one.step(None)
                ends += 1
            assert one.agent_selection == f"agent_{present.agent}"
            assert np.array_equal(present.observation[i], seen)
            if not present.truncated[i]:
                assert present.reward[i] == np.float32(reward)
        actions = generator.integers(5, size=copies)
        for one, action in zip(plain, actions.tolist(), strict=True):
            one.step(action)
        turn = environment.step([actions])
    assert ends == 3 * 3 * copies
    environment.close()


def test_a_reward_for_an_agent_that_never_acted_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    script = [("left", both(1), "", "right"), ("left", {}, "left", "")]
    environment = PettingZooAEC("duel", lambda: Duel(script), 1)
    environment.reset(0)
    for _ in range(6):
        turn = environment.step([np.full(1, 5)])
        assert not turn.outcomes
    assert [record.message for record in caplog.records] == [
        "event=reward_without_action where='duel, agent right' reward=10"
    ]


class Faulty(Duel):
    def __init__(self, wrong: str) -> None:
        super().__init__([("right", both(1), "", ""), ("left", both(1), "left", "right")])
        self.wrong, self.resets = wrong, 0

    def observation_space(self, agent: str) -> Any:
        return Box(0, 1, (3,)) if self.wrong == "space" and self.resets > 2 else super().observation_space(agent)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        super().reset()
        self.resets += 1
        if self.wrong == "empty":
            self.agents = []

    def observe(self, agent: str) -> Any:
        return np.zeros((1, 1), np.float32) if self.wrong == "shape" else super().observe(agent)

    def step(self, action: Any) -> None:
        if self.wrong == "undead" and action is None:
            return
        super().step(action)
        if self.time == 1 and self.wrong == "stranger":
            self.agent_selection = "stranger"
            self.terminations["stranger"] = self.truncations["stranger"] = False
        if self.time == 1 and self.wrong == "vanish":
            self.agents = []


@pytest.mark.parametrize(
    ("wrong", "kind", "facts"),
    [
        ("space", "space_changed", {"where": "duel, agent left", "field": "observation space"}),
        ("shape", "array_shape_wrong", {"field": "duel, agent left: observation", "expected": [1], "value": [1, 1]}),
        ("empty", "no_agents_after_reset", {"environment": "duel", "copy": 0}),
        ("undead", "dead_agents_selected", {"environment": "duel", "copy": 0}),
        ("stranger", "agent_unknown", {"environment": "duel", "agent": "stranger", "choices": ["left", "right"]}),
        ("vanish", "agent_left_without_end", {"environment": "duel", "agent": "left", "copy": 0}),
    ],
)
def test_a_faulty_environment_is_told_in_one_sentence(wrong: str, kind: str, facts: dict[str, Any]) -> None:
    environment = PettingZooAEC("duel", lambda: Faulty(wrong), 1)
    with raises(EnvironmentFault, "step_before_reset", environment="duel"):
        environment.step([np.zeros(1, np.int64)])
    with raises(EnvironmentFault, kind, **facts) as caught:
        turn = environment.reset(0)
        for _ in range(4):
            turn = environment.step([np.full(1, 5) for _ in turn.present])
    assert "\n" not in str(caught.value)


def test_games_with_unnamed_agents_are_refused_in_one_sentence() -> None:
    id = "pettingzoo:pettingzoo.test.example_envs.generated_agents_env_v0"
    with raises(ConfigurationError, "possible_agents_empty", environment=id):
        from_id(id, 1, {})
