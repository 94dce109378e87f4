"""Which policies of a run do not learn, and whether they fit: planned, checked and refused without torch (J1, J7)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from protocol.config.run import parse_run
from protocol.errors import ConfigurationError
from protocol.messages.core import Join, Refusal
from protocol.spaces import Agent, Box, DictPopulation, Discrete, World
from tests.faults import kinds_in, raises, words_in
from tests.tools import ROOT
from tests.workers.policies.exports import CASES, case
from workers.coordination.membership import Membership
from workers.planning.fixed_policy_plan import plan_fixed
from workers.planning.policy_plan import plan_policies
from workers.planning.shared_observation_plan import plan_common
from workers.policies.export import safetensors
from workers.rollout.players.scripted_player import check_fixed

SEEN, DONE = Box(shape=(3, 2), dtype="uint8"), Discrete(n=4)
WORLD = World(id="pair", agents=tuple(Agent(name=name, observation=SEEN, action=DONE) for name in "ab"))
RANDOM = {"algorithm": {"name": "scripted"}}


def frozen(path: Path) -> dict[str, Any]:
    return {"algorithm": {"name": "frozen", "path": str(path)}}


def run(**policies: dict[str, Any]) -> dict[str, Any]:
    return {
        "environment": {"id": "treasure_hunt", "copies": 8, "processes": 2, "async_factor": 2},
        "policies": policies,
    }


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A policy of an agent that sees SEEN and does DONE."""
    one = case("gru")
    safetensors.save_policy(tmp_path / "p.safetensors", one.manifest, one.policy)
    return tmp_path / "p.safetensors"


def test_a_fixed_policy_has_no_ring_and_no_learner_J1() -> None:
    plain = parse_run(run(b=RANDOM))
    assert [*plan_policies(plain, WORLD)] == ["a"]
    plan = plan_fixed(plain, WORLD)["b"]
    assert (plan.agents, plan.block, plan.groups, plan.source) == ((1,), 4, 2, "random")
    shared = parse_run({**run(both=RANDOM), "agents": {"a": "both", "b": "both"}})
    assert plan_policies(shared, WORLD) == {}
    assert plan_fixed(shared, WORLD)["both"].agents == (0, 1)


def test_what_all_agents_see_is_stored_for_those_who_learn_only() -> None:
    world = World(id="pair", population=DictPopulation(agents=WORLD.agents, common=Box(shape=(2,))))
    everyone, nobody = parse_run(run(b=RANDOM)), parse_run(run(a=RANDOM, b=RANDOM))
    assert plan_common(plan_policies(everyone, world), world) is not None
    assert plan_common(plan_policies(nobody, world), world) is None


@pytest.mark.parametrize(
    ("data", "kind", "key"),
    [
        (run(a={"algorithm": {"name": "frozen"}}), "key_missing", "policies.a.algorithm.path"),
        (run(a={**RANDOM, "learning_rate": 0.1}), "unknown_key", "policies.a.learning_rate"),
        ({"policy": RANDOM}, "fixed_policy_in_common", "policy.algorithm"),
    ],
)
def test_keys_that_a_fixed_policy_has_not_are_refused(data: dict[str, Any], kind: str, key: str) -> None:
    with raises(ConfigurationError, kind, key=key):
        parse_run(data)


def test_other_policies_may_be_recurrent_or_learn_as_they_like(file: Path) -> None:
    """What all have in common is for those that learn."""
    common = {"policy": {"network": {"core": "gru"}}}
    check_fixed(parse_run({**run(b=frozen(file)), **common}), WORLD)


