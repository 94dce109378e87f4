"""Encoders of rows of tokens and of sets of entities: what makes a difference to them, and what does not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from protocol.config.run import PolicyConfig
from protocol.spaces import Agent, Box, Discrete, MultiDiscrete, Text
from protocol.spaces.composite import LeafSpace
from workers.policies.build import build
from workers.policies.encoders.entities import Entities
from workers.policies.encoders.observation_spec import ObservationSpec
from workers.policies.encoders.row_splitter import RowSplitter
from workers.policies.encoders.tokens import Tokens
from workers.policies.interface import Interface

HOW: Any = ("attention", "gru")


def spec(space: Any) -> ObservationSpec:
    """Of an agent that sees that."""
    return RowSplitter(Interface.of(Agent(name="a", observation=space, action=Discrete(n=2))).observation_encoding).spec


def entities() -> Entities:
    """Of sets of at most five, three numbers each."""
    return Entities(spec(Box(shape=(5, 3))), size=8, heads=2, features=6)


def sets(*present: int) -> Tensor:
    """A set of so many each."""
    found = torch.randn(len(present), 5, 3)
    for row, count in enumerate(present):
        found[row, count:] = 0
    return found


def test_the_order_of_a_set_makes_no_difference() -> None:
    network, rows = entities(), sets(5, 3, 1)
    torch.testing.assert_close(network(rows[:, [3, 0, 4, 1, 2]]), network(rows))


def test_nobody_makes_no_difference_and_a_set_of_nobody_has_features() -> None:
    network, rows = entities(), sets(2, 0)
    few = Entities(spec(Box(shape=(2, 3))), size=8, heads=2, features=6)
    few.load_state_dict(network.state_dict())
    torch.testing.assert_close(network(rows), few(rows[:, :2]))
    assert bool(network(rows).isfinite().all())


def test_each_entity_makes_a_difference() -> None:
    network, rows = entities(), sets(4).requires_grad_()
    network(rows).sum().backward()
    assert rows.grad is not None
    assert rows.grad.abs().sum(-1)[0, :4].gt(0).all()


@pytest.mark.parametrize("by", HOW)
def test_what_stands_behind_a_text_makes_no_difference(by: Any) -> None:
    short, long = (Tokens(spec(Text(max_length=n, charset="abc")), 8, 6, by) for n in (2, 4))
    long.load_state_dict({**short.state_dict(), "places": torch.cat([short.places, torch.randn(2, 8)])})
    text = torch.tensor([[1, 3], [2, 0], [0, 0]])
    torch.testing.assert_close(long(torch.nn.functional.pad(text, (0, 2))), short(text))


@pytest.mark.parametrize("by", HOW)
def test_the_order_of_tokens_makes_a_difference(by: Any) -> None:
    network = Tokens(spec(Text(max_length=2, charset="abc")), 8, 6, by)
    torch.nn.init.normal_(network.places)
    torch.nn.init.constant_(network.last.bias, 5.0)
    assert not torch.allclose(network(torch.tensor([[1, 2]])), network(torch.tensor([[2, 1]])))


@pytest.mark.parametrize(
    "space",
    [MultiDiscrete(nvec=(3, 5), start=(-2, 0)), Box(shape=(4, 2), dtype="uint8"), Discrete(n=4), Text(max_length=3)],
    ids=["choices", "bytes", "one choice", "text"],
)
def test_every_value_that_may_be_seen_is_a_token(space: LeafSpace) -> None:
    seen = spec(space)
    network = Tokens(seen, 4, 6, "attention")
    assert network(seen.leaf.example(200)).shape == (200, 6)


@pytest.mark.parametrize("space", [Discrete(n=3), Discrete(n=3, start=-5), Text(max_length=2, charset="ab")])
def test_a_value_outside_its_space_ends_nothing(space: LeafSpace) -> None:
    seen = spec(space)
    network = Tokens(seen, 4, 6, "attention")
    rows = torch.full((2, *seen.shape), 1_000, dtype=seen.dtype)
    assert bool(network(torch.cat([rows, -rows, 0 * rows])).isfinite().all())


def test_nobody_stays_nobody_where_numbers_are_normalized() -> None:
    space = Box(shape=(5, 3))
    config = PolicyConfig.model_validate(
        {"algorithm": {"name": "ppo", "normalize_observation": True}, "network": {"encoder": "entities"}}
    )
    interface = Interface.of(Agent(name="a", observation=space, action=Discrete(n=2)), config)
    policy: Any = build(interface, config, 0)
    policy.observe(sets(5, 5, 2) + 1)
    rows = sets(3, 1)
    torch.testing.assert_close(policy.encoder(rows[:, [2, 0, 1, 4, 3]]), policy.encoder(rows))
