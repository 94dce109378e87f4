"""One agent that a person plays: who has its seat, what is to be seen from it, what is done there in time.

In flows: turns of the world; the person's actions, from other threads. Out flows: an action of each turn, a fallback
where none came in time; frames for a page; what was earned and counted.

The seat is taken once, by a token; whoever has taken it has a secret and may leave and come back.
"""

from __future__ import annotations

import hmac
import secrets
import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ConfigurationError
from protocol.spaces import Place, Text, dtype_of
from protocol.spaces.drawing import first_legal
from workers.environments.base import AgentOutcome, AgentTimeStep, Turn
from workers.environments.checks.row_checks import ActionRows

AWAY = 5.0
"""Seconds for which a page that was closed is waited for."""
_LOOK = 0.05
"""Seconds between two looks whether the game is to end."""
_CHOICES, _CONTROLS, _NUMBERS = 512, 32, 1 << 20
"""The most that a page offers of one choice, of controls in all, and shows of one part of an observation."""


class GameOver(Exception):
    """The game was ended while somebody was waited for."""


class Recorder(Protocol):
    """What keeps an agent's episodes."""

    def acted(self, present: AgentTimeStep, action: NDArray[Any], absent: bool = False) -> None:
        """It has seen this and does that; `absent`: by the fallback, as the page was closed."""

    def told(self, one: AgentTimeStep | AgentOutcome) -> None:
        """What that brought."""


def check_playable(place: Place) -> None:
    """ConfigurationError for an agent whom no page can show or no person can play."""
    if place.many > 1:
        raise ConfigurationError("agent_not_playable", agent=place.name, reason=f"it stands for {place.many} at once")
    controls = 0
    for leaf in place.acted.leaves:
        sizes = getattr(leaf.space, "sizes", ())
        if isinstance(leaf.space, Text) or max(sizes, default=0) > _CHOICES:
            reason = f"{leaf.name} is a {type(leaf.space).__name__}" + (f" of {max(sizes)} choices" if sizes else "")
            raise ConfigurationError("agent_not_playable", agent=place.name, reason=reason)
        controls += int(np.prod(leaf.space.shape, dtype=np.int64))
    if controls > _CONTROLS:
        raise ConfigurationError("agent_not_playable", agent=place.name, reason=f"it has {controls} things to choose")
    for leaf in place.observed.leaves:
        shape = leaf.space.shape
        if not leaf.evaluation_only and (len(shape) > 3 or np.prod(shape, dtype=np.int64) > _NUMBERS):
            reason = f"{leaf.name} has the shape {list(shape)}"
            raise ConfigurationError("agent_not_playable", agent=place.name, reason=reason)


