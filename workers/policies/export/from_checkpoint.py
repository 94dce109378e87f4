"""The policy of a checkpoint, as it would be exported.

In flow: the folder of a checkpoint, RUN/checkpoints/POLICY/TRAIN_STEP, or of a run. Out flow: its manifest, and the
policy with its weights.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from protocol.config.run import PolicyConfig
from protocol.config.yaml_file import read_run, read_run_in
from protocol.errors import ConfigurationError
from protocol.experience.layout import common_of
from protocol.spaces import Agent, Box, DictPopulation, World
from workers.policies import checkpoint
from workers.policies.build import Policy, build, state_size
from workers.policies.export.export_manifest import ExportManifest, Provenance, frames_of
from workers.policies.export.module import ExportedModule
from workers.policies.interface import Interface
from workers.policies.network_spec import network_facts


def find_checkpoint(run: Path, policy: str, which: str) -> tuple[int, ExportManifest, Policy]:
    """Train step, manifest and policy of the checkpoint `which` in a run's folder: `newest`, `best` or a train step; of
    another newest one, if a run that goes on removed it meanwhile. ConfigurationError in one sentence."""
    while True:
        step = step_of(run, policy, which)
        path = run / "checkpoints" / policy / str(step)
        try:
            return step, *read(path)
        except ConfigurationError:
            if path.exists():
                raise


def read(path: Path) -> tuple[ExportManifest, Policy]:
    """The policy of a checkpoint and its manifest; ConfigurationError in one sentence."""
    found = checkpoint.load(path)
    facts = found.manifest
    try:
        agent = Agent.model_validate(facts.agent)
        common = TypeAdapter(Box | None).validate_python(facts.common)
        own = PolicyConfig.model_validate(facts.config)
    except ValidationError as fault:
        raise ConfigurationError("checkpoint_manifest_incomplete", file=path, reason=_first(fault)) from None
    run = path.resolve().parents[2]
    whole = read_run(run / "config.yaml")
    code = own.network.entries
    if code and own.network.parts not in [one.network.parts for one in whole.learning]:
        raise ConfigurationError("file_names_code", file=path, value=", ".join(sorted(code)))
    where = whole.environment
    world = World(
        id=where.id if where.members is None else "+".join(where.members),
        population=DictPopulation(agents=(agent,), common=common),
    )
    policy = build(Interface.at(world, world.places[0], own), own, 0)
    try:
        policy.load_state_dict(found.weights)
    except RuntimeError:
        raise ConfigurationError("checkpoint_network_differs", file=path) from None
    source = Provenance(
        run=_run_id(run),
        folder=run.name,
        incarnation=facts.incarnation,
        version=facts.version,
        train_steps=facts.train_steps,
        rows=facts.rows,
    )
    return describe(path.resolve().parent.name, world, own, policy, source), policy


def describe(name: str, world: World, config: PolicyConfig, policy: Policy, source: Provenance) -> ExportManifest:
    """The manifest of `policy`, which acts as the first agent of `world`."""
    seen = world.deployed()
    interface = Interface.at(seen, seen.places[0], config)
    module = export_module(interface, config, policy)
    return ExportManifest(
        policy=name,
        world=world.id,
        agent=seen.places[0].agent,
        common=common_of(seen),
        withheld=tuple(leaf.name for leaf in world.places[0].leaves if leaf.evaluation_only),
        config=config,
        network=network_facts(interface, config),
        inputs=module.inputs,
        outputs=module.outputs,
        provenance=source,
    )


def export_module(interface: Interface, config: PolicyConfig, policy: Policy) -> ExportedModule:
    """The policy as it acts outside."""
    return ExportedModule(interface, policy, frames_of(config), state_size(policy))


def saved_policies(run: Path) -> list[str]:
    """The policies of the run in the folder `run` that have a checkpoint."""
    folder, auxiliaries = run / "checkpoints", read_run_in(run).auxiliaries
    saved = sorted(path.name for path in folder.iterdir() if checkpoint.list_steps(path)) if folder.is_dir() else []
    return [name for name in saved if name not in auxiliaries]


def step_of(run: Path, policy: str, which: str) -> int:
    """The train step of the checkpoint `which` (`newest`, `best` or a train step); ConfigurationError."""
    steps = checkpoint.list_steps(run / "checkpoints" / policy)
    if not steps:
        raise ConfigurationError("policy_without_checkpoint", file=run, policy=policy)
    if which == "newest":
        return steps[-1]
    if which == "best":
        found = checkpoint.best(run / "checkpoints" / policy)
        if found is None:
            raise ConfigurationError("best_checkpoint_unknown", file=run, policy=policy)
        return found
    if which.isdigit() and int(which) in steps:
        return int(which)
    raise ConfigurationError("checkpoint_not_found", file=run, value=which, policy=policy, choices=[*map(str, steps)])


def _run_id(run: Path) -> str:
    """As its coordinator gave it; a sequential run has none."""
    told = run / "run_id"
    return told.read_text().strip() if told.is_file() else ""


def _first(fault: ValidationError) -> str:
    return " ".join(str(fault.errors()[0]["msg"]).split())
