"""What a run is told of its policies: what is written is done, what is refused changes nothing."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from io import BytesIO
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from safetensors.torch import save

from protocol.config.run import Run, parse_run
from protocol.control.run_summary import NO_COMMANDS
from protocol.errors import ConfigurationError, DiskFault, EnvironmentFault, Refused
from protocol.messages.codec import decode, encode
from protocol.messages.core import Status
from protocol.spaces import Agent, Box, Discrete, World
from tests.faults import raises
from workers.coordination import roster as product
from workers.coordination import trial
from workers.coordination.roster import Roster
from workers.environments.registry import describe
from workers.league import policy_pool
from workers.league.policy_pool import PoolEntry
from workers.learning.starts import start_bytes, start_table, weights_name
from workers.planning.auxiliary_plan import plan_learners
from workers.planning.league_plan import ADDED
from workers.planning.policy_plan import plan_policies
from workers.policies.build import build

SCRIPTED = {"algorithm": {"name": "scripted"}}
CURIOUS = {
    "policy": {"algorithm": {"name": "ppo", "curiosity": {"auxiliary": "novelty"}}},
    "auxiliaries": {"novelty": {}},
}
HUNT = {"id": "treasure_hunt", "settings": {"width": 7, "height": 7, "turns": 4}}
HUNTS: dict[str, Any] = {
    "environment": {"copies": 16, "members": {"easy": HUNT, "hard": HUNT}, "prior": {"easy": 1.0, "hard": 2.0}}
}
ALIKE = Agent(name="one", observation=Box(shape=(2,)), action=Discrete(n=5))
OTHERS = {
    "observation": ALIKE.model_copy(update={"name": "two", "observation": Box(shape=(3,))}),
    "action": ALIKE.model_copy(update={"name": "two", "action": Discrete(n=4)}),
}


def roster_of(folder: Path, goes_on: bool = True, world: World | None = None, **keys: Any) -> Roster:
    """Of a run of agent_0 and agent_1, or in another world."""
    run = parse_run({"environment": {"copies": 16}, "steps": 10_000, **keys})
    world = world or describe(run.environment)
    return Roster(run, world, plan_learners(run, world), folder, lambda: (goes_on, 500), in_this_process)


def in_this_process(run: Run, world: World, **asked: Any) -> dict[str, Any]:
    """What another process would say."""
    return trial.answer(run, world, asked)


def weights_of(made: Roster, **policy: Any) -> str:
    """Weights that fit agent_0, or a policy with other keys, which are sent; their SHA-256."""
    plan = plan_policies(parse_run({"policy": policy} if policy else {}), made._world)["agent_0"]
    data = save(
        {name: torch.full_like(one, 0.5) for name, one in build(plan.interface, plan.config, 0).state_dict().items()}
    )
    sha256 = hashlib.sha256(data).hexdigest()
    at = 0
    while at < len(data):
        at = made.sent.add(sha256, at, data[at : at + 20_000])
    return sha256


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


def test_commands_are_numbered_lines_that_say_who_gave_them(tmp_path: Path) -> None:
    made = roster_of(tmp_path)
    assert made.command(["set", "agent_0", "learning_rate=1e-3"], "me@here", "127.0.0.1") == 1
    assert made.command(["freeze", "agent_1"], "you\nthere", "10.0.0.2") == 2
    told = [{key: line[key] for key in line if key != "time"} for line in lines(tmp_path)]
    by = {"agent_steps": 500, "number": 1, "by": "me@here", "peer": "127.0.0.1"}
    key, old = "policies.agent_0.learning_rate", parse_run({}).policy.learning_rate
    assert told[0] == {**by, "command": "set", "key": key, "old": old, "new": 0.001}
    assert (told[1]["by"], told[1]["peer"], told[1]["key"]) == ("you there", "10.0.0.2", "agent_1")


def test_a_coordinator_that_returns_knows_all_that_is_written_and_goes_on_counting(tmp_path: Path) -> None:
    made = roster_of(tmp_path)
    told = "set agent_0 learning_rate=0.5", "freeze agent_0", "freeze agent_1", "thaw agent_0", "assign agent_0 agent_1"
    for words in told:
        made.command(words.split(), "", "")
    again = roster_of(tmp_path)
    assert (
        again.state
        == made.state
        == {**NO_COMMANDS, "rates": {"agent_0": 0.5}, "frozen": ["agent_1"], "agents": {"agent_0": "agent_1"}}
    )
    assert again.command(["thaw", "agent_1"], "", "") == 6


def test_half_a_line_was_never_a_command(tmp_path: Path) -> None:
    roster_of(tmp_path).command(["freeze", "agent_0"], "", "")
    path = tmp_path / "history.jsonl"
    path.write_bytes(path.read_bytes() + b'{"number": 2, "command": "free')
    again = roster_of(tmp_path)
    assert again.state["frozen"] == ["agent_0"]
    assert again.command(["freeze", "agent_1"], "", "") == 2
    assert [line["key"] for line in lines(tmp_path)] == ["agent_0", "agent_1"]


@pytest.mark.parametrize("line", ["{", "[]", "1", '{"number": 2}', "[" * 100_000])
def test_a_line_that_nobody_wrote_is_told_with_its_number(tmp_path: Path, line: str) -> None:
    roster_of(tmp_path).command(["freeze", "agent_0"], "", "")
    path = tmp_path / "history.jsonl"
    path.write_text(path.read_text() + line + "\n")
    with raises(ConfigurationError, "history_unreadable", file=path, line=2):
        roster_of(tmp_path)


def test_a_line_that_cannot_be_kept_is_no_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = roster_of(tmp_path)
    made.command(["freeze", "agent_0"], "", "")

    def full(_path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(product, "sync", full)
    with raises(DiskFault, "disk_full"):
        made.command(["freeze", "agent_1"], "", "")
    assert made.state["frozen"] == ["agent_0"]
    assert len(lines(tmp_path)) == len(made.commands) == 1


def test_a_setting_that_stands_for_more_than_it_says_is_refused(tmp_path: Path) -> None:
    with raises(ConfigurationError, "roster_setting_malformed", value="network.hidden=[&a 8, *a]"):
        roster_of(tmp_path).command(["add", "third", "agent_1", "network.hidden=[&a 8, *a]"], "", "")


def test_a_policy_may_be_called_like_a_key(tmp_path: Path) -> None:
    made = roster_of(tmp_path)
    made.command(["set", "agent_0", "learning_rate=0.5"], "", "")
    made.command(["add", "policy.learning_rate", "agent_1"], "", "")
    assert (made.state["rates"], [*made.state["added"]]) == ({"agent_0": 0.5}, ["policy.learning_rate"])


@pytest.mark.parametrize(
    ("key", "left"),
    [
        ("policies.agent_0.learning_rate", {"agent_1": 0.5}),
        ("policy.learning_rate", {}),
        ("policies.agent_0.sync_interval", {"agent_0": 0.5, "agent_1": 0.5}),
    ],
)
def test_a_rate_that_the_run_goes_on_with_replaces_what_was_set(
    tmp_path: Path, key: str, left: dict[str, float]
) -> None:
    made = roster_of(tmp_path)
    for name in ("agent_0", "agent_1"):
        made.command(["set", name, "learning_rate=0.5"], "", "")
    with (tmp_path / "history.jsonl").open("a") as history:
        history.write(json.dumps({"time": "", "agent_steps": 0, "key": key, "old": 1, "new": 2}) + "\n")
    made.change([key])
    assert made.state["rates"] == roster_of(tmp_path).state["rates"] == left


def test_a_common_rate_that_the_run_goes_on_with_is_of_those_without_one_of_their_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys: dict[str, Any] = {**CURIOUS, "policies": {"agent_0": {"learning_rate": 0.1}}}
    made = roster_of(tmp_path, **keys)
    for name in ("agent_0", "agent_1", "novelty"):
        made.command(["set", name, "learning_rate=0.5"], "", "")
    with caplog.at_level("INFO"):
        made.change(["policy.learning_rate"])
    assert made.state["rates"] == {"agent_0": 0.5, "novelty": 0.5}
    assert [one.getMessage() for one in caplog.records if "rate_ended" in one.getMessage()] == [
        "event=rate_ended policy=agent_1 learning_rate=0.5 by=configuration"
    ]


def test_a_history_that_cannot_be_opened_is_told_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = roster_of(tmp_path)

    def no_more(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as full:
        full.setattr("workers.runtime.files.os.open", no_more)
        with raises(DiskFault, "file_not_writable", file=tmp_path / "history.jsonl"):
            made.command(["freeze", "agent_1"], "", "")
    assert made.command(["freeze", "agent_1"], "", "") == 1


def test_a_new_history_outlasts_the_machine_also_after_a_command_that_came_to_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = roster_of(tmp_path)
    kept: list[Path] = []

    def full(_path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(product, "sync", full)
    with raises(DiskFault, "disk_full"):
        made.command(["freeze", "agent_1"], "", "")
    monkeypatch.setattr(product, "sync", kept.append)
    made.command(["freeze", "agent_1"], "", "")
    assert kept == [tmp_path / "history.jsonl", tmp_path]


@pytest.mark.parametrize(
    ("words", "kind", "keys"),
    [
        ("", "roster_command_unknown", {}),
        ("melt agent_0", "roster_command_unknown", {}),
        ("freeze", "roster_words_miscounted", {}),
        ("set agent_0 learning_rate=1 now", "roster_words_miscounted", {}),
        ("freeze nobody", "roster_policy_unknown", {}),
        ("thaw agent_0", "roster_changes_nothing", {}),
        ("set agent_0 gamma=0.5", "roster_setting_unknown", {}),
        ("set agent_0 learning_rate=fast", "roster_number_invalid", {}),
        ("set agent_0 learning_rate=-1", "roster_number_invalid", {}),
        ("set agent_0 learning_rate=inf", "roster_number_invalid", {}),
        ("assign agent_0 agent_1", "roster_run_is_repeated", {"schedule": "lockstep"}),
        ("freeze agent_0", "roster_run_is_repeated", {"schedule": "lockstep", "commands": "runs/first"}),
        ("set agent_0 learning_rate=1", "roster_run_is_repeated", {"policy": {"record": True}}),
        ("freeze agent_0", "roster_policy_of_ranks", {"policies": {"agent_0": {"ranks": 2}}, "actors": 2}),
        ("assign agent_0", "roster_words_miscounted", {}),
        ("assign agent_2 agent_0", "roster_agent_unknown", {}),
        ("assign agent_0 agent_2", "roster_policy_unknown", {}),
        ("assign agent_0 agent_0", "roster_changes_nothing", {}),
        ("assign agent_0 agent_1", "roster_policy_of_ranks", {"policies": {"agent_0": {"ranks": 2}}, "actors": 2}),
        ("assign agent_0 agent_1", "roster_agent_not_given", {"league": {"snapshot_every": 900}}),
        ("assign agent_0 agent_1", "roster_agent_not_given", {"policies": {"agent_0": SCRIPTED}}),
        ("assign agent_0 agent_1", "roster_agent_not_given", CURIOUS),
        ("assign agent_0 novelty", "roster_agent_not_given", CURIOUS),
        ("assign agent_0 agent_1", "roster_agent_not_given", {"policy": {"credits": 16}}),
        ("worlds hard", "roster_words_miscounted", HUNTS),
        ("worlds hard share=3", "roster_worlds_not_drawn", {}),
        ("worlds hard share=3", "roster_worlds_not_drawn", {**HUNTS, "schedule": "lockstep"}),
        ("worlds none share=3", "roster_world_unknown", HUNTS),
        ("worlds hard share=3 turns=5", "roster_words_miscounted", HUNTS),
        ("worlds hard weight=3", "unknown_environment_setting", HUNTS),
        ("worlds hard agents=3", "roster_world_spaces_differ", HUNTS),
        ("worlds hard width=7", "roster_changes_nothing", HUNTS),
        ("worlds none width=9", "roster_world_unknown", HUNTS),
        ("worlds treasure_hunt width=9", "roster_worlds_not_drawn", {}),
        ("replace agent_0", "roster_words_miscounted", {}),
        ("member agent_0", "roster_words_miscounted", {}),
        ("worlds hard share=-1", "roster_number_invalid", HUNTS),
        ("add third", "roster_words_miscounted", {}),
        ("add third agent_2", "roster_agent_unknown", {}),
        ("add agent_0 agent_1", "roster_policy_not_added", {}),
        ("add 7 agent_1", "roster_policy_not_added", {}),
        ("add third agent_1 gamma", "roster_setting_malformed", {}),
        ("add third agent_1 network=1 network.hidden=[8]", "roster_setting_malformed", {}),
        ("add third agent_1 learning_rate=2020-01-01", "roster_setting_malformed", {}),
        ("add third agent_1 nonsense=1", "unknown_key", {}),
        ("add third agent_1 algorithm.name=scripted", "roster_policy_not_added", {}),
        ("add third agent_1 ranks=2", "roster_policy_not_added", {}),
        ("add third agent_1 record=true", "roster_policy_not_added", {}),
        ("add third agent_1 network.core=attention", "roster_policy_not_added", CURIOUS),
        ("add third agent_1 network.entry=mine:Network", "roster_policy_not_added", {}),
        ("add third agent_1 start=runs/other", "roster_policy_not_added", {}),
        ("add third agent_1 algorithm.curiosity.auxiliary=novelty", "roster_policy_not_added", {}),
        ("add third agent_1 network.hidden=[20000,20000]", "roster_policy_not_added", {}),
        ("add third agent_1 credits=60000 segment_length=65535", "roster_policy_not_added", {}),
        (f"add third agent_1 network.hidden=[{'8,' * 2_100}8]", "roster_settings_too_long", {}),
        ("add third agent_1 sync_interval=100000000000000000000", "roster_command_not_sendable", {}),
        ("add third agent_1", "roster_policy_not_added", {"schedule": "lockstep"}),
        ("add third agent_1", "roster_policy_not_added", {"league": {"snapshot_every": 900}}),
        ("add third agent_1", "roster_policy_not_added", CURIOUS),
        ("retire nobody", "roster_policy_unknown", {}),
        ("retire agent_0", "roster_policy_not_retired", {}),
        ("retire agent_0", "roster_policy_not_retired", {"league": {"snapshot_every": 900}}),
        ("retire novelty", "roster_policy_not_retired", CURIOUS),
        (
            "freeze agent_0",
            "roster_policy_without_actors",
            {"actors": 0, "policy": {"algorithm": {"name": "bc"}, "dataset": {"path": "x"}}},
        ),
    ],
)
def test_a_bad_command_changes_nothing(tmp_path: Path, words: str, kind: str, keys: dict[str, Any]) -> None:
    made = roster_of(tmp_path, **keys)
    with raises(ConfigurationError, kind):
        made.command(words.split(), "", "")
    assert (made.state, made.commands) == (NO_COMMANDS, [])
    assert not (tmp_path / "history.jsonl").exists()


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("replace nobody", "roster_policy_unknown"),
        ("replace novelty", "roster_weights_of_auxiliary"),
        ("member nobody", "roster_policy_unknown"),
        ("member agent_0", "roster_without_league"),
        ("freeze agent_0", "roster_words_miscounted"),
        ("replace agent_0", "roster_weights_do_not_fit"),
        ("add agent_0 agent_1", "roster_policy_not_added"),
        ("add third agent_1 start.path=x", "roster_setting_malformed"),
        ("add / agent_1", "value_invalid"),
        ("add third/../.. agent_1", "value_invalid"),
    ],
)
def test_weights_that_cannot_be_used_change_nothing(tmp_path: Path, words: str, kind: str) -> None:
    keys: dict[str, Any] = CURIOUS if "novelty" in words else {}
    made = roster_of(tmp_path, **keys)
    sent = weights_of(made, network={"hidden": [8]})
    own = tmp_path / policy_pool.FOLDER / "start~agent_0" / "where the run began"
    for place in (own, own.parents[1] / "start~third"):
        place.mkdir(parents=True)
    with raises(ConfigurationError, kind):
        made.command(words.split(), "", "", sent)
    assert (made.state, made.commands) == (NO_COMMANDS, [])
    assert own.exists()
    assert not [*(tmp_path / "sent").iterdir()]


def test_members_that_are_added_to_a_league_have_numbers_of_no_snapshot_while_there_is_room(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"league": {"snapshot_every": 900, "size": 10}}
    made = roster_of(tmp_path, **keys)
    with raises(ConfigurationError, "roster_weights_do_not_fit", policy="agent_0"):
        made.command(["member", "agent_0"], "", "", weights_of(made, network={"hidden": [8]}))
    assert made.commands == []
    sent = weights_of(made)
    made.command(["member", "agent_0"], "", "", sent)
    name = weights_name("agent_0", sent)
    member = {"member": f"agent_0/{ADDED}", "sha256": sent, "checksum": made.files[name]}
    assert made.state["members"] == {"agent_0": [member]}
    assert [*made.files] == [name]
    made = roster_of(tmp_path, **keys)
    assert made.state["members"] == {"agent_0": [member]}
    made.command(["member", "agent_0"], "", "", weights_of(made))
    second = {**member, "member": f"agent_0/{ADDED + 1}"}
    assert made.state["members"] == {"agent_0": [member, second]}
    with raises(ConfigurationError, "roster_library_full", policy="agent_0", limit=2):
        made.command(["member", "agent_0"], "", "", weights_of(made))
    made.command(["member", "agent_1"], "", "", weights_of(made))
    assert made.state["members"]["agent_1"][0]["member"] == f"agent_1/{ADDED}"


def test_weights_that_are_not_what_they_were_announced_as_are_refused(tmp_path: Path) -> None:
    made, announced = roster_of(tmp_path), "0" * 64
    assert made.sent.add(announced, 0, b"weights") == 7
    assert made.sent.add(announced, 3, b"ghts") == 7
    for _ in range(2):
        with raises(ConfigurationError, "roster_weights_not_sent"):
            made.command(["replace", "agent_0"], "", "", announced)
    with raises(ConfigurationError, "roster_weights_not_sent"):
        made.sent.add("../../elsewhere", 0, b"")
    with raises(ConfigurationError, "roster_weights_too_large"):
        made.sent.add(announced, 2**31, b"1")
    made.sent.add(announced, 0, b"1")
    with raises(ConfigurationError, "roster_weights_too_large"):
        made.sent.add("1" * 64, 2**31 - 1, b"1")
    made.sent.forget("../history.jsonl")


def test_weights_that_were_sent_lie_in_the_library_for_who_replaces_its_own_and_for_who_begins(tmp_path: Path) -> None:
    made = roster_of(tmp_path)
    sent = weights_of(made)
    made.command(["replace", "agent_0"], "", "", sent)
    made.command(["add", "third", "agent_1", "start.skip=[heads]"], "", "", weights_of(made))
    made.command(["add", "fourth", "agent_1"], "", "")
    told = made.state["replaced"]["agent_0"]
    assert (told["number"], told["sha256"], made.commands[0]["old"]) == (1, sent, None)
    start = made.state["added"]["third"]["policy"]["start"]
    assert made.files == {weights_name("agent_0", sent): told["checksum"], "start~third/0": start["path"]}
    for name, checksum in made.files.items():
        policy, _, number = name.partition("/")
        assert policy_pool.checksum(PoolEntry(policy, int(number), checksum).path(tmp_path).read_bytes()) == checksum
    taken = start_table(BytesIO(start_bytes(tmp_path, "third")))
    assert taken["sha256"] == sent
    assert not {"policy_weight", "value_weight"} & taken["taken"].keys()
    assert not [*(tmp_path / "sent").iterdir()]
    again = roster_of(tmp_path)
    assert (again.state, again.files) == (made.state, made.files)


def test_members_are_told_of_a_policy_as_deep_as_a_network_is_said(tmp_path: Path) -> None:
    made = roster_of(tmp_path)
    made.command(["add", "third", "agent_1", "network.encoder.self={name: mlp, hidden: [64]}"], "", "")
    state = decode([encode(Status(command="go", view={"roster": made.state}))])[0].view["roster"]  # type: ignore[attr-defined]
    assert state["added"]["third"]["policy"]["network"]["encoder"]["self"]["hidden"] == [64]


def test_weights_that_nobody_finished_writing_are_written_again(tmp_path: Path) -> None:
    path = PoolEntry("agent_0", 0, policy_pool.checksum(b"x")).path(tmp_path)
    path.parent.mkdir(parents=True)
    (half := path.with_name(f".{path.name}")).touch()
    before = half.stat().st_ino
    with half.open() as kept:  # keeps the number of that file from being used again
        assert policy_pool.add(tmp_path, "agent_0", 0, b"x").path(tmp_path) == path
        assert os.fstat(kept.fileno()).st_ino == before != path.stat().st_ino
    assert path.read_bytes() == b"x"


def test_a_policy_may_name_code_of_the_run_and_its_layout_is_planned_once(tmp_path: Path) -> None:
    core = {"entry": "tests.workers.policies.cores.test_cores:Counted"}
    words = ["add", "third", "agent_1", f"network.core.entry={core['entry']}"]
    with raises(ConfigurationError, "roster_policy_not_added"):
        roster_of(tmp_path).command(words, "", "")
    with raises(ConfigurationError, "roster_policy_not_added"):
        roster_of(tmp_path, allow_entries=[], policies={"agent_0": {"network": {"core": core}}}).command(words, "", "")
    for keys in ({"allow_entries": [core["entry"]]}, {"policies": {"agent_0": {"network": {"core": core}}}}):
        made = roster_of(tmp_path, **keys)
        made.command([words[0], f"added_{len(made.commands)}", *words[2:]], "", "")
        (told, plan), *_ = zip([*made.state["added"].values()][-1:], [*made.added.values()][-1:], strict=True)
        assert [field[0] for field in told["fields"]] == ["state"]
        assert [[one.name, [*one.shape]] for one in plan.layout.fields if one.name == "state"] == [
            ["state", [*told["fields"][0][2]]]
        ]


def test_an_agent_is_played_by_who_has_weights_and_who_played_it_stays_until_then(tmp_path: Path) -> None:
    made = roster_of(tmp_path)
    for words in ("add third agent_1", "assign agent_1 third", "retire agent_1"):
        made.command(words.split(), "", "")
    assert made.followed([])["agents"] == {}
    assert made.followed([])["retired"] == []
    now = made.followed(["third"])
    assert (now["agents"], now["retired"]) == ({"agent_1": "third"}, ["agent_1"])
    for words in ("add fourth agent_1", "assign agent_1 fourth"):
        made.command(words.split(), "", "")
    assert made.followed(["third"]) == {**made.state, "agents": {"agent_1": "third"}}


def test_settings_of_an_environment_add_up(tmp_path: Path) -> None:
    made = roster_of(tmp_path, **HUNTS)
    made.command(["worlds", "hard", "width=9"], "", "")
    made.command(["worlds", "hard", "turns=5", "height=9"], "", "")
    assert made.state["settings"] == {"hard": {"width": 9, "height": 9, "turns": 5}}
    assert (made.commands[1]["old"], made.state["shares"]) == ({"turns": 4, "height": 7}, {})
    assert roster_of(tmp_path, **HUNTS).state == made.state
    with raises(ConfigurationError, "roster_setting_malformed"):
        made.command(["worlds", "hard", "options.width=9"], "", "")


def test_a_common_rate_ends_that_of_who_joined_without_one_of_its_own(tmp_path: Path) -> None:
    made = roster_of(tmp_path)
    made.command(["add", "third", "agent_1"], "", "")
    made.command(["add", "fourth", "agent_1", "learning_rate=0.1"], "", "")
    for name in ("third", "fourth"):
        made.command(["set", name, "learning_rate=0.5"], "", "")
    made.change(["policy.learning_rate"])
    assert made.state["rates"] == {"fourth": 0.5}


def test_who_joined_and_was_retired_is_planned_no_more(tmp_path: Path) -> None:
    made = roster_of(tmp_path)
    made.command(["add", "third", "agent_1", "algorithm.minibatches=4"], "", "")
    made.command(["retire", "third"], "", "")
    again = roster_of(tmp_path, environment={"copies": 6})  # of which no four minibatches can be made
    assert again.added == {}
    with raises(ConfigurationError, "roster_policy_not_added"):
        again.command(["add", "third", "agent_1"], "", "")


def test_a_trial_is_a_process_of_its_own_whose_words_are_heard(tmp_path: Path) -> None:
    run = parse_run({"environment": {**HUNTS["environment"]}})
    with raises(ConfigurationError, "roster_world_spaces_differ"):
        trial.tried(run, describe(run.environment), member="hard", settings={"agents": 3})


class Broken(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Raises in each episode's first step where it is told to."""

    def step(self, action: Any) -> Any:
        raise ValueError("no step")


