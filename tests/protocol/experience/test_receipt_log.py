"""The ledger: what was settled stays settled, for whoever opens it next."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.errors import SharedMemoryError
from protocol.experience.receipt_log import _ENTRIES, FORGOTTEN, ReceiptLog
from tests.faults import raises
from tests.protocol.parts import line, python

WRITER = """
import sys
from pathlib import Path
from protocol.experience.receipt_log import ReceiptLog
ledger = ReceiptLog(Path(sys.argv[1]))
for number in range(2, 2002, 2):
    ledger.acknowledge("actor-0", 1, number, 2)
ledger.acknowledge("actor-0", 2, 2**40, 1)
ledger.acknowledge("a" * 128, 2**62, 7, 7)
print("ready", flush=True)
sys.stdin.readline()
"""


def test_what_was_settled_survives_kill_9_of_the_learner(tmp_path: Path) -> None:
    path = tmp_path / "ledgers" / "gem"
    with python(WRITER, path) as process:
        assert line(process) == "ready"
        process.kill()
        process.wait(60)
    ledger = ReceiptLog(path)
    assert ledger.entries() == {("actor-0", 1): 2000, ("actor-0", 2): 2**40, ("a" * 128, 2**62): 7}
    assert ledger.counts() == {("actor-0", 1): 2000, ("actor-0", 2): 1, ("a" * 128, 2**62): 7}
    ledger.acknowledge("actor-0", 1, 2004, 2)
    ledger.acknowledge("actor-1", 1, 4, 4)
    again = ReceiptLog(path)
    assert again.entries() == ledger.entries()
    assert again.counts() == ledger.counts()
    assert (again.acknowledged("actor-0", 1), again.acknowledged("actor-1", 1), again.acknowledged("actor-9", 1)) == (
        2004,
        4,
        0,
    )


@pytest.mark.parametrize(("actor", "incarnation"), [("actor-0", 0), ("actor-0", -1), ("ä" * 65, 1)])
def test_an_entry_that_would_not_survive_reloading_is_refused(tmp_path: Path, actor: str, incarnation: int) -> None:
    ledger = ReceiptLog(tmp_path / "gem")
    with pytest.raises(ValueError, match="cannot be entered"):
        ledger.acknowledge(actor, incarnation, 1, 1)
    ledger.acknowledge("actor-1", 1, 5, 5)
    assert ReceiptLog(tmp_path / "gem").entries() == {("actor-1", 1): 5}


def test_a_ledger_full_of_actors_that_may_live_says_so() -> None:
    ledger = ReceiptLog(None)
    for number in range(_ENTRIES):
        ledger.acknowledge(f"actor-{number}", 1, 1, 1)
    with raises(SharedMemoryError, "ledger_full"):
        ledger.acknowledge("actor-x", 1, 1, 1)
    ledger.acknowledge("actor-7", 1, 2, 1)  # those who are in it go on
    assert ledger.acknowledged("actor-7", 1) == 2


def test_a_full_ledger_forgets_who_has_long_been_followed_but_not_how_much_there_was(tmp_path: Path) -> None:
    ledger = ReceiptLog(tmp_path / "gem")
    ledger.acknowledge("actor-1", 1, 10**9, 3)
    forgotten = [key for i in range(1, 2 * _ENTRIES) for key in ledger.acknowledge("actor-0", i, i, 2)]
    assert forgotten == [("actor-0", i) for i in range(1, len(forgotten) + 1)]
    again = ReceiptLog(tmp_path / "gem")
    assert again.entries() == ledger.entries()
    assert len(again.entries()) <= _ENTRIES
    assert again.acknowledged("actor-1", 1) == 10**9
    assert again.acknowledged("actor-0", 2 * _ENTRIES - 1) == 2 * _ENTRIES - 1
    counts = again.counts()
    assert counts[FORGOTTEN] == 2 * len(forgotten)
    assert sum(counts.values()) == 3 + 2 * (2 * _ENTRIES - 1)
