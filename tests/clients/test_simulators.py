"""The clients for simulators in C++ and JavaScript: they say the golden bytes, and are told what they did wrong."""

from __future__ import annotations

import re
import subprocess
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.conformance import check_simulator
from protocol.simulator.connection import addresses_of
from protocol.transport.curve import connect_string, new_keys
from tests.clients.languages import LANGUAGES, driver
from tests.flows import runs
from tests.flows.test_infos import drawn
from tests.forge import Forge
from tests.protocol.conformance.test_conformance import HALL
from tests.protocol.conformance.test_golden import GOLDEN
from tests.tools import ROOT
from tests.workers.environments.simulators.serving import WALK, serving

SECONDS = 100.0
NUMBERS: list[tuple[str, float]] = [("<f2", -2.5), ("<f2", 6e-8), ("<f2", 65504.0), ("<f8", 0.1), ("<i2", -300)]
NUMBERS += [("|i1", -1), ("|u1", 255), ("|b1", 1), ("<u4", 2**32 - 1), ("<i8", -(2**40)), ("<u8", 2**50)]
TOLD = {
    "wrong spaces": "size",
    "unknown agent": "agent",
    "not a number": "value",
    "not a reward": "finite number",
    "duplicate identity": "[simulator_name_taken]",
    "another world": "world",
    "served all the same": "",
    "version skew": "version",
    "half a hello": "message",
    "garbage": "message",
    "before hello": "unknown",
    "hello": "",
    "no observation": "size",
    "an action": "",
    "ended twice": "episode",
    "after a frame too large": "unknown",
}
"""What was done -> the code, or the words, that it was answered with; empty: no fault."""


def _run(program: list[str], *arguments: str) -> dict[str, str]:
    """What it printed, by what stands before the colon."""
    ended = subprocess.run([*program, *arguments], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ended.returncode == 0, ended.stderr
    lines = (line.partition(": ") for line in ended.stdout.splitlines())
    return {what: said for what, _, said in lines}


def _start(
    stack: ExitStack, started: list[subprocess.Popen[bytes]], program: list[str], keys: Path, address: str
) -> None:
    """A simulator, killed when `stack` ends if it still runs."""
    process = stack.enter_context(subprocess.Popen([*program, connect_string(address, keys)]))
    stack.callback(process.kill)
    started.append(process)


def slow(present: Any) -> Any:
    """The last choices there are, in no hurry where 9 is seen."""
    if present.observation.dtype == np.uint8:
        time.sleep(0.3 * bool((present.observation == 9).any()))
        return np.full(len(present.observation), 3)
    actions = HALL.places[0].acted.zeros(len(present.observation))
    actions["arm"], actions["go"] = 0.5, (1, 2)
    return actions


def check_hall(program: list[str]) -> None:
    """Several agents, nested spaces, masks, actions element by element; what is late is done late."""
    with serving(HALL, policy=slow) as served:
        said = _run(program, "hall", served.address)
        served.settle()
        assert said["both"].split() == ["guard=0.5", "guard=0.5", "guard=1", "guard=2", "thief=3"]
        assert said["one"].split() == ["guard=1", "guard=2"]
        assert "(element)" in said["no element"]
        assert int(said["missed"]) >= 1
        assert served.figures()["simulators_late"] == int(said["missed"])
    assert served.rows("thief", 1)[0].reward == int(said["missed"]) + 1
    first, second = served.rows("guard")
    assert (first.seen["post"], first.seen["sight"].tolist()) == (3, [0.5, -0.5, 0.25])
    assert (first.reward, second.reward, second.end) == (2.0, -1.0, "truncated")
    assert second.final["sight"].tolist() == [0.5, -0.5, 0.25]
    assert [(row.seen.tolist(), row.reward, row.end) for row in served.rows("thief")] == [([7, 200], 1.5, "terminated")]


def check_curves(program: list[str], folder: Path) -> None:
    """What it tells of its episodes is drawn by a run."""
    world = {"id": "external", "copies": 1, "settings": {"world": WALK.model_dump(mode="json")}}
    with runs.training(runs.config(steps=400, environment=world), folder) as worker:
        (address,) = runs.until(lambda: addresses_of(folder / "run"), what="the actor serves simulators")
        played = subprocess.run(
            [*program, "play", connect_string(address, folder / "run")], timeout=SECONDS, check=False
        )
        assert (played.returncode, worker.wait()) == (0, 0), worker.said
    assert drawn(folder) == {"walker": {"info/far": 2.5, "info/won": 1.0}}
    assert runs.summary_of(folder)["infos"]["walker"]["far"]["episodes"] >= 400 // 5 - 1


@pytest.fixture(autouse=True)
def forked(forge: Forge | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of this module are."""
    monkeypatch.setattr(runs, "forge", forge)


def test_only_one_file_of_the_javascript_client_needs_node() -> None:
    """So that a transport of a browser can take its place."""
    files = {path.name: path.read_text() for path in (ROOT / "protocol" / "clients" / "javascript").glob("*.js")}
    needy = {name for name, text in files.items() if re.search(r'from "(?!\./)|\bprocess\.|\bBuffer\b|require\(', text)}
    assert needy == {"node.js", "cartpole.js"}
    for name in files.keys() - needy:
        assert not re.search(r'from "\./(node|cartpole)\.js"', files[name]), name


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_client_says_the_golden_bytes_and_is_told_what_it_did_wrong_I8(language: str, tmp_path: Path) -> None:
    """I8: the bytes of its messages, all kinds of numbers, and each refusal with its sentence and code; its
    neighbours, of the same program, are served all the same. Driven, with the keys of a connect string, it
    holds to all that the kit looks for, and a run draws what it tells of its episodes; a damaged one is told."""
    program = driver(language, tmp_path)
    heard = [*GOLDEN["admit"]["frames"], *GOLDEN["act"]["frames"]]
    numbers = [(dtype, np.array(number, dtype)) for dtype, number in NUMBERS]
    said = _run(program, "golden", *heard, *(part for dtype, one in numbers for part in (dtype, one.tobytes().hex())))
    messages = ("hello", "observe", "observe-rewarded", "end", "end-told", "ping", "bye")
    assert {name: said[name].split() for name in messages} == {name: GOLDEN[name]["frames"] for name in messages}
    assert said["action"] == "1"
    for dtype, one in numbers:
        number, again = said[f"{dtype} {one.tobytes().hex()}"].split()
        assert again == one.tobytes().hex()
        assert float(number) == pytest.approx(float(one), rel=1e-5)
    with serving(copies=3) as served:
        told = _run(program, "wrong", served.address)
        assert set(told) == set(TOLD)
        for what, words in TOLD.items():
            assert words in told[what] if words else told[what] == "nothing", f"{what}: {told[what]}"
            assert told[what].count(". ") == 0, "one sentence"
        assert served.figures()["simulators_quarantined"] == 0
    check_hall(program)
    check_curves(program, tmp_path)
    with ExitStack() as stack:
        started: list[subprocess.Popen[bytes]] = []
        new_keys(tmp_path / "keys")
        begin = partial(_start, stack, started, [*program, "play"], tmp_path / "keys")
        findings = [*check_simulator("127.0.0.1", 0, WALK, begin, str(tmp_path / "keys"))]
        assert all(finding.good for finding in findings), "\n".join(map(str, findings))
        assert started[0].wait(SECONDS) == 0
    damaged = subprocess.run([*program, "play", "tcp://127.0.0.1:9?keys=abcd"], capture_output=True, check=False)
    assert b"?keys=" in damaged.stderr
