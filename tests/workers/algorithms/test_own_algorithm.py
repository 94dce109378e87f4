"""An algorithm of the user's own: what it is given, and what is told of it before anything starts."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from pydantic import BaseModel, Field
from torch import Tensor, nn

from protocol.config.run import PolicyConfig, Run
from protocol.errors import ConfigurationError
from protocol.spaces import Agent, Box, Component, Dict, Discrete, Observation, Space
from tests.faults import raises
from tests.workers import scripted
from tests.workers.algorithms.test_ppo import B, experience, setting
from workers.algorithms.build import build_own, build_update, try_algorithm
from workers.algorithms.common.batches import TransitionBatch
from workers.algorithms.common.loss import Loss
from workers.algorithms.common.time_major import Minibatch, to_time_major
from workers.algorithms.off_policy import ReplayAlgorithm
from workers.algorithms.ppo import PPOUpdate
from workers.algorithms.stream import StreamAlgorithm
from workers.planning.policy_plan import plan_policies
from workers.planning.policy_spec import policy_spec
from workers.policies.build import build
from workers.policies.interface import Interface
from workers.policies.networks.declared_outputs import Output, declared_outputs
from workers.policies.networks.declared_outputs import RowColumn as Column
from workers.policies.tensors.scratch import ScratchBuffers

KEY = "policy.algorithm.entry"
SEEN = Dict(spaces={"image": Box(shape=(6, 6, 1), dtype="uint8"), "speed": Box(shape=(2,))})


class Keys(BaseModel):
    """Two keys of one's own."""

    weight: float = Field(default=1.0, gt=0)
    often: int = 2


class Streaming(StreamAlgorithm):
    """A good one: advantage actor-critic."""

    Config = Keys

    def loss(self, policy: Any, batch: Any, rows: Any) -> Any:
        found = self.advantages(batch, rows)
        value = batch.mean(self.value_error(policy, batch, rows, found.target))
        total = value - batch.mean(rows.log_probability * found.advantage)
        return Loss(total, {"value_loss": value}, found.priority, found.target)


class Replaying(ReplayAlgorithm):
    """A good one on any networks of values: their means, towards the reward."""

    Config = Keys

    def loss(self, policy: Any, batch: Any) -> Any:
        error = policy.means(policy.inputs(batch.observation)).mean(-1) - batch.reward
        return Loss(batch.mean(error.square()), {}, error.abs())


class Squashed(ReplayAlgorithm):
    """A good one on the networks of sac."""

    def loss(self, policy: Any, batch: Any) -> Any:
        assert batch.noise.shape == (2, len(batch.action), policy.amounts)
        value = policy.critics(policy.inputs(batch.observation), batch.amount)
        return Loss((value - batch.reward).square().mean(), {"value": value.mean()})


class Choosing(ReplayAlgorithm):
    """A good one on the networks of sac that chooses among what is legal."""

    def loss(self, policy: Any, batch: Any) -> Any:
        value = policy.critics.of_choices(policy.inputs(batch.observation)) - 1
        return Loss(value.masked_fill(~(batch.legal & batch.next_legal), 0.0).square().mean(), {})


class Different(Streaming):
    """A base of bad ones, which change what the good one says."""

    changed: Callable[[Loss], Any]

    def loss(self, policy: Any, batch: Any, rows: Any) -> Any:
        return type(self).changed(super().loss(policy, batch, rows))


class Floating(Different):
    changed = staticmethod(lambda loss: loss.total)


class Listed(Different):
    changed = staticmethod(lambda loss: loss._replace(metrics=[loss.total]))


class Rows(Different):
    changed = staticmethod(lambda loss: loss._replace(total=loss.total.expand(3)))


class Number(Different):
    changed = staticmethod(lambda loss: loss._replace(metrics={"a": 1.0}))


class Long(Different):
    changed = staticmethod(lambda loss: loss._replace(metrics={"a": torch.ones(1)}))


class Abroad(Different):
    changed = staticmethod(lambda loss: loss._replace(metrics={"a": torch.ones((), device="meta")}))


class Taken(Different):
    changed = staticmethod(lambda loss: loss._replace(metrics={"rows": loss.total}))


class Worded(Different):
    changed = staticmethod(lambda loss: loss._replace(metrics={"two words": loss.total}))


class Lost(Different):
    changed = staticmethod(lambda loss: loss._replace(priorities=torch.ones(7)))


