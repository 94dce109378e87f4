"""The page in a real browser: its numbers are the run's, its buttons act, and it stays quick."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from protocol.errors import ConfigurationError
from tests.waiting import until
from tests.workers.coordination.dashboard.browser import browser
from tests.workers.coordination.dashboard.pages import shown
from tests.workers.tools.test_page import left

TAB, ENTER, RIGHT = "\ue004", "\ue007", "\ue014"
LEAGUE = {
    "members": [
        {"name": "red.1", "elo": -80.4, "games": 30, "chance": 0.25},
        {"name": "blue.2", "elo": 80.4, "games": 40, "chance": 0.75},
    ],
    "win_rates": [[None, 0.25], [0.75, None]],
}
CELLS = "return [...document.querySelectorAll(arguments[0])].map((cell) => cell.textContent)"

HELD_BACK = """
    const fetched = window.fetch;
    window.fetch = async (url) => {
        const answer = await fetched(url);
        await new Promise((deliver) => { window.deliver = deliver; });
        return answer;
    };
    Curves.load().then(() => { window.drawn = true; });
    window.fetch = fetched;
"""
"""Asks for the curves once more; the answer comes when `deliver` is called."""


def test_numbers_on_the_page_are_the_runs_and_its_buttons_act(tmp_path: Path, run_dir: Path) -> None:
    with shown(run_dir) as (run, url), browser(tmp_path, width=420, height=900, dark=True) as window:
        window.open(url)
        window.until("return document.getElementById('ask').open")
        window.press("wrong" + ENTER)
        window.until("return document.getElementById('refused').textContent !== ''")
        window.do("document.getElementById('token').value = ''")
        window.press(run.token + ENTER)
        run.stalled = "nothing moved for 60 s: actor-0 waits for credit"
        run.league = LEAGUE
        view = run.look()
        (run_dir / "logs").mkdir()
        (run_dir / "logs" / "actor-0.log").write_text("event=<b>acting</b>\n")
        window.until("return document.getElementById('made').textContent.startsWith('1,000 of 1,000,000')")
        assert window.text("health").startswith(run.stalled)
        assert window.text("verdict").startswith(view["verdict"])
        assert window.do(CELLS, "#policies tbody tr:first-child td")[:5] == ["agent_0", "10", "–", "25", "0"]
        assert window.do(CELLS, "#workers tbody tr:first-child td")[:7] == [
            *("actor-0", "acting", "120", "75 %", "300", "here", "100")
        ]
        assert window.do(CELLS, "#league tbody td") == [
            "1. blue.2",
            "80",
            "40",
            "75 %",
            "2. red.1",
            "-80",
            "30",
            "25 %",
        ]
        assert window.do(CELLS, "#wins tbody *:is(th, td)") == ["1. blue.2", "–", "75 %", "2. red.1", "25 %", "–"]
        assert (window.text("loop-queue"), window.text("loop-way")) == ("queue 50 % full", "16 on their way")
        assert window.do("return matchMedia('(prefers-color-scheme: dark)').matches")
        assert window.do("return document.documentElement.scrollWidth <= innerWidth")  # nothing sticks out on a phone
        edge = "return document.querySelector('#workers button').getBoundingClientRect().right <= innerWidth"
        assert window.do(edge), "logs are reached there without scrolling sideways"
        fits = "return [...document.querySelectorAll('.scroll')].every((box) => box.scrollWidth <= box.clientWidth)"
        assert window.do(fits), "nor is any table cut off"
        window.do("document.querySelector('#workers button').click()")
        window.until("return document.getElementById('log').textContent === 'event=<b>acting</b>\\n'")
        curves, drawn = (
            run.books.history.curves,
            "return document.querySelector('#curves .scatterlayer') && Curves.points()",
        )
        until(lambda: window.do(drawn) == 2 * len(curves("return")["agent_0"][1]), what="both curves are drawn")
        before = window.do(drawn)
        window.do(HELD_BACK)
        window.until("return Boolean(window.deliver)")
        run.look()
        window.until(f"return Curves.points() > {before}")
        window.do("window.deliver()")
        window.until("return window.drawn")
        assert window.do(drawn) == 2 * len(curves("return")["agent_0"][1]), "a point that came meanwhile is kept"

        window.do("document.getElementById('pause').focus()")  # all by keyboard from here
        window.press(ENTER)
        window.until("return document.getElementById('stage').textContent === 'paused'")
        assert run.controls.paused is True
        window.do("document.getElementById('checkpoint').click()")
        window.do("document.getElementById('pause').click()")
        window.until("return document.getElementById('stage').textContent === 'running'")
        assert (run.controls.paused, run.controls.checkpoints) == (False, 1)
        assert window.text("told") == "as configured"
        window.do("document.getElementById('words').focus()")
        window.press("freeze nobody" + ENTER)
        window.until("return document.getElementById('connection').textContent.includes('[roster_policy_unknown]')")
        assert window.do("return document.getElementById('words').value") == "freeze nobody"
        window.do("document.getElementById('words').value = ''; document.getElementById('words').focus()")
        window.press("freeze agent_0" + ENTER)
        run.look()
        window.until("return document.getElementById('told').textContent === 'frozen: agent_0'")
        assert run.controls.roster.commands[0]["by"] == "page"
        assert window.do("return document.getElementById('words').value") == ""
        assert window.text("connection") == "live"
        window.do("document.getElementById('stop').click(); document.getElementById('end').focus()")
        assert not run.controls.stopping.is_set()
        window.press(ENTER)
        assert run.controls.stopping.wait(60)
        run.stage = "ended"
        window.until("return document.getElementById('stage').textContent === 'ended'")
        refused = ("401", "400")  # tokens and commands that are refused are told there, too
        strange = [line for line in window.complaints() if not any(code in line for code in refused)]
        assert strange == []


SELECTED = """
    const chosen = new DataTransfer();
    chosen.items.add(new File([new Uint8Array(150000).fill(7)], "weights.safetensors"));
    document.getElementById('weights').files = chosen.files;
    document.getElementById('words').value = 'replace agent_0';
    document.getElementById('roster').requestSubmit();
