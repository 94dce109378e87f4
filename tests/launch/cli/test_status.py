"""`rookery status`: what it asks whom, and what it says of runs that go on, that are over, that nobody knows."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from launch.cli.main import main
from launch.cli.status import find
from protocol.errors import ConfigurationError
from tests.faults import kinds_in, raises
from tests.workers.coordination.dashboard.asking import serving
from tests.workers.coordination.dashboard.pages import shown
from workers.runtime.http_server import Response


def status(*arguments: str) -> Result:
    """The command's answer."""
    return CliRunner().invoke(main, ["status", *arguments], env={"COLUMNS": "160"})


def announce(folder: Path, url: str, run_id: str = "0123abcd") -> None:
    """What a coordinator leaves in its run's folder."""
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump({}))
    (folder / "coordinator.json").write_text(json.dumps({"address": "", "http": url, "pid": 1}))
    (folder / "run_id").write_text(run_id)


def test_a_run_that_goes_on_is_shown_as_its_coordinator_sees_it(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with shown(run_dir) as (run, url):
        monkeypatch.setenv("ROOKERY_TOKEN", run.token)
        assert "nothing is known of it yet" in status(url).output
        run.look()
        view = run.look()
        announce(run_dir, url)
        for source in (url, str(run_dir)):
            told = json.loads(status(source, "--json").output)
            assert {key: told[key] for key in ("made", "flow", "verdict")} == {
                key: view[key] for key in ("made", "flow", "verdict")
            }
        said = status(str(run_dir)).output
        for word in ("2,000 of 1,000,000 agent steps", "agent_1", " 20 ", "actor-0", "acting", "50%", "waits"):
            assert word in said


def test_watching_ends_with_the_run(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with shown(run_dir) as (run, url):
        monkeypatch.setenv("ROOKERY_TOKEN", run.token)
        run.look()
        run.stage = "ended"
        assert "1,000 of 1,000,000 agent steps" in status(url, "--watch").output
        assert len(status(url, "--watch", "--json").output.splitlines()) == 1


def test_a_run_that_is_over_is_told_by_its_folder_even_if_another_has_its_port(run_dir: Path) -> None:
    summary = {"complete": True, "agent_steps": 5_000, "seconds": 2.0, "verdict": "balanced", "baselines": {}}
    found = {"level": "fault", "layer": "hooks", "says": "it raised an error", "remedy": "correct the hook"}
    summary["health"] = {"findings": [{**found, "policy": "late:Hook", "finding": "hook_failed"}]}
    curve = {"first": 1.0, "last": 7.5, "best": 8.0}
    with shown(run_dir) as (run, url):
        run.look()
        announce(run_dir, url, "another")
        assert status(str(run_dir)).exit_code != 0
        (run_dir / "summary.json").write_text(json.dumps({**summary, "returns": {"p": curve}}))
        said = status(str(run_dir)).output
        assert "7.5" in said
        assert "complete: 5,000 agent steps in 2 s; balanced: nobody waits" in said
        assert said.endswith("fault in the hooks of late:Hook: it raised an error; correct the hook\n")
        cloned = {
            "verdict": "starting",
            "health": {"findings": []},
            "rows": {"p": {"read": 8, "trained": 4_000}},
            "returns": {"p": curve},
        }
        (run_dir / "summary.json").write_text(json.dumps({**summary, **cloned}))
        assert status(str(run_dir)).output.endswith("complete: 4,000 rows trained in 2 s\n")


def test_what_ended_a_run_is_told_instead_of_what_it_waited_for(run_dir: Path) -> None:
    summary = {"complete": False, "agent_steps": 5_000, "seconds": 2.0, "verdict": "actor-bound", "baselines": {}}
    summary["health"] = {"findings": []}
    fault = {"worker": "actor-0", "incarnation": 2, "error": "the reward is nan [agent_data_invalid]"}
    announce(run_dir, "")
    (run_dir / "summary.json").write_text(json.dumps({**summary, "returns": {}, "errors": [fault]}))
    said = status(str(run_dir)).output
    assert said.endswith("actor-0: the reward is nan [agent_data_invalid]\n")
    assert "actor-bound" not in said


def test_a_run_that_never_began_has_left_a_log(run_dir: Path) -> None:
    announce(run_dir, "")
    (run_dir / "coordinator.json").unlink()
    (run_dir / "logs").mkdir()
    (run_dir / "logs" / "coordinator.out").write_text("")
    assert kinds_in(status(str(run_dir)).output) == ["run_never_began"]


def test_the_token_is_asked_for_in_a_sentence(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with shown(run_dir) as (run, url):
        run.look()
        refused = status(url)
        assert (refused.exit_code, refused.exception.__class__) == (3, SystemExit)
        assert kinds_in(refused.output) == ["coordinator_answer_unusable"]
        assert "give the run's token" in refused.output
        announce(run_dir, url)
        assert status(str(run_dir)).exit_code == 0  # its folder has it
        monkeypatch.setenv("ROOKERY_TOKEN", (run_dir / "token").read_text().strip())
        assert status(url).exit_code == 0


def test_what_is_no_coordinator_is_told_in_a_sentence(run_dir: Path) -> None:
    routes = {("GET", "/api/view"): lambda _: Response(b"[]", "application/json")}
    with serving(routes) as other, serving({}) as worker, socket.create_server(("127.0.0.1", 0)) as door:
        thread = threading.Thread(target=lambda: door.accept()[0].sendall(b"\xff\0\0\0\0\0\0\1\x7f\n"), daemon=True)
        thread.start()  # what ZeroMQ says first
        for url, told in (
            (other, "what no coordinator says"),
            (worker, "404"),
            (f"http://127.0.0.1:{door.getsockname()[1]}", "http://HOST:PORT+9"),
        ):
            refused = status(url)
            assert (refused.exit_code, refused.exception.__class__) == (3, SystemExit)
            assert kinds_in(refused.output) == ["coordinator_answer_unusable"]
            assert told in refused.output
        thread.join()
        run_dir.mkdir()
        announce(run_dir, worker)  # a port of a run that is over, which a worker of another has now
        summary = {"complete": True, "agent_steps": 5, "seconds": 2.0, "verdict": "", "baselines": {}, "returns": {}}
        (run_dir / "summary.json").write_text(json.dumps(summary))
        assert "complete: 5 agent steps" in status(str(run_dir)).output


def test_no_proxy_sees_the_token(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setattr("urllib.request._opener", None)  # it remembers the environment of its first use
    with shown(run_dir) as (run, url):
        monkeypatch.setenv("ROOKERY_TOKEN", run.token)
        assert "nothing is known of it yet" in status(url).output


def test_the_coordinators_own_address_is_enough() -> None:
    assert find("tcp://node-7:5600").url == "http://node-7:5609"
    assert find("tcp://[::1]:5600").url == "http://[::1]:5609"
    for source in ("nowhere", "tcp://node-7", "ftp://a:1", "http://node-7:x"):
        with raises(ConfigurationError, "run_address_invalid", value=source):
            find(source)