class Seat:
    """That of the agent `place`, number `agent` of its world; a `Player`. The person has `deadline` seconds in each
    turn; None: as long as the page is open."""

    def __init__(self, agent: int, place: Place, deadline: float | None, ending: threading.Event) -> None:
        self.agent, self.place, self.deadline, self.ending = agent, place, deadline, ending
        self.token = secrets.token_urlsafe(16)
        self.recorder: Recorder | None = None
        self.counts: Counter[str] = Counter()
        """Turns, fallbacks by cause (`late`, `away`), messages that were refused by cause."""
        self.returns: list[float] = []
        """Of the episodes that have ended."""
        self.moment: tuple[int, Mapping[str, Any]] = (0, {})
        """(its number, what is to be seen); whoever waits for the next one asks for another number."""
        self._condition = threading.Condition()
        self._actions = ActionRows(place)
        self._secret = ""
        self._pages = 0
        self._seen_at = 0.0
        self._running, self._begun = 0.0, False
        self._turn = 0
        self._present: AgentTimeStep | None = None
        self._chosen: NDArray[Any] | None = None

    # what a page does

    def take(self, token: str) -> str | None:
        """The secret of whoever takes the seat; None where the token is wrong, or was used."""
        with self._condition:
            if self._secret or not hmac.compare_digest(token.encode(), self.token.encode()):
                return None
            self._secret = secrets.token_urlsafe(16)
            return self._secret

    def is_players(self, secret: str) -> bool:
        """Whether it is that of who took the seat."""
        return bool(self._secret) and hmac.compare_digest(secret.encode(), self._secret.encode())

    def page(self, opened: bool) -> None:
        """One is looked at from now on, or no longer."""
        with self._condition:
            self._pages += 1 if opened else -1
            self._seen_at = time.monotonic()
            self._condition.notify_all()

    def await_moment(self, after: int, seconds: float) -> tuple[int, Mapping[str, Any]]:
        """The newest, once it is another than `after`, or so many seconds are over."""
        with self._condition:
            self._condition.wait_for(lambda: self.moment[0] != after, seconds)
            return self.moment

    def leave_pages(self, seconds: float = 2.0) -> None:
        """Waits until pages that are open have been told of the end."""
        with self._condition:
            self._condition.notify_all()
            self._condition.wait_for(lambda: not self._pages, seconds)

    def choose(self, turn: object, action: object) -> str:
        """Does this in the turn with that number; else why not, in a word that is counted."""
        with self._condition:
            why = "stale"
            if self._present is not None and turn == self._turn and self._chosen is None:
                rows = _rows(self.place, action)
                if rows is not None and self._is_legal(rows):
                    self._chosen, why = rows, ""
                else:
                    why = "illegal"
            if why:
                self.counts[why] += 1
            self._condition.notify_all()
            return why

    def refuse(self, why: str) -> None:
        """Counts a message that was not read."""
        with self._condition:
            self.counts[why] += 1

    # what the game does

    def await_player(self) -> None:
        """Until a page is open for the first time; GameOver if the game is ended first."""
        while not self._pages:
            if self.ending.wait(_LOOK):
                raise GameOver

    def hear(self, turn: Turn) -> None:
        """Enters what the last actions brought."""
        told: tuple[AgentTimeStep | AgentOutcome, ...] = (*turn.outcomes, *turn.present)
        for one in told:
            if one.agent != self.agent or not len(one.reward) or not self._begun:
                continue
            if self.recorder is not None:
                self.recorder.told(one)
            self._running += float(one.reward[0])
            if one.terminated[0] or one.truncated[0]:
                self.returns.append(self._running)
                self._running, self._begun = 0.0, False

    def show(self, view: Mapping[str, Any]) -> None:
        """Lets pages see this, and who has what so far."""
        with self._condition:
            self._show(view)

    def __call__(self, present: AgentTimeStep) -> NDArray[Any]:
        """[1]: what the person does, or the fallback; GameOver if the game is ended."""
        began = time.monotonic()
        with self._condition:
            self._present, self._chosen, self._turn = present, None, self._turn + 1
            self._show({**self.moment[1], "turn": self._turn, "mask": self._mask()})
            while self._chosen is None and (why := self._cause(began)) == "":
                self._condition.wait(_LOOK)
            action, absent = self._chosen, False
            if action is None:
                absent = why == "away"
                self.counts[why] += 1
                action = first_legal(self.place.acted, 1, present.action_mask)
            self.counts["turns"] += 1
            self._present, self._begun = None, True
            self._show({**self.moment[1], "turn": None})
        if self.recorder is not None:
            self.recorder.acted(present, action, absent)
        return action

    @property
    def unfinished(self) -> bool:
        """Whether an episode is not over."""
        return self._begun

    def _cause(self, began: float) -> str:
        """Why nobody is waited for any longer; empty while somebody is."""
        if self.ending.is_set():
            raise GameOver
        now = time.monotonic()
        late = self.deadline is not None and now - began >= self.deadline
        if not self._pages and (late or now - self._seen_at >= AWAY):
            return "away"
        return "late" if late else ""

    def _is_legal(self, rows: NDArray[Any]) -> bool:
        mask = None if self._present is None else self._present.action_mask
        return self._actions.flaw("action", rows, 1, mask) is None

    def _mask(self) -> dict[str, list[bool]]:
        if self._present is None or self._present.action_mask is None:
            return {}
        parts = self.place.parts("action_mask", self._present.action_mask)
        return {name.replace("action_mask", "action", 1): part[0].tolist() for name, part in parts.items()}

    def _show(self, view: Mapping[str, Any]) -> None:
        books = {"earned": self._running, "returns": self.returns[-5:], "counts": dict(self.counts)}
        self.moment = (self.moment[0] + 1, {**view, **books})
        self._condition.notify_all()


def _rows(place: Place, action: object) -> NDArray[Any] | None:
    """[1]: what a page means by leaf -> value, a flat list of several; None where that is no such action."""
    found = place.acted.zeros(1)
    if not isinstance(action, dict) or action.keys() != {leaf.name for leaf in place.acted.leaves}:
        return None
    for leaf, column in place.acted.parts(found):
        try:
            value, shape = np.asarray(action[leaf.name]), leaf.space.shape
            if value.shape != (column[0].size,) * bool(shape):
                return None
            if value.dtype.kind not in ("iuf" if dtype_of(leaf.space).kind == "f" else "iu"):
                return None
            column[0] = value.reshape(shape)
            if column.dtype.kind != "f" and (column[0] != value.reshape(shape)).any():
                return None  # it does not fit into so few bytes
        except (ValueError, TypeError, OverflowError):
            return None
    return found
