"""The plan as a batch script of Slurm: one job on as many nodes as there are hosts, one step for each worker, which is
started again when it dies. A job that Slurm queues again goes on with its run. Pure."""

from __future__ import annotations

import re
import shlex
import signal

import yaml

from launch.cluster.plan import Command, Hosts, plan
from launch.local.process import FATAL, INCOMPLETE
from launch.run_plan import ResourcePlan
from protocol.config.run import Run

_HEAD = """#!/bin/bash
#SBATCH --job-name=rookery
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task={cpus}
#SBATCH --mem={memory}M
#SBATCH --requeue
#SBATCH --open-mode=append
{more}#SBATCH --signal=B:USR1@{notice}
set -euo pipefail
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
folder={folder}
ports=$((SLURM_JOB_ID % 25 * 1000)) # jobs may share a node
mkdir -p "$folder/logs"
{copy} > "$folder.yaml" <<'CONFIGURATION'
{config}CONFIGURATION
steps=() told= late=
# srun that gets a signal kills its step, so that steps get it from Slurm
end() {{
    told=1
    {{ kill -TERM "${{steps[@]}}"; scancel --signal=TERM "$SLURM_JOB_ID"; }} 2>/dev/null || true
}}
trap end TERM EXIT
trap 'late=1; end' USR1
# who dies is started again, as all ranks of a policy are when one is lost; not who was told to end or cannot begin
kept() {{
    local child= code=0 began left={restarts}
    trap told=1 TERM
    while [ -z "$told" ]; do
        began=$SECONDS
        "$@" & child=$!
        wait "$child" && return 0 || code=$?
        while [ -n "$told" ] && kill -0 "$child" 2>/dev/null; do wait "$child" && code=0 || code=$?; done
        [ -z "$told" ] || break
        case $code in {final}) break;; esac
        ((SECONDS - began < 300)) || left={restarts}
        ((left-- > 0)) || break
        echo "rookery: ended with code $code; starting it again: $*" >&2
        sleep 1
    done
    return "$code"
}}
"""
_FINAL = sorted(FATAL | {INCOMPLETE, 128 + signal.SIGINT, 128 + signal.SIGTERM})
"""Exit codes after which a step is not started again; the last two are of those that Slurm or a user told to end."""
_OWN_MEMORY = {"coordinator": 512, "learner": 2048, "actor": 1024, "relay": 512, "evaluator": 1024, "hooks": 1024}
"""Role -> MiB beside shared memory, as in k8s/base."""
_TAIL = """
wait "${{steps[0]}}" && code=0 || code=$?
# a signal ends the wait and not the step; when this script ends, Slurm kills what is left
[ -z "$told" ] || {{ wait "${{steps[0]}}" && code=0 || code=$?; }}
end
wait || true
[ -z "$late" ] || [ "$code" != {incomplete} ] || scontrol requeue "$SLURM_JOB_ID"
exit "$code"
"""
_PORT = re.compile(r"(?<=:)(\d{4})(?= |$)")


def batch(hosts: Hosts, run: Run, outline: ResourcePlan, seeds: str = "") -> str:
    """The script; its folder and keys lie where all nodes see them. It ends when the coordinator has, and after it all
    others have: told to by Slurm, too, they end in order, and out of time the job is queued again. `seeds`: one job of
    an array for each, as Slurm writes them; its folder ends with the seed."""
    known = {name: f"NODE{index}_" for index, name in enumerate(hosts.hosts)}
    named = {name: host.model_copy(update={"address": known[name]}) for name, host in hosts.hosts.items()}
    commands = plan(hosts.model_copy(update={"hosts": named, "folder": "FOLDER_"}), run, outline)
    most = max(host.gpus for host in hosts.hosts.values())
    needs = {command.name: _need(command, hosts, outline) for command in commands}
    of_nodes = [[needs[command.name] for command in commands if command.host == name] for name in known]
    head = _HEAD.format(
        nodes=len(known),
        cpus=max(sum(cpus for cpus, _ in node) for node in of_nodes),
        memory=max(sum(memory for _, memory in node) for node in of_nodes),
        more=(f"#SBATCH --gpus-per-node={most}\n" if most else "") + (f"#SBATCH --array={seeds}\n" if seeds else ""),
        notice=round(2 * max(run.actor_timeout, run.learner_timeout)),
        folder=shlex.quote(hosts.folder) + ("-$SLURM_ARRAY_TASK_ID" if seeds else ""),
        copy='sed "s/^seed: .*/seed: $SLURM_ARRAY_TASK_ID/"' if seeds else "cat",
        restarts=run.restarts,
        final="|".join(map(str, _FINAL)),
        config=yaml.safe_dump(run.model_dump(mode="json"), sort_keys=False),
    )
    steps = "\n".join(_step(command, known[command.host], *needs[command.name]) for command in commands)
    for index, word in enumerate(known.values()):
        steps = steps.replace(word, f"${{nodes[{index}]}}")
    return f"{head}{steps}{_TAIL.format(incomplete=INCOMPLETE)}"


def _need(command: Command, hosts: Hosts, outline: ResourcePlan) -> tuple[int, int]:
    """Cores and MiB of a step. Said for each, as the first would get all memory and the others wait for it."""
    shared = {"learner": outline.learner_memory, "actor": outline.actor_memory, "relay": outline.actor_memory}
    cpus = hosts.hosts[command.host].cpus if command.role == "learner" else 1
    return cpus, _OWN_MEMORY[command.role] + -(-shared.get(command.role, 0) // 2**20)


def _step(command: Command, node: str, cpus: int, memory: int) -> str:
    gpus = " --gpus=1" if command.gpu is not None else ""
    words = _PORT.sub(r"$((ports + \1))", shlex.join(command.words)).replace("FOLDER_", '"$folder"')
    size = f"--nodes=1 --ntasks=1 --exact --cpus-per-task={cpus} --mem={memory}M --open-mode=append"
    size += f' --output="$folder/logs/{command.name}.out"'
    return f"kept srun {size}{gpus} --nodelist={node} {words} &\nsteps+=($!)"
