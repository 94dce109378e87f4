"""The clients for simulators in C++ and JavaScript: they say the golden bytes, and are told what they did wrong."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from protocol.conformance import check_simulator
from tests.clients.languages import LANGUAGES, driver
from tests.protocol.test_golden import GOLDEN
from tests.workers.environments.simulators.serving import WALK, serving

SECONDS = 100.0
NUMBERS: list[tuple[str, float]] = [("<f2", -2.5), ("<f2", 6e-8), ("<f2", 65504.0), ("<f8", 0.1), ("<i2", -300)]
NUMBERS += [("|i1", -1), ("|u1", 255), ("|b1", 1), ("<u4", 2**32 - 1), ("<i8", -(2**40)), ("<u8", 2**50)]
TOLD = {
    "wrong spaces": "size",
    "unknown agent": "agent",
    "not a number": "value",
    "duplicate identity": "a simulator 'sim' is there already",
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


def _start(stack: ExitStack, started: list[subprocess.Popen[bytes]], program: list[str], address: str) -> None:
    """A simulator, killed when `stack` ends if it still runs."""
    process = stack.enter_context(subprocess.Popen([*program, address]))
    stack.callback(process.kill)
    started.append(process)


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_client_says_the_golden_bytes_and_is_told_what_it_did_wrong_I8(language: str, tmp_path: Path) -> None:
    """I8: the bytes of its messages, all kinds of numbers, and each refusal with its sentence and code; its
    neighbours, of the same program, are served all the same. Driven, it holds to all that the conformance kit looks
    for."""
    program = driver(language, tmp_path)
    heard = [*GOLDEN["admit"]["frames"], *GOLDEN["act"]["frames"]]
    numbers = [(dtype, np.array(number, dtype)) for dtype, number in NUMBERS]
    said = _run(program, "golden", *heard, *(part for dtype, one in numbers for part in (dtype, one.tobytes().hex())))
    messages = ("hello", "observe", "observe-rewarded", "end", "ping", "bye")
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
    with ExitStack() as stack:
        started: list[subprocess.Popen[bytes]] = []
        tell = partial(_start, stack, started, [*program, "play"])
        findings = [*check_simulator("127.0.0.1", 0, WALK, tell)]
        assert all(finding.good for finding in findings), "\n".join(map(str, findings))
        assert started[0].wait(SECONDS) == 0
