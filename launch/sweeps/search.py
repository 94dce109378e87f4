"""A sweep whose settings are drawn trial by trial by Optuna, which is told what each trial comes to.

    a core is free -> the sampler draws settings -> a run for each seed -> their mean score, or pruned on the way

In flow: a sweep's file with `search`. Out flows: `study.db`, an Optuna study that says all that is needed to go on; a
folder for each trial. A trial has its number before anything of it begins and keeps its settings: an interrupted one is
gone on with, by its number. What the sampler draws for a number comes from its seed and that number.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna import pruners, samplers
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.trial import TrialState
from sqlalchemy.exc import SQLAlchemyError

from launch.config_loader import load
from launch.sweeps.curves import evaluations
from launch.sweeps.grid import Range, Search, Sweep, Trial, seeds_of
from launch.sweeps.runs import Queue, done, score_of
from protocol.errors import ConfigurationError

FILE, STUDY = "study.db", "sweep"
"""Where the study lies, and what it is called there."""
_HOPELESS = 3
"""Trials that fail before any has a score, after which others would as well."""


@dataclass(slots=True)
class _Open:
    """A trial that goes on. `step`: of the last evaluation that Optuna was told."""

    trial: optuna.Trial
    step: int
    runs: list[Trial]


class StudyQueue(Queue):
    """Runs of trials, which `study` is asked for when their turn comes."""

    def __init__(self, sweep: Sweep, search: Search, folder: Path, study: optuna.Study, tell: Callable[[str], None]):
        super().__init__([])
        self.study, self._sweep, self._search, self._folder, self._tell = study, sweep, search, folder, tell
        self._open: dict[Path, _Open] = {}
        every, self._failures = study.get_trials(deepcopy=False), 0
        over = [one.state for one in every if one.state.is_finished()]
        self._asked = sum(one.state != TrialState.WAITING for one in every)
        self._scored = any(state != TrialState.FAIL for state in over)
        self.said = f"{search.trials} trials, {len(over)} of them done"
        for one in every:
            if one.state == TrialState.RUNNING:  # when the sweep was interrupted
                study.sampler = _sampler(search, one.number)
                self._take(optuna.Trial(study, one._trial_id), one.last_step or 0)

    def next(self) -> Trial | None:
        """Asked when a core is free, the sampler knows as much as can be known."""
        while not self.waiting and self._asked < self._search.trials:
            self.study.sampler = _sampler(self._search, self._asked)
            self._asked += 1
            self._take(self.study.ask(), 0)
        return super().next()

    def stops(self, trial: Trial) -> bool:
        """Whether its trial is pruned, by what all its seeds have been evaluated at, or has failed by another seed."""
        one = self._open.get(trial.folder.parent)
        if one is None or self._search.pruner is None:
            return one is None
        for step, value in self._report(one):
            if step < trial.run.end:
                self._close(trial.folder.parent, f"pruned at {step} steps with {value:.6g}", TrialState.PRUNED)
                return True
        return False

    def _report(self, one: _Open) -> Iterator[tuple[int, float]]:
        """Tells Optuna how all seeds were evaluated since; at how many steps, and with which mean, it would prune."""
        told = [_evaluated(run, self._search.policy) for run in one.runs]
        for step in sorted(step for step in set.intersection(*map(set, told)) if step > one.step):
            one.step, value = step, float(np.mean([by_step[step] for by_step in told]))
            one.trial.report(value, step)
            if one.trial.should_prune():
                yield step, value

    def ended(self, trial: Trial, complete: bool) -> None:
        """The last of its seeds gives the trial its score."""
        place = trial.folder.parent
        if place in self._open and not complete:
            self._fail(place, f"see {trial.folder.with_suffix('.out')}")
        elif place in self._open and all(map(done, self._open[place].runs)):
            self._score(place)

    def found(self) -> list[dict[str, Any]]:
        """What each trial is and came to, in their order."""
        lines = []
        for one in self.study.get_trials(deepcopy=False):
            told = {"trial": one.number, "state": one.state.name.lower(), "settings": self._settings(one.params)}
            told |= {"score": one.value, "values": one.user_attrs.get("values"), "fault": one.user_attrs.get("fault")}
            lines.append({**told, "pruned_at": one.last_step if one.state == TrialState.PRUNED else None})
        return lines

    def _settings(self, drawn: dict[str, Any]) -> dict[str, Any]:
        """`drawn` as the configuration has it, with what is the same in all trials."""
        found = {key: space[0] for key, space in self._sweep.settings.items() if isinstance(space, tuple)}
        for key, value in drawn.items():
            space = self._sweep.settings[key]
            found[key] = value if isinstance(space, Range) else next(one for one in space if _plain(one) == value)
        return found

    def _take(self, trial: optuna.Trial, step: int) -> None:
        """Puts the runs of `trial` in their place."""
        place = self._folder / f"trial-{trial.number:04}"
        for key, space in self._sweep.settings.items():
            _draw(trial, key, space)
        self._open[place] = one = _Open(trial, step, [])
        try:
            one.runs = seeds_of(self._sweep, self._settings(trial.params), place)
        except ConfigurationError as fault:  # of settings that do not go together
            return self._fail(place, str(fault))
        waiting = [run for run in one.runs if not done(run)]
        self.waiting += waiting
        if not waiting:  # it ended as the sweep was interrupted
            self._score(place)

    def _score(self, place: Path) -> None:
        """Tells Optuna the mean over seeds. ConfigurationError if there is none, and no other trial had one: that lies
        with the sweep, and the trial is scored when it is mended."""
        one, kind = self._open[place], self._search.score
        try:
            values = [score_of(run.folder, self._search.policy, [kind]) for run in one.runs]
        except ConfigurationError as fault:
            if not self._scored:
                raise
            return self._fail(place, str(fault))
        value = float(np.mean(values))
        if not math.isfinite(value):
            return self._fail(place, f"its {kind} is {value}")
        one.trial.set_user_attr("values", values)
        [*self._report(one)]  # others are compared with it
        self._close(place, f"{kind} {value:.6g}", TrialState.COMPLETE, value)

    def _fail(self, place: Path, why: str) -> None:
        """The trial has no score. ConfigurationError when none has one."""
        self._open[place].trial.set_user_attr("fault", why)
        self._close(place, f"failed: {why}", TrialState.FAIL)
        self._failures += 1
        if not self._scored and self._failures >= _HOPELESS:
            raise ConfigurationError("search_trials_fail", count=self._failures, reason=why)

    def _close(self, place: Path, what: str, state: TrialState, value: float | None = None) -> None:
        """Tells Optuna first: whatever kills the sweep from here on, the trial has ended."""
        self.study.tell(self._open.pop(place).trial, value, state)
        self._scored |= state != TrialState.FAIL
        self.waiting = [run for run in self.waiting if run.folder.parent != place]
        self._tell(f"{place.name}: {what}")


@contextmanager
def searching(sweep: Sweep, trials: list[Trial], folder: Path, tell: Callable[[str], None]) -> Iterator[StudyQueue]:
    """The queue of the study in `folder`; `trials`: some that it may have. ConfigurationError, in one sentence, if it
    is of another sweep, or cannot be read or written."""
    search = sweep.search
    assert search is not None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        storage = optuna.storages.RDBStorage(f"sqlite:///{folder / FILE}")
        try:
            study = _study(sweep, search, _pruner(search, trials[0]), storage, folder / FILE)
            yield StudyQueue(sweep, search, folder, study, tell)
        finally:
            storage.engine.dispose()
    except (optuna.exceptions.StorageInternalError, SQLAlchemyError) as fault:
        reason = " ".join(str(fault).split())[:500]
        raise ConfigurationError("study_unusable", file=folder / FILE, reason=reason) from None


def draw_study(study: optuna.Study, folder: Path) -> None:
    """Writes Optuna's pictures of the study: its history, its trials over settings, and how much each setting matters,
    those that it has trials for."""
    from matplotlib import pyplot
    from optuna.visualization import matplotlib as pictures

    pyplot.switch_backend("agg")
    whole = study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])
    if not whole:
        return
    with warnings.catch_warnings(action="ignore"):
        made: dict[str, Any] = {"history": pictures.plot_optimization_history(study)}
        made["parallel"] = parallel = pictures.plot_parallel_coordinate(study, target_name="score")
        if len(whole) > 1:
            made["importance"] = pictures.plot_param_importances(study, evaluator=PedAnovaImportanceEvaluator())
    names = ["score", *(key.rpartition(".")[2] for key in sorted(whole[0].params))]
    parallel.set_xticks(range(len(names)), names)  # not the beginnings of keys, which are alike
    for name, axes in made.items():
        axes.figure.set_size_inches(11, 5)
        axes.figure.savefig(folder / f"{name}.png", dpi=100, bbox_inches="tight")
    pyplot.close("all")


def _study(sweep: Sweep, search: Search, pruner: Any, storage: Any, file: Path) -> optuna.Study:
    """The one in `storage`, or a new one, also in place of one that has told nothing yet."""
    told = sweep.model_dump(mode="json")
    same = {"run": load(sweep.run, [], steps=sweep.steps).model_dump(mode="json"), "settings": told["settings"]}
    same |= {"seeds": told["seeds"], **{key: told["search"][key] for key in ("score", "policy", "direction")}}
    if STUDY in optuna.get_all_study_names(storage):
        study = optuna.load_study(study_name=STUDY, storage=storage, pruner=pruner)
        changed = [key for key, value in same.items() if study.user_attrs.get("sweep", {}).get(key) != value]
        if not changed:
            return study
        if study.get_trials(deepcopy=False, states=[TrialState.COMPLETE, TrialState.PRUNED]):
            raise ConfigurationError("search_differs", file=file, key=changed[0])
        optuna.delete_study(study_name=STUDY, storage=storage)
    study = optuna.create_study(study_name=STUDY, storage=storage, pruner=pruner, direction=search.direction)
    study.set_user_attr("sweep", same)
    return study


def _sampler(search: Search, number: int) -> samplers.BaseSampler:
    """For the trial `number`: whenever it is asked, it draws from the same chance."""
    seed = int(np.random.SeedSequence([search.seed, number]).generate_state(1)[0])
    return samplers.RandomSampler(seed) if search.sampler == "random" else samplers.TPESampler(seed=seed)


def _pruner(search: Search, trial: Trial) -> pruners.BasePruner:
    """Counts in agent steps, as `trial` has them; one of three goes on."""
    halving = pruners.SuccessiveHalvingPruner(_every(trial), 3)
    return {"halving": halving, "median": pruners.MedianPruner(), None: pruners.NopPruner()}[search.pruner]


def _every(trial: Trial) -> int:
    """Agent steps from one evaluation to the next."""
    return (trial.run.evaluation.every_steps if trial.run.evaluation is not None else None) or 1


def _plain(value: Any) -> int | float | str | None:
    """What Optuna can keep: `value`, or its text."""
    return value if value is None or type(value) in (int, float, str) else json.dumps(value, default=str)


def _draw(trial: optuna.Trial, key: str, space: Range | tuple[Any, ...]) -> None:
    """Has Optuna draw a value, if it has none yet; what is the same in all trials is none of its."""
    if isinstance(space, tuple):
        if len(space) > 1:
            trial.suggest_categorical(key, [_plain(value) for value in space])
    elif space.whole:
        trial.suggest_int(key, int(space.low), int(space.high), step=int(space.step or 1), log=space.scale == "log")
    else:
        trial.suggest_float(key, space.low, space.high, step=space.step, log=space.scale == "log")


def _evaluated(trial: Trial, policy: str | None) -> dict[int, float]:
    """Agent steps, rounded down to where an evaluation falls due -> the mean of `policy`, or of all, over worlds."""
    found: dict[int, dict[str, list[float]]] = {}
    for line in evaluations(trial.folder):
        if policy in (None, line["policy"]):
            step = line["agent_steps"] // _every(trial) * _every(trial)
            found.setdefault(step, {}).setdefault(line["policy"], []).append(line["mean"])
    return {step: float(np.mean([np.mean(means) for means in by.values()])) for step, by in found.items()}
