"""What each member of a team sees is read as if it were an agent on its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from protocol.config.network import EntryNetwork
from protocol.config.run import QMIX, VDN
from protocol.errors import ConfigurationError
from protocol.spaces import Agent, Box, Dict, DictPopulation, Discrete, World
from tests.faults import raises
from tests.workers.policies.encoders.test_policy_encoder import configured
from workers.planning.compatibility import incompatibility
from workers.policies.build import build
from workers.policies.encoders.policy_encoder import PolicyEncoder
from workers.policies.encoders.row_splitter import RowSplitter
from workers.policies.encoders.team_encoder import TeamEncoder
from workers.policies.interface import Interface
from workers.policies.networks.layers import RowEncoder
from workers.policies.networks.team_q_network import TeamQPolicy

IMAGE, ROWS = Box(shape=(8, 9, 3), dtype="uint8"), 3
SEEN = Dict(spaces={"image": IMAGE, "speed": Box(shape=(2,))})


def team(config: Any, *seen: Any, common: Box | None = None) -> Interface:
    """Of a team whose members see that."""
    names = [f"m{number}" for number in range(len(seen))]
    agent = Agent(
        name="team",
        observation=Dict(spaces=dict(zip(names, seen, strict=True))),
        action=Dict(spaces=dict.fromkeys(names, Discrete(n=3))),
    )
    world = World(id="w", population=DictPopulation(agents=(agent,), common=common))
    return Interface.at(world, world.places[0], config)


def drawn(interface: Interface, frames: int) -> torch.Tensor:
    """Rows as a policy is shown them."""
    rng = np.random.default_rng(0)

    def pick(column: str) -> np.ndarray[Any, Any]:
        (space,) = (part.space for part in interface.observation_encoding.parts if part.column == column)
        return np.asarray(rng.integers(0, 99, (ROWS, frames, *space.shape)))

    return torch.from_numpy(interface.observation_encoding.encode(pick, (ROWS, frames)))


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(
    ("seen", "encoder", "common"),
    [(SEEN, {"image": "cnn"}, Box(shape=(2,))), (IMAGE, None, None)],
    ids=["parts", "an image by default"],
)
def test_a_member_is_read_as_an_agent_that_sees_the_same(shared: bool, seen: Any, encoder: Any, common: Any) -> None:
    frames = 2
    config = configured(encoder, QMIX(frames=frames, shared=shared))
    interface = team(config, seen, seen, common=common)
    policy = build(interface, config, 0)
    assert isinstance(policy, TeamQPolicy)
    reader = policy.online.encoder
    assert isinstance(reader, TeamEncoder)
    rows = drawn(interface, frames)
    features = reader(rows).split(reader.widths, 1)
    agent = Agent(name="m", observation=seen, action=Discrete(n=3))
    world = World(id="w", population=DictPopulation(agents=(agent,), common=common))
    alone = Interface.at(world, world.places[0], config)
    assert alone.encoder is not None
    assert not isinstance(alone.encoder, EntryNetwork)
    own = PolicyEncoder(alone.encoder, alone.observation_encoding, "tanh", frames=frames)
    columns = interface.observation_encoding.leaves(rows.numpy())
    for number in (0, 1):
        own.load_state_dict(reader.encoders[0 if shared else number].state_dict())
        names = {"observation": f"m{number}", "common": "common"}
        paths = [part.path for part in alone.observation_encoding.parts]
        mine = {path: torch.tensor(columns[names.get(path, f"m{number}.{path}")]) for path in paths}
        assert torch.equal(features[number], own(mine))
    assert policy.means(policy.inputs(rows)).shape == (ROWS, 6)


def test_one_encoder_for_members_that_see_otherwise_is_refused_before_the_start() -> None:
    """Though they see as many numbers."""
    turned = Box(shape=(9, 8, 3), dtype="uint8")
    config = configured("cnn", VDN())
    told = incompatibility(VDN(), team(config, IMAGE, turned))
    assert told is not None
    assert "algorithm.shared" in told
    config = configured("cnn", VDN(shared=False))
    assert incompatibility(VDN(shared=False), team(config, IMAGE, turned)) is None
    build(team(config, IMAGE, turned), config, 0)


NUMBERS = Box(shape=(4,))


@pytest.mark.parametrize(
    ("encoder", "readers"),
    [
        (None, ["CNN, 128 features", "MLP, 4 features"]),
        ({"image": "impala"}, ["Residual, 256 features", "MLP, 2 features"]),
    ],
)
def test_members_that_see_otherwise_are_read_each_by_what_can(encoder: Any, readers: list[str]) -> None:
    """Nobody has to name an encoder for the one that sees numbers."""
    config = configured(encoder, VDN(shared=False))
    seen = (IMAGE, NUMBERS) if encoder is None else (SEEN, Dict(spaces={"speed": Box(shape=(2,))}))
    interface = team(config, *seen)
    policy = build(interface, config, 0)
    reader = RowEncoder.of(policy)
    assert isinstance(reader, TeamEncoder)
    paths = ["m0", "m1"] if encoder is None else ["m0.image", "m1.speed"]
    assert [reader.reader(path) for path in paths] == readers
    assert [reader.flattens(path) for path in paths] == [False, True]


@pytest.mark.parametrize(
    ("encoder", "kind"), [({"picture": "cnn"}, "encoder_part_unknown"), ("tokens", "encoder_cannot_read")]
)
def test_an_encoder_that_no_member_has_anything_for_is_refused(encoder: Any, kind: str) -> None:
    config = configured(encoder, VDN(shared=False))
    interface = team(config, SEEN, Dict(spaces={"speed": Box(shape=(2,))}))
    with raises(ConfigurationError, kind):
        build(interface, config, 0)


def test_a_member_whose_only_part_is_called_observation_has_parts() -> None:
    nested = Dict(spaces={"observation": IMAGE})
    config = configured("cnn", VDN())
    shown = team(config, nested, nested).observation_encoding
    assert not RowSplitter(shown.of_member("m0")).spec.alone
    assert RowSplitter(team(config, IMAGE, IMAGE).observation_encoding.of_member("m0")).spec.alone
