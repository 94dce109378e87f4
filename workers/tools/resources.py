"""What a configuration comes to, for those who start its workers elsewhere: `python -m workers.tools.resources CONFIG`.

In flow: a run's configuration. Out flow, as JSON: its policies, how many learners it wants, how much shared memory.
Costs no torch, unless a core is a torch module.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from protocol.config.run import Run
from protocol.config.yaml_file import read_run
from protocol.errors import RookeryError
from workers import freeze_startup_objects
from workers.coordination.assignments import Assignments
from workers.environments.registry import describe
from workers.metrics.hooks.calls import hooked_roles
from workers.planning.auxiliary_plan import plan_auxiliaries
from workers.planning.cohorts import kinds_of
from workers.planning.policy_plan import plan_policies
from workers.planning.shared_observation_plan import plan_common
from workers.rollout.players.scripted_player import check_fixed
from workers.runtime.entry_points import add_cwd_to_path
from workers.runtime.last_words import watch_user_code


def resource_summary(run: Run) -> dict[str, Any]:
    """`policies` that learn, `learners`, and bytes of shared memory, weights not counted, of an actor and of the
    largest learner. Raises ConfigurationError where the configuration and its world do not fit."""
    world = describe(run.environment, run.lockstep_checkpoints)
    policies = plan_policies(run, world)
    plans = {**policies, **plan_auxiliaries(run, policies)}
    check_fixed(run, world)
    places = Assignments(run, list(plans), kinds_of(policies))
    common = plan_common(plans, world)
    shared = 0 if common is None else common.layout.offsets(common.pool)[1]
    pools = {name: plan.layout.offsets(plan.pool_slots)[1] for name, plan in plans.items() if not plan.static}
    rings = sum(plan.layout.offsets(plan.blocks * plan.block)[1] for plan in plans.values() if not plan.static)
    of_learners = [sum(pools.get(name, 0) for name in places.policies("learner", i)) for i in range(places.learners)]
    return {
        "policies": list(plans),
        "learners": places.names("learner"),
        "actor_memory": shared + rings,
        "learner_memory": shared + max(of_learners, default=0),
        "run_hooks": "supervisor" in hooked_roles(run),
    }


@click.command(name="outline", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("config", type=click.Path(dir_okay=False, path_type=Path))
def main(config: Path) -> None:
    """Says as JSON what the configuration in CONFIG comes to."""
    add_cwd_to_path()
    watch_user_code()
    try:
        click.echo(json.dumps(resource_summary(read_run(config).anchored())))
    except RookeryError as fault:
        click.echo(f"{fault.traceback}rookery: {fault.coded}", err=True)
        sys.exit(fault.exit_code)


if __name__ == "__main__":
    freeze_startup_objects()
    main()
