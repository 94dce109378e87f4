"""`rookery k8s render`: what it makes is built, has the places of the configuration, and gives it back unchanged."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from launch.cli.main import main
from launch.config_loader import load
from launch.kubernetes.overlay import Placement, render, write
from launch.run_plan import ResourcePlan
from protocol.config.run import Run, parse_run
from protocol.errors import ConfigurationError
from tests.faults import kinds_in, raises
from tests.k8s.manifests import CUSTOM, Built, build, jobs, named, pods, unrestricted, validate

SMALL = ResourcePlan(["a", "b", "c"], ["learner-a", "learner-b", "learner-c"], 2**20, 2**20)
RANKS = {"actors": 4, "policies": {"a": {"ranks": 3}}}
EXTERNAL = {"id": "external", "settings": {"world": "gymnasium:CartPole-v1"}}


def rendered(
    k8s: Path, name: str, run: Run, placement: Placement, outline: ResourcePlan = SMALL
) -> list[dict[str, Any]]:
    """The documents of an overlay made for `run`."""
    folder = k8s / "overlays" / name
    shutil.rmtree(folder, ignore_errors=True)
    write(render(run, outline, placement, "../.."), folder)
    try:
        documents = build(folder)
    finally:
        shutil.rmtree(folder)
    for document in documents:
        for known in jobs(document) if document["kind"] == "JobSet" else [document]:
            if known["kind"] not in CUSTOM:
                validate(known, "1.32.0")
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
    first = texts(folder)
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
    assert texts(folder) == first
    shutil.rmtree(folder)


def texts(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*.yaml")}


@pytest.mark.parametrize("overlay", ["cpu", "gpu", "finite", "relayed", "wide"])
def test_what_is_rendered_is_what_an_overlay_of_the_same_parts_makes(k8s: Path, built: Built, overlay: str) -> None:
    """Document by document, for the base's own configuration: only its text may be another, and with it its hash."""
    places = {("overlays", overlay), ("tests", overlay)}
    (file,) = [path for path in k8s.rglob("kustomization.yaml") if path.parts[-3:-1] in places]
    listed = yaml.safe_load(file.read_text())
    images = {one["name"]: f"{one['newName']}:{one['newTag']}" for one in listed.get("images", [])}
    plain = Placement("first", components=tuple(Path(part).name for part in listed["components"]))
    image, cuda_image = images.get("rookery", plain.image), images.get("rookery-cuda", plain.cuda_image)
    placement = replace(plain, image=image, cuda_image=cuda_image)
    outline = ResourcePlan(["a", "b"], ["learner-a", "learner-b"], 2**20, 2**20)
    made = rendered(k8s, "same", load(str(k8s / "base" / "run.yaml")), placement, outline)
    assert _comparable(made) == _comparable(built[overlay])


def _comparable(documents: list[dict[str, Any]]) -> dict[tuple[str, str], Any]:
    config = named(documents, "ConfigMap", "run")
    run = parse_run(yaml.safe_load(config["data"]["run.yaml"]))
    text = json.dumps([document for document in documents if document is not config])
    others = json.loads(text.replace(config["metadata"]["name"], "run-hash"))
    found = {(document["kind"], document["metadata"]["name"]): document for document in others}
    return {**found, ("ConfigMap", "run"): (run, config["data"]["RUN"])}


def test_no_socket_is_without_keys_unless_somebody_says_so_and_then_the_manifests_do(k8s: Path) -> None:
    """Ranks alone cannot have keys: without a word on them they are refused; `--insecure` and the network that lets
    learners through come from one component."""
    outline = ResourcePlan(["a"], ["learner-a-0", "learner-a-1", "learner-a-2"], 2**20, 2**20)
    with raises(ConfigurationError, "ranks_without_keys", policy="a", key="--with insecure-ranks"):
        render(parse_run(RANKS), outline, Placement("a"), "../..")
    trusted = rendered(k8s, "trusted", parse_run(RANKS), Placement("a", components=("insecure-ranks",)), outline)
    for documents, insecure in (
        (trusted, ["learner"]),
        (rendered(k8s, "plain", parse_run({"actors": 4}), Placement("a")), []),
    ):
        told = {name: template["spec"]["containers"] for name, template in pods(documents).items()}
        assert [name for name, (container,) in told.items() if "--insecure" in container["args"]] == insecure
    said = "RANKS OF ONE POLICY TALK WITHOUT KEYS"
    assert pods(trusted)["learner"]["metadata"]["annotations"] == {"rookery/insecure": said}
    assert named(trusted, "NetworkPolicy", "between-learners")["metadata"]["annotations"] == {"rookery/insecure": said}