class Aimless(Different):
    changed = staticmethod(lambda loss: loss._replace(targets=None))


class Varying(Different):
    changed = staticmethod(lambda loss: loss._replace(metrics={f"a{abs(hash(loss.total.item()))}": loss.total}))


class Flat(Different):
    changed = staticmethod(lambda loss: loss._replace(total=loss.total.detach()))


class Elsewhere(Different):
    changed = staticmethod(lambda loss: loss._replace(total=torch.ones((), requires_grad=True).exp()))


class Endless(Different):
    changed = staticmethod(lambda loss: loss._replace(total=loss.total / 0))


class Negative(Different):
    changed = staticmethod(lambda loss: loss._replace(priorities=-loss.targets.abs().sum(0)))


class Unaimed(Different):
    changed = staticmethod(lambda loss: loss._replace(targets=loss.targets / 0))


class Twice(Different):
    """Its gradient is gone when it is asked for."""

    changed = staticmethod(lambda loss: loss.total.backward() or loss)


class Failing(Streaming):
    def loss(self, policy: Any, batch: Any, rows: Any) -> Any:
        return batch.nothing


class Clipping(Streaming):
    """Changes the rewards that others read after it."""

    def loss(self, policy: Any, batch: Any, rows: Any) -> Any:
        batch.reward.clamp_(-1, 1)
        return super().loss(policy, batch, rows)


class Dropping(Streaming):
    """Draws by chance, and not as it is told to."""

    def loss(self, policy: Any, batch: Any, rows: Any) -> Any:
        found = super().loss(policy, batch, rows)
        return found._replace(total=found.total * torch.rand(()))


class Idle(Streaming):
    """Makes no step."""

    def update(self, segments: Any, progress: float = 0.0) -> dict[str, float]:
        return {}


class Cloning(Streaming):
    """A network of its own, which has a part in the loss: nothing moves it."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.mine = nn.Linear(1, 1)

    def loss(self, policy: Any, batch: Any, rows: Any) -> Any:
        found = super().loss(policy, batch, rows)
        return found._replace(total=found.total + self.mine(rows.value[..., None]).square().mean())


class Forgetful(Cloning):
    """It is moved, and not kept."""

    def update(self, segments: Any, progress: float = 0.0) -> dict[str, float]:
        metrics = super().update(segments, progress)
        with torch.no_grad():
            for one in self.mine.parameters():
                assert one.grad is not None
                one.sub_(one.grad, alpha=0.1)
        return metrics


class Keeping(Forgetful):
    """A good one."""

    def state(self) -> dict[str, Tensor]:
        return {**super().state(), **self.mine.state_dict(prefix="mine.")}

    def load_state(self, state: dict[str, Tensor]) -> None:
        super().load_state(state)
        self.mine.load_state_dict({name: state[f"mine.{name}"] for name in self.mine.state_dict()})


class Moved(Keeping):
    """What its optimiser remembers is lost."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.adam = torch.optim.Adam(self.mine.parameters())

    def update(self, segments: Any, progress: float = 0.0) -> dict[str, float]:
        metrics = StreamAlgorithm.update(self, segments, progress)
        self.adam.step()
        return metrics


class Anchored(Streaming):
    """A good one: a copy of the policy that is made again alike."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.first = copy.deepcopy(self.policy)


class Growing(Streaming):
    """Gives the policy what actors have no place for."""

    def __init__(self, policy: Any, *given: Any) -> None:
        policy.more = nn.Linear(1, 1)
        super().__init__(policy, *given)


class Lossless(StreamAlgorithm):
    """Nothing is said of what it descends."""


class Unlisted(Streaming):
    outputs = "scores"  # type: ignore[assignment]


class Unknown(Streaming):
    outputs = ("policy", "value", "q")


class Owning(Streaming):
    outputs = (Output("value"),)


class Twin(Streaming):
    outputs = (Output("a"), Output("a", (2,)))


class Shapeless(Streaming):
    outputs = (Output("a", (0,)),)


class Formed(Streaming):
    outputs = (Output("a", lambda action: (action.amounts // 0,)),)


class Worldly(Streaming):
    columns = (Column("a", "i8"),)


class Twofold(Streaming):
    columns = (Column("a"), Column("a", "f2"))


class Kept(Streaming):
    columns = (Column("value"),)


class Telling(Streaming):
    """A good one."""

    outputs = ("policy", Output("a", (2,)))
    columns = (Column("a"), Column("b"))

    def loss(self, policy: Any, batch: Any, rows: Any) -> Any:
        found, kept = super().loss(policy, batch, rows), self.own_columns(batch)
        a, b = ((rows.outputs[name] - kept[name] + 1).square() for name in "ab")
        return found._replace(total=found.total + batch.mean(a.sum(-1) + b))


class TellingOfReplay(Replaying):
    """A good one."""

    outputs, columns = (Output("a", (2,)),), (Column("a"),)

    def loss(self, policy: Any, batch: Any) -> Any:
        now, kept = self.own_outputs(policy, batch)["a"], self.own_columns(batch)["a"]
        return Loss((now - kept + 1).square().mean(), {}, now.abs().mean(1))


class Unbuilt(Streaming):
    def __init__(self, *given: Any) -> None:
        raise ValueError("no")


class Alone(Streaming):
    def __init__(self, *given: Any) -> None:
        """Without its base's."""


