"""What the page is made from, and who may ask for it."""

from __future__ import annotations

import json
import os
import socket
import stat
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
import yaml

from protocol.control.run_summary import NO_COMMANDS
from protocol.errors import ConfigurationError
from tests.faults import kinds_in, raises
from tests.workers.coordination.dashboard.asking import ask
from tests.workers.coordination.dashboard.pages import shown
from tests.workers.tools.test_page import left
from workers.coordination.dashboard.dashboard import token_of


def test_each_new_view_is_an_event(run_dir: Path) -> None:
    with shown(run_dir) as (run, url):
        place = urlsplit(url)
        with socket.create_connection((place.hostname or "", place.port or 0)) as line:
            line.sendall(f"GET /api/events HTTP/1.0\r\nAuthorization: {run.right}\r\n\r\n".encode())
            reader = line.makefile("rb")
            made: list[int | None] = []
            while made[-1:] != [2_000]:
                text = reader.readline().decode()
                if text.startswith("data: "):
                    made.append(json.loads(text.removeprefix("data: ")).get("made"))
                    run.look()
            reader.close()
    assert made[0] is None


def test_what_is_no_number_is_null_to_a_browser(run_dir: Path) -> None:
    with shown(run_dir) as (run, url):
        run.look()
        run.books.history.add(2_000, {"agent_0/loss": float("nan")})
        point = ask(f"{url}/api/view", Authorization=run.right).json["point"]
        assert point == {"step": 2_000, "values": {"agent_0/loss": None}}
        curves = ask(f"{url}/api/curves?measure=loss&measure=return&measure=none", Authorization=run.right).json
        assert curves["loss"] == {"agent_0": {"steps": [], "values": []}}
        assert curves["return"]["agent_1"] == {"steps": [1_000.0], "values": [11.0]}
        assert curves["none"] == {}
        assert yaml.safe_load(ask(f"{url}/api/config", Authorization=run.right).text)["steps"] == 1_000_000


@pytest.mark.parametrize("worker", ["../state", "", "a/b", "nobody"])
def test_only_logs_of_workers_are_shown(run_dir: Path, worker: str) -> None:
    with shown(run_dir) as (run, url):
        (run_dir / "state.log").write_text("secret")
        assert ask(f"{url}/api/log?worker={worker}", Authorization=run.right).status == 404


def test_a_long_log_is_shown_from_a_whole_line_on(run_dir: Path) -> None:
    with shown(run_dir) as (run, url):
        (run_dir / "logs").mkdir()
        (run_dir / "logs" / "actor-0.log").write_text("".join(f"line {i:06}\n" for i in range(20_000)))
        lines = ask(f"{url}/api/log?worker=actor-0", Authorization=run.right).text.splitlines()
    assert lines[-1] == "line 019999"
    assert lines[0].startswith("line 0")
    assert len(lines[0]) == 11


def test_who_acts_has_the_token(run_dir: Path) -> None:
    with shown(run_dir) as (run, url):
        path = run_dir / "token"
        token = path.read_text().strip()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert ask(f"{url}/api/stop", b"").status == 401
        assert ask(f"{url}/api/stop", b"", Authorization="Bearer wrong").status == 401
        assert not run.controls.stopping.is_set()
        cookie = ask(f"{url}/api/session", token.encode()).headers["Set-Cookie"]
        assert "; HttpOnly; SameSite=Strict; " in cookie
        mine = cookie.partition(";")[0]
        assert ask(f"{url}/api/stop", b"", Cookie=mine, Origin="http://elsewhere").status == 403
        assert ask(f"{url}/api/pause", b"", Cookie=mine, Origin=url).status == 200
        assert run.controls.paused
        assert ask(f"{url}/api/stop", b"", Authorization=f"Bearer {token}").status == 200
        assert run.controls.stopping.is_set()


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'{"words": "freeze", "by": ""}', b'{"words": [1], "by": ""}', b'{"words": []}', b"[" * 60_000],
)
def test_a_command_that_is_no_json_of_words_is_refused(run_dir: Path, body: bytes) -> None:
    with shown(run_dir) as (run, url):
        answer = ask(f"{url}/api/roster", body, Authorization=run.right)
        assert (answer.status, kinds_in(answer.text)) == (400, ["roster_request_malformed"])


