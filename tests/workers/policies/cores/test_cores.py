"""Cores that are torch modules, of the user's own and ours: what is told of them before anything starts, how they
remember, and that acting and learning remember the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from protocol.config.network import AttentionCore, EntryCore
from protocol.config.run import PPO, PolicyConfig, Run
from protocol.errors import ConfigurationError
from tests.faults import raises
from tests.workers import scripted
from workers.planning.cohorts import stacking_key
from workers.planning.policy_plan import plan_policies
from workers.policies.build import build
from workers.policies.cores.entry import build_core
from workers.policies.cores.module_core import ModuleCore, State
from workers.policies.networks.recurrent_context import RecurrentContext
from workers.rollout.acting_policy import ActingPolicy


class Counted(nn.Module):
    """A good one: a learned beginning, and a state of several dtypes and shapes that counts the steps."""

    def __init__(self, features: int, size: int = 3) -> None:
        super().__init__()
        self.features: Any = size
        self.cell, self.begin = nn.GRUCell(features, size), nn.Parameter(torch.ones(size))

    def initial_state(self, rows: int) -> Any:
        """A memory that is learned, and how many steps it is old."""
        steps = torch.zeros(rows, dtype=torch.int64, device=self.begin.device)
        return {"memory": self.begin.expand(rows, -1), "steps": steps, "odd": steps.bool()[:, None, None]}

    def forward(self, features: Tensor, state: State, first: Tensor) -> Any:
        """[T, B, size]"""
        outputs, (memory, steps, odd) = [], state.values()
        begun = self.initial_state(features.shape[1])
        for x, new in zip(features, first, strict=True):
            memory, steps = torch.where(new[:, None], begun["memory"], memory), steps.masked_fill(new, 0) + 1
            odd = (steps % 2 == 1)[:, None, None]
            memory = self.cell(x, memory)
            outputs.append(memory + 0.01 * steps[:, None])
        return torch.stack(outputs), {"memory": memory, "steps": steps, "odd": odd}


class Unbuilt(Counted):
    def __init__(self, features: int, size: int = 3) -> None:
        super().__init__(features, size + "1")  # type: ignore[operator]


class Stateless(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.features, self.layer = 3, nn.Linear(features, 3)

    def forward(self, features: Tensor, state: State, first: Tensor) -> Any:
        return self.layer(features), state


class Nameless(Counted):
    def initial_state(self, rows: int) -> Any:
        return super().initial_state(rows)["memory"]


class OneRow(Counted):
    def initial_state(self, rows: int) -> Any:
        return super().initial_state(1)


class Growing(Counted):
    def forward(self, features: Tensor, state: State, first: Tensor) -> Any:
        found, state = super().forward(features, state, first)
        return found, {**state, "memory": torch.cat([state["memory"], state["memory"]], 1)}


class Alone(Counted):
    def forward(self, features: Tensor, state: State, first: Tensor) -> Any:
        return super().forward(features, state, first)[0]


class Newest(Counted):
    def forward(self, features: Tensor, state: State, first: Tensor) -> Any:
        found, state = super().forward(features, state, first)
        return found[-1], state


class Everlasting(Counted):
    def forward(self, features: Tensor, state: State, first: Tensor) -> Any:
        return super().forward(features, state, torch.zeros_like(first))


class Halting(Counted):
    """Empties its state before the first of the rows that it is given alone."""

    def forward(self, features: Tensor, state: State, first: Tensor) -> Any:
        return super().forward(features, state, torch.cat([first[:1], torch.zeros_like(first[1:])]))


class Foreseeing(Counted):
    def forward(self, features: Tensor, state: State, first: Tensor) -> Any:
        found, state = super().forward(features, state, first)
        return found + found.mean(0), state


class Forgetful(Counted):
    """As one by one, in all segments but long ones."""

    def forward(self, features: Tensor, state: State, first: Tensor) -> Any:
        if len(features) > 16:
            first = first.clone()
            first[16] = True
        return super().forward(features, state, first)


class Squared(Counted):
    def initial_state(self, rows: int) -> Any:
        return {**super().initial_state(rows), "odd": torch.zeros(rows, rows, 1, dtype=torch.bool)}


class Hollow(Counted):
    """With a leaf of no numbers."""

    def initial_state(self, rows: int) -> Any:
        return {**super().initial_state(rows), "none": torch.zeros(rows, 0)}

    def forward(self, features: Tensor, state: State, first: Tensor) -> Any:
        found, after = super().forward(features, {name: state[name] for name in ("memory", "steps", "odd")}, first)
        return found, {**after, "none": state["none"]}


class Later(Counted):
    """Changes what it remembers when nobody looks any more."""

    wide = False

    def forward(self, features: Tensor, state: State, first: Tensor) -> Any:
        found, after = super().forward(features, state, first)
        return found, {**after, "odd": after["odd"].view(-1, 1) if self.wide else after["odd"]}


class Mixing(Counted):
    def forward(self, features: Tensor, state: State, first: Tensor) -> Any:
        found, state = super().forward(features - features.mean(1, keepdim=True), state, first)
        return found, state


class Idle(Counted):
    def __init__(self, features: int) -> None:
        super().__init__(features)
        self.unused = nn.Linear(2, 2)


class Drawing(Counted):
    def forward(self, features: Tensor, state: State, first: Tensor) -> Any:
        found, state = super().forward(features, state, first)
        return found + torch.rand_like(found), state


class Overwriting(Counted):
    def forward(self, features: Tensor, state: State, first: Tensor) -> Any:
        state["steps"].add_(1)
        return super().forward(features, state, first)


class Infinite(Counted):
    def forward(self, features: Tensor, state: State, first: Tensor) -> Any:
        found, state = super().forward(features, state, first)
        return found, {**state, "memory": state["memory"] / 0}


def own(name: str, inputs: int = 5, **settings: Any) -> ModuleCore:
    """The core `name` of this file."""
    found = build_core(EntryCore.model_validate({"entry": f"{__name__}:{name}", **settings}), inputs)
    assert isinstance(found, ModuleCore)
    return found


def windowed(inputs: int = 5, window: int = 4) -> ModuleCore:
    """Ours."""
    found = build_core(AttentionCore(size=6, heads=2, window=window), inputs)
    assert isinstance(found, ModuleCore)
    return found


def test_a_state_with_a_leaf_of_no_numbers_is_one() -> None:
    assert own("Hollow", 5).state_size == own("Counted", 5).state_size


def test_a_state_that_changes_its_form_as_it_runs_is_told_with_its_leaf() -> None:
    found = own("Later", 5)
    x, state = torch.zeros(2, 5), torch.zeros(2, found.state_size)
    found.step(x, state)
    found.module.wide = True  # type: ignore[assignment] # no parameter
    with raises(ConfigurationError, "core_state_changes", value="Later"):
        found.step(x, state)


def test_it_is_built_with_the_number_of_features_and_its_keys() -> None:
    found = own("Counted", 7, size=4)
    assert (found.size, found.state_size) == (4, 1 + 4 + 8 + 1)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Unbuilt", "network_not_built"),
        ("Missing", "name_not_in_module"),
        ("Stateless", "network_failed"),
        ("Nameless", "core_state_invalid"),
        ("OneRow", "core_state_invalid"),
        ("Growing", "core_state_changes"),
        ("Alone", "core_state_changes"),
        ("Newest", "network_gives_wrong_shape"),
        ("Everlasting", "core_not_emptied"),
        ("Halting", "core_not_emptied"),
        ("Foreseeing", "core_differs_by_step"),
        ("Forgetful", "core_differs_by_step"),
        ("Squared", "core_state_invalid"),
        ("Mixing", "network_rows_not_independent"),
        ("Idle", "network_parameters_without_gradient"),
        ("Drawing", "network_not_deterministic"),
        ("Overwriting", "network_modifies_input"),
        ("Infinite", "network_not_finite"),
    ],
)
def test_what_would_go_wrong_later_is_told_before(name: str, kind: str) -> None:
    with raises(ConfigurationError, kind):
        own(name)


def test_ours_passes_what_is_asked_of_others() -> None:
    entry = EntryCore.model_validate(
        {"entry": "workers.policies.cores.attention:Attention", "size": 6, "heads": 2, "window": 3}
    )
    assert isinstance(build_core(entry, 5), ModuleCore)


def test_a_state_travels_as_numbers_without_loss() -> None:
    state = {
        "wide": torch.tensor([[2**53 + 1, -1], [0, 7]]),
        "fine": torch.tensor([[0.1], [-3.0]], dtype=torch.float64),
        "half": torch.tensor([[[0.1, 3.0]], [[-2.0, 0.0]]], dtype=torch.bfloat16),
        "flag": torch.tensor([True, False]),
        "none": torch.zeros(2, 0),
    }
    core = ModuleCore(own("Counted").module, state)
    row = core._joined(state)
    assert (row.shape, row.dtype) == ((2, core.state_size - 1), torch.float32)
    again = core._apart(row)
    assert all(torch.equal(again[name], leaf) and again[name].dtype == leaf.dtype for name, leaf in state.items())


@pytest.mark.parametrize("made", [windowed, lambda: own("Counted")], ids=["attention", "own"])
def test_whole_segments_are_remembered_as_each_row_was_acted_in_K6(made: Any) -> None:
    """Segments with ends in them and true last observations, from states that acting had left."""
    core, steps, rows = made(), 9, 4
    ended = torch.zeros(steps, rows, dtype=torch.bool)
    ended[2, 0] = ended[5, 0] = ended[3, 1] = ended[8, 2] = True
    x, finals, places = torch.randn(steps + 1, rows, 5), torch.randn(2, 5), torch.tensor([2 * rows, 3 * rows + 1])
    with torch.no_grad():
        _, state = core.step(torch.randn(rows, 5), torch.zeros(rows, core.state_size))
        state[3] = 0
        begun, acted, last = state, [], torch.empty(2, core.size)
        for step in range(steps + 1):
            found, state = core.step(x[step], state)
            acted.append(found)
            for one, place in enumerate(places.tolist()):
                if place // rows == step:
                    last[one] = core.step(finals[one][None], state[place % rows][None])[0]
            if step < steps:
                state = state.masked_fill(ended[step][:, None], 0.0)
    every = torch.cat([x.flatten(0, 1), finals])
    learned = core.unroll(every, RecurrentContext(begun, ended, places))
    torch.testing.assert_close(learned, torch.cat([*acted, last]), atol=1e-5, rtol=1e-4)
    learned.sum().backward()
    assert all(one.grad is not None and one.grad.any() for one in core.parameters())


def test_attention_sees_its_window_and_nothing_before() -> None:
    core, x = windowed(window=2), torch.randn(6, 1, 5)

    def last(changed: int) -> Tensor:
        seen, state = x.clone(), torch.zeros(1, core.state_size)
        seen[changed] += 1
        for row in seen:
            found, state = core.step(row, state)
        return found

    plain = last(0)
    assert torch.equal(last(2), plain)
    assert not torch.allclose(last(3), plain)


def run(**policy: Any) -> Run:
    """Of one policy."""
    return Run.model_validate({"policy": policy, "environment": {"copies": 4}})


def test_layout_and_actors_have_room_for_what_the_module_says() -> None:
    plan = plan_policies(run(network={"core": {"entry": f"{__name__}:Counted"}}), scripted.WORLD)["one"]
    assert [field.shape for field in plan.layout.fields if field.name == "state"] == [(13,)]
    assert ActingPolicy(plan.interface, plan.config).state == 13
    assert (plan.modular, stacking_key(plan)) == (True, "")


def test_it_is_not_compiled() -> None:
    with raises(ConfigurationError, "compile_not_possible", key="policy.compile"):
        plan_policies(run(network={"core": "attention"}, compile=True), scripted.WORLD)


@pytest.mark.parametrize("core", ["transformer", {"name": "lstm", "entry": "a:B"}, {"size": 4}, {"name": "own"}, 3])
def test_what_is_no_core_is_told(core: Any) -> None:
    with pytest.raises(ValueError, match="is no core"):
        PolicyConfig.model_validate({"network": {"core": core}})


def test_none_is_no_core() -> None:
    assert PolicyConfig.model_validate({"network": {"core": "none"}}).network.core is None


def test_weights_depend_on_the_seed_alone() -> None:
    config = PolicyConfig.model_validate(
        {"algorithm": PPO(central_critic=True), "network": {"core": {"entry": f"{__name__}:Counted"}}}
    )
    interface = scripted.Performer(scripted.WORLD).interface
    first, second = (build(interface, config, 3).state_dict() for _ in range(2))
    assert all(torch.equal(one, second[name]) for name, one in first.items())
