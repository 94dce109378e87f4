"""`rookery model`: what each policy's network is made of, and what a row costs.

python -m workers.tools.model config.yaml

In flow: a configuration. Out flow: for each policy its leaves with where they go, its layers with shapes and
parameters, and operations and microseconds a row; or a picture. It is built and tried as in a run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from protocol.config.yaml_file import read_run
from protocol.errors import Refused, RookeryError, one_sentence
from protocol.messages.core import GRAPH_BYTES
from protocol.spaces import World
from workers import freeze_startup_objects
from workers.environments.base import random_rows
from workers.environments.registry import describe
from workers.planning.policy_plan import PolicyPlan, plan_policies
from workers.policies.export.graph import graph_of
from workers.policies.export.reference_forward import evaluate
from workers.policies.networks.layers import RowEncoder
from workers.policies.observation_encoding import EncodedField
from workers.rollout.acting_policy import ActingPolicy
from workers.runtime import torch_setup
from workers.runtime.entry_points import add_cwd_to_path
from workers.tools.picture import chart

_ROWS, _SECONDS = 64, 0.2
"""Of one forward pass that is timed, and how long passes are timed."""


def described(plan: PolicyPlan) -> dict[str, Any]:
    """The network of one policy, as plain data."""
    acting = ActingPolicy(plan.interface, plan.config)
    policy = acting.module
    operations, seconds = _cost(acting, plan)
    return {
        "policy": plan.name,
        "algorithm": plan.config.algorithm.name,
        "sees": [
            {"part": part.path, "shape": list(part.space.shape), "dtype": part.space.dtype, "read_by": reader}
            for part, reader in _readers(plan, RowEncoder.of(policy))
        ],
        "layers": [
            {"layer": name, "kind": kind, "shapes": shapes, "parameters": count}
            for name, kind, shapes, count in _layers(policy)
        ],
        "state_numbers": acting.state,
        "parameters": sum(one.numel() for one in policy.parameters() if one.requires_grad),
        "operations_a_row": operations,
        "microseconds_a_row": round(1e6 * seconds, 2),
        "rows": _ROWS,
    }


def _readers(plan: PolicyPlan, encoder: RowEncoder | None) -> Iterator[tuple[EncodedField, str]]:
    """Each part, and what reads it."""
    for part in plan.interface.observation_encoding.parts:
        if encoder is None:
            yield part, "as numbers, each choice one-hot" if part.choices else "as numbers"
        else:
            yield part, encoder.reader(part.path)


def _layers(policy: nn.Module) -> Iterator[tuple[str, str, list[list[int]], int]]:
    """Modules with trainable parameters of their own; target networks are not trained."""
    for name, module in policy.named_modules():
        own = [one for one in module.parameters(recurse=False) if one.requires_grad]
        if own:
            kind = type(module).__name__
            yield name or "heads", kind, [list(one.shape) for one in own], sum(one.numel() for one in own)


def _cost(acting: ActingPolicy, plan: PolicyPlan) -> tuple[int, float]:
    """Multiplications and additions of a row, and seconds when the policy acts on 64 at once."""
    place, rng = plan.interface.place, np.random.default_rng(0)
    frames = plan.config.algorithm.frames
    parts = place.parts("observation", random_rows(place.observed, _ROWS * frames, rng))
    if plan.common is not None:
        field = plan.common.fields[0]
        parts["common"] = np.zeros((_ROWS * frames, *field.shape[1:]), field.dtype)
    seen = plan.interface.observation_encoding.encode(parts.__getitem__, (_ROWS * frames,))
    rows = seen if frames == 1 else seen.reshape(_ROWS, frames, *seen.shape[1:])
    state = np.zeros((_ROWS, acting.state), np.float32) if acting.state else None

    def act() -> None:
        acting.act(rows, rng, state=state)

    act()
    x = torch.from_numpy(acting.seen(rows))
    if plan.interface.encoder is None:
        x = x.reshape(_ROWS, -1).float()
    with torch.inference_mode(), FlopCounterMode(display=False) as counted:
        evaluate(acting.module, x, None if state is None else torch.from_numpy(state))
    times, until = [], time.perf_counter() + _SECONDS
    while time.perf_counter() < until:
        started = time.perf_counter()
        act()
        times.append(time.perf_counter() - started)
    return counted.get_total_flops() // _ROWS, float(np.median(times)) / _ROWS


def _try_export(world: World, plan: PolicyPlan) -> int:
    """0, or the exit code of what keeps an actor in another language from the graph, which is told."""
    try:
        size = len(graph_of(world, plan.agents[0], plan.config))
        if size > GRAPH_BYTES:
            raise Refused("graph_too_large", policy=plan.name, limit=GRAPH_BYTES)
    except RookeryError as fault:
        click.echo(f"policy {plan.name}: {fault.coded}", err=True)
        return fault.exit_code
    click.echo(f"policy {plan.name}: its graph has {size:,} bytes")
    return 0


def _text(told: dict[str, Any]) -> Iterator[str]:
    """For people."""
    yield f"{told['policy']} ({told['algorithm']})"
    for part in told["sees"]:
        yield f"  sees   {part['part']} {part['shape']} {part['dtype']}: {part['read_by']}"
    width = max(len(layer["layer"]) for layer in told["layers"])
    for layer in told["layers"]:
        shapes = " ".join("x".join(map(str, shape)) or "1" for shape in layer["shapes"])
        yield f"  layer  {layer['layer']:{width}}  {layer['kind']:18} {layer['parameters']:>10,}  {shapes}"
    if told["state_numbers"]:
        numbers = told["state_numbers"]
        yield f"  state  {numbers:,} numbers of a stream, {4 * numbers:,} bytes of each segment"
    yield (
        f"  all    {told['parameters']:,} parameters, {told['operations_a_row']:,} operations and "
        f"{told['microseconds_a_row']} us a row when {told['rows']} rows act at once"
    )


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("config", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@click.option("--picture", is_flag=True, help="Draw it, as Mermaid.")
@click.option("--graph", is_flag=True, help="Instead try to export it, as for actors in other languages.")
def main(config: Path, as_json: bool, picture: bool, graph: bool) -> None:
    """Says what the networks of the policies in CONFIG are made of."""
    with one_sentence():
        add_cwd_to_path()
        torch_setup.configure_torch()
        run = read_run(config)
        world = describe(run.environment)
        plans = plan_policies(run, world).values()
        if graph:
            raise SystemExit(max(_try_export(world, plan) for plan in plans))
        if picture:
            click.echo("\n".join(f"%% {plan.name}\n{chart(plan)}" for plan in plans))
            return
        found = [described(plan) for plan in plans]
    click.echo(json.dumps(found, indent=2) if as_json else "\n".join(line for one in found for line in _text(one)))


if __name__ == "__main__":
    freeze_startup_objects()
    main()
