"""Three machines: keys, a relay, `rookery hosts up` from one of them, and the page of the run when it is over."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flows.far import Machines, address, machines
from tests.ways.terminal import terminal
from tests.workers.coordination.dashboard.browser import browser

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

NAMES = ("trainer", "node-1", "node-2")
HOSTS = """
run: treasure-hunt
set: [actors=3, steps=300000]
hosts:
  trainer: {{address: {0}, learners: true}}
  node-1: {{address: {1}, actors: 2}}
  node-2: {{address: {2}, actors: 1}}
"""
SSH = """#!/bin/sh
for word; do host=$line; line=$word; done
cd "$MACHINES/$host" && exec $MACHINES/$host/enter sh -c "$line"
"""
SCP = """#!/bin/sh
for last; do :; done
for word; do
  case "$word" in *.public|*.secret|*/run.yaml) cp -p "$word" "$MACHINES/${last%%:*}/${last#*:}" || exit 1;; esac
done
"""


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Machines]:
    """Three machines, each with a folder and a memory of its own, and `ssh` and `scp` between them."""
    for name in ("bin", "memory", *(f"machines/{name}" for name in NAMES), *(f"memory-{name}" for name in NAMES)):
        (tmp_path / name).mkdir(parents=True)
    with machines(len(NAMES)) as net:
        scripts = {"bin/ssh": SSH, "bin/scp": SCP}
        scripts |= {
            f"machines/{name}/enter": f'#!/bin/sh\nexec {shlex.join(words(net, tmp_path, name))} "$@"\n'
            for name in NAMES
        }
        for name, text in scripts.items():
            (tmp_path / name).write_text(text)
            (tmp_path / name).chmod(0o755)
        yield net


def words(net: Machines, folder: Path, name: str) -> list[str]:
    """What a command line begins with that shall run on the machine `name`, whose memory no other sees."""
    return net.on(NAMES.index(name)).keeping(folder / f"memory-{name}", folder / "memory").words


def test_a_run_on_three_machines_is_started_by_one_command_and_looked_at_when_it_is_over(
    tmp_path: Path, cloned: Path, variables: dict[str, str], net: Machines
) -> None:
    told = {
        **variables,
        "PATH": f"{tmp_path / 'bin'}{os.pathsep}{variables['PATH']}",
        "MACHINES": str(tmp_path / "machines"),
    }
    with terminal(cloned, told, on=words(net, tmp_path, "trainer")) as shell:
        (cloned / "hosts.yaml").write_text(HOSTS.format(*(address(i) for i in range(len(NAMES)))))
        assert "[" in shell.run("rookery hosts up hosts.yaml", code=2), "keys are missing, which is said with its kind"
        shell.run("rookery keys new keys")
        shell.run("rookery hosts up hosts.yaml --dry-run")
        shell.type("rookery hosts up hosts.yaml")
        assert shell.shows("the run's page:").startswith(f"http://{address(0)}:5609/#token=")
        for worker in ("learner", "relay-node-1", "actor-0", "actor-2"):
            shell.shows(worker)
        folder = shell.shows("run folder:", 300)
        assert "mean return of an episode" in shell.ended()
    machine, _, rest = folder.partition(":")
    assert machine == "trainer"
    with terminal(tmp_path / "machines" / machine, variables) as shell, browser(tmp_path, 1_300) as window:
        shell.type(f"rookery page {rest}")
        window.open("http://" + shell.shows("http://").partition(" ")[0])
        window.until("return Curves.points() > 3")
        assert window.text("stage") == "complete"
        assert window.complaints() == []
        shell.press("C-c")
        shell.ended()
