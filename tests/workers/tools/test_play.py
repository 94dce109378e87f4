"""`rookery play`: who has the seat, what is done in time and otherwise, what is seen, what is recorded."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import minari
import numpy as np
import pytest

from launch.local.process import python
from protocol.errors import ConfigurationError
from protocol.spaces import Agent, Box, Dict, Discrete, MultiDiscrete, Text, World
from tests.faults import kinds_in, raises
from tests.flows.runs import environment as variables
from tests.waiting import until
from tests.workers.coordination.dashboard.asking import ask, serving
from tests.workers.coordination.dashboard.browser import browser
from workers.learning.datasets.minari_datasets import MinariDataset, MinariWriter
from workers.tools.play import seat as module
from workers.tools.play.game import Asked, Game, opened, place_of
from workers.tools.play.page import PlayPage
from workers.tools.play.recording import EpisodeRecording
from workers.tools.play.seat import Seat, check_playable

WORLDS = """
import os

import gymnasium
import numpy as np


class Masked(gymnasium.Env):
    '''Three of five are legal, others in each turn; each turn earns the choice; an episode has four.'''

    observation_space = gymnasium.spaces.Box(0, 9, (2,))
    action_space = gymnasium.spaces.Discrete(5)
    begun = 0

    def __init__(self, fatal=0):
        self.fatal = fatal

    def reset(self, *, seed=None, options=None):
        self.turn, self.begun = 0, self.begun + 1
        if self.begun == self.fatal:
            os._exit(3)
        return self.look()

    def step(self, action):
        assert self.legal[action]
        self.turn += 1
        seen, info = self.look()
        return seen, float(action), self.turn == 4, False, info

    def look(self):
        self.legal = (np.arange(5) - self.turn) % 5 > 1
        return np.float32([self.turn, 7]), {"action_mask": self.legal.astype(np.int8)}

    def render(self):
        return np.zeros((8, 8, 3), np.uint8)


class Dark(Masked):
    def render(self):
        return None
"""


@pytest.fixture
def worlds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The module's name; datasets lie in a folder of this test."""
    name = f"masked_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(WORLDS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return name


class Person:
    """Plays by `choose`, from moments of the stream to actions; whoever has the address."""

    def __init__(self, url: str, token: str, choose: Callable[[dict[str, Any]], Any]) -> None:
        self.url, self._choose = url, choose
        self.cookie = ask(f"{url}/seat", token.encode()).headers["Set-Cookie"].partition(";")[0]
        self.moments: list[dict[str, Any]] = []
        self.over: dict[str, Any] = {}

    def act(self, turn: Any, action: Any) -> int:
        body = json.dumps({"turn": turn, "action": action}).encode()
        return ask(f"{self.url}/act", body, Cookie=self.cookie).status

    def follow(self, most: float = float("inf")) -> None:
        """Until the stream ends, or for so many turns of its own."""
        import urllib.request

        request = urllib.request.Request(f"{self.url}/moments", headers={"Cookie": self.cookie})
        with urllib.request.urlopen(request, timeout=60) as stream:
            name = ""
            for line in map(bytes.decode, stream):
                name = line[7:].strip() if line.startswith("event: ") else name
                if not line.startswith("data: "):
                    continue
                told = json.loads(line[6:])
                if name != "moment":
                    self.over = told
                    return
                self.moments.append(told)
                if told.get("turn") is not None and (action := self._choose(told)) is not None:
                    self.act(told["turn"], action)
                    most -= 1
                if most <= 0:
                    return


@contextmanager
def game(
    id: str, *, agent: str | None = None, deadline: float | None = 30.0, record: str = "", whole: bool = False,
    episodes: int | None = 1, turn: float = 0.0, **asked: Any,
) -> Iterator[tuple[Seat, str, threading.Event]]:  # fmt: skip
    """A game that goes on in a thread: its seat, the page's address, what ends it."""
    settings = tuple(f"environment.settings.{name}={value}" for name, value in asked.items())
    environment, players = opened(Asked(id, settings, "", {}, "newest", 0))
    ending = threading.Event()
    number, place = place_of(environment, agent)
    seat = Seat(number, place, deadline, ending)
    if record:
        seat.recorder = EpisodeRecording(MinariWriter(record, place.agent, "told"), place)
    page = PlayPage(seat, {})
    playing = Game(environment, players, seat, turn, whole)

    def play() -> None:
        playing.play(episodes, 0)
        page.over = {"returns": seat.returns}

    thread = threading.Thread(target=play)
    thread.start()
    try:
        with serving(page.routes()) as url:
            yield seat, url, ending
    finally:
        ending.set()
        thread.join(30)
        environment.close()
        assert not thread.is_alive()


