"""What a coordinator on another machine tells, read through a stand-in for ssh."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from launch.cluster.plan import Hosts
from launch.cluster.remote_view import RemoteView
from tests.waiting import until

SSH = """#!/bin/sh
for word; do line=$word; done
cd "$MACHINE" && exec sh -c "$line"
"""
ROOKERY = """#!/bin/sh
echo "$@" >> asked
for i in 1 2 3; do echo '{"stage": "running", "made": '$i'}'; done
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the stand-in goes; `rookery` there tells three views, and ends."""
    there = tmp_path / "there"
    (there / "my work" / "runs" / "one").mkdir(parents=True)
    (tmp_path / "ssh").write_text(SSH)
    (there / "rookery").write_text(ROOKERY)
    for file in (tmp_path / "ssh", there / "rookery"):
        file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("MACHINE", str(there))
    monkeypatch.setattr("launch.cluster.remote_view._PAUSE", 0.1)
    return there


@pytest.fixture
def view(machine: Path, tmp_path: Path) -> RemoteView:
    first = {"ssh": "me@trainer", "address": "fd00::1", "folder": "my work", "rookery": str(machine / "rookery")}
    hosts = Hosts.model_validate({"folder": "runs/one", "hosts": {"trainer": first, "node": {"actors": 1}}})
    return RemoteView(hosts, tmp_path / "status.out")


def test_views_come_once_there_is_a_run_and_the_page_is_that_of_its_coordinator(
    view: RemoteView, machine: Path, tmp_path: Path
) -> None:
    until(lambda: view.newest() or "No such file" in (tmp_path / "status.out").read_text(), what="nothing has begun")
    assert view.page == ""
    (machine / "my work" / "runs" / "one" / "token").write_text("abc\n")
    assert until(view.newest, what="a view")["stage"] == "running"
    assert view.page == "http://[fd00::1]:5609/#token=abc"
    assert "status runs/one --watch --json" in (machine / "my work" / "asked").read_text().splitlines()
    view.close()


def test_who_asked_for_a_view_gets_it_once_and_another_when_it_is_told_anew(view: RemoteView, machine: Path) -> None:
    (machine / "my work" / "runs" / "one" / "token").write_text("abc\n")
    until(lambda: (view.newest() or {}).get("made") == 3, what="the last of the three")
    view._again_at = math.inf
    assert view.newest() is None
    view._again_at = 0.0
    assert until(view.newest, what="it is asked again after its end")["made"] in (1, 2, 3)
    view.close()


def test_the_summary_is_there_when_the_run_is_over(view: RemoteView, machine: Path) -> None:
    assert view.summary() == {}
    (machine / "my work" / "runs" / "one" / "summary.json").write_text(json.dumps({"complete": True}))
    assert view.summary() == {"complete": True}
    assert view.folder == "me@trainer:my work/runs/one"
    view.close()