def breaking(broken: bool = False) -> gymnasium.Env[Any, Any]:
    world = gymnasium.make("CartPole-v1")
    return Broken(world) if broken else world


def test_settings_with_which_an_environment_cannot_be_played_are_refused() -> None:
    run = parse_run({"environment": {"members": {"m": {"id": f"{__name__}:breaking"}}}})
    with raises(EnvironmentFault, "environment_raised"):
        trial.try_settings(run, "m", {"broken": True})
    assert trial.try_settings(run, "m", {"broken": False}) == {}


def test_who_is_what_a_command_says_already_is_told_with_what_it_is(tmp_path: Path) -> None:
    made = roster_of(tmp_path)
    made.command(["assign", "agent_0", "agent_1"], "", "")
    with raises(ConfigurationError, "roster_changes_nothing", name="agent_0", reason="is played by 'agent_1'"):
        made.command(["assign", "agent_0", "agent_1"], "", "")
    with raises(ConfigurationError, "roster_changes_nothing", name="agent_1", reason="learns"):
        made.command(["thaw", "agent_1"], "", "")


@pytest.mark.parametrize("structure", [{"prior": {"easy": 1.0, "hard": 2.0}}, {"split": {"train": ["easy", "hard"]}}])
def test_shares_are_those_of_the_configuration_but_for_those_that_were_set(
    tmp_path: Path, structure: dict[str, Any]
) -> None:
    members = {"easy": HUNT, "hard": HUNT, **({"other": HUNT} if "split" in structure else {})}
    test = {"split": {**structure["split"], "test": ["other"]}} if "split" in structure else structure
    made = roster_of(tmp_path, environment={"copies": 16, "members": members, **test})
    assert made.prior == {}
    made.command(["worlds", "easy", "share=0"], "", "")
    hard = 1.0 if "split" in structure else 2.0
    assert made.prior == {"easy": 0.0, "hard": hard}
    assert (made.commands[0]["old"], made.commands[0]["new"]) == (1.0, 0.0)
    with raises(ConfigurationError, "roster_share_is_the_last", value="hard"):
        made.command(["worlds", "hard", "share=0"], "", "")
    assert made.prior == {"easy": 0.0, "hard": hard}


