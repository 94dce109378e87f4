"""Alerts as Prometheus' own tool judges them, the page that says what to do at each, and the dashboard."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from launch.kubernetes.overlay import Placement
from protocol.config.run import parse_run
from tests.flows import runs
from tests.k8s.manifests import Built, named, pods
from tests.k8s.test_render import rendered
from tests.tools import ROOT, require
from workers.runtime.metric_names import FLOW, METRICS, RUN

HERE = Path(__file__).parent
PLACE = ROOT / "k8s" / "components" / "monitoring"
PAGE = (ROOT / "k8s" / "ALERTS.md").read_text()
RULES: list[dict[str, Any]] = yaml.safe_load((PLACE / "alerts.yaml").read_text())["spec"]["groups"][0]["rules"]
DASHBOARD: dict[str, Any] = json.loads((PLACE / "dashboard.json").read_text())
KNOWN = {metric.name for table in (METRICS, RUN, FLOW) for metric in table.values()}


def asked() -> Iterator[tuple[str, str]]:
    """(alert or panel, what it asks Prometheus)."""
    yield from ((rule["alert"], rule["expr"]) for rule in RULES)
    for panel in DASHBOARD["panels"]:
        yield from ((panel["title"], target["expr"]) for target in panel["targets"])


def promtool(*arguments: str, folder: Path) -> None:
    """Asserts that it finds nothing wrong."""
    command = [require("promtool"), *arguments]
    made = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert made.returncode == 0, made.stdout + made.stderr


def test_each_alert_is_told_when_it_should_be_and_at_no_other_time(built: Built, tmp_path: Path) -> None:
    rules = named(built["cpu"], "PrometheusRule", "rookery")["spec"]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    promtool("check", "rules", "--lint-fatal", "rules.yaml", folder=tmp_path)
    tests = yaml.safe_load((HERE / "alerts.test.yaml").read_text())
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(tests))
    promtool("test", "rules", "tests.yaml", folder=tmp_path)
    told = {case["alertname"] for test in tests["tests"] for case in test.get("alert_rule_test", [])
            if case["exp_alerts"]}  # fmt: skip
    assert told == {rule["alert"] for rule in RULES}


def test_each_alert_has_a_section_that_says_what_to_do() -> None:
    sections = re.findall(r"^## (\w+)$", PAGE, re.MULTILINE)
    assert sections == [rule["alert"] for rule in RULES]
    for rule in RULES:
        assert rule["annotations"]["runbook"] == f"k8s/ALERTS.md#{rule['alert'].lower()}"


def test_alerts_and_panels_ask_for_metrics_that_there_are_in_an_expression_that_is_one(tmp_path: Path) -> None:
    for who, expression in asked():
        names = set(re.findall(r"\b(?:rookery|process)_\w+", expression))
        assert names, who
        assert {name for name in names if name.startswith("rookery")} <= KNOWN, who
    records = [
        {"record": f"asked:{number}", "expr": re.sub(r"\$\w+", "5m", expression)}
        for number, (_, expression) in enumerate(asked())
    ]
    (tmp_path / "asked.yaml").write_text(yaml.safe_dump({"groups": [{"name": "asked", "rules": records}]}))
    promtool("check", "rules", "asked.yaml", folder=tmp_path)


def test_panels_have_numbers_words_and_room_of_their_own() -> None:
    panels = DASHBOARD["panels"]
    assert [panel["id"] for panel in panels] == list(range(1, len(panels) + 1))
    assert len({panel["title"] for panel in panels}) == len(panels)
    for panel in panels:
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["datasource"]["uid"] == "${datasource}"
        assert all(target["legendFormat"] for target in panel["targets"])
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        assert all('namespace="$namespace"' in target["expr"] for target in panel["targets"])
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
    for one, other in combinations((panel["gridPos"] for panel in panels), 2):
        apart = [one[at] + one[size] <= other[at] or other[at] + other[size] <= one[at]
                 for at, size in (("x", "w"), ("y", "h"))]  # fmt: skip
        assert any(apart), (one, other)
    assert (PLACE / "dashboard.json").read_text() == json.dumps(DASHBOARD, indent=1) + "\n"


def test_variables_of_the_dashboard_are_those_that_are_used() -> None:
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD))) - {"__rate_interval"}
    assert used == {variable["name"] for variable in DASHBOARD["templating"]["list"]}


def test_grafana_finds_the_dashboard(built: Built) -> None:
    config = named(built["cpu"], "ConfigMap", "dashboard")
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(config["data"]["rookery.json"]) == DASHBOARD


def test_prometheus_finds_every_worker_of_every_pod(k8s: Path) -> None:
    """As many as there may be in one, and the network lets it through."""
    placement = Placement("all", pods=1, actors_per_pod=8, components=("monitoring",))
    documents = rendered(k8s, "all", parse_run({"actors": 8, "evaluation": {"every_steps": 1000}}), placement)
    endpoints = named(documents, "PodMonitor", "rookery")["spec"]["podMetricsEndpoints"]
    let_in = named(documents, "NetworkPolicy", "to-metrics")["spec"]["ingress"][0]["ports"]
    containers = [one for template in pods(documents).values() for one in template["spec"]["containers"]]
    assert len(containers) == 3 + 8 + 1
    for container in containers:
        bind = int(container["args"][container["args"].index("--bind") + 1].rpartition(":")[2])
        (http,) = [port for port in container["ports"] if port["containerPort"] == bind + 9]
        assert http["name"] in {endpoint["port"] for endpoint in endpoints}
        assert {"port": http["containerPort"]} in let_in
        assert container["livenessProbe"]["httpGet"]["port"] == http["name"]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_real_prometheus_has_an_answer_for_each_panel_and_alert_while_a_run_goes_on(
    tmp_path: Path, free_port_block: int
) -> None:
    """Where there may be nothing to tell, as of what is dropped, the answer may be empty; no alert is told."""
    program = require("prometheus")
    with runs.training(runs.config(steps=10**9, actors=2, seconds=300), tmp_path):
        found = runs.until(
            lambda: len(places := served(tmp_path / "run")) == 4 + 1 and places, 120, "everybody serves metrics"
        )
        alerts = yaml.safe_load((PLACE / "alerts.yaml").read_text())["spec"]
        (tmp_path / "rules.yaml").write_text(yaml.safe_dump(alerts))
        targets = [{"targets": [place], "labels": {"namespace": "r", "pod": name}} for name, place in found.items()]
        jobs = [{"job_name": "rookery", "scrape_interval": "1s", "static_configs": targets}]
        settings = {"global": {"evaluation_interval": "1s"}, "rule_files": ["rules.yaml"], "scrape_configs": jobs}
        (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(settings))
        address = f"127.0.0.1:{free_port_block}"
        command = [program, "--config.file=prometheus.yml", "--storage.tsdb.path=data"]
        with runs.started([*command, f"--web.listen-address={address}"], tmp_path, "prometheus"):
            for title, expression in asked():
                if title not in ("Segments dropped", "Restarts", "Findings") and not title.startswith("Rookery"):
                    sought = expression.replace("$namespace", "r").replace("$__rate_interval", "20s")
                    runs.until(partial(told, address, sought), 60, title)
            rules = answered(address, "rules")["groups"][0]["rules"]
            assert {(rule["name"], rule["health"], rule["state"]) for rule in rules} == {
                (rule["alert"], "ok", "inactive") for rule in RULES
            }


def served(folder: Path) -> dict[str, str]:
    """Worker -> where it told to answer by HTTP."""
    texts = [*folder.glob("logs/*.out"), *folder.glob("coordinator.json")]
    said = {path.stem: re.findall(r"\bhttp\S* \S*http://([\d.:]+)", path.read_text()) for path in texts}
    return {name: places[-1] for name, places in said.items() if places}


def told(address: str, expression: str) -> bool:
    return bool(answered(address, "query", query=expression)["result"])


def answered(address: str, what: str, **asked: str) -> Any:
    """What Prometheus' API answers; {"result": []} before it does."""
    try:
        with urllib.request.urlopen(f"http://{address}/api/v1/{what}?{urllib.parse.urlencode(asked)}") as answer:
            return json.load(answer)["data"]
    except urllib.error.URLError:
        return {"result": []}
