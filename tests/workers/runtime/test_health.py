"""Probes and metrics of one worker."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from protocol.memory.shared_file import Counters
from tests.faults import kinds_in
from tests.tools import ROOT, require
from tests.workers.coordination.dashboard.asking import Answer, ask, serving
from workers import relay
from workers.coordination.dashboard.run_exposition import render_run_metrics
from workers.learning.report import LearnerReport
from workers.rollout.report import ActorReport
from workers.runtime import health as module
from workers.runtime.health import Health, Usage
from workers.runtime.metric_names import FLOW, METRICS, RUN, Identity, parse_counter_name
from workers.runtime.process import Options, WorkerProcess
from workers.runtime.prometheus import families, family, info, text

PAGE = ROOT / "launch" / "docs" / "reference" / "metrics.md"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What it is by the worker's clock."""
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def member(heard_at: float = 1000.0) -> Any:
    """A client that has joined."""
    return SimpleNamespace(heard_at=heard_at, welcome=SimpleNamespace(lease=10.0))


def test_a_process_tells_what_it_takes_and_makes_since_the_last_look(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    used = [3.0]
    monkeypatch.setattr(module.time, "process_time", lambda: used[0])
    usage = Usage(clock[0], used[0])
    clock[0], used[0] = 1002.0, 4.0
    first = usage.look({"agent_steps": 100.0, "env_steps": 50.0})
    assert (first["cores"], first["per_second"]) == (0.5, 50.0)
    assert 10 < first["mebibytes"] < 100_000
    clock[0] = 1002.1
    assert usage.look({"agent_steps": 900.0}) == first, "too soon to mean anything"
    clock[0], used[0] = 1004.0, 8.0
    again = usage.look({"agent_steps": 300.0})
    assert (again["cores"], again["per_second"]) == (2.0, 100.0)


@pytest.mark.parametrize(
    ("counters", "made"),
    [({"rows_trained.a": 6.0, "rows_trained.b": 2.0, "rows_read.a": 9.0}, 4.0), ({"relayed.a": 6.0}, None)],
)
def test_a_learner_makes_rows_and_a_relay_nothing(
    clock: list[float], counters: dict[str, float], made: float | None
) -> None:
    usage = Usage(clock[0])
    clock[0] += 2.0
    assert usage.look(counters).get("per_second") == made


def metrics(answer: Answer) -> dict[tuple[str, ...], float]:
    """(name, label values by label name) -> value, read by Prometheus' own parser."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_a_loop_that_turns_no_more_is_not_well_and_a_dead_dependency_is_no_fault_of_it(clock: list[float]) -> None:
    vitals = Health(Identity("r", "actor", "actor-0", 1), client=member())
    vitals.bind(lambda: "acting", None)
    with serving(vitals.routes()) as url:
        clock[0] += 1000  # no loop yet, and the coordinator was not heard of for long
        assert ask(f"{url}/healthz").status == 200
        vitals.tick()
        assert ask(f"{url}/healthz").json["state"] == "acting"
        clock[0] += 61
        assert ask(f"{url}/healthz").status == 503
        vitals.tick()
        assert ask(f"{url}/healthz").status == 200
        clock[0] += 61
        vitals.idle()  # the loop has ended: it drains
        assert ask(f"{url}/healthz").status == 200


@pytest.mark.parametrize(
    ("state", "silent", "ready"),
    [("acting", 0.0, True), ("learning", 9.0, True), ("waiting", 0.0, False), ("acting", 11.0, False)],
)
def test_who_is_connected_and_has_weights_is_ready(clock: list[float], state: str, silent: float, ready: bool) -> None:
    vitals = Health(client=member())
    vitals.bind(lambda: state, None)
    clock[0] += silent
    with serving(vitals.routes()) as url:
        assert (ask(f"{url}/readyz").status == 200) is ready
    vitals.client = SimpleNamespace()  # type: ignore[assignment]  # has not joined
    assert vitals.connected is False


def test_every_counter_has_a_metric_and_its_value_is_told() -> None:
    policies, members = ["a.b", "c"], ["m1"]
    reports = [*ActorReport.names(policies, members, ["rooms"], ["f"]), *LearnerReport.names(policies)]
    names = dict.fromkeys(name for report in [*reports, relay._names(policies)] for name in report)
    told = {name: float(i) for i, name in enumerate(names)}
    counters = Counters(None, list(told))
    for name, value in told.items():
        counters.set(name, value)
    vitals = Health(Identity("r", "learner", "learner-c", 2))
    vitals.bind(lambda: "learning", counters, lambda: {"adopted.c": 7, "adoption_lag.a.b": 3})
    vitals.refusals.tell("http_refused", "no_place", "too many ask", peer="here")
    with serving(vitals.routes()) as url:
        found = metrics(ask(f"{url}/metrics"))
    assert found["rookery_env_steps_total",] == told["env_steps"]
    assert found["rookery_segments_produced_total", "a.b"] == told["produced.a.b"]
    assert found["rookery_segments_dropped_total", "stale", "c"] == told["dropped.stale.c"]
    assert found["rookery_wait_seconds_total", "data", "a.b"] == told["waits.data.a.b"]
    assert found["rookery_member_episodes_total", "m1", "f"] == told["episodes.f/m1"]
    assert found["rookery_environment_total", "rooms"] == told["rooms"]
    assert found["rookery_refusals_total", "http_refused", "no_place"] == 1
    assert (found["rookery_adopted_version", "c"], found["rookery_adoption_lag", "a.b"]) == (7, 3)
    assert [name for name in told if parse_counter_name(name)[0] == "environment"] == ["rooms"]
    assert len([name for name in found if name[0].startswith("rookery_")]) == len(told) + 6


def test_a_process_that_answers_is_one_that_has_not_joined_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Answer] = []

    def body(life: WorkerProcess) -> None:
        http = life._http
        assert http is not None
        url = "http://{}:{}".format(*http._server.server_address[:2])
        said.extend(ask(f"{url}/{path}") for path in ("healthz", "readyz", "metrics"))

    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert WorkerProcess("actor", Options("tcp://127.0.0.1:1", "", "127.0.0.1:0", "", False, 0.2)).run(body) == 0
    assert [answer.status for answer in said] == [200, 503, 200]
    assert metrics(said[2])["rookery_connected",] == 0


def test_nobody_is_told_over_the_network_without_keys_or_consent(capsys: pytest.CaptureFixture[str]) -> None:
    options = Options("tcp://127.0.0.1:1", "", "0.0.0.0:0", "", False, 0.2)
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        assert WorkerProcess("actor", options).run(lambda _: None) == 2
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
    assert kinds_in(capsys.readouterr().err) == ["bind_without_keys"]


def rows() -> Iterator[str]:
    """Of the tables in the documentation."""
    for table in (METRICS, RUN, FLOW):
        for metric in table.values():
            labels = ", ".join(f"`{label}`" for label in metric.labels)
            yield f"| `{metric.name}` | {metric.kind} | {labels} | {metric.says} |"


def test_the_documentation_names_every_metric() -> None:
    missing = [row for row in rows() if row not in PAGE.read_text().splitlines()]
    assert missing == []


def test_names_of_metrics_are_what_prometheus_recommends() -> None:
    tables = (metric for table in (METRICS, RUN, FLOW) for metric in table.values())
    found = [family(metric, [(["x"] * len(metric.labels), 1.0)]) for metric in tables]
    body = text([info(Identity("r", "actor", "a", 1)), *found]).body
    assert isinstance(body, bytes)
    command = [require("promtool"), "check", "metrics"]
    checked = subprocess.run(command, input=body, capture_output=True, timeout=60, check=False)
    assert (checked.returncode, checked.stderr) == (0, b"")


def test_moments_are_told_in_seconds() -> None:
    (told,) = families({"first_step_hours": 2.5})
    assert [(sample.name, sample.value) for sample in told.samples] == [
        ("rookery_first_step_timestamp_seconds", 2.5 * 3600)
    ]


def test_the_coordinator_tells_of_a_run_that_has_not_begun() -> None:
    text = render_run_metrics(Identity("r", "coordinator", "coordinator", 1), {}, 0.5, {}).body
    assert isinstance(text, bytes)
    assert b"rookery_loop_silent_seconds 0.5" in text
