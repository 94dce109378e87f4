"""What a coordinator that returns knows of its run: all that the earlier one wrote, whole or not at all."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path

from protocol.messages.core import Route
from workers.coordination.member_store import MemberStore, WorkerRecord

ROUTE = Route(policy="a", learner="learner-a", incarnation=2, experience="e", weights="w", acknowledgements="k")


def filled(path: Path) -> MemberStore:
    """With an entry of every kind."""
    made = MemberStore(path)
    made.members["actor-0"] = WorkerRecord(
        "actor-0",
        "actor",
        "token",
        2,
        platform.node(),
        os.getpid(),
        "node",
        5.0,
        index=1,
        policies=["a", "b"],
        quota=70,
        steps_before=30,
        state="acting",
        routes=[ROUTE],
        counters={"env_steps": 15.0},
        metrics={"rate": 1.0},
    )
    made.incarnations.update({"actor-0": 2, "learner-a": 1})
    made.quotas.update({("actor-0", 1): 100, ("actor-0", 2): 70})
    made.ended["learner-a", 1] = {"steps_made.a": 3.0}
    made.clean.add(("learner-a", 1))
    made.gave_up.add(("actor-0", 1))
    made.refused["requests"] = 7
    made.restarts["actor-0"] = 1
    return made


def test_everything_comes_back_G2(tmp_path: Path) -> None:
    first = filled(tmp_path / "state.json")
    first.save()
    again = MemberStore(tmp_path / "state.json")
    for name in ("run_id", "incarnations", "quotas", "ended", "clean", "gave_up", "refused"):
        assert getattr(again, name) == getattr(first, name), name
    assert again.restarts == {"actor-0": 1, "coordinator": 1}
    (member,) = again.members.values()
    old = first.members["actor-0"]
    same = [name for name in WorkerRecord.__slots__ if name not in ("seen", "heard", "state", "metrics")]
    assert [getattr(member, name) for name in same] == [getattr(old, name) for name in same]
    assert not member.heard
    assert member.seen > 0  # its lease begins now
    assert (tmp_path / "run_id").read_text() == f"{first.run_id}\n"


def test_whoever_reads_the_file_meanwhile_reads_it_whole(tmp_path: Path) -> None:
    """A coordinator that dies while it writes leaves the earlier state."""
    made = filled(tmp_path / "state.json")
    made.save()
    before = (tmp_path / "state.json").read_text()
    with (tmp_path / "state.json").open() as file:
        made.restarts["actor-0"] = 9
        made.save()
        assert file.read() == before
    assert MemberStore(tmp_path / "state.json").restarts["actor-0"] == 9


def test_a_run_has_an_id_of_its_own(tmp_path: Path) -> None:
    one, other = (MemberStore(tmp_path / name).run_id for name in "ab")
    assert one != other


def test_a_copy_of_a_run_that_ended_in_order_has_an_id_of_its_own(tmp_path: Path) -> None:
    """One that was only moved keeps its id, and so does a copy of one whose workers may still be there."""
    (first := tmp_path / "first").mkdir()
    (killed := tmp_path / "killed").mkdir()
    store, other = filled(first / "state.json"), filled(killed / "state.json")
    store.over = True
    store.save()
    other.save()
    copy = MemberStore(shutil.copytree(first, tmp_path / "copy") / "state.json")
    assert copy.run_id != store.run_id
    assert (tmp_path / "copy" / "run_id").read_text() == f"{copy.run_id}\n"
    assert MemberStore(first.rename(tmp_path / "moved") / "state.json").run_id == store.run_id
    assert MemberStore(shutil.copytree(killed, tmp_path / "other") / "state.json").run_id == other.run_id
