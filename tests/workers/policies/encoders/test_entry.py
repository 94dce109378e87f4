"""A torch module of the user's own as an encoder: what it is given, and what is told of it before anything starts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from protocol.config.network import EntryEncoder
from protocol.config.run import PolicyConfig
from protocol.errors import ConfigurationError
from protocol.spaces import Agent, Box, Dict, Discrete
from tests.faults import raises
from workers.algorithms.build import build_update
from workers.policies.build import build
from workers.policies.encoders.entry import build_entry
from workers.policies.encoders.observation_spec import ObservationSpec
from workers.policies.encoders.policy_encoder import PolicyEncoder
from workers.policies.encoders.row_splitter import RowSplitter
from workers.policies.interface import Interface
from workers.policies.observation_encoding import ObservationEncoding

SEEN = Dict(spaces={"image": Box(shape=(6, 6, 1), dtype="uint8"), "speed": Box(shape=(2,))})


class Grid(nn.Module):
    """A good one: convolutions of one part, the other as it is."""

    def __init__(self, observation: ObservationSpec, width: int = 4) -> None:
        super().__init__()
        image = observation["image"]
        self.layers = nn.Sequential(nn.Conv2d(image.shape[-1], 2, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(width))
        self.features = width + observation["speed"].shape[0]

    def forward(self, observation: dict[str, Tensor]) -> Tensor:
        """[N, features]"""
        image = self.layers(observation["image"].permute(0, 3, 1, 2).float() / 255)
        return torch.cat([image, observation["speed"]], 1)


class Plain(nn.Module):
    """A base of bad ones."""

    def __init__(self, observation: ObservationSpec) -> None:
        super().__init__()
        self.features: Any = 3
        self.layer = nn.Linear(2, 3)

    def forward(self, observation: dict[str, Tensor]) -> Any:
        """[N, 3]"""
        return self.layer(observation["speed"])


class Unbuilt(Plain):
    def __init__(self, observation: ObservationSpec) -> None:
        super().__init__(observation)
        observation["picture"]


class Featureless(Plain):
    def __init__(self, observation: ObservationSpec) -> None:
        super().__init__(observation)
        self.features = None


class Failing(Plain):
    def forward(self, observation: dict[str, Tensor]) -> Any:
        return self.layer(observation["image"].flatten(1).float())


class Turned(Plain):
    def forward(self, observation: dict[str, Tensor]) -> Any:
        return super().forward(observation).T


class Speechless(Plain):
    def forward(self, observation: dict[str, Tensor]) -> Any:
        return {"features": super().forward(observation)}


class Normed(Plain):
    def __init__(self, observation: ObservationSpec) -> None:
        super().__init__(observation)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, observation: dict[str, Tensor]) -> Any:
        return self.norm(super().forward(observation))


class Centred(Plain):
    def forward(self, observation: dict[str, Tensor]) -> Any:
        x = super().forward(observation)
        return x - x.mean(0)


class Infinite(Plain):
    def forward(self, observation: dict[str, Tensor]) -> Any:
        return super().forward(observation) / 0


class Idle(Plain):
    def __init__(self, observation: ObservationSpec) -> None:
        super().__init__(observation)
        self.unused = nn.Linear(2, 2)


class Drawing(Plain):
    def forward(self, observation: dict[str, Tensor]) -> Any:
        x = super().forward(observation)
        return x + torch.rand_like(x)


class Dropped(Plain):
    def __init__(self, observation: ObservationSpec) -> None:
        super().__init__(observation)
        self.dropout = nn.Dropout(0.5)

    def forward(self, observation: dict[str, Tensor]) -> Any:
        return self.dropout(super().forward(observation))


class Cut(Plain):
    @torch.no_grad()
    def forward(self, observation: dict[str, Tensor]) -> Any:
        return super().forward(observation)


class Halved(Plain):
    def __init__(self, observation: ObservationSpec) -> None:
        super().__init__(observation)
        self.scale = nn.Parameter(torch.ones((), dtype=torch.bfloat16))

    def forward(self, observation: dict[str, Tensor]) -> Any:
        return super().forward(observation) * self.scale


class Changing(Plain):
    def forward(self, observation: dict[str, Tensor]) -> Any:
        observation["speed"].mul_(2)
        return super().forward(observation)


class Frozen(Plain):
    """A good one: its first layer stays as it is."""

    def __init__(self, observation: ObservationSpec) -> None:
        super().__init__(observation)
        self.back = nn.Linear(2, 2).requires_grad_(False)

    def forward(self, observation: dict[str, Tensor]) -> Any:
        return self.layer(self.back(observation["speed"]))


class Fixed(nn.Module):
    """A good one: nothing to learn."""

    def __init__(self, observation: ObservationSpec) -> None:
        super().__init__()
        self.features = 2
        self.scale = nn.Buffer(torch.tensor([2.0, 3.0]))

    def forward(self, observation: dict[str, Tensor]) -> Any:
        """[N, 2]"""
        return observation["speed"] * self.scale


def no_module(observation: ObservationSpec) -> int:
    return 3


def encoding() -> ObservationEncoding:
    """Of an agent that sees `SEEN`."""
    return ObservationEncoding(
        Interface.of(Agent(name="a", observation=SEEN, action=Discrete(n=2))).place, by_leaf=True
    )


def built(name: str, **settings: Any) -> nn.Module:
    """The module `name` of this file."""
    entry = EntryEncoder.model_validate({"entry": f"{__name__}:{name}", **settings})
    return build_entry(entry, RowSplitter(encoding()).spec, "network.encoder")


def test_it_is_built_with_the_observation_and_its_keys() -> None:
    found = built("Grid", width=7)
    assert found.features == 9
    assert not any(isinstance(one, nn.parameter.UninitializedParameter) for one in found.parameters())


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Unbuilt", "network_not_built"),
        ("no_module", "network_not_a_module"),
        ("Featureless", "network_features_missing"),
        ("Failing", "network_failed"),
        ("Turned", "network_gives_wrong_shape"),
        ("Speechless", "network_gives_wrong_shape"),
        ("Normed", "network_rows_not_independent"),
        ("Centred", "network_rows_not_independent"),
        ("Infinite", "network_not_finite"),
        ("Idle", "network_parameters_without_gradient"),
        ("Drawing", "network_not_deterministic"),
        ("Missing", "name_not_in_module"),
        ("Dropped", "network_not_deterministic"),
        ("Cut", "network_parameters_without_gradient"),
        ("Halved", "network_parameters_not_float32"),
        ("Changing", "network_modifies_input"),
    ],
)
def test_what_would_go_wrong_later_is_told_before(name: str, kind: str) -> None:
    with raises(ConfigurationError, kind):
        built(name)


def test_an_error_in_it_names_the_users_line_and_what_it_was_given() -> None:
    with raises(ConfigurationError, "network_failed") as caught:
        built("Failing")
    assert (caught.value.function, caught.value.file) == ("forward", __file__)  # type: ignore[attr-defined]
    assert "image [6, 6, 1] uint8" in str(caught.value)


def test_it_reads_one_part_where_it_is_named_for_it() -> None:
    part = {"image": EntryEncoder(entry=f"{__name__}:Whole")}
    network = PolicyEncoder(part, encoding(), "relu")
    rows = torch.zeros(4, encoding().shape[0], dtype=torch.uint8)
    assert network(rows).shape == (4, 36 + 2)


class Whole(nn.Module):
    """Every number of its one leaf."""

    def __init__(self, observation: ObservationSpec) -> None:
        super().__init__()
        self.features = observation.shape[0] * observation.shape[1]
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, observation: Tensor) -> Tensor:
        """[N, features]"""
        return observation.flatten(1).float() * self.scale


@pytest.mark.parametrize("name", ["Frozen", "Fixed"])
@pytest.mark.parametrize(
    ("algorithm", "action"),
    [({"name": "dqn"}, Discrete(n=2)), ({"name": "sac"}, Box(shape=(1,), low=-1, high=1))],
    ids=["dqn", "sac"],
)
def test_a_target_follows_whatever_is_not_trained(name: str, algorithm: dict[str, Any], action: Any) -> None:
    network = {"encoder": {"entry": f"{__name__}:{name}"}, "hidden": [4]}
    config = PolicyConfig.model_validate({"algorithm": algorithm, "network": network})
    policy: Any = build(Interface.of(Agent(name="a", observation=SEEN, action=action), config), config, 0)
    update: Any = build_update(policy, config)
    online, target = (policy.critics, policy.targets) if hasattr(policy, "critics") else (policy.online, policy.target)
    with torch.no_grad():
        for one in (*online.parameters(), *online.buffers()):
            one.add_(torch.randn_like(one))
    update.schedules._follow(1.0)
    for mine, its in zip(online.state_dict().values(), target.state_dict().values(), strict=True):
        assert torch.equal(mine, its)
