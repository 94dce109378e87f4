"""k8s/: every overlay and component is what Kubernetes accepts, and says what the workers need. No cluster is used."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from launch.config_loader import load
from protocol import RELEASE
from protocol.transport.curve import ROLES
from tests.k8s.manifests import CUSTOM, Built, jobs, named, pods, unrestricted, validate


def different(built: Built) -> list[tuple[str, dict[str, Any]]]:
    """(overlay, document), each once that is the same in several, with the jobs of a JobSet as jobs."""
    found = [(overlay, document) for overlay, documents in built.items() for document in documents]
    inner = [(overlay, job) for overlay, document in found if document["kind"] == "JobSet" for job in jobs(document)]
    return list(
        {json.dumps(document, sort_keys=True): (overlay, document) for overlay, document in [*found, *inner]}.values()
    )


def test_every_component_is_part_of_what_is_built(k8s: Path, built: Built) -> None:
    used = {part for folder in k8s.rglob("kustomization.yaml") for part in _components(folder)}
    assert used - {"copy"} == {folder.name for folder in (k8s / "components").iterdir()}


def _components(kustomization: Path) -> list[str]:
    return [Path(part).name for part in yaml.safe_load(kustomization.read_text()).get("components", [])]


def test_everything_is_in_the_namespace_of_the_run(built: Built) -> None:
    for overlay, document in different(built):
        if document["kind"] not in ("Namespace", "PriorityClass", "Job"):
            assert document["metadata"]["namespace"] == "rookery", f"{overlay}: {document['kind']}"


@pytest.mark.parametrize("minor", [*range(29, 35), 37])
def test_every_document_fits_the_strict_schema(built: Built, minor: int) -> None:
    """Strict: an unknown field is an error, as is a kind that this Kubernetes does not have."""
    for overlay, document in different(built):
        if document["kind"] not in CUSTOM:
            try:
                validate(document, f"1.{minor}.0")
            except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as fault:
                pytest.fail(f"{overlay}: {document['kind']} {document['metadata']['name']}: {fault.message}")


def test_a_misspelt_field_and_a_kind_of_the_past_are_seen(built: Built) -> None:
    deployment = named(built["cpu"], "Deployment", "actor")
    with pytest.raises(kubernetes_validate.ValidationError):
        validate({**deployment, "spec": {**deployment["spec"], "replicsa": 1}}, "1.34.0")
    with pytest.raises(kubernetes_validate.SchemaNotFoundError):
        validate({**named(built["gpu"], "PodDisruptionBudget", "learner"), "apiVersion": "policy/v1beta1"}, "1.34.0")


def test_every_pod_is_restricted_read_only_and_without_a_token(built: Built) -> None:
    for overlay, documents in built.items():
        for name, template in pods(documents).items():
            spec = template["spec"]
            assert list(unrestricted(spec)) == [], f"{overlay}: {name}"
            assert spec["automountServiceAccountToken"] is False
            for container in spec["containers"]:
                assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert documents[0]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_what_restricted_forbids_is_seen() -> None:
    pod = {"hostNetwork": True, "volumes": [{"name": "host", "hostPath": {"path": "/"}}], "containers": [{"name": "c"}]}
    assert len(list(unrestricted(pod))) == 6


def test_shared_memory_is_a_volume_of_a_size_within_the_memory_limit(built: Built) -> None:
    for documents in built.values():
        for template in pods(documents).values():
            volume = next(v for v in template["spec"]["volumes"] if v["name"] == "shm")["emptyDir"]
            container = template["spec"]["containers"][0]
            assert volume["medium"] == "Memory"
            assert _bytes(volume["sizeLimit"]) <= _bytes(container["resources"]["limits"]["memory"]) / 2
            assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]


def _bytes(quantity: str) -> int:
    match = re.fullmatch(r"(\d+)(Mi|Gi)", quantity)
    assert match, quantity
    return int(match[1]) * 2 ** {"Mi": 20, "Gi": 30}[match[2]]


def test_notice_of_a_spot_machine_is_kept_and_learners_have_time_for_a_checkpoint(built: Built) -> None:
    for documents in built.values():
        templates = pods(documents)
        assert templates["actor"]["spec"]["terminationGracePeriodSeconds"] <= 25
        assert templates["learner"]["spec"]["terminationGracePeriodSeconds"] >= 120


def test_every_pod_belongs_to_the_run_so_that_the_network_lets_it_through(built: Built) -> None:
    for documents in built.values():
        for role, template in pods(documents).items():
            labels = template["metadata"]["labels"]
            assert labels["app.kubernetes.io/part-of"] == labels["app.kubernetes.io/name"] == "rookery"
            assert labels["app.kubernetes.io/version"] == RELEASE
            assert labels["app.kubernetes.io/component"] == role


def test_every_pod_has_the_public_keys_of_all_roles(built: Built) -> None:
    for documents in built.values():
        assert set(named(documents, "ConfigMap", "keys-public")["data"]) == {f"{role}.public" for role in ROLES}


def test_each_pod_has_the_secrets_of_its_own_roles_alone(built: Built) -> None:
    for documents in built.values():
        for role, template in pods(documents).items():
            volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
            sources = volumes["keys"]["projected"]["sources"]
            secrets = [source["secret"]["name"] for source in sources if "secret" in source]
            beside = {container["name"] for container in template["spec"]["containers"]} - {"worker"}
            for one in (role, *beside):
                secret = named(documents, "Secret", f"keys-{one}")
                assert list(secret["data"]) == [f"{one}.secret"]
                secrets.remove(secret["metadata"]["name"])
            assert secrets == []


def test_configuration_is_one_that_rookery_takes(k8s: Path, built: Built, tmp_path: Path) -> None:
    for documents in built.values():
        path = tmp_path / "run.yaml"
        path.write_text(named(documents, "ConfigMap", "run")["data"]["run.yaml"])
        run = load(str(path))
        actors = pods(documents)["actor"]
        assert run.learner_timeout < 120
        assert actors["spec"]["terminationGracePeriodSeconds"] > run.learner_timeout, "an actor drains as long"


def test_probes_and_ports_are_those_of_the_block_of_each_role(built: Built) -> None:
    for documents in built.values():
        for role, base in (("coordinator", 5600), ("learner", 5610), ("actor", 5620)):
            container = pods(documents)[role]["spec"]["containers"][0]
            ports = {port["name"]: port["containerPort"] for port in container["ports"]}
            assert container["args"][0] == role
            assert f"$(BIND):{base}" in container["args"]
            assert ports["http"] == base + 9
            assert set(ports.values()) <= set(range(base, base + 10))
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                assert container[probe]["httpGet"]["port"] == "http"


def test_network_lets_through_what_the_services_offer_and_nothing_else(built: Built) -> None:
    documents = built["local"]
    assert named(documents, "NetworkPolicy", "nothing-else")["spec"]["podSelector"] == {}
    learner = {port["port"] for port in named(documents, "Service", "learner")["spec"]["ports"]}
    let_in = named(documents, "NetworkPolicy", "to-learners")["spec"]["ingress"][0]["ports"]
    assert {port["port"] for port in let_in} == learner - {5619}


def test_gpu_overlay_gives_each_learner_a_gpu_and_nobody_else(built: Built) -> None:
    templates = pods(built["gpu"])
    limits = {name: template["spec"]["containers"][0]["resources"]["limits"] for name, template in templates.items()}
    assert {name for name, limit in limits.items() if "nvidia.com/gpu" in limit} == {"learner"}
    assert templates["learner"]["spec"]["containers"][0]["image"].endswith("-cuda")
    assert templates["actor"]["spec"]["containers"][0]["image"].endswith("-cpu")


def test_what_is_scaled_by_keda_has_no_number_of_its_own(built: Built) -> None:
    """`apply` would set it back each time."""
    for overlay, documents in built.items():
        scaled = any(document["kind"] == "ScaledObject" for document in documents)
        if overlay not in ("finite", "queued"):
            assert scaled != ("replicas" in named(documents, "Deployment", "actor")["spec"]), overlay


def test_a_budget_is_for_pods_whose_number_kubernetes_knows(built: Built) -> None:
    """`maxUnavailable` of a job's pods is never met: their node could not be drained."""
    for overlay, documents in built.items():
        budgets = [document for document in documents if document["kind"] == "PodDisruptionBudget"]
        assert len(budgets) == (1 if overlay in ("gpu", "wide") else 0), overlay


def test_the_run_is_named_in_one_place(k8s: Path) -> None:
    texts = [path.read_text() for path in k8s.rglob("*.yaml")]
    assert sum(len(re.findall(r"\bRUN=", text)) for text in texts) == 1
    assert not any("/runs/first" in text for text in texts)


def test_a_finite_run_is_over_when_its_coordinator_is(built: Built) -> None:
    jobset = named(built["queued"], "JobSet", "run")
    assert jobset["spec"]["successPolicy"]["targetReplicatedJobs"] == ["coordinator"]
    assert jobset["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "rookery"
    assert {document["kind"] for document in built["finite"]}.isdisjoint({"Deployment", "StatefulSet"})
    told = {name: pod["spec"]["containers"][0]["args"] for name, pod in pods(built["finite"]).items()}
    assert [name for name, words in told.items() if "--until-end" in words] == ["coordinator"]
