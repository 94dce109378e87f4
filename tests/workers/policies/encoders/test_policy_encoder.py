"""What encoders are given of a row, and what they make of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from protocol.config.network import EntryNetwork
from protocol.config.run import DQN, IQN, PPO, SAC, PolicyConfig, parse_run
from protocol.errors import ConfigurationError
from protocol.spaces import Agent, Box, Dict, Discrete, MultiDiscrete, Text
from tests.faults import raises
from workers.policies.build import build
from workers.policies.encoders.cnn import CNN, Residual
from workers.policies.encoders.mlp import MLP
from workers.policies.encoders.policy_encoder import PolicyEncoder
from workers.policies.encoders.row_splitter import RowSplitter
from workers.policies.interface import Interface
from workers.policies.networks.actor_critic import ActorCritic
from workers.policies.observation_encoding import is_image
from workers.policies.tensors.flat_weights import flatten_

IMAGE = Box(shape=(10, 12, 3), dtype="uint8")
NESTED = Dict(
    spaces={
        "image": IMAGE,
        "speed": Box(shape=(2,)),
        "here": Discrete(n=3, start=-1),
        "of": MultiDiscrete(nvec=(2, 4)),
        "said": Text(max_length=3, charset="ab"),
        "far": Box(shape=(1,), dtype="float64"),
        "flags": Box(shape=(2, 2), dtype="bool"),
    }
)
ROWS: dict[str, Any] = {
    "observation.image": np.arange(2 * 360, dtype=np.uint8).reshape(2, 10, 12, 3),
    "observation.speed": np.array([[1.5, -2], [3, 4]], np.float32),
    "observation.here": np.array([-1, 1]),
    "observation.of": np.array([[1, 3], [0, 2]]),
    "observation.said": np.array([[1, 2, 0], [2, 0, 0]], np.int32),
    "observation.far": np.array([[1e-300], [2.0]]),
    "observation.flags": np.array([[[True, False], [False, True]], [[True, True], [False, False]]]),
}


def interface(seen: Any, encoder: Any = None, algorithm: Any = None, action: Any = None, **network: Any) -> Interface:
    """Of an agent that sees `seen`."""
    config = configured(encoder, algorithm, **network)
    return Interface.of(Agent(name="a", observation=seen, action=action or Discrete(n=2)), config)


def configured(encoder: Any = None, algorithm: Any = None, **network: Any) -> PolicyConfig:
    """With that encoder."""
    return PolicyConfig.model_validate(
        {"algorithm": algorithm or PPO(), "network": {"encoder": encoder, "hidden": [8], **network}}
    )


def encoder_of(one: Interface, **more: Any) -> PolicyEncoder:
    """What is built of it."""
    assert one.encoder is not None
    assert not isinstance(one.encoder, EntryNetwork)
    return PolicyEncoder(one.encoder, one.observation_encoding, "relu", **more)


def test_every_leaf_arrives_in_its_own_shape_and_dtype() -> None:
    one = interface(NESTED, {"image": "mlp"})
    rows = one.observation_encoding.encode(ROWS.__getitem__, (2,))
    found = RowSplitter(one.observation_encoding).split(torch.from_numpy(rows))
    assert {f"observation.{path}": (part.dtype, part.tolist()) for path, part in found.items()} == {
        name: (torch.from_numpy(array).dtype, array.tolist()) for name, array in ROWS.items()
    }


def test_stacked_frames_are_channels_of_an_image_and_numbers_side_by_side() -> None:
    seen = Dict(spaces={"image": IMAGE, "plane": Box(shape=(4, 5), dtype="uint8"), "speed": Box(shape=(2,))})
    one = interface(seen, "cnn", DQN(frames=2))
    columns: dict[str, Any] = {
        "observation.image": np.random.default_rng(0).integers(0, 255, (1, 2, 10, 12, 3)).astype(np.uint8),
        "observation.plane": np.random.default_rng(1).integers(0, 255, (1, 2, 4, 5)).astype(np.uint8),
        "observation.speed": np.array([[[1, 2], [3, 4]]], np.float32),
    }
    rows = torch.from_numpy(one.observation_encoding.encode(columns.__getitem__, (1, 2)))
    splitter = RowSplitter(one.observation_encoding, 2)
    found = splitter.split(rows)
    assert {path: (leaf.shape, leaf.channels if leaf.is_image else 0) for path, leaf in splitter.spec.items()} == {
        "image": ((10, 12, 6), 6),
        "plane": ((2, 4, 5), 2),
        "speed": ((4,), 0),
    }
    assert found["speed"].tolist() == [[1, 2, 3, 4]]
    newest = splitter.spec["image"].image(found["image"], 1.0)[0, 3:]
    assert newest.round().permute(1, 2, 0).tolist() == columns["observation.image"][0, 1].tolist()
    assert found["plane"].tolist() == columns["observation.plane"].tolist()


def test_mlp_sees_what_a_policy_without_an_encoder_is_shown() -> None:
    plain, mine = (
        Interface.of(Agent(name="a", observation=NESTED, action=Discrete(n=2))),
        interface(NESTED, {"image": "mlp"}),
    )
    rows = torch.from_numpy(mine.observation_encoding.encode(ROWS.__getitem__, (2,)))
    found = encoder_of(mine)(rows)
    assert sorted(found[0].tolist()) == sorted(plain.observation_encoding.encode(ROWS.__getitem__, (2,))[0].tolist())


def test_an_image_may_have_its_channels_first_or_last() -> None:
    torch.manual_seed(0)
    last = CNN(RowSplitter(interface(Box(shape=(9, 8, 2), dtype="uint8")).observation_encoding).spec)
    torch.manual_seed(0)
    first = CNN(RowSplitter(interface(Box(shape=(2, 9, 8), dtype="uint8")).observation_encoding).spec)
    image = torch.randint(0, 256, (3, 9, 8, 2), dtype=torch.uint8)
    assert torch.equal(last(image), first(image.permute(0, 3, 1, 2)))


def test_floats_from_0_to_1_of_three_dimensions_are_an_image_as_they_are() -> None:
    bits, floats = Box(shape=(9, 8, 2), dtype="bool"), Box(shape=(9, 8, 2), dtype="float32", low=0.0, high=1.0)
    known, found = (encoder_of(interface(space)) for space in (bits, floats))
    assert isinstance(found.network, CNN)
    found.load_state_dict(known.state_dict())
    image = torch.rand(3, 9, 8, 2) > 0.5
    assert torch.equal(found(image.float()), known(image))


@pytest.mark.parametrize(
    "numbers",
    [
        Box(shape=(9, 8), low=0.0, high=1.0),
        Box(shape=(9, 8, 2), low=-1.0, high=1.0),
        Box(shape=(9, 8, 2)),
        Box(shape=(9, 8, 2), dtype="int32", low=0, high=1),
    ],
)
def test_other_numbers_are_no_image(numbers: Box) -> None:
    assert not is_image(numbers)
    assert Interface.of(Agent(name="a", observation=numbers, action=Discrete(n=2))).encoder is None


@pytest.mark.parametrize("name", ["cnn", "impala"])
def test_an_image_is_divided_by_what_the_configuration_says(name: str) -> None:
    """Small bytes by their greatest one are as large ones by theirs."""
    large = encoder_of(interface(IMAGE, {"name": name}))
    small = encoder_of(interface(IMAGE, {"name": name, "scale": 10.0}))
    small.load_state_dict(large.state_dict())
    image = torch.randint(0, 11, (3, *IMAGE.shape), dtype=torch.uint8)
    torch.testing.assert_close(small(image), large(image.float() * 25.5))
    assert not torch.allclose(small(image), large(image))


@pytest.mark.parametrize(
    ("seen", "encoder", "kinds"),
    [
        (IMAGE, None, [CNN]),
        (Box(shape=(4, 10, 10), dtype="bool"), None, [CNN]),
        (Dict(spaces={"image": IMAGE, "speed": Box(shape=(2,))}), None, [CNN, MLP]),
        (Dict(spaces={"image": IMAGE, "map": IMAGE}), {"map": "impala"}, [Residual, CNN]),
        (Dict(spaces={"image": IMAGE, "speed": Box(shape=(2,))}), {"image": "mlp"}, [MLP, MLP]),
        (Box(shape=(4, 5), dtype="uint8"), "cnn", [CNN]),
    ],
    ids=["image", "bits", "image and numbers", "two images", "a part by name", "plane"],
)
def test_the_encoder_goes_by_what_is_seen(seen: Any, encoder: Any, kinds: list[type]) -> None:
    network = encoder_of(interface(seen, encoder)).network
    assert [type(one) for one in getattr(network, "encoders", [network])] == kinds


@pytest.mark.parametrize(
    "seen",
    [
        Box(shape=(4,)),
        Box(shape=(20, 3), dtype="uint8"),
        Box(shape=(8, 8, 3)),
        Box(shape=(8, 8, 3), dtype="uint8", high=1),
        Box(shape=(8, 8), dtype="bool"),
    ],
)
def test_what_is_no_picture_is_read_as_numbers(seen: Box) -> None:
    one = interface(seen)
    assert (one.encoder, one.observation_encoding.record) == (None, None)


def test_large_images_are_read_as_by_the_nature_network() -> None:
    found = encoder_of(interface(Box(shape=(84, 84, 4), dtype="uint8")))
    assert (sum(one.numel() for one in found.parameters()), found.features) == (1_684_128, 512)


def test_only_leaves_of_floats_are_normalized() -> None:
    one = interface(NESTED, {"image": "mlp"}, PPO(normalize_observation=True))
    found = encoder_of(one, normalize=True)
    rows = torch.from_numpy(one.observation_encoding.encode(ROWS.__getitem__, (2,)))
    found.observe(rows)
    said = found(rows)
    at = list(found.spec).index("speed")
    width = [sum(count for _, count in leaf.choices) or int(np.prod(leaf.shape)) for leaf in found.spec.values()]
    speed = said[:, sum(width[:at]) : sum(width[: at + 1])]
    torch.testing.assert_close(speed, torch.tensor([[-1.0, -1.0], [1.0, 1.0]]), atol=1e-3, rtol=0)
    assert int(said[0].max()) == 255


@pytest.mark.parametrize(
    ("shape", "stacked", "channels"),
    [
        ((3, 8, 8), (12, 8, 8), 12),
        ((8, 10, 3), (8, 10, 12), 12),
        ((4, 4), (4, 4, 4), 4),
        ((3, 3), (4, 3, 3), 4),
    ],
)
def test_channels_stay_where_they_are_however_many_frames_there_are(
    shape: tuple[int, ...], stacked: tuple[int, ...], channels: int
) -> None:
    one = interface(Box(shape=shape, dtype="uint8"), "cnn", DQN(frames=4))
    leaf = RowSplitter(one.observation_encoding, 4).spec.leaf
    assert (leaf.shape, leaf.channels) == (stacked, channels)
    assert encoder_of(one, frames=4)(torch.zeros(2, 4, *shape, dtype=torch.uint8)).shape == (2, 128)


@pytest.mark.parametrize("shape", [(10, 2, 3), (8, 1, 8)])
def test_what_is_too_thin_for_convolutions_is_no_image(shape: tuple[int, ...]) -> None:
    assert interface(Box(shape=shape, dtype="uint8")).encoder is None


def test_a_single_number_is_normalized() -> None:
    seen = Dict(spaces={"far": Box(shape=()), "image": IMAGE})
    found = encoder_of(interface(seen), normalize=True)
    rows = torch.zeros(3, interface(seen).observation_encoding.shape[0], dtype=torch.uint8)
    found.observe(rows)
    assert found(rows).shape == (3, 129)


@pytest.mark.parametrize(
    ("encoder", "kind", "key"),
    [
        (3, "encoder_unknown", "policy.network.encoder"),
        ([], "encoder_unknown", "policy.network.encoder"),
        ({}, "encoder_unknown", "policy.network.encoder"),
        ("nope", "encoder_unknown", "policy.network.encoder"),
        ({"name": "foo"}, "encoder_unknown", "policy.network.encoder"),
        ({"image": 3}, "encoder_unknown", "policy.network.encoder.image"),
        ({"image": {}}, "encoder_unknown", "policy.network.encoder.image"),
        ({"entry": 3}, "value_invalid", "policy.network.encoder.entry"),
        ({"name": "cnn", "entry": "a:b"}, "encoder_name_and_entry", "policy.network.encoder"),
    ],
)
def test_what_is_no_encoder_is_told_with_its_key(encoder: Any, kind: str, key: str) -> None:
    with raises(ConfigurationError, kind, key=key):
        parse_run({"policy": {"network": {"encoder": encoder}}})


@pytest.mark.parametrize(
    ("seen", "encoder", "kind"),
    [
        (Box(shape=(4,)), "cnn", "encoder_cannot_read"),
        (NESTED, {"speed": "impala"}, "encoder_cannot_read"),
        (Box(shape=(4,)), "tokens", "encoder_cannot_read"),
        (Box(shape=(4,)), "entities", "encoder_cannot_read"),
        (Dict(spaces={"speed": Box(shape=(2,)), "far": Box(shape=(1,))}), "tokens", "encoder_cannot_read"),
        (NESTED, {"picture": "cnn"}, "encoder_part_unknown"),
    ],
)
def test_an_encoder_that_cannot_read_it_is_refused(seen: Any, encoder: Any, kind: str) -> None:
    with raises(ConfigurationError, kind):
        encoder_of(interface(seen, encoder))


@pytest.mark.parametrize(
    "encoder", ["cnn", {"name": "impala", "channels": [4, 8]}, {"image": "mlp"}, {"entry": "a:B", "width": 3}]
)
def test_a_configuration_reads_back_as_it_was(encoder: Any) -> None:
    run = parse_run({"policy": {"network": {"encoder": encoder}}})
    assert parse_run(run.model_dump(mode="json")) == run


def test_a_key_of_an_encoder_that_does_not_exist_is_named() -> None:
    with raises(ConfigurationError, "unknown_key", key="policy.network.encoder.feature"):
        parse_run({"policy": {"network": {"encoder": {"name": "cnn", "feature": 3}}}})


@pytest.mark.parametrize(
    ("algorithm", "action"),
    [
        (PPO(), Discrete(n=2)),
        (PPO(central_critic=True), Box(shape=(2,), low=-1, high=1)),
        (DQN(frames=2), Discrete(n=2)),
        (IQN(), Discrete(n=2)),
        (SAC(frames=2), Box(shape=(2,), low=-1, high=1)),
    ],
    ids=["ppo", "central critic", "dqn", "iqn", "sac"],
)
def test_weights_of_policies_with_encoders_lie_in_one_block_that_travels(algorithm: Any, action: Any) -> None:
    seen = Dict(spaces={"image": IMAGE, "speed": Box(shape=(2,))})
    config = configured(None, algorithm)
    one = Interface.of(Agent(name="a", observation=seen, action=action), config)
    policy = build(one, config, 3)
    again = build(one, config, 4)
    flatten_(again).load(flatten_(policy).bytes_view())
    shown: dict[str, Any] = {
        "observation.image": np.full((5, 2, 10, 12, 3), 7, np.uint8),
        "observation.speed": np.ones((5, 2, 2), np.float32),
    }
    frames = getattr(algorithm, "frames", 0)
    columns: dict[str, Any] = {name: column[:, :frames] if frames else column[:, 0] for name, column in shown.items()}
    rows = torch.from_numpy(one.observation_encoding.encode(columns.__getitem__, (5, frames) if frames else (5,)))
    acted = [network.act(rows, np.random.default_rng(0), greedy=True) for network in (policy, again)]
    for name, array in acted[0].items():
        np.testing.assert_array_equal(array, acted[1][name])


def test_a_policy_with_an_encoder_learns_by_all_of_its_parameters() -> None:
    config = configured("cnn")
    policy = build(Interface.of(Agent(name="a", observation=IMAGE, action=Discrete(n=2)), config), config, 0)
    assert isinstance(policy, ActorCritic)
    outputs, values = policy(policy.inputs(torch.randint(0, 256, (6, 10, 12, 3), dtype=torch.uint8)))
    (outputs.square().sum() + values.square().sum()).backward()
    assert all(one.grad is not None and bool(one.grad.any()) for one in policy.parameters())