class Untyped(Streaming):
    Config = dict  # type: ignore[assignment]


class Taking(Streaming):
    """A key of ppo's."""

    class Config(Keys):
        clip: float = 0.3


def no_class() -> None:
    """A function."""


def policy_config(entry: str, name: str, network: dict[str, Any] | None = None, **keys: Any) -> PolicyConfig:
    algorithm = {"name": name, "entry": f"{__name__}:{entry}", **keys}
    return PolicyConfig.model_validate({"algorithm": algorithm, "network": {"hidden": [4], **(network or {})}})


def tried(
    entry: str,
    name: str = "ppo",
    seen: Any = SEEN,
    action: Space | None = None,
    masked: bool = False,
    repeats: bool = False,
    **keys: Any,
) -> str:
    """What is said of it."""
    config = policy_config(entry, name, **keys)
    action = action or Discrete(n=3)
    interface = Interface.of(Agent(name="a", observation=seen, action=action, action_mask=masked), config)
    declares = declared_outputs(config, interface.action_encoding)
    config = config.model_copy(update={"algorithm": config.algorithm.model_copy(update={"declares": declares})})
    return try_algorithm(interface, config, repeats=repeats)


HIDDEN = Observation(
    components={
        "seen": Component(space=Box(shape=(2,))),
        "truth": Component(space=Box(shape=(2,)), evaluation_only=True),
    }
)
AMOUNTS = Box(shape=(2,), low=-1, high=1)


@pytest.mark.parametrize(
    ("entry", "name", "more"),
    [
        ("Streaming", "ppo", {"priority_alpha": 0.5, "value_clip": 0.2}),
        ("Streaming", "impala", {"network": {"core": "lstm", "encoder": "mlp"}}),
        ("Streaming", "ppo", {"action": AMOUNTS, "seen": Box(shape=(3,))}),
        ("Streaming", "ppo", {"central_critic": True, "seen": HIDDEN, "masked": True, "value_clip": 0.2}),
        ("Replaying", "dqn", {"priority_alpha": 0.5, "frames": 2}),
        ("Replaying", "iqn", {"noisy": True, "masked": True}),
        ("Squashed", "sac", {"action": AMOUNTS}),
        ("Choosing", "sac", {"masked": True}),
        ("Telling", "ppo", {"network": {"core": "lstm", "encoder": "mlp"}}),
        ("TellingOfReplay", "c51", {"noisy": True, "priority_alpha": 0.5}),
        ("TellingOfReplay", "iqn", {"frames": 2}),
    ],
)
def test_it_makes_an_update_of_all_kinds_of_rows(entry: str, name: str, more: dict[str, Any]) -> None:
    assert tried(entry, name, **more).startswith(f"{__name__}:{entry} algorithm={name}")


def test_its_keys_are_its_settings() -> None:
    config = policy_config("Streaming", "ppo", weight=0.5)
    policy = build(Interface.of(Agent(name="a", observation=SEEN, action=Discrete(n=3)), config), config, 0)
    settings = build_own(policy, config, 0).settings
    assert isinstance(settings, Keys)
    assert dict(settings) == {"weight": 0.5, "often": 2}
    assert tried("Streaming", weight=0.5).endswith("algorithm=ppo weight=0.5 often=2")


