"""What the coordinator of a run in several environments decides from what all actors counted, and what they do (I9)."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.config.run import Run, parse_run
from workers.coordination.curriculum import CurriculumState, curriculum_of
from workers.environments.collections.sampling import AdversarialSampler, CurriculumSampler, choice_of
from workers.environments.registry import make
from workers.runtime.files import SafeWriter

HUNT = {"id": "treasure_hunt", "settings": {"width": 7, "height": 7, "turns": 4}}
STAGES = {"after": {"hard": ["easy"]}, "threshold": {"easy": 2.0}, "episodes": 10, "rehearsal": 0.0}
POLICIES = ["agent_0", "agent_1"]


def run_in(members: tuple[str, ...] = ("easy", "hard"), **structure: Any) -> Run:
    processes = structure.pop("processes", 0)
    world = {"copies": 8, "members": dict.fromkeys(members, HUNT), "processes": processes, **structure}
    return parse_run({"environment": world, **structure.pop("keys", {})})


def curriculum(run: Run, folder: Path) -> CurriculumState:
    return CurriculumState(run, POLICIES, 2, folder, SafeWriter())


class Actors:
    """Counters of two actors, each of whose episodes counts for both agents."""

    def __init__(self) -> None:
        self.pages: dict[tuple[str, int], dict[str, float]] = {("actor-0", 1): {}, ("actor-1", 1): {}}

    def end(self, actor: int, member: str, episodes: int, score: float) -> None:
        page = self.pages[f"actor-{actor}", 1]
        for policy in POLICIES:
            for kind, value in (("episodes", episodes), ("returns", episodes * score)):
                name = f"{kind}.{policy}/{member}"
                page[name] = page.get(name, 0.0) + value


def test_what_all_actors_together_have_mastered_is_open_to_all_and_stays_so_I9(tmp_path: Path) -> None:
    """I9: neither actor alone has ended enough episodes; the last ones count, not the first."""
    made, actors = curriculum(run_in(curriculum=STAGES), tmp_path), Actors()
    actors.end(0, "easy", 9, -50.0)
    made.update(actors.pages)
    assert made.view == {"scores": {"easy": -50.0}, "mastered": []}
    for actor in (0, 1):
        actors.end(actor, "easy", 5, 3.0)
    made.update(actors.pages)
    assert made.mastered == ["easy"]
    assert made.view["scores"] == {"easy": 3.0}  # of the newest 10
    again = curriculum(run_in(curriculum=STAGES), tmp_path)
    assert again.view == {"scores": {}, "mastered": ["easy"]}
    again.update(actors.pages)  # what was counted before it came is not taken for news
    actors.end(0, "hard", 1, 1.0)
    again.update(actors.pages)
    assert again.view == {"scores": {"hard": 1.0}, "mastered": ["easy"]}


def test_a_full_disk_ends_no_coordinator_and_what_was_mastered_is_kept_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, _text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    disk, actors = SafeWriter(), Actors()
    made = CurriculumState(run_in(curriculum=STAGES), POLICIES, 2, tmp_path, disk)
    actors.end(0, "easy", 20, 3.0)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        made.update(actors.pages)
    assert made.view["mastered"] == ["easy"]
    assert disk.missed == 1
    assert list(tmp_path.iterdir()) == []
    made.update(actors.pages)
    assert curriculum(run_in(curriculum=STAGES), tmp_path).mastered == ["easy"]
    (tmp_path / "curriculum.json").unlink()
    made.update(actors.pages)
    assert list(tmp_path.iterdir()) == []  # it is written when there is news, and not with each look


def test_the_worst_of_all_actors_is_told_once_each_was_tried_I9(tmp_path: Path) -> None:
    made, actors = curriculum(run_in(adversarial={"tries": 2, "episodes": 4, "exploration": 0.0}), tmp_path), Actors()
    actors.end(0, "easy", 1, 5.0)
    made.update(actors.pages)
    assert made.view == {"scores": {}}
    actors.end(1, "easy", 1, 7.0)
    actors.end(1, "hard", 2, -1.0)
    made.update(actors.pages)
    assert made.view == {"scores": {"easy": 6.0, "hard": -1.0}}


def test_who_is_told_plays_what_he_is_told_whatever_his_own_episodes_were_I9() -> None:
    ladder = choice_of(run_in(curriculum=STAGES).environment, np.random.default_rng(0))
    assert isinstance(ladder, CurriculumSampler)
    ladder.update({"scores": {}, "mastered": []})
    for _ in range(20):
        ladder.ended("easy", 100.0)
    assert {ladder.choose() for _ in range(20)} == {"easy"}
    ladder.update({"scores": {}, "mastered": ["easy"]})
    assert {ladder.choose() for _ in range(20)} == {"hard"}
    worst = choice_of(run_in(adversarial={"tries": 1, "exploration": 0.0}).environment, np.random.default_rng(0))
    assert isinstance(worst, AdversarialSampler)
    worst.update({"scores": {"hard": 1.0}})
    worst.ended("hard", -9.0)
    assert {worst.choose() for _ in range(5)} == {"easy"}  # nobody has tried it
    worst.update({"scores": {"hard": 1.0, "easy": 2.0}})
    assert {worst.choose() for _ in range(5)} == {"hard"}


def test_processes_that_step_copies_hear_of_it_too_I9() -> None:
    world = make(run_in(curriculum=STAGES, processes=1).environment)
    try:
        turn = world.reset(0)
        world.set_curriculum({"scores": {}, "mastered": ["easy"]})
        told: dict[tuple[str, int], tuple[int, float]] = {}
        for _ in range(40):
            turn = world.step([np.zeros(len(one.observation), np.int64) for one in turn.present])
            told |= world.take_episodes()
        assert {member for member, _ in told} == {"easy", "hard"}  # those that had begun, and what is open since
    finally:
        world.close()


def test_nobody_decides_in_lock_step_or_where_there_is_nothing_to_decide(tmp_path: Path) -> None:
    stages = {"environment": {"copies": 8, "members": dict.fromkeys(("easy", "hard"), HUNT), "curriculum": STAGES}}
    for run in (
        parse_run({**stages, "schedule": "lockstep", "lockstep_checkpoint_rounds": 0, "act_block": 8}),
        run_in(prior={"easy": 1, "hard": 2}),
        parse_run({}),
    ):
        world = make(run.environment.model_copy(update={"processes": 0}))
        try:
            assert curriculum_of(run, world.world, POLICIES, tmp_path, SafeWriter()) is None
        finally:
            world.close()
