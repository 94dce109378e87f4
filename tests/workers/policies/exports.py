"""Policies of every kind in worlds of every kind of space, ready to be exported, and rows for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from protocol.config.run import C51, DQN, IQN, PPO, QMIX, SAC, VDN, PolicyConfig, Replayed
from protocol.experience.layout import common_of
from protocol.spaces import (
    Agent,
    Box,
    Component,
    Dict,
    DictPopulation,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Observation,
    Text,
    World,
)
from protocol.spaces.drawing import random_rows
from tests.workers.test_any_space import WORLDS
from workers.policies.build import Policy, build, state_size
from workers.policies.export.export_manifest import ExportManifest, Provenance, frames_of
from workers.policies.export.module import ExportedModule, ports_in
from workers.policies.interface import Interface
from workers.policies.network_spec import network_facts
from workers.policies.networks.actor_critic import ActorCritic, CentralActorCritic

PLAIN = Agent(name="p", observation=Box(shape=(3, 2), dtype="uint8"), action=Discrete(n=4))
REACH = Agent(name="r", observation=Box(shape=(3,)), action=Box(shape=(2, 1), low=-2.0, high=(4.0, 6.0)))
BITS = Agent(name="b", observation=Box(shape=(2,), dtype="float64"), action=MultiBinary(shape=(2, 2)))
FREE = Agent(name="f", observation=Discrete(n=5, start=-2), action=Box(shape=(1,), dtype="float64"))
WHOLE = Agent(name="w", observation=Box(shape=(1,)), action=Box(shape=(2,), dtype="int16", low=-1, high=3))
MASKED = Agent(name="m", observation=Box(shape=(2,)), action=Discrete(n=3), action_mask=True)
PAIR = Agent(
    name="t",
    observation=Dict(spaces={"a": Box(shape=(2,)), "b": Box(shape=(2, 1), dtype="uint8")}),
    action=Dict(spaces={"a": Discrete(n=3), "b": Discrete(n=3, start=1)}),
    action_mask=True,
)
WATCHED = PAIR.model_copy(
    update={
        "observation": Observation(
            components={
                "seen": Component(space=Box(shape=(2,))),
                "truth": Component(space=Box(shape=(2,)), evaluation_only=True),
            }
        )
    }
)
SIGHT = Dict(
    spaces={"image": Box(shape=(7, 8, 3), dtype="uint8"), "of": Discrete(n=3, start=1), "speed": Box(shape=(2,))}
)
LOOK = Agent(name="l", observation=SIGHT, action=Discrete(n=3))
EYES = Agent(name="e", observation=Box(shape=(2, 9, 8), dtype="uint8"), action=Box(shape=(2,), low=-1, high=1))
WATCHERS = Agent(
    name="v",
    observation=Dict(spaces=dict.fromkeys(("a", "b"), SIGHT)),
    action=Dict(spaces=dict.fromkeys(("a", "b"), Discrete(n=3))),
)
LETTERS = Agent(name="s", observation=Text(max_length=4, charset="abc"), action=Discrete(n=3))
CROWD = Agent(name="c", observation=Box(shape=(4, 3)), action=Discrete(n=3))
SENSES = Agent(
    name="h",
    observation=Observation(
        components={
            "crowd": Component(space=CROWD.observation),
            "gear": Component(space=Discrete(n=3, start=1)),
            "image": Component(space=Box(shape=(7, 8, 3), dtype="uint8")),
            "letters": Component(space=LETTERS.observation),
            "speed": Component(space=Box(shape=(2,))),
            "truth": Component(space=Box(shape=(3,)), evaluation_only=True),
        }
    ),
    action=Discrete(n=3),
)
READERS = {"crowd": "entities", "image": "cnn", "letters": {"name": "tokens", "by": "gru"}}
NORMAL = PPO(normalize_observation=True)
CENTRAL = PPO(normalize_observation=True, central_critic=True)


BOTH = Agent(
    name="a",
    observation=Dict(spaces={"image": Box(shape=(6, 6, 1), dtype="uint8"), "speed": Box(shape=(2,))}),
    action=MultiDiscrete(nvec=(2, 3)),
    action_mask=True,
)


def alone(agent: Agent, common: Box | None = None) -> World:
    """A world of one agent."""
    return World(id=agent.name, population=DictPopulation(agents=(agent,), common=common))


CASES: dict[str, tuple[World, Any, dict[str, Any]]] = {
    **{name: (world, NORMAL, {}) for name, world in WORLDS.items()},
    "no hidden layer": (alone(PLAIN), PPO(), {"hidden": []}),
    "bits": (alone(BITS), PPO(), {"activation": "relu"}),
    "without bounds": (alone(FREE), PPO(), {"hidden": [8]}),
    "whole numbers": (alone(WHOLE), PPO(), {}),
    "a common observation": (alone(PLAIN, Box(shape=(2,), dtype="int32")), NORMAL, {}),
    "shared layers": (WORLDS["all at once"], NORMAL, {"share_layers": True}),
    "lstm": (WORLDS["all at once"], NORMAL, {"core": {"name": "lstm", "size": 5}}),
    "gru": (alone(PLAIN), NORMAL, {"core": {"name": "gru", "size": 5}, "hidden": []}),
    "attention": (alone(PLAIN), NORMAL, {"core": {"name": "attention", "size": 6, "heads": 2, "window": 3}}),
    "central critic": (WORLDS["all at once"], CENTRAL, {}),
    "central critic of an lstm": (WORLDS["numbers"], CENTRAL, {"core": {"name": "lstm", "size": 5}}),
    "iqn": (alone(PLAIN), IQN(dueling=True, cosines=8), {"hidden": [16]}),
    "iqn of frames": (alone(BITS.model_copy(update={"action": Discrete(n=3)})), IQN(frames=3, cosines=8), {}),
    "dqn": (alone(MASKED), DQN(dueling=True), {"activation": "relu"}),
    "dqn that remembers": (alone(MASKED), DQN(dueling=True), {"core": {"name": "gru", "size": 5}, "hidden": [8]}),
    "iqn that remembers": (alone(PLAIN), IQN(cosines=8), {"core": {"name": "lstm", "size": 5}, "hidden": [8]}),
    "vdn": (alone(PAIR, Box(shape=(1,))), VDN(frames=2, dueling=True), {"hidden": [8]}),
    "qmix": (alone(PAIR), QMIX(shared=False, frames=3), {}),
    "members that remember": (alone(PAIR), VDN(), {"core": {"name": "lstm", "size": 5}, "hidden": [8]}),
    "c51": (alone(MASKED), C51(atoms=7, frames=2, dueling=True, noisy=True), {"hidden": [8]}),
    "choices in turn": (WORLDS["all at once"], NORMAL, {"autoregressive": True}),
    "choices in turn of a central critic's actor": (
        alone(WATCHED),
        CENTRAL,
        {"autoregressive": ["b", "a"], "core": {"name": "gru", "size": 5}},
    ),
    "image": (alone(LOOK), NORMAL, {}),
    "image remembered by a central critic's actor": (alone(LOOK), CENTRAL, {"core": {"name": "gru", "size": 5}}),
    "ppo of frames": (alone(PLAIN), PPO(normalize_observation=True, frames=3), {}),
    "images of frames": (alone(LOOK), C51(atoms=7, frames=2), {"encoder": {"image": "impala"}}),
    "images of frames for sac": (alone(EYES), SAC(frames=2), {}),
    "members that look": (alone(WATCHERS), QMIX(frames=2), {"encoder": {"image": "cnn"}}),
    "text": (alone(LETTERS), NORMAL, {"encoder": {"name": "tokens", "by": "gru"}}),
    "all senses remembered": (
        alone(SENSES),
        NORMAL,
        {"encoder": READERS, "core": {"name": "lstm", "size": 5}},
    ),
    "a whole network with choices of its own": (
        alone(BOTH),
        NORMAL,
        {"entry": "tests.workers.policies.encoders.test_own_network:Pair"},
    ),
    "a set": (alone(CROWD), C51(atoms=7), {"encoder": "entities"}),
    "sac of choices": (alone(MASKED), SAC(frames=2), {"hidden": [16]}),
    "sac": (alone(REACH), SAC(frames=2), {"hidden": [16, 16]}),
}


@dataclass
class Case:
    """A policy whose weights are large enough for its outputs to differ, its statistics as if it had learned."""

    interface: Interface
    config: PolicyConfig
    policy: Policy
    deployed: ExportedModule
    manifest: ExportManifest

    def columns(self, rows: int, seed: int) -> dict[str, NDArray]:
        """Random inputs."""
        return columns(self.interface, self.config, rows, seed, state_size(self.policy))


def case(name: str) -> Case:
    """One of CASES."""
    return made(name, *CASES[name])


def made(name: str, world: World, algorithm: Any, network: dict[str, Any]) -> Case:
    """A policy of the first agent of `world`, as `rookery export` puts it together."""
    whole, world = world, world.deployed()
    config = PolicyConfig.model_validate({"algorithm": algorithm, "network": network})
    interface = Interface.at(world, world.places[0], config)
    policy = build(interface, config, 3)
    chance = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for key, tensor in [*policy.named_parameters(), *policy.named_buffers()]:
            if key == "epsilon":
                tensor.fill_(0.1)
            elif tensor.is_floating_point() and "encoder" not in key and not key.endswith(("midpoints", "count")):
                tensor.copy_(torch.randn(tensor.shape, generator=chance, dtype=tensor.dtype) * 0.5)
                if key.endswith("variance"):
                    tensor.abs_().add_(0.1)
    if isinstance(policy, ActorCritic | CentralActorCritic):
        seen = columns(interface, config, 500, 6)
        policy.observe(torch.from_numpy(interface.observation_encoding.encode(seen.__getitem__, (500,))))
    deployed = ExportedModule(interface, policy, frames_of(config), state_size(policy))
    manifest = ExportManifest(
        policy=name,
        world=world.id,
        agent=interface.place.agent,
        common=common_of(world),
        withheld=tuple(leaf.name for leaf in whole.places[0].leaves if leaf.evaluation_only),
        config=config,
        network=network_facts(interface, config),
        inputs=deployed.inputs,
        outputs=deployed.outputs,
        provenance=Provenance(run="r", folder="f", incarnation=1, version=2, train_steps=3, rows=4),
    )
    return Case(interface, config, policy, deployed, manifest)


def columns(interface: Interface, config: PolicyConfig, rows: int, seed: int, state: int = 0) -> dict[str, NDArray]:
    """Random inputs; of every choice at least one value is legal."""
    rng = np.random.default_rng(seed)
    place, frames = interface.place, frames_of(config)
    found: dict[str, NDArray] = {}
    for port in ports_in(interface, frames, state):
        if port.name.startswith("observation"):
            seen = place.parts("observation", random_rows(place.observed, rows * frames, rng))[port.name]
            found[port.name] = seen.reshape(rows, *port.shape).copy()
        elif port.name.startswith("action_mask"):
            found[port.name] = rng.random((rows, *port.shape)) < 0.5
        else:
            found[port.name] = (rng.standard_normal((rows, *port.shape)) * 2).astype(port.dtype)
    for part in interface.action_encoding.describe():
        if part.get("masked"):
            mask, at = found[part["column"].replace("action", "action_mask", 1)], 0
            for size in part["sizes"]:
                mask[:, at + size - 1] = True
                at += size
    return found


def live(one: Case, given: dict[str, NDArray]) -> dict[str, NDArray]:
    """What the policy itself does, in the manner of an actor: greedy, in the world's units."""
    interface, frames = one.interface, frames_of(one.config)
    rows = len(next(iter(given.values())))
    stacked = isinstance(one.config.algorithm, Replayed)
    seen = interface.observation_encoding.encode(given.__getitem__, (rows, frames) if frames > 1 else (rows,))
    seen = seen[:, None] if stacked and frames == 1 else seen
    legal = interface.action_encoding.legal(given.__getitem__, (rows,)) if interface.action_encoding.masked else None
    more = {"state": given["state"]} if "state" in given else {}
    noise = np.random.default_rng(0)
    acted = one.policy.act(torch.from_numpy(seen), noise, greedy=True, legal=legal, **more)
    _, done = interface.action_encoding.decode(acted["action"], acted.get("amount"))
    found = dict(interface.place.parts("action", done))
    if "value" in acted:
        found["value"] = acted["value"]
    if "state" in acted:
        found["next_state"] = acted["state"]
    return found


def batches() -> Iterator[int]:
    """Of any length."""
    yield from (1, 7, 64)
