"""Several policies in one process: each learns, fails and goes on as if it were alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.errors import TrainingFault
from protocol.version import Version
from tests.workers.learning.test_member import STREAM, Bench, run_of
from workers.learning.cohort import Cohort


class Company:
    """Members with surroundings of their own, all in one cohort."""

    def __init__(self, count: int, folder: Path | None = None, restarts: int = 1) -> None:
        run = run_of(STREAM, publish_interval=2)
        self.benches = [Bench(run, folder and folder / str(i)) for i in range(count)]
        for bench in self.benches:
            bench.member.resume(None, Version(0, 0))
        members = [bench.member for bench in self.benches]
        self.cohort = Cohort(members, restarts, self._last, self.benches[0].counters)

    def _last(self, _: str) -> NDArray[np.uint8]:
        return self.benches[0].published[-1][1]

    def weights(self, number: int) -> bytes:
        """Of a member, as they are."""
        return self.benches[number].member.weights.bytes_view().tobytes()


def spoiled(bench: Bench) -> None:
    """Its weights are no numbers any more."""
    for parameter in bench.member.policy.parameters():
        parameter.data.fill_(float("nan"))


@pytest.mark.parametrize("saved", [True, False], ids=["checkpoint", "published"])
def test_a_member_that_fails_goes_back_to_its_last_good_weights_and_the_others_go_on(
    tmp_path: Path, saved: bool
) -> None:
    company, alone = Company(2, tmp_path if saved else None), Company(1)
    for bench in (*company.benches, *alone.benches):
        bench.feed(8)
    first, second = company.benches
    assert len(company.cohort.step()) == 2
    alone.cohort.step()
    if saved:
        first.save()
    version, good = first.published[-1]
    spoiled(first)
    trained = []
    while not first.counters["member_restarts.one"]:
        trained.append(company.cohort.step())
        alone.cohort.step()
    assert len(trained) == 3, "three updates in a row may fail"
    assert first.member.weights.bytes_view().tobytes() == good.tobytes()
    assert first.published[-1][0].version == version.version + 1
    assert first.member.update.train_steps == (2 if saved else 0)
    assert company.weights(1) == alone.weights(0), "bit for bit as if it were alone"
    assert second.counters["rejected.one"] == 0
    company.cohort.step()
    assert company.weights(0) != good.tobytes(), "it learns again"
    assert first.counters["steps_made.one"] == 4


def test_a_member_that_fails_too_often_ends_the_process_as_one_that_is_alone_does() -> None:
    for company in (Company(2, restarts=0), Company(1)):
        company.benches[0].feed(8)
        spoiled(company.benches[0])
        for _ in range(2):
            company.cohort.step()
        with pytest.raises(TrainingFault):
            company.cohort.step()
