"""`rookery k8s render`: what it makes is built, has the places of the configuration, and gives it back unchanged."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from launch.cli.main import main
from launch.config_loader import load
from launch.kubernetes.overlay import Placement, render
from launch.run_plan import ResourcePlan
from protocol.config.run import Run, parse_run
from protocol.errors import ConfigurationError
from tests.faults import kinds_in, raises
from tests.k8s.manifests import CUSTOM, build, jobs, named, pods, unrestricted

SMALL = ResourcePlan(["a", "b", "c"], ["learner-a", "learner-b", "learner-c"], 2**20, 2**20)
RANKS = {"actors": 4, "policies": {"a": {"ranks": 3}}}
EXTERNAL = {"id": "external", "settings": {"world": "gymnasium:CartPole-v1"}}


def rendered(
    k8s: Path, name: str, run: Run, placement: Placement, outline: ResourcePlan = SMALL
) -> list[dict[str, Any]]:
    """The documents of an overlay made for `run`."""
    folder = k8s / "overlays" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for file, text in render(run, outline, placement, "../..").items():
        (folder / file).write_text(text)
    try:
        documents = build(folder)
    finally:
        shutil.rmtree(folder)
    for document in documents:
        for known in jobs(document) if document["kind"] == "JobSet" else [document]:
            if known["kind"] not in CUSTOM:
                kubernetes_validate.validate(known, "1.32.0", strict=True)
    for name, template in pods(documents).items():
        assert list(unrestricted(template["spec"])) == [], name
    return documents


def test_the_command_makes_an_overlay_that_holds_the_configuration_and_a_learner_for_each_policy(k8s: Path) -> None:
    """The run that the coordinator reads is the run that was rendered, key by key; rendered again it is the same."""
    folder = k8s / "overlays" / "mine"
    arguments = ["k8s", "render", "spread", "--set", "actors=12", "--set", "policy.learning_rate=0.002"]
    arguments += ["--name", "mine", "--namespace", "mine", "--image", "registry.example:5000/rookery:7"]
    arguments += ["--actors", "3", "--k8s", str(k8s)]
    made = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert made.exit_code == 0, made.output
    assert made.output == f"wrote {folder}; kubectl apply -k {folder}\n"
    documents = build(folder)
    first = {path.name: path.read_text() for path in folder.iterdir()}
    run = load("spread", ["actors=12", "policy.learning_rate=0.002"])
    config = named(documents, "ConfigMap", "run")["data"]
    assert parse_run(yaml.safe_load(config["run.yaml"])) == run
    assert config["RUN"] == "mine"
    assert named(documents, "StatefulSet", "learner")["spec"]["replicas"] == 3
    assert named(documents, "Deployment", "actor")["spec"]["replicas"] == 3
    images = {pod["spec"]["containers"][0]["image"] for pod in pods(documents).values()}
    assert images == {"registry.example:5000/rookery:7"}
    assert {document["metadata"].get("namespace", "mine") for document in documents} == {"mine"}
    arguments[2] = str(folder / "run.yaml")
    assert CliRunner().invoke(main, arguments, catch_exceptions=False).exit_code == 0
    assert {path.name: path.read_text() for path in folder.iterdir()} == first
    shutil.rmtree(folder)


def test_an_overlay_with_sockets_without_keys_says_so(k8s: Path) -> None:
    arguments = ["k8s", "render", "treasure-hunt", "--name", "ranks", "--k8s", str(k8s)]
    made = CliRunner().invoke(
        main, [*arguments, "--set", "policy.ranks=2", "--set", "actors=2"], catch_exceptions=False
    )
    assert made.exit_code == 0, made.output
    (said,) = [line for line in made.output.splitlines() if "--insecure" in line]
    assert "WITHOUT KEYS" in said
    shutil.rmtree(k8s / "overlays" / "ranks")


def test_several_actors_in_a_pod_have_a_relay_and_share_its_memory(k8s: Path) -> None:
    placement = Placement("relayed", pods=2, actors_per_pod=3, components=("gpu", "keda"))
    documents = rendered(k8s, "relayed", parse_run({"actors": 12}), placement)
    pod = pods(documents)["actor"]["spec"]
    containers = {container["name"]: container for container in pod["containers"]}
    assert list(containers) == ["actor", "actor-1", "actor-2", "relay"]
    assert len({_port(container) for container in containers.values()}) == 4
    for container in containers.values():
        assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]
        assert container["envFrom"] == containers["actor"]["envFrom"]
        assert container["image"] == containers["actor"]["image"]
    assert pods(documents)["learner"]["spec"]["containers"][0]["image"] == "rookery:0.1.0-cuda"
    secrets = [source["secret"]["name"] for source in pod["volumes"][0]["projected"]["sources"] if "secret" in source]
    known = {document["metadata"]["name"] for document in documents if document["kind"] == "Secret"}
    assert len(secrets) == 2
    assert set(secrets) <= known
    assert named(documents, "ScaledObject", "actor")["spec"]["maxReplicaCount"] == 4


def _port(container: dict[str, Any]) -> str:
    return str(container["args"][container["args"].index("--bind") + 1])


def test_simulators_stand_beside_their_actor(k8s: Path) -> None:
    run = parse_run({"environment": EXTERNAL, "actors": 2})
    documents = rendered(k8s, "outside", run, Placement("outside", pods=2, simulator="game:1"))
    actor, simulator = pods(documents)["actor"]["spec"]["containers"]
    assert simulator["image"] == "game:1"
    port = _port(actor).rpartition(":")[2]
    assert {"name": "ROOKERY_SIMULATORS", "value": f"tcp://127.0.0.1:{port}"} in simulator["env"]


def test_a_run_that_ends_is_a_jobset_with_the_pods_of_one_that_stays(k8s: Path) -> None:
    """Its evaluation, its sizes, its ranks, which reach each other and nobody else: all is as without jobset, in jobs
    that end with the coordinator."""
    run = parse_run({**RANKS, "learner_timeout": 60, "evaluation": {"every_steps": 1000}})
    outline = ResourcePlan(["a"], ["learner-a-0", "learner-a-1", "learner-a-2"], 2**30, 4 * 2**30)
    some = ("gpu", "spot", "shared-volume")
    stays = rendered(k8s, "stays", run, Placement("ends", pods=2, components=some), outline)
    ends = rendered(k8s, "ends", run, Placement("ends", pods=2, components=(*some, "jobset", "kueue")), outline)
    assert named(stays, "StatefulSet", "learner")["spec"]["replicas"] == 3
    allowed = named(stays, "NetworkPolicy", "between-learners")["spec"]
    only = [{"podSelector": {"matchLabels": {"app.kubernetes.io/component": "learner"}}}]
    assert allowed["ingress"] == [{"from": only}]
    assert allowed["egress"] == [{"to": only}]
    assert allowed["podSelector"] == only[0]["podSelector"]
    assert {document["kind"] for document in ends}.isdisjoint({"Deployment", "StatefulSet"})
    named(ends, "NetworkPolicy", "between-learners")
    specs = {job["metadata"]["name"]: job["spec"] for job in jobs(named(ends, "JobSet", "run"))}
    counts = {name: (spec["parallelism"], spec["completions"]) for name, spec in specs.items()}
    assert counts == {"coordinator": (1, 1), "learner": (3, 3), "actor": (2, 2), "evaluator": (1, 1)}
    (learner,) = specs["learner"]["template"]["spec"]["containers"]
    assert learner["args"][-1] == "--insecure"
    assert "run-learner-0-$(INDEX).learner" in learner["args"], "by which the others find the first rank"
    for name, template in pods(stays).items():
        one, other = template["spec"], specs[name]["template"]["spec"]
        assert other.pop("restartPolicy") == "OnFailure"
        for spec in (one, other):
            (container,) = spec["containers"]
            spec.pop("subdomain", None)
            container["args"] = {word for word in container["args"] if "$(" not in word} - {"--until-end"}
            container["env"] = [given for given in container["env"] if "fieldRef" not in given.get("valueFrom", {})]
        assert other == one, "sizes, names with hashes, images, priorities, places"


def test_several_actors_in_a_pod_of_a_jobset_have_their_relay(k8s: Path) -> None:
    placement = Placement("relayed", pods=2, actors_per_pod=2, components=("jobset",))
    documents = rendered(k8s, "relayed", parse_run({"actors": 12}), placement)
    pod = pods(documents)["actor"]["spec"]
    assert [container["name"] for container in pod["containers"]] == ["actor", "actor-1", "relay"]
    known = {document["metadata"]["name"] for document in documents if document["kind"] == "Secret"}
    sources = pod["volumes"][0]["projected"]["sources"]
    assert {source["secret"]["name"] for source in sources if "secret" in source} <= known


def test_an_evaluation_has_a_pod_beside_the_coordinator_with_the_run_and_keys_of_its_own(k8s: Path) -> None:
    run = parse_run({"actors": 4, "evaluation": {"every_steps": 1000}})
    documents = rendered(k8s, "watched", run, Placement("watched"))
    template = pods(documents)["evaluator"]
    container, coordinator = template["spec"]["containers"][0], pods(documents)["coordinator"]
    assert container["args"][0] == "evaluator"
    assert container["image"] == coordinator["spec"]["containers"][0]["image"]
    assert {"name": "runs", "mountPath": "/runs"} in container["volumeMounts"]
    assert template["metadata"]["labels"]["rookery/volume"] == coordinator["metadata"]["labels"]["rookery/volume"]
    sources = template["spec"]["volumes"][0]["projected"]["sources"]
    names = [source[kind]["name"] for source in sources for kind in source]
    assert [name.rpartition("-")[0] for name in names] == ["keys-public", "keys-evaluator"], "hashed, so generated"
    policy = named(documents, "NetworkPolicy", "to-learners")["spec"]["ingress"][0]["from"][0]["podSelector"]
    assert template["metadata"]["labels"]["app.kubernetes.io/component"] in policy["matchExpressions"][0]["values"]


def test_much_memory_and_a_long_drain_are_given_room(k8s: Path) -> None:
    run = parse_run({"actors": 4, "learner_timeout": 60})
    outline = ResourcePlan(["a"], ["learner-a"], actor_memory=2**30, learner_memory=4 * 2**30)
    templates = pods(rendered(k8s, "large", run, Placement("large"), outline))
    assert "evaluator" not in templates, "as nobody evaluates"
    sizes = {name: template["spec"]["volumes"] for name, template in templates.items()}
    assert next(v for v in sizes["learner"] if v["name"] == "shm")["emptyDir"]["sizeLimit"] == "5200Mi"
    assert next(v for v in sizes["actor"] if v["name"] == "shm")["emptyDir"]["sizeLimit"] == "1280Mi"
    assert templates["actor"]["spec"]["containers"][0]["resources"]["limits"]["memory"] == "2304Mi"
    assert templates["actor"]["spec"]["terminationGracePeriodSeconds"] == 65


@pytest.mark.parametrize(
    ("run", "placement", "kind", "facts"),
    [
        ({"actors": 3}, Placement("a", pods=4), "too_many_actors", {"count": 4, "limit": 3}),
        ({"actors": 9, "transport": "memory"}, Placement("a"), "memory_transport_in_pod", {"key": "transport"}),
        ({"actors": 9}, Placement("Not this"), "kubernetes_name_invalid", {"option": "--name", "value": "Not this"}),
        ({"actors": 9}, Placement("a", simulator="game:1"), "simulator_not_needed", {}),
        ({"actors": 9, "environment": EXTERNAL}, Placement("a"), "simulator_missing", {}),
        ({"actors": 9}, Placement("a", components=("jobset", "keda")), "keda_with_jobset", {}),
        ({"actors": 9}, Placement("a", image="rookery"), "image_without_tag", {"value": "rookery"}),
        (RANKS, Placement("a", pods=2, actors_per_pod=2), "ranks_behind_relay", {"policy": "a"}),
    ],
)
def test_what_cannot_be_placed_is_refused_in_one_sentence(
    run: dict[str, Any], placement: Placement, kind: str, facts: dict[str, Any]
) -> None:
    with raises(ConfigurationError, kind, **facts):
        render(parse_run(run), SMALL, placement, "../..")


def test_hooks_of_a_run_have_no_pod_and_are_refused() -> None:
    with raises(ConfigurationError, "hook_of_run_in_pods", key="hooks"):
        render(parse_run({"actors": 4}), replace(SMALL, run_hooks=True), Placement("a"), "../..")


def test_files_of_others_are_not_overwritten_and_unknown_components_named(
    k8s: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch.cli.k8s.outline_of", lambda run: SMALL)
    refused = CliRunner().invoke(main, ["k8s", "render", "--k8s", str(k8s), "--name", "local", "--actors", "1"])
    assert refused.exit_code == 2
    assert kinds_in(refused.output) == ["file_not_generated"]
    refused = CliRunner().invoke(main, ["k8s", "render", "--k8s", str(k8s), "--with", "cheese"])
    assert kinds_in(refused.output) == ["kubernetes_component_unknown"]
    assert "'cheese'" in refused.output