"""
"""As somebody does who chooses a file."""


def test_weights_go_along_with_a_command_part_by_part(tmp_path: Path, run_dir: Path) -> None:
    with shown(run_dir) as (run, url), browser(tmp_path) as window:
        came: list[bytes] = []

        def tried(*_: object, weights: str, **__: object) -> dict[str, Any]:
            came.append(Path(weights).read_bytes())
            raise ConfigurationError("roster_weights_do_not_fit", policy="agent_0", field="x", reason="it is a test")

        run.controls.roster._tried = tried
        window.open(f"{url}/#token={run.token}")
        run.look()
        window.until("return !document.getElementById('roster').closest('section').hidden")
        window.do(SELECTED)
        window.until("return document.getElementById('connection').textContent.includes('[roster_weights_do_not_fit]')")
        assert came == [bytes([7]) * 150_000]
        assert window.do("return document.getElementById('weights').files.length") == 1, "to be sent once more"
        assert run.controls.roster.commands == []


def test_a_hundred_workers_and_a_hundred_thousand_points_stay_quick(tmp_path: Path, run_dir: Path) -> None:
    """Of some updates the quickest: others may have the machine meanwhile."""
    with shown(run_dir, policies=110, workers=100) as (run, url), browser(tmp_path) as window:
        for step in range(950):
            run.books.history.add(step, {f"{policy}/return": float(step) for policy in run.policies})
        run.made = 10_000
        run.look()
        window.open(f"{url}/#token={run.token}")
        window.until("return document.querySelectorAll('#workers tbody tr').length === 100")
        window.until("return Curves.points() > 100000 && document.querySelector('#curves .scatterlayer')")
        took = [1_000.0]
        while min(took) >= 100 and len(took) < 60:
            before = window.do("return Page.views")
            run.look()
            window.until(f"return Page.views > {before}")
            took.append(window.do("return Page.last"))
        assert min(took) < 100, took
        assert window.do("return document.querySelector('#policies td:nth-child(2)').textContent") != "–"
        assert window.complaints() == []


FIGURES = "return [...document.querySelectorAll('figure:not([hidden]) figcaption span')].map((one) => one.textContent)"
TABLE = """
    URL.createObjectURL = (blob) => {
        blob.text().then((text) => { window.text = text; });
        return "blob:none";
    };
    HTMLAnchorElement.prototype.click = function () { window.named = this.download; };
    [...document.querySelectorAll("figcaption button")].find((one) => one.textContent === "CSV").click();
"""
"""What the first table would be saved as."""
DRAWN = """
    const panel = Curves.panels.find((one) => one.title === arguments[0]);
    return panel.place.data.map((line) => [line.name, line.line.dash, line.yaxis, line.y.filter((y) => y !== null)]);
