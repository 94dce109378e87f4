"""The plan as a batch script of Slurm: one job on as many nodes as there are hosts, one step for each worker. Pure."""

from __future__ import annotations

import shlex
from pathlib import Path

import yaml

from launch.hosts import Command, Hosts, plan
from launch.outline import Outline
from protocol.config import Run

__all__ = ["batch"]

_HEAD = """#!/bin/bash
#SBATCH --job-name=rookery
#SBATCH --nodes={nodes}
#SBATCH --ntasks={tasks}
{gpus}#SBATCH --signal=B:TERM@{notice}
set -euo pipefail
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
mkdir -p {parent}
cat > {folder}.yaml <<'CONFIGURATION'
{config}CONFIGURATION
steps=()
end() {{ kill -TERM "${{steps[@]}}" 2>/dev/null || true; }}
trap end TERM EXIT
"""


def batch(hosts: Hosts, run: Run, outline: Outline) -> str:
    """The script; its folder and keys lie where all nodes see them. It ends when the coordinator does."""
    known = {name: f"NODE{index}_" for index, name in enumerate(hosts.hosts)}
    named = {name: host.model_copy(update={"address": known[name]}) for name, host in hosts.hosts.items()}
    commands = plan(hosts.model_copy(update={"hosts": named}), run, outline)
    most = max(host.gpus for host in hosts.hosts.values())
    head = _HEAD.format(
        nodes=len(known),
        tasks=len(commands),
        gpus=f"#SBATCH --gpus-per-node={most}\n" if most else "",
        notice=round(2 * max(run.actor_timeout, run.learner_timeout)),
        parent=shlex.quote(str(Path(hosts.folder).parent)),
        folder=shlex.quote(hosts.folder),
        config=yaml.safe_dump(run.model_dump(mode="json"), sort_keys=False),
    )
    steps = "\n".join(_step(command, known[command.host]) for command in commands)
    for index, word in enumerate(known.values()):
        steps = steps.replace(word, f"${{nodes[{index}]}}")
    return f'{head}{steps}\nwait "${{steps[0]}}"\n'


def _step(command: Command, node: str) -> str:
    gpus = " --gpus=1" if command.gpu is not None else ""
    words = shlex.join(command.words)
    return f"srun --nodes=1 --ntasks=1 --exact{gpus} --nodelist={node} {words} &\nsteps+=($!)"