@pytest.mark.parametrize(
    ("entry", "kind", "facts"),
    [
        ("Missing", "name_not_in_module", {}),
        ("no_class", "algorithm_of_other_base", {"expected": "StreamAlgorithm", "hint": ""}),
        ("Replaying", "algorithm_of_other_base", {"expected": "StreamAlgorithm", "algorithm": "ppo"}),
        ("Lossless", "algorithm_not_built", {}),
        ("Unbuilt", "algorithm_not_built", {"function": "__init__"}),
        ("Alone", "algorithm_not_built", {}),
        ("Untyped", "algorithm_not_built", {}),
        ("Growing", "algorithm_changes_policy", {}),
        ("Failing", "algorithm_failed", {"function": "loss", "file": __file__}),
        ("Twice", "algorithm_failed", {}),
        ("Floating", "loss_unfit", {"field": "its loss", "found": "Tensor"}),
        ("Listed", "loss_unfit", {"field": "its loss", "found": "list"}),
        ("Rows", "loss_unfit", {"field": "total", "found": "a tensor [3] on cpu"}),
        ("Number", "loss_unfit", {"field": "metrics['a']", "found": "float"}),
        ("Long", "loss_unfit", {"field": "metrics['a']", "found": "a tensor [1] on cpu"}),
        ("Abroad", "loss_unfit", {"field": "metrics['a']", "found": "a scalar tensor on meta"}),
        ("Taken", "loss_unfit", {"field": "the name of a metric", "found": "'rows'"}),
        ("Worded", "loss_unfit", {"field": "the name of a metric", "found": "'two words'"}),
        ("Lost", "loss_unfit", {"field": "priorities", "found": "a tensor [7] on cpu"}),
        ("Aimless", "loss_unfit", {"field": "targets", "found": "NoneType"}),
        ("Varying", "loss_unfit", {"field": "metrics"}),
        ("Flat", "loss_unfit", {"field": "total"}),
        ("Elsewhere", "loss_unfit", {"field": "total"}),
        ("Idle", "loss_unfit", {"field": "total", "found": "no step of self.optimizer"}),
        ("Clipping", "loss_unfit", {"field": "batch.reward"}),
        ("Endless", "loss_not_finite", {}),
        ("Negative", "loss_not_finite", {}),
        ("Unaimed", "loss_not_finite", {}),
        ("Cloning", "algorithm_part_lost", {"field": "mine.weight", "reason": "nothing moves"}),
        ("Forgetful", "algorithm_part_lost", {"field": "mine.weight", "reason": "load_state does not restore"}),
        pytest.param("Moved", "algorithm_part_lost", {"field": "adam.0.step"}, marks=pytest.mark.slow),
    ],
)
def test_what_would_go_wrong_later_is_told_before(entry: str, kind: str, facts: dict[str, Any]) -> None:
    with raises(ConfigurationError, kind, key=KEY, value=f"{__name__}:{entry}", **facts):
        tried(entry)


@pytest.mark.parametrize(
    ("entry", "field"),
    [
        *((entry, "outputs") for entry in ("Unlisted", "Unknown", "Owning", "Twin", "Shapeless")),
        *((entry, "columns") for entry in ("Worldly", "Twofold", "Kept")),
    ],
)
def test_outputs_and_columns_that_cannot_be_had_are_told(entry: str, field: str) -> None:
    with raises(ConfigurationError, "declared_output_unfit", key=KEY, value=f"{__name__}:{entry}", field=field):
        tried(entry)


def test_an_error_in_what_makes_a_shape_is_told_with_its_line() -> None:
    with raises(ConfigurationError, "algorithm_failed", key=KEY, file=__file__):
        tried("Formed")


@pytest.mark.parametrize(
    ("entry", "name", "more"),
    [
        ("Telling", "ppo", {"central_critic": True, "seen": HIDDEN}),
        ("TellingOfReplay", "sac", {"action": AMOUNTS}),
        ("TellingOfReplay", "dqn", {"network": {"entry": f"{__name__}:Streaming"}}),
    ],
)
def test_networks_that_have_no_room_for_more_outputs_are_told(entry: str, name: str, more: dict[str, Any]) -> None:
    with raises(ConfigurationError, "declared_outputs_refused", key=KEY, algorithm=name):
        tried(entry, name, **more)


def test_what_a_class_declares_is_for_nobody_else_to_give() -> None:
    run = Run.model_validate({"policy": {"algorithm": {"declares": [{"name": "a"}]}}})
    with raises(ConfigurationError, "unknown_key", key="policy.algorithm.declares"):
        plan_policies(run, scripted.WORLD)


