"""What follows from a run's configuration for the policies that do not learn, and whether they fit. Without torch.

In flows: the configuration, the world, the manifests of frozen policies. Out flows: a `FixedPolicyPlan` for each such
policy, or a ConfigurationError in one sentence.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open

from protocol.config.run import RND, Fixed, FrozenPolicy, Run
from protocol.errors import ConfigurationError
from protocol.experience.layout import common_of
from protocol.spaces import Agent, Box, DictPopulation, World
from workers.policies.export.export_manifest import KEY, parse_manifest


@dataclass(frozen=True, slots=True)
class FixedPolicyPlan:
    """One policy that does not learn: `agents` are the indices of the agents it plays, each in `copies` copies in as
    many groups."""

    name: str
    agents: tuple[int, ...]
    algorithm: Fixed
    copies: int
    groups: int

    @property
    def block(self) -> int:
        """Copies of a group."""
        return self.copies // self.groups

    @property
    def source(self) -> str:
        """What it is, for people."""
        algorithm = self.algorithm
        return algorithm.path if isinstance(algorithm, FrozenPolicy) else algorithm.entry


def plan_fixed(run: Run, world: World) -> dict[str, FixedPolicyPlan]:
    """The policies of `run` that do not learn, in the order in which the world names their agents."""
    mapping, plans = run.policy_of(world), {}
    for name in dict.fromkeys(mapping.values()):
        algorithm = run.fixed(name)
        if algorithm is not None:
            agents = tuple(i for i, agent in enumerate(world.agents) if mapping[agent.name] == name)
            plans[name] = FixedPolicyPlan(name, agents, algorithm, run.environment.copies, run.groups)
    return plans


def check_frozen(plan: FixedPolicyPlan, world: World) -> None:
    """Whether a frozen policy was trained on the spaces of the agents that it plays."""
    path = Path(plan.source)
    theirs, common = _trained_on(path)
    deployed = world.deployed()
    for number in plan.agents:
        mine = deployed.agents[number]
        for what, trained, here in (
            ("observes", theirs.observation, mine.observation),
            ("does", theirs.action, mine.action),
            ("has masks of legal actions", theirs.action_mask, mine.action_mask),
            ("observes in common with others", common, common_of(deployed)),
        ):
            if trained != here:
                raise ConfigurationError(
                    "policy_trained_on_other_spaces",
                    policy=plan.name,
                    file=path,
                    what=what,
                    trained=_said(trained),
                    agent=mine.name,
                    environment=world.id,
                    expected=_said(here),
                )


def _trained_on(path: Path) -> tuple[Agent, Box | None]:
    """What the policy in the file or checkpoint `path` sees and does, as deployed, and what all see beside."""
    if not path.exists():
        raise ConfigurationError("policy_file_missing", file=path, folder=Path.cwd())
    if path.is_dir():
        return _of_checkpoint(path)
    try:
        with safe_open(path, framework="np") as file:
            text = (file.metadata() or {}).get(KEY)
    except (OSError, SafetensorError) as fault:
        raise ConfigurationError("exported_policy_unreadable", file=path, reason=str(fault)) from None
    manifest = parse_manifest(path, text)
    return manifest.agent, manifest.common


def _of_checkpoint(path: Path) -> tuple[Agent, Box | None]:
    if not (path / "manifest.json").is_file():
        raise ConfigurationError("folder_is_no_checkpoint", file=path)
    try:
        facts = json.loads((path / "manifest.json").read_text())
        agent = Agent.model_validate(facts["agent"])
        common = TypeAdapter(Box | None).validate_python(facts["common"])
        learned = facts["config"]["algorithm"]["name"]
    except (OSError, ValueError, KeyError, TypeError, ValidationError):
        raise ConfigurationError("checkpoint_without_spaces", file=path) from None
    if learned == RND().name:
        raise ConfigurationError("checkpoint_of_auxiliary", file=path)
    deployed = World(id="alone", population=DictPopulation(agents=(agent,), common=common)).deployed()
    return deployed.agents[0], common_of(deployed)


def _said(space: Any) -> str:
    """A space in one line."""
    if isinstance(space, bool | None):
        return {True: "yes", False: "no", None: "nothing"}[space]
    return str(space.model_dump_json(exclude_none=True))