def best(moment: dict[str, Any]) -> dict[str, int]:
    """The greatest legal choice."""
    mask = moment["mask"].get("action", [True] * 4)
    return {"action": int(np.flatnonzero(mask)[-1])}


def test_a_seat_is_taken_once_and_by_its_token_alone(worlds: str) -> None:
    with game(f"{worlds}:Masked") as (seat, url, _):
        assert ask(f"{url}/seat", b"wrong").status == 403
        assert ask(f"{url}/moments").status == ask(f"{url}/about").status == ask(f"{url}/act", b"{}").status == 403
        person = Person(url, seat.token, best)
        assert seat.token not in person.cookie, "who has read the address over a shoulder has not the seat"
        second = ask(f"{url}/seat", seat.token.encode())
        assert (second.status, second.text.count("\n")) == (403, 1)
        assert ask(f"{url}/act", b"{}", Cookie="rookery_1=x").status == 403
        assert ask(f"{url}/seat", b"", Cookie=person.cookie).status == 200, "whoever took it comes back"
        assert ask(f"{url}/about", Cookie=person.cookie, Origin="http://elsewhere").status == 403
        assert ask(f"{url}/about", Cookie=person.cookie, Host="evil.example").status == 403


def test_a_person_plays_whole_episodes_by_what_is_legal(worlds: str) -> None:
    with game(f"{worlds}:Masked", episodes=2) as (seat, url, _):
        person = Person(url, seat.token, best)
        person.follow()
    assert person.over["returns"] == seat.returns == [14.0, 14.0]
    assert (seat.counts["turns"], seat.counts["late"], seat.counts["away"]) == (8, 0, 0)
    assert person.moments[-1]["seen"][0]["numbers"][1] == 7
    assert not any("picture" in moment or "text" in moment for moment in person.moments), "observations alone"


def test_the_whole_world_is_drawn_if_that_is_asked_for(worlds: str) -> None:
    with game(f"{worlds}:Masked", whole=True) as (seat, url, _):
        person = Person(url, seat.token, best)
        person.follow()
    assert person.moments[-1]["picture"].startswith("data:image/png;base64,iVBOR")
    with raises(ConfigurationError, "world_without_picture_to_play"), game(f"{worlds}:Dark", whole=True):
        pass


def test_what_is_no_legal_action_of_this_turn_is_refused_and_counted(worlds: str) -> None:
    with game(f"{worlds}:Masked") as (seat, url, _):
        person = Person(url, seat.token, lambda moment: None)
        threading.Thread(target=person.follow, daemon=True).start()
        until(lambda: person.moments and person.moments[-1].get("turn") == 1)
        wrong = [
            {"action": 0},
            {"action": 5},
            {"action": 2.0},
            {"action": True},
            {"action": [2]},
            {"other": 2},
            2,
            None,
        ]
        wrong += [{"action": 2**70}, {"action": "2"}]
        assert {person.act(1, action) for action in wrong} == {409}
        assert person.act(2, {"action": 2}) == person.act(None, {"action": 2}) == 409
        assert ask(f"{url}/act", b"[" * 4_000, Cookie=person.cookie).status == 409
        assert ask(f"{url}/act", b" " * 4_097, Cookie=person.cookie).status == 413
        assert person.act(1, {"action": 2}) == 200
        assert person.act(1, {"action": 2}) == 409, "one action a turn"
        assert seat.counts["illegal"] == len(wrong)
        assert (seat.counts["stale"], seat.counts["too_large"]) == (4, 1)


def test_more_than_a_hundred_messages_in_a_second_are_refused_and_counted(worlds: str) -> None:
    with game(f"{worlds}:Masked") as (seat, url, _):
        person = Person(url, seat.token, best)
        told: list[int] = []
        began = time.monotonic()
        while len(told) < 200 and not told.count(429):
            told.append(person.act(0, None))
            if time.monotonic() - began > 1:  # this machine is slower than that
                began, told = time.monotonic(), []
        assert told[:100] == [409] * 100
        assert seat.counts["too_many"] == 1


def test_who_is_late_falls_back_on_what_is_legal(worlds: str) -> None:
    with game(f"{worlds}:Masked", deadline=0.02) as (seat, url, _):
        Person(url, seat.token, lambda moment: None).follow()
    assert (seat.counts["turns"], seat.counts["late"]) == (4, 4)
    assert seat.returns == [2.0 + 0 + 0 + 0], (
        "the first that is legal in each turn; the world would have refused others"
    )