@pytest.mark.parametrize("other", [*OTHERS])
def test_an_agent_is_given_to_who_sees_and_does_the_same(tmp_path: Path, other: str) -> None:
    world = World(id="w", agents=(ALIKE, OTHERS[other], ALIKE.model_copy(update={"name": "three"})))
    made = roster_of(tmp_path, world=world)
    with raises(ConfigurationError, "roster_agent_not_given", agent="one", policy="two"):
        made.command(["assign", "one", "two"], "", "")
    assert made.commands == []
    made.command(["assign", "one", "three"], "", "")
    assert made.commands[0]["old"] == "one"


def test_a_policy_that_joined_is_one_of_the_run_until_it_is_retired_and_its_name_is_never_given_again(
    tmp_path: Path,
) -> None:
    made = roster_of(tmp_path)
    made.command(["add", "third", "agent_1", "algorithm.name=dqn", "learning_rate=0.25"], "", "")
    section = {"algorithm": {"name": "dqn"}, "learning_rate": 0.25}
    assert made.state["added"] == {"third": {"agent": "agent_1", "policy": section}}
    made.command(["set", "third", "learning_rate=0.5"], "", "")
    assert made.commands[1]["old"] == 0.25
    made.command(["assign", "agent_0", "third"], "", "")
    with raises(ConfigurationError, "roster_policy_not_retired", policy="third"):
        made.command(["retire", "third"], "", "")
    made.command(["assign", "agent_0", "agent_1"], "", "")
    made.command(["retire", "third"], "", "")
    again = roster_of(tmp_path)
    assert again.state == made.state
    for words in ("assign agent_0 third", "freeze third", "retire third"):
        with raises(ConfigurationError, "roster_policy_unknown", policy="third"):
            again.command(words.split(), "", "")
    with raises(ConfigurationError, "roster_policy_not_added", policy="third"):
        again.command(["add", "third", "agent_1"], "", "")


def test_a_policy_whose_learner_has_others_is_not_retired(tmp_path: Path) -> None:
    made = roster_of(tmp_path, num_learner_processes=1)
    made.command(["assign", "agent_0", "agent_1"], "", "")
    with raises(ConfigurationError, "roster_policy_not_retired", policy="agent_0"):
        made.command(["retire", "agent_0"], "", "")


def test_a_run_that_is_ending_takes_no_commands(tmp_path: Path) -> None:
    with raises(Refused, "roster_run_is_ending"):
        roster_of(tmp_path, goes_on=False).command(["freeze", "agent_0"], "", "")
    assert not (tmp_path / "history.jsonl").exists()