@pytest.mark.parametrize(
    ("agent", "common", "what", "trained", "here"),
    [
        ({"observation": Box(shape=(3, 3), dtype="uint8")}, None, "observes", "[3,2]", "[3,3]"),
        ({"observation": Box(shape=(3, 2))}, None, "observes", "uint8", "float32"),
        ({"action": Discrete(n=5)}, None, "does", "4", "5"),
        ({"action_mask": True}, None, "has masks of legal actions", "no", "yes"),
        ({}, Box(shape=(2,)), "observes in common with others", "nothing", "[2]"),
    ],
)
def test_an_export_of_other_spaces_is_refused_and_both_are_named_J7(
    file: Path, agent: dict[str, Any], common: Box | None, what: str, trained: str, here: str
) -> None:
    other = Agent.model_validate({"name": "b", "observation": SEEN, "action": DONE, **agent})
    world = World(id="w", population=DictPopulation(agents=(other,), common=common))
    with raises(
        ConfigurationError,
        "policy_trained_on_other_spaces",
        policy="b",
        agent="b",
        environment="w",
        file=file,
        what=what,
    ) as caught:
        check_fixed(parse_run(run(b=frozen(file))), world)
    facts = vars(caught.value)["facts"]
    assert trained in facts["trained"]
    assert here in facts["expected"]


def test_parts_that_only_learners_see_make_no_difference_I2(file: Path) -> None:
    """The export was deployed without them; the world has them."""
    one, world = case("all at once"), CASES["all at once"][0]
    assert one.manifest.withheld
    safetensors.save_policy(file, one.manifest, one.policy)
    check_fixed(parse_run(run(**{world.agents[0].name: frozen(file)})), world)


@pytest.mark.parametrize(
    ("what", "kind"),
    [
        ("missing", "policy_file_missing"),
        ("junk", "exported_policy_unreadable"),
        ("bare", "exported_without_manifest"),
        ("folder", "folder_is_no_checkpoint"),
        ("checkpoint", "checkpoint_without_spaces"),
    ],
)
def test_what_is_no_exported_policy_is_refused_in_a_sentence(tmp_path: Path, what: str, kind: str) -> None:
    path = tmp_path / "it"
    if what == "junk":
        path.write_bytes(b"no weights at all")
    elif what == "bare":
        path.write_bytes((8).to_bytes(8, "little") + b"{}      ")
    elif what != "missing":
        path.mkdir()
        if what == "checkpoint":
            (path / "manifest.json").write_text("{}")
    where = {"folder": Path.cwd()} if what == "missing" else {}
    with raises(ConfigurationError, kind, file=path, **where):
        check_fixed(parse_run(run(b=frozen(path))), WORLD)


def test_what_learned_beside_policies_cannot_play(tmp_path: Path) -> None:
    told = {"agent": WORLD.agents[0].model_dump(), "common": None, "config": {"algorithm": {"name": "rnd"}}}
    (tmp_path / "manifest.json").write_text(json.dumps(told))
    with raises(ConfigurationError, "checkpoint_of_auxiliary", file=tmp_path):
        check_fixed(parse_run(run(b=frozen(tmp_path))), WORLD)


def test_planning_and_checking_need_no_torch(file: Path) -> None:
    """The coordinator starts in a fraction of a second."""
    data = json.dumps(run(a=RANDOM, b=frozen(file)))
    code = (
        "import sys\nfrom protocol.config.run import parse_run\nfrom protocol.spaces import parse_world\n"
        "from workers.rollout.players.scripted_player import check_fixed\n"
        f"check_fixed(parse_run({json.loads(data)!r}), parse_world({WORLD.model_dump_json()!r}))\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=200, check=True
    )
    assert done.stdout.strip() == "False"


def test_a_run_in_which_nothing_learns_wants_neither_learner_nor_relay(tmp_path: Path) -> None:
    members = Membership(parse_run({}), [], tmp_path / "state.json", ["a", "b"])
    assert members.learners_wanted == 0
    for role in ("learner", "relay"):
        told = members.join(Join(role=role, token=role, release="1", host="h", pid=1, node="n"), lambda _: {})
        assert isinstance(told, Refusal)
        assert kinds_in(told.reason) == ["nobody_learns"]
        assert role in words_in(told.reason)
    actor = members.join(Join(role="actor", token="a", release="1", host="h", pid=1, node="n"), lambda _: {})
    assert not isinstance(actor, Refusal)
    assert members.new_episodes(actor, [("a", 5, 1, 2.0, 5), ("stranger", 5, 1, 2.0, 5)]) == [("a", 5, 1, 2.0, 5)]
