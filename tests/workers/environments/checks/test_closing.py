"""What raises as it is closed keeps no other from being closed, and hides nothing that was raised before."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import gymnasium
import pytest

from protocol.config.run import EnvironmentConfig
from protocol.errors import ConfigurationError, EnvironmentFault
from tests.faults import kinds_in, raises
from workers.environments.adapters.batched.gymnasium_vector import GymnasiumVector
from workers.environments.adapters.gymnasium_adapter import GymnasiumEnvironment
from workers.environments.adapters.gymnasium_multi_agent import TupleMultiAgent
from workers.environments.adapters.mlagents_adapter import MlAgentsEnvironment
from workers.environments.adapters.pettingzoo_aec import PettingZooAEC
from workers.environments.adapters.pettingzoo_parallel import PettingZooEnvironment, wrap_pettingzoo
from workers.environments.adapters.pettingzoo_state import StateWrapper
from workers.environments.adapters.sorrel_adapter import SorrelEnvironment
from workers.environments.checks.closing import close_all, close_logged
from workers.environments.registry import make

closed: list[Any] = []


class Stuck:
    """A world of several kinds, too little of each to be taken, that cannot be closed."""

    num_envs = 2
    observation_space = action_space = single_observation_space = gymnasium.spaces.Discrete(2)

    def step(self, action: Any) -> Any:
        raise NotImplementedError

    def reset(self, seed: int) -> Any:
        raise AttributeError

    def close(self) -> None:
        closed.append(self)
        raise ValueError("it sticks")


@pytest.fixture(autouse=True)
def none_closed() -> None:
    closed.clear()


def assert_told(caplog: pytest.LogCaptureFixture) -> None:
    (record,) = caplog.records
    assert "event=close_raised environment=stuck" in record.getMessage().replace(f"{__name__}:Stuck", "stuck")
    assert kinds_in(record.getMessage()) == ["environment_raised"]


@pytest.mark.parametrize(
    "adapter", [GymnasiumEnvironment, PettingZooEnvironment, PettingZooAEC, MlAgentsEnvironment, SorrelEnvironment]
)
def test_where_a_copy_cannot_be_made_the_others_are_closed_and_its_error_is_told(
    adapter: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    made: list[Any] = []

    def make_one() -> Any:
        if len(made) == 3:
            raise KeyError("the fourth")
        made.append(Stuck())
        return made[-1]

    with pytest.raises(KeyError, match="the fourth"):
        adapter("stuck", make_one, 4)
    assert closed == made
    assert_told(caplog)


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        (lambda: GymnasiumVector("stuck", Stuck()), "autoreset_mode_missing"),
        (lambda: TupleMultiAgent("stuck", Stuck()), "spaces_not_per_agent"),
        (lambda: StateWrapper("stuck", Stuck()), "state_method_missing"),
        (lambda: wrap_pettingzoo("stuck", Stuck(), Stuck, 1, "sequential"), "turn_mode_not_supported"),
        (lambda: make(EnvironmentConfig(id=f"{__name__}:Stuck", copies=1)), "environment_function_without_copies"),
    ],
)
def test_what_is_refused_is_told_whatever_it_raises_as_it_is_closed(
    asked: Callable[[], Any], kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    with raises(ConfigurationError, kind):
        asked()
    assert len(closed) == 1
    assert_told(caplog)


def test_all_are_closed_in_their_order_and_those_without_a_close_let_go() -> None:
    made = [Stuck(), object(), Stuck()]
    kept = list(made)
    with pytest.raises(ValueError, match="it sticks"):
        close_all(made)
    assert closed == [kept[0], kept[2]]
    assert made == []


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (KeyError("door"), "environment_raised"),
        (SystemExit(1), "environment_raised"),
        (EnvironmentFault("step_before_reset", environment="inner"), "step_before_reset"),
    ],
)
def test_what_closing_raises_is_logged_as_it_is(
    fault: BaseException, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    def close() -> None:
        raise fault

    close_logged("door", close)
    (record,) = caplog.records
    assert kinds_in(record.getMessage()) == [kind]


def test_ctrl_c_while_a_world_is_closed_is_nobodys() -> None:
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # whoever starts this in the background ignores it
    with pytest.raises(KeyboardInterrupt):
        close_logged("door", lambda: signal.raise_signal(signal.SIGINT))
    signal.signal(signal.SIGINT, before)