def test_several_actors_in_a_pod_have_a_relay_and_share_its_memory(k8s: Path) -> None:
    placement = Placement("relayed", pods=2, actors_per_pod=3, components=("gpu", "keda"))
    documents = rendered(k8s, "relayed", parse_run({"actors": 12}), placement)
    pod = pods(documents)["actor"]["spec"]
    containers = {container["name"]: container for container in pod["containers"]}
    assert sorted(containers) == ["actor-1", "actor-2", "relay", "worker"]
    assert len({_port(container) for container in containers.values()}) == 4
    for container in containers.values():
        assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]
        assert container["envFrom"] == containers["worker"]["envFrom"]
        assert container["image"] == containers["worker"]["image"]
    assert pods(documents)["learner"]["spec"]["containers"][0]["image"] == "rookery:0.1.0-cuda"
    secrets = secrets_of(pod)
    known = {document["metadata"]["name"] for document in documents if document["kind"] == "Secret"}
    assert len(secrets) == 2
    assert set(secrets) <= known
    assert named(documents, "ScaledObject", "actor")["spec"]["maxReplicaCount"] == 4
    assert "replicas" not in named(documents, "Deployment", "actor")["spec"], "which are KEDA's alone"


def secrets_of(pod: dict[str, Any]) -> list[str]:
    (sources,) = [volume["projected"]["sources"] for volume in pod["volumes"] if "projected" in volume]
    return [source["secret"]["name"] for source in sources if "secret" in source]


def _port(container: dict[str, Any]) -> str:
    return str(container["args"][container["args"].index("--bind") + 1])


def test_simulators_stand_beside_their_actor(k8s: Path) -> None:
    run = parse_run({"environment": EXTERNAL, "actors": 2})
    documents = rendered(k8s, "outside", run, Placement("outside", pods=2, simulator="game:1"))
    actor, simulator = pods(documents)["actor"]["spec"]["containers"]
    assert simulator["image"] == "game:1"
    port = _port(actor).rpartition(":")[2]
    assert {"name": "ROOKERY_SIMULATORS", "value": f"tcp://127.0.0.1:{port}"} in simulator["env"]
    assert len(secrets_of(pods(documents)["actor"]["spec"])) == 2


def test_each_of_several_actors_in_a_pod_has_a_simulator_of_its_own(k8s: Path) -> None:
    run = parse_run({"environment": EXTERNAL, "actors": 2})
    placement = Placement("outside", pods=1, actors_per_pod=2, simulator="game:1")
    spec = pods(rendered(k8s, "outside", run, placement))["actor"]["spec"]
    containers = {container.pop("name"): container for container in spec["containers"]}
    ports = {_port(containers[name]).rpartition(":")[2] for name in ("worker", "actor-1")}
    played = [containers[name].pop("env")[0]["value"] for name in ("simulator", "simulator-1")]
    assert set(played) == {f"tcp://127.0.0.1:{port}" for port in ports}
    assert containers["simulator"] == containers["simulator-1"]
    assert len(secrets_of(spec)) == 3


def test_a_run_that_ends_is_a_jobset_with_the_pods_of_one_that_stays(k8s: Path) -> None:
    """Its evaluation, its sizes, its ranks, which reach each other and nobody else: all is as without jobset, in jobs
    that end with the coordinator."""
    run = parse_run({**RANKS, "learner_timeout": 60, "evaluation": {"every_steps": 1000}})
    outline = ResourcePlan(["a"], ["learner-a-0", "learner-a-1", "learner-a-2"], 2**30, 4 * 2**30)
    some = ("shared-volume", "gpu", "spot", "insecure-ranks")
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
    assert {container["name"] for container in pod["containers"]} == {"worker", "actor-1", "relay"}
    known = {document["metadata"]["name"] for document in documents if document["kind"] == "Secret"}
    assert len(secrets_of(pod)) == 2
    assert {*secrets_of(pod)} <= known


