"""What a wrapper does not change reaches the environment in it, and comes back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from workers.environments.base import Environment
from workers.environments.worlds.simple_spread import Spread
from workers.environments.wrappers.joint_observation import JointObservation
from workers.environments.wrappers.team import TeamEnvironment


class Watched(Spread):
    """Beyond this process, as far as anybody can tell."""

    counters = ("frames_late",)
    restarts = 3
    asked = 0
    stage = 0

    def poll(self) -> None:
        self.asked += 1

    def metrics(self) -> dict[str, float]:
        return {"frames_late": 2.0}

    def set_curriculum(self, curriculum: Mapping[str, Any]) -> None:
        self.stage = curriculum["stage"]


@pytest.mark.parametrize(
    "around", [JointObservation, lambda inner: TeamEnvironment(inner, {"all": "all"}, "mean")], ids=["joint", "team"]
)
def test_what_is_not_changed_is_handed_on(around: Any) -> None:
    inner = Watched(copies=2)
    whole: Environment = around(inner)
    whole.reset(0)
    whole.poll()
    whole.set_curriculum({"stage": 4})
    assert (inner.asked, inner.stage) == (1, 4)
    assert whole.counters == ("frames_late",)
    assert whole.metrics() == {"frames_late": 2.0}
    assert whole.restarts == 3
    assert whole.render() == inner.render()
    whole.close()
