"""A run as a job of a real Slurm: two nodes, each a network of its own, and one controller."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from launch.cli.main import main
from protocol.control.run_summary import read_summary
from tests.flows.network import LEFT, RIGHT, Network, network
from tests.tools import require
from tests.waiting import until

NODES = {"left": LEFT, "right": RIGHT}
CONFIGURATION = """
ClusterName=rookery
SlurmctldHost=left({left})
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SlurmUser=root
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,batch_sched_delay=0,default_queue_depth=10
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/%n.pid
KillWait=20
SlurmdTimeout=10
ReturnToService=2
NodeName=left NodeAddr={left} CPUs=8 RealMemory=16000
NodeName=right NodeAddr={right} CPUs=8 RealMemory=16000
PartitionName=all Nodes=left,right Default=YES MaxTime=INFINITE OverSubscribe=NO
"""
THERE = 'mount --bind "$0" /etc/hosts && hostname "$1" && shift && exec "$@"'
"""A machine with a name, which knows the others'."""


class Cluster:
    """`folder`: where jobs are submitted."""

    def __init__(self, folder: Path, between: Network) -> None:
        self.folder, self._between, self._daemons = folder, between, list[subprocess.Popen[bytes]]()
        (folder / "hosts").write_text("".join(f"{address} {name}\n" for name, address in NODES.items()))
        (folder / "slurm.conf").write_text(CONFIGURATION.format(folder=folder, left=LEFT, right=RIGHT))
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
        (folder / "state").mkdir()

    def start(self, node: str, *words: str) -> subprocess.Popen[bytes]:
        """A daemon on that node, which ends with this."""
        with (self.folder / "daemons.out").open("a") as out:
            daemon = subprocess.Popen(self._there(node, *words), env=self._variables(), stdout=out, stderr=out)
        self._daemons.append(daemon)
        return daemon

    def tell(self, *words: str) -> str:
        """What a command of Slurm says."""
        command = self._there("left", *words)
        ended = subprocess.run(
            command, cwd=self.folder, env=self._variables(), capture_output=True, text=True, timeout=60, check=False
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.strip()

    def up(self) -> None:
        """Until both nodes are idle."""
        self.start("left", require("slurmctld"), "-D", "-f", str(self.folder / "slurm.conf"))
        for node in NODES:
            self.start(node, require("slurmd"), "-D", "-f", str(self.folder / "slurm.conf"))
        until(lambda: self._states().count("idle") == 2, what="both nodes are idle")

    def down(self) -> None:
        """All jobs and daemons end."""
        if self._daemons and self._daemons[0].poll() is None:
            self.tell("scancel", "--user", "root")
            until(lambda: not self.tell("squeue", "--noheader"), what="no job is left")
        for daemon in self._daemons[::-1]:
            daemon.terminate()
            daemon.wait(60)

    def state(self, job: str) -> str:
        """Of a job."""
        return self.tell("scontrol", "show", "job", job).partition("JobState=")[2].partition(" ")[0]

    def _states(self) -> list[str]:
        found = subprocess.run(
            self._there("left", "sinfo", "--noheader", "--Node", "--format=%T"),
            env=self._variables(), capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        return found.stdout.split()

    def _there(self, node: str, *words: str) -> list[str]:
        named = [require("unshare"), "--uts", "--mount", "sh", "-c", THERE, str(self.folder / "hosts"), node, *words]
        return [*self._between.on(node).words, *named]

    def _variables(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Cluster]:
    require("slurmctld")
    with network() as between:
        made = Cluster(tmp_path, between)
        try:
            made.up()
            yield made
        finally:
            made.down()


def script(folder: Path, steps: int, *more: str) -> str:
    """A batch script of CartPole with its learner on one node and its actors on the other."""
    rookery = str(Path(sys.executable).parent / "rookery")
    hosts = {"left": {"rookery": rookery}, "right": {"rookery": rookery, "actors": 2}}
    told = {"run": "cartpole", "set": [f"steps={steps}", "actors=2", "checkpoint_interval=1"], "hosts": hosts}
    path = folder / "hosts.yaml"
    path.write_text(yaml.safe_dump({**told, "folder": str(folder / "run"), "keys": str(folder / "keys")}))
    CliRunner().invoke(main, ["keys", "new", str(folder / "keys")], catch_exceptions=False)
    return CliRunner().invoke(main, ["hosts", "slurm", str(path), *more], catch_exceptions=False).output


def steps_of(run: Path) -> int:
    """That the coordinator has kept."""
    try:
        return int(json.loads((run / "state.json").read_text()).get("agent_steps", 0))
    except (OSError, ValueError):
        return 0


@pytest.mark.slow  # it waits for Slurm
def test_a_job_that_is_queued_again_goes_on_with_its_run(slurm: Cluster) -> None:
    (slurm.folder / "run.sbatch").write_text(script(slurm.folder, 60_000))
    job = slurm.tell("sbatch", "--parsable", "--time=10", "run.sbatch")
    run = slurm.folder / "run"
    until(lambda: (run / "checkpoints").is_dir() and [*(run / "checkpoints").glob("*/[0-9]*")], what="a checkpoint")
    slurm.tell("scancel", "--batch", "--signal=USR1", job)  # what Slurm sends when the time is nearly over
    until(lambda: "Restarts=1" in slurm.tell("scontrol", "show", "job", job), what="the job is queued again")
    until(lambda: slurm.state(job) == "PENDING", what="it waits")
    slurm.tell("scontrol", "update", f"jobid={job}", "StartTime=now")
    until(lambda: slurm.state(job) == "COMPLETED", what="the run is complete", every=1)
    summary = read_summary(run)
    assert summary is not None
    assert summary["complete"]
    shown = CliRunner().invoke(main, ["logs", str(run), "actor-*"], catch_exceptions=False).output
    assert shown.count(" - actor-0 - INFO - event=joined") == 2