def test_a_closed_page_falls_back_and_its_person_may_come_back(worlds: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AWAY", 0.2)
    with game(f"{worlds}:Masked", deadline=None, episodes=None, turn=0.05, record="me/away-v0") as (
        seat, url, _,
    ):  # fmt: skip
        person = Person(url, seat.token, best)
        person.follow(most=2)
        until(lambda: seat.counts["away"] > 3)
        person.follow(most=8)
        until(lambda: seat.counts["turns"] - seat.counts["away"] >= 10)
    assert not seat.counts["late"]
    assert isinstance(recorder := seat.recorder, EpisodeRecording)
    assert recorder.left_out > 0
    assert recorder.episodes + recorder.left_out == len(seat.returns)


@pytest.mark.parametrize(
    "words", [["settings.a=["], ["settings=3", "settings.a=1"], ["id=tag"], ["nothing=1"]], ids=" ".join
)
def test_a_world_is_not_set_to_what_it_cannot_be(words: list[str]) -> None:
    with raises(ConfigurationError, "world_setting_malformed"):
        opened(Asked("treasure_hunt", tuple(f"environment.{one}" for one in words), "", {}, "newest", 0))


def test_a_second_page_of_the_person_ends_the_first(worlds: str) -> None:
    with game(f"{worlds}:Masked") as (seat, url, _):
        first = Person(url, seat.token, lambda moment: None)
        following = threading.Thread(target=first.follow)
        following.start()
        until(lambda: first.moments)
        second = threading.Thread(target=ask, args=(f"{url}/moments",), kwargs={"Cookie": first.cookie})
        second.start()
        following.join(30)
        assert not following.is_alive()


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        (Agent(name="a", observation=Box(shape=(2,)), action=Text(max_length=4)), "Text"),
        (Agent(name="a", observation=Box(shape=(2,)), action=Discrete(n=513)), "513"),
        (Agent(name="a", observation=Box(shape=(2,)), action=MultiDiscrete(nvec=(2,) * 33)), "33"),
        (Agent(name="a", observation=Box(shape=(2, 2, 2, 2)), action=Discrete(n=2)), "2, 2, 2, 2"),
    ],
)
def test_what_no_page_shows_is_refused(agent: Agent, said: str) -> None:
    with raises(ConfigurationError, "agent_not_playable", agent="a") as caught:
        check_playable(World(id="w", agents=(agent,)).places[0])
    assert said in str(caught.value)


def test_what_only_learners_may_see_is_not_shown() -> None:
    """An agent that observes a cell's surroundings is shown these, and nothing that is left."""
    seen = Dict(spaces={"eyes": Box(shape=(2,)), "depth": Discrete(n=3)})
    check_playable(World(id="w", agents=(Agent(name="a", observation=seen, action=Discrete(n=2)),)).places[0])
    with game("treasure_hunt", agent="agent_1", turns=3, width=7, height=7) as (seat, url, _):
        person = Person(url, seat.token, best)
        person.follow()
    (part,) = person.moments[-1]["seen"]
    assert part["shape"][1:] == [5, 5], "the window of the second agent"
    assert len(seat.returns) == 1


def test_a_recording_has_each_episode_as_it_was_played(worlds: str) -> None:
    with game(f"{worlds}:Masked", episodes=3, record="me/masked-v0") as (seat, url, _):
        Person(url, seat.token, best).follow()
    dataset = MinariDataset("me/masked-v0")
    assert dataset.lengths() == [4, 4, 4]
    first = next(dataset.stretches())
    assert first.columns["action"][:4].tolist() == [4, 4, 4, 2]
    assert first.columns["observation"][:4, 0].tolist() == [0, 1, 2, 3]
    assert first.columns["terminated"][:4].tolist() == [False, False, False, True]
    assert first.columns["action_mask"][1].tolist() == [True, False, False, True, True]
    with raises(ConfigurationError, "minari_write_failed"):
        MinariWriter("me/masked-v0", seat.place.agent, "")
    with raises(ConfigurationError, "minari_write_failed"):
        MinariWriter("no id", seat.place.agent, "")


def test_an_episode_that_was_interrupted_is_not_recorded(worlds: str) -> None:
    with game(f"{worlds}:Masked", episodes=None, record="me/cut-v0") as (seat, url, ending):
        Person(url, seat.token, best).follow(most=6)
        until(lambda: seat.counts["turns"] == 6)
        ending.set()
    assert seat.unfinished
    assert (len(seat.returns), MinariDataset("me/cut-v0").lengths()) == (1, [4])