"""
"""The lines of one panel."""


def test_a_page_opens_on_the_return_and_stands_still_when_the_run_is_over(tmp_path: Path, run_dir: Path) -> None:
    """Before the first episode ends there are other measures; behind the end nobody answers."""
    text = "return document.getElementById(arguments[0]).textContent"
    with browser(tmp_path) as window:
        with shown(run_dir) as (run, url):
            run.books.observe({}, {}, [run._worker(i) for i in range(2)], {})
            window.open(f"{url}/#token={run.token}")
            window.until("return document.getElementById('verdict').textContent.startsWith('starting')")
            assert window.do(text, "verdict") == "starting: 2 of 5 workers have joined"
            run.books.observe({("actor-0", 1): {"env_steps": 4.0, "agent_steps": 8.0}}, {}, [], {})
            until(lambda: window.do(FIGURES) == ["steps per second"], what="the rate is drawn alone")
            run.look()
            shown_then = ["return", "steps per second", "episode_length"]
            until(lambda: window.do(FIGURES) == shown_then, what="returns are drawn, too")
            run.stage = "learners_draining"
            window.until("return document.getElementById('stage').textContent === 'learners_draining'")
        window.until("return document.getElementById('stop').disabled && document.getElementById('pause').disabled")
        assert window.do(text, "stage") == "ended"
        assert window.do(text, "made").startswith("1,000 of")
        assert window.do(text, "rate") == "–"
        assert window.do("return document.getElementById('workers').checkVisibility()") is False
        window.do("document.getElementById('config-fold').open = true")
        window.until("return document.getElementById('config').textContent")
        assert [line for line in window.complaints() if "Uncaught" in line] == []


def test_other_runs_of_the_folder_are_shown_beside_a_living_one(tmp_path: Path, run_dir: Path) -> None:
    """In all panels and in the search; the living one goes on, also where the other has come further."""
    names = "return Curves.panels.find((one) => one.title === arguments[0]).place.data.map((line) => line.name)"
    with shown(run_dir, policies=1) as (run, url), browser(tmp_path) as window:
        left(run_dir.parent / "before", rows=30)
        run.look()
        window.open(f"{url}/#token={run.token}")
        until(lambda: "return" in window.do(FIGURES), what="its own return is drawn")
        window.do("document.querySelector('#others summary').click()")
        window.until("return document.querySelector('#runs input')")
        assert window.do(CELLS, "#runs label") == ["before"]
        window.do("document.querySelector('#runs input').click()")
        until(lambda: window.do(names, "return") == ["agent_0", "before"], what="both are drawn")
        assert window.do(DRAWN, "return")[1][3] == [0.0] * 30
        before = len(window.do(DRAWN, "return")[0][3])
        run.look()
        until(lambda: len(window.do(DRAWN, "return")[0][3]) > before, what="the living one goes on")
        window.do("document.getElementById('measure').focus()")
        window.press("version" + TAB)
        until(lambda: "version" in window.do(FIGURES), what="what was searched for is drawn")
        until(lambda: window.do(names, "version") == ["agent_0", "before"], what="of both")
        window.do("document.querySelector('#runs input').click()")
        until(lambda: window.do(names, "return") == ["agent_0"], what="it is alone again")
        assert window.complaints() == []


def test_what_belongs_together_is_one_panel_and_any_measure_is_found_by_its_name(tmp_path: Path, run_dir: Path) -> None:
    with shown(run_dir, policies=1) as (run, url), browser(tmp_path) as window:
        for step in range(100):
            told = {"return": step, "evaluation/return": 2 * step, "loss": 1, "entropy": 3, "reward_mean": step}
            run.books.history.add(step, {f"agent_0/{name}": float(value) for name, value in told.items()})
        run.look()
        window.open(f"{url}/#token={run.token}")
        until(lambda: window.do(FIGURES)[:2] == ["return", "loss"], what="both are drawn")
        line, dashed = window.do(DRAWN, "return")
        assert line[:3] == ["agent_0", "solid", "y"]
        assert dashed == ["agent_0 · evaluation/return", "dash", "y", [2.0 * step for step in range(100)]]
        assert [one[:3] for one in window.do(DRAWN, "loss")] == [
            ["agent_0", "solid", "y"],
            ["agent_0 · entropy", "dash", "y2"],
        ]
        assert {"reward_mean", "evaluation/return"} <= {
            *window.do("return [...document.getElementById('measures').options].map((one) => one.value)")
        }
        window.do("document.getElementById('measure').focus()")  # all by keyboard from here
        window.press("reward_mean" + TAB)
        until(lambda: "reward_mean" in window.do(FIGURES), what="what was searched for is drawn")
        assert window.do(DRAWN, "reward_mean")[0][3] == [float(step) for step in range(100)]
        window.press(RIGHT * 10)  # smoothing
        until(lambda: window.do(DRAWN, "reward_mean")[0][3][0] > 1, what="the first is a mean of its neighbours")
        window.do(TABLE)
        name, text = window.until("return window.text && [window.named, window.text]")
        assert name == f"{run_dir.name}-return.csv"
        rows = text.splitlines()
        assert rows[0] == "measure,policy,steps,value"
        assert rows[100] == 'return,"agent_0",99,99'
        assert rows[-1] == 'evaluation/return,"agent_0",99,198'
        assert window.complaints() == []