def test_other_programs_are_told_that_they_cannot_fill_its_columns() -> None:
    algorithm = {"entry": f"{__name__}:Telling"}
    plan = plan_policies(Run.model_validate({"policy": {"algorithm": algorithm}}), scripted.WORLD)["one"]
    assert json.loads(policy_spec(plan, scripted.WORLD).network)["kind"] == "module"


def test_chance_that_is_not_the_algorithms_own_is_told_where_updates_are_repeated() -> None:
    assert tried("Dropping")
    assert tried("Streaming", repeats=True)
    with raises(ConfigurationError, "loss_unfit", field="total"):
        tried("Dropping", repeats=True)


@pytest.mark.parametrize("entry", ["Keeping", "Anchored"])
def test_modules_of_its_own_that_come_back_are_its_affair(entry: str) -> None:
    assert tried(entry)


def test_a_base_that_does_not_fit_says_which_names_do() -> None:
    with raises(ConfigurationError, "algorithm_of_other_base", expected="ReplayAlgorithm") as caught:
        tried("Streaming", "dqn")
    assert "ppo, impala" in str(caught.value)


def test_a_module_that_cannot_be_imported_is_told() -> None:
    algorithm = {"entry": "tests.flows.nowhere:Mine"}
    config = PolicyConfig.model_validate({"algorithm": algorithm})
    with raises(ConfigurationError, "module_not_found", key=KEY):
        try_algorithm(Interface.of(Agent(name="a", observation=SEEN, action=Discrete(n=3)), config), config)


@pytest.mark.parametrize(
    ("keys", "kind", "key"),
    [
        ({"weigth": 1}, "unknown_key", "policy.algorithm.weigth"),
        ({"weight": 0}, "value_invalid", "policy.algorithm.weight"),
        ({"often": "x"}, "value_invalid", "policy.algorithm.often"),
    ],
)
def test_a_key_that_its_config_refuses_is_named(keys: dict[str, Any], kind: str, key: str) -> None:
    with raises(ConfigurationError, kind, key=key):
        tried("Streaming", **keys)


def test_a_key_of_both_is_refused() -> None:
    with raises(ConfigurationError, "algorithm_key_taken", key="policy.algorithm.clip"):
        tried("Taking")


def test_priorities_are_missed_where_rows_are_drawn_by_them() -> None:
    with raises(ConfigurationError, "loss_unfit", field="priorities", found="NoneType"):
        tried("Squashed", "sac", action=AMOUNTS, priority_alpha=0.5)


def test_ours_by_its_name_is_ours_to_the_bit() -> None:
    found = []
    for entry in (None, "workers.algorithms.ppo:PPOUpdate"):
        policy, config = setting(entry=entry, priority_alpha=0.5, value_clip=0.2)
        update = build_update(policy, config)
        found.append((update.update(experience(policy)), update.optimizer.parameters.clone()))  # type: ignore[arg-type]
    (metrics, weights), (others, same) = found
    assert metrics == others
    assert torch.equal(weights, same)


def test_nothing_is_imported_where_no_class_is_named() -> None:
    config = PolicyConfig()
    assert try_algorithm(Interface.of(Agent(name="a", observation=SEEN, action=Discrete(n=3)), config), config) == ""


def test_means_are_over_real_rows_and_by_weights() -> None:
    zeros = torch.zeros(2)
    batch = TransitionBatch(zeros, zeros.long(), zeros, zeros, zeros, weight=torch.tensor([1.0, 0.5]))
    losses: Tensor = torch.tensor([2.0, 4.0])
    assert batch.mean(losses).item() == 2.0


def test_a_loss_may_look_at_its_rows_twice() -> None:
    """The policy computes in memory that it uses again; both looks have their gradients."""
    policy, config = setting()
    update = PPOUpdate(policy, config)
    first, second = (
        to_time_major(experience(policy, seed)).minibatch(torch.arange(B), ScratchBuffers()) for seed in range(2)
    )

    def gradient(*batches: Minibatch) -> Tensor:
        policy.zero_grad()
        torch.stack([update.evaluate(policy, one).log_probability.sum() for one in batches]).sum().backward()
        return torch.cat([one.grad.flatten() for one in policy.parameters() if one.grad is not None]).clone()

    torch.testing.assert_close(gradient(first, second), gradient(first) + gradient(second))