def test_all_of_several_environments_are_played(tmp_path: Path) -> None:
    members = {
        f"of_{turns}": {"id": "treasure_hunt", "settings": {"width": 7, "height": 7, "turns": turns}}
        for turns in (2, 6)
    }
    random = {"algorithm": {"name": "scripted", "entry": "random"}}
    (tmp_path / "config.yaml").write_text(
        json.dumps(
            {
                "environment": {"members": members, "prior": dict.fromkeys(members, 0.5)},
                "policies": {"agent_0": random, "agent_1": random},
            }
        )
    )
    with game(str(tmp_path), episodes=12, deadline=0.0) as (seat, url, _):
        Person(url, seat.token, lambda moment: None).follow()
    assert len(seat.returns) == 12
    assert 12 * 2 < seat.counts["turns"] < 12 * 6


@contextmanager
def commanded(folder: Path, *words: str, ends: int = 0) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command, and the address that it prints."""
    process = subprocess.Popen(
        python("workers.tools.play", *words),
        cwd=folder,
        env=variables(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert "#token=" in line, line + process.stdout.read()
        yield process, line.split()[0]
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == ends
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_world_that_ends_its_process_leaves_what_was_recorded(worlds: str, tmp_path: Path) -> None:
    words = ("--set", "environment.settings.fatal=4", "--record", "me/fatal-v0", "--pace", "100", "--wait")
    with commanded(tmp_path, f"{worlds}:Masked", *words, ends=7) as (process, address):
        place = urlsplit(address)
        person = Person(f"http://{place.netloc}", place.fragment.partition("=")[2], best)
        with suppress(OSError, HTTPException):  # the line is cut
            person.follow()
        assert process.wait(60) == 7
        assert process.stdout is not None
        assert kinds_in(process.stdout.read()) == ["playing_crashed"]
    assert MinariDataset("me/fatal-v0").lengths() == [4]


def test_a_person_plays_in_a_browser_by_buttons_and_keys(worlds: str, tmp_path: Path) -> None:
    words = ("--pace", "100", "--wait", "--whole-picture", "--key", "x=3")
    with commanded(tmp_path, f"{worlds}:Masked", *words) as (process, address), browser(tmp_path) as window:
        window.open(address)
        window.until("return document.getElementById('state').textContent === 'your turn'")
        assert window.do("return location.hash") == "", "the token is no part of the history"
        assert "more than agent observes" in window.text("sight")
        legal = "return [...document.querySelectorAll('#controls button')].map((one) => !one.disabled)"
        assert window.do(legal) == [False, False, True, True, True]
        window.do("document.getElementById('choice-3').click()")
        shown = "return document.getElementById('turns').textContent + document.getElementById('state').textContent ==="
        window.until(f"{shown} '1your turn'")
        assert window.do(legal) == [True, False, False, True, True]
        for turn, key in enumerate("x41", start=2):  # one that is still held in the next turn is not legal there
            window.press(key)
            window.until(f"{shown} '{turn}your turn'")
        window.until("return document.getElementById('returns').textContent === '11'")
        window.until("return document.getElementById('picture').naturalWidth === 8")
        assert window.complaints() == []
        process.send_signal(signal.SIGINT)
        window.until("return document.getElementById('state').textContent.startsWith('over; earned 11')")
        assert process.stdout is not None
        assert "agent: 1 episodes, 11 in the mean" in process.stdout.read()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_a_person_recorded_is_cloned(worlds: str, tmp_path: Path) -> None:
    with game(f"{worlds}:Masked", episodes=80, record="me/clone-v0") as (seat, url, _):
        Person(url, seat.token, best).follow()
    assert minari.load_dataset("me/clone-v0").total_episodes == 80
    again = subprocess.run(
        python("workers.tools.play", f"{worlds}:Masked", "--record", "me/clone-v0"),
        cwd=tmp_path, env=variables(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (kinds_in(again.stderr), again.stdout) == (["minari_write_failed"], ""), "before anything is served"
    words = ["train", "--env", f"{worlds}:Masked", "--run-dir", "run", "--no-progress", "--sequential"]
    settings = ["actors=0", "policy.algorithm.name=bc", "policy.dataset.minari=me/clone-v0"]
    for setting in settings:
        words += ["--set", setting]
    done = subprocess.run(
        python("launch", *words, "--steps", "6000"), cwd=tmp_path, env=variables(), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = subprocess.run(
        python("workers.tools.evaluate", "run", "--episodes", "5", "--json"),
        cwd=tmp_path, env=variables(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert json.loads(told.stdout)[0]["mean"] == 14.0, told.stdout