def test_a_command_is_for_who_has_the_token_and_while_the_run_goes_on(run_dir: Path) -> None:
    with shown(run_dir) as (run, url):
        body = json.dumps({"words": ["freeze", "nobody"], "by": "me"}).encode()
        assert ask(f"{url}/api/roster", body).status == 401
        assert ask(f"{url}/api/roster", body, Origin="http://elsewhere", Cookie="rookery=1").status == 403
        assert ask(f"{url}/api/roster", b" " * 65_537, Authorization=run.right).status == 413
        assert kinds_in(ask(f"{url}/api/roster", body, Authorization=run.right).text) == ["roster_policy_unknown"]
        run.stage = "actors_draining"
        answer = ask(f"{url}/api/roster", body, Authorization=run.right)
        assert (answer.status, kinds_in(answer.text)) == (409, ["roster_run_is_ending"])
        told = ask(f"{url}/api/roster", Authorization=run.right).json
        assert told == {"commands": [], **NO_COMMANDS}


def test_nothing_is_told_without_the_token_on_loopback_either(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOKERY_TOKEN", "given")
    with shown(run_dir) as (_, url):
        for path in ("view", "curves", "config", "log?worker=actor-0", "events"):
            assert ask(f"{url}/api/{path}").status == 401
        assert ask(f"{url}/api/view", Authorization="Bearer given").status == 200
        assert ask(url).status == 200
        assert not (run_dir / "token").exists()


def test_an_empty_token_lets_nobody_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").touch()  # of a coordinator that was killed there
    (tmp_path / ".token").write_text("ha")  # of one that died while it wrote
    made = token_of(tmp_path)
    assert not (tmp_path / ".token").exists()
    assert len(made) == 32
    assert token_of(tmp_path) == made
    assert [path.name for path in tmp_path.iterdir()] == ["token"]
    monkeypatch.setenv("ROOKERY_TOKEN", " ")
    assert token_of(tmp_path) == made
    for strange in ("a;b", "a\nb", "ä"):
        monkeypatch.setenv("ROOKERY_TOKEN", strange)
        with raises(ConfigurationError, "token_malformed", variable="ROOKERY_TOKEN"):
            token_of(tmp_path)


def test_a_strange_name_that_leads_to_loopback_is_told_nothing(run_dir: Path) -> None:
    with shown(run_dir) as (_, url):
        assert ask(f"{url}/api/view", Host="evil.example").status == 403
        assert ask(f"{url}/api/view", Host="localhost:80").status == 401


def test_the_page_asks_nobody_else_for_anything(run_dir: Path) -> None:
    with shown(run_dir) as (_, url):
        for path in ("", "dashboard.css", "dashboard.js", "data_flow.js", "league.js", "curves.js"):
            answer = ask(f"{url}/{path}")
            assert answer.status == 200
            assert "://" not in answer.text
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert len(ask(f"{url}/plotly.min.js").body) > 1_000_000


def test_other_runs_are_those_that_the_folder_lists_and_nothing_else(tmp_path: Path) -> None:
    """Neither paths nor links lead anywhere, whatever lies there."""
    runs = tmp_path / "runs"
    for place in ("runs", "elsewhere"):
        (tmp_path / place).mkdir()
    left(tmp_path / "elsewhere" / "secret")
    with shown(runs / "mine") as (run, url):
        left(runs / "other", policies=2)
        left(runs / "begun", rows=0)
        os.utime(runs / "begun", (2e9, 2e9))  # the newest
        left(runs / "half")
        (runs / "half" / "metrics.jsonl").unlink()
        (runs / "half" / "metrics.jsonl").symlink_to(tmp_path / "elsewhere" / "secret" / "metrics.jsonl")
        (runs / "linked").symlink_to(tmp_path / "elsewhere" / "secret")
        assert ask(f"{url}/api/runs").status == 401
        assert ask(f"{url}/api/runs", Authorization=run.right).json == ["begun", "other"]
        told = ask(f"{url}/api/curves?run=other&measure=return", Authorization=run.right).json
        assert [*told["return"]] == ["other · p0", "other · p1"]
        for name in (
            *(
                "linked",
                "half",
                "mine",
                ".",
                "..",
                "%2e%2e",
                "..%2felsewhere%2fsecret",
                "other%2f",
                "other%2f.",
            ),
            *("other%2f..%2fother", quote(str(tmp_path / "elsewhere" / "secret"), safe=""), "other%00"),
        ):
            refused = ask(f"{url}/api/curves?run={name}&measure=return", Authorization=run.right)
            assert refused.status == 404, name
        with (runs / "other" / "metrics.jsonl").open("a") as lines:
            lines.write('\n{"agent_steps": 9000, "p0": {"return": 7.0}, "p1": {"return": 8.0}}\n')
        told = ask(f"{url}/api/curves?run=other&measure=return", Authorization=run.right).json
        assert told["return"]["other · p0"]["steps"][-1] == 9_000, "it is read again when it has grown"