def test_an_evaluation_has_a_pod_beside_the_coordinator_with_the_run_and_keys_of_its_own(k8s: Path) -> None:
    run = parse_run({"actors": 4, "evaluation": {"every_steps": 1000}})
    documents = rendered(k8s, "watched", run, Placement("watched"))
    template = pods(documents)["evaluator"]
    container, coordinator = template["spec"]["containers"][0], pods(documents)["coordinator"]
    assert container["args"][0] == "evaluator"
    assert container["image"] == coordinator["spec"]["containers"][0]["image"]
    assert {"name": "runs", "mountPath": "/runs"} in container["volumeMounts"]
    assert template["metadata"]["labels"]["rookery/volume"] == coordinator["metadata"]["labels"]["rookery/volume"]
    (name,) = secrets_of(template["spec"])
    assert name.rpartition("-")[0] == "keys-evaluator", "hashed, so generated"
    assert named(documents, "Deployment", "evaluator")["spec"]["replicas"] == 1
    policy = named(documents, "NetworkPolicy", "to-learners")["spec"]["ingress"][0]["from"][0]["podSelector"]
    assert template["metadata"]["labels"]["app.kubernetes.io/component"] in policy["matchExpressions"][0]["values"]


def test_much_memory_and_a_long_drain_are_given_room(k8s: Path) -> None:
    run = parse_run({"actors": 4, "learner_timeout": 60})
    outline = ResourcePlan(["a"], ["learner-a"], actor_memory=2**30, learner_memory=4 * 2**30)
    documents = rendered(k8s, "large", run, Placement("large"), outline)
    templates = pods(documents)
    assert named(documents, "Deployment", "evaluator")["spec"]["replicas"] == 0, "as nobody evaluates"
    sizes = {name: template["spec"]["volumes"] for name, template in templates.items()}
    assert next(v for v in sizes["learner"] if v["name"] == "shm")["emptyDir"]["sizeLimit"] == "5200Mi"
    assert next(v for v in sizes["actor"] if v["name"] == "shm")["emptyDir"]["sizeLimit"] == "1280Mi"
    assert templates["actor"]["spec"]["containers"][0]["resources"]["limits"]["memory"] == "2304Mi"
    assert templates["actor"]["spec"]["terminationGracePeriodSeconds"] == 65


def test_actors_of_a_pod_share_its_memory_and_each_is_charged_with_its_own(k8s: Path) -> None:
    outline = ResourcePlan(["a"], ["learner-a"], actor_memory=2**30, learner_memory=2**20)
    placement = Placement("shared", pods=2, actors_per_pod=2)
    spec = pods(rendered(k8s, "shared", parse_run({"actors": 4}), placement, outline))["actor"]["spec"]
    assert next(v for v in spec["volumes"] if v["name"] == "shm")["emptyDir"]["sizeLimit"] == "2560Mi"
    limits = {one["name"]: one["resources"]["limits"]["memory"] for one in spec["containers"]}
    assert limits == {"worker": "2304Mi", "actor-1": "2304Mi", "relay": "1Gi"}


@pytest.mark.parametrize(
    ("run", "placement", "kind", "facts"),
    [
        ({"actors": 3}, Placement("a", pods=4), "too_many_actors", {"count": 4, "limit": 3}),
        ({"actors": 9, "transport": "memory"}, Placement("a"), "memory_transport_in_pod", {"key": "transport"}),
        ({"actors": 9}, Placement("Not this"), "kubernetes_name_invalid", {"option": "--name", "value": "Not this"}),
        ({"actors": 9}, Placement("a", simulator="game:1"), "simulator_not_needed", {}),
        ({"actors": 9}, Placement("a", components=("simulator",)), "simulator_not_needed", {}),
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
    monkeypatch.setattr("launch.cluster.k8s.outline_of", lambda run: SMALL)
    refused = CliRunner().invoke(main, ["k8s", "render", "--k8s", str(k8s), "--name", "local", "--actors", "1"])
    assert refused.exit_code == 2
    assert kinds_in(refused.output) == ["file_not_generated"]
    refused = CliRunner().invoke(main, ["k8s", "render", "--k8s", str(k8s), "--with", "cheese"])
    assert kinds_in(refused.output) == ["kubernetes_component_unknown"]
    assert "'cheese'" in refused.output
