"""`rookery plot`: which runs belong together, what their curves are, and that a picture comes out."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from launch.cli import plot
from launch.cli.main import main
from launch.sweeps.curves import groups_of, read_run, smooth
from protocol.errors import DiskFault
from tests.faults import kinds_in

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def run(folder: Path, slope: float, seed: int = 0, evaluated: float | None = None, **config: Any) -> Path:
    """A run whose return is `slope` times its thousands of steps."""
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump({"seed": seed, "steps": 4_000, **config}))
    rows = [
        {
            "agent_steps": steps,
            "env_steps_per_second": 250.0,
            "agent_steps_per_second": 500.0,
            "a": {"return": slope * steps / 1_000 if steps else None, "lag": 1.0},
        }
        for steps in range(0, 4_001, 500)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"agent_ste')
    if evaluated is not None:
        line = {"policy": "a", "environment": "w", "agent_steps": 2_000, "mean": evaluated, "source": "run"}
        (folder / "evaluations.jsonl").write_text(json.dumps(line) + "\n")
    return folder


def test_seeds_of_one_configuration_are_one_curve_with_a_band_over_runs(tmp_path: Path) -> None:
    runs = [run(tmp_path / str(seed), slope, seed) for seed, slope in enumerate((1.0, 2.0, 3.0))]
    (group,) = groups_of(read_run(folder) for folder in runs)
    steps, found = group.curve(("a", "return"))
    assert (steps[0], steps[-1]) == (500, 4_000), "where there was no return yet there is no curve"
    np.testing.assert_allclose(found.value, 2 * steps / 1_000)
    np.testing.assert_allclose(found.low, steps / 1_000, rtol=0.01)
    np.testing.assert_allclose(found.high, 3 * steps / 1_000, rtol=0.01)


def test_a_torn_line_in_the_middle_of_a_run_that_went_on_costs_no_curve(tmp_path: Path) -> None:
    lines = run(tmp_path / "one", 1) / "metrics.jsonl"
    whole = lines.read_text().splitlines()
    lines.write_text("\n".join([whole[0][:9], *whole]) + "\n")
    (group,) = groups_of([read_run(tmp_path / "one")])
    assert group.curve(("a", "return"))[0][0] == 500


def test_other_configurations_are_other_curves_called_by_what_differs(tmp_path: Path) -> None:
    one = run(tmp_path / "one", 1, policy={"learning_rate": 0.1, "gamma": 0.9})
    two = run(tmp_path / "two", 2, policy={"learning_rate": 0.2, "gamma": 0.9})
    three = run(tmp_path / "three", 2, 5, policy={"learning_rate": 0.2, "gamma": 0.9})
    names = [group.name for group in groups_of(map(read_run, (one, two, three)))]
    assert names == ["policy.learning_rate=0.1", "policy.learning_rate=0.2 (2 runs)"]


def test_smoothing_keeps_a_line_and_what_is_constant() -> None:
    np.testing.assert_allclose(smooth(np.full(300, 2.0)), 2)
    np.testing.assert_allclose(smooth(np.arange(300.0))[10:-10], np.arange(300.0)[10:-10])


def test_runs_that_differ_in_many_keys_are_called_by_their_folders(tmp_path: Path) -> None:
    one = run(tmp_path / "one", 1, policy={"learning_rate": 0.1, "gamma": 0.9, "rows": 1, "epochs": 2})
    two = run(tmp_path / "two", 2, policy={"learning_rate": 0.2, "gamma": 0.8, "rows": 2, "epochs": 3})
    assert [group.name for group in groups_of(map(read_run, (one, two)))] == ["one", "two"]


def test_a_measure_of_a_few_seeds_is_the_curve_of_those(tmp_path: Path) -> None:
    runs = [run(tmp_path / str(seed), 1.0, seed, evaluated=seed or None) for seed in range(3)]
    (group,) = groups_of(map(read_run, runs))
    assert group.curve(("a", "evaluation/w"))[1].value[0] == 1.5


def draw(folder: Path, *words: str) -> tuple[Figure, str]:
    """The picture that the command makes of the runs in `folder`, and what it says."""
    drawn: list[Figure] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("matplotlib.figure.Figure.savefig", lambda figure, *_, **__: drawn.append(figure))
        told = CliRunner().invoke(main, ["plot", *(str(one) for one in sorted(folder.iterdir())), *words])
    assert told.exit_code == 0, told.output
    return drawn[0], told.output


def curves(figure: Figure) -> dict[str, list[tuple[str, str]]]:
    """Title of a panel -> (colour, style) of each line."""
    return {
        axis.get_title(): [(str(line.get_color()), str(line.get_linestyle())) for line in axis.lines]
        for axis in figure.axes
    }


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].texts] if figure.legends else []


def test_panels_are_those_that_there_is_something_for_with_evaluations_beside_returns(tmp_path: Path) -> None:
    run(tmp_path / "one", 1, evaluated=3, gamma=0.9)
    run(tmp_path / "two", 2, gamma=0.8)
    figure, _ = draw(tmp_path)
    one, two = ("C0", "-"), ("C1", "-")
    assert curves(figure) == {
        "return of episodes": [one, ("C0", "--"), two],
        "lag (versions)": [one, two],
        "agent steps per second": [one, two],
    }
    assert legend(figure) == ["gamma=0.9", "gamma=0.9 · without exploring", "gamma=0.8"]


def test_any_measure_is_a_panel_where_it_is_asked_for(tmp_path: Path) -> None:
    run(tmp_path / "one", 1, evaluated=3)
    figure, _ = draw(tmp_path, "--only", "evaluation", "--only", "env_steps_per_second")
    assert [*curves(figure)] == ["return without exploring", "env_steps_per_second"]
    assert legend(figure) == []


def test_a_run_that_measured_nothing_is_told_and_left_out(tmp_path: Path) -> None:
    run(tmp_path / "one", 1)
    begun = run(tmp_path / "two", 1, gamma=0.5)
    (begun / "metrics.jsonl").unlink()
    figure, said = draw(tmp_path)
    assert str(begun) in said
    assert curves(figure)["lag (versions)"] == [("C0", "-")]
    assert legend(figure) == []


@pytest.mark.parametrize(
    ("measured", "only", "kind", "choices"),
    [
        (True, ["entropi"], "measure_unknown", "agent_steps_per_second, env_steps_per_second, lag, return"),
        (True, ["return", "lags"], "measure_unknown", "lag"),
        (False, [], "nothing_to_plot", ""),
        (False, ["lag"], "nothing_to_plot", ""),
    ],
)
def test_what_no_run_has_measured_is_refused(
    tmp_path: Path, measured: bool, only: list[str], kind: str, choices: str
) -> None:
    run(tmp_path / "one", 1)
    if not measured:
        (tmp_path / "one" / "metrics.jsonl").unlink()
    words = [word for name in only for word in ("--only", name)]
    told = CliRunner().invoke(main, ["plot", str(tmp_path / "one"), *words, "-o", str(tmp_path / "x.png")])
    assert (told.exit_code, kinds_in(told.output)) == (2, [kind])
    assert choices in told.output


@pytest.mark.parametrize("ending", ["png", pytest.param("svg", marks=pytest.mark.slow)])
def test_a_picture_comes_out(tmp_path: Path, ending: str) -> None:
    run(tmp_path / "one", 1, evaluated=3)
    run(tmp_path / "two", 2, 1, evaluated=4)
    out = tmp_path / f"curves.{ending}"
    told = CliRunner().invoke(main, ["plot", str(tmp_path / "one"), str(tmp_path / "two"), "-o", str(out)])
    assert told.exit_code == 0, told.output
    assert out.read_bytes()[:5] in (b"\x89PNG\r", b"<?xml")
    assert out.stat().st_size > 10_000


def test_what_is_no_run_and_what_is_no_picture_is_refused(tmp_path: Path) -> None:
    told = CliRunner().invoke(main, ["plot", str(tmp_path)])
    assert told.exit_code == 2
    assert kinds_in(told.output) == ["folder_without_config"]
    run(tmp_path / "one", 1)
    told = CliRunner().invoke(main, ["plot", str(tmp_path / "one"), "-o", str(tmp_path / "x.abc")])
    assert told.exit_code == 2
    assert kinds_in(told.output) == ["picture_not_written"]
    assert "Format 'abc' is not supported" in told.output
    told = CliRunner().invoke(main, ["plot", str(tmp_path / "one"), "-o", str(tmp_path / "missing" / "x.png")])
    assert told.exit_code == 2
    assert kinds_in(told.output) == ["picture_folder_missing"]
    assert str(tmp_path / "missing") in told.output


def test_a_picture_that_may_not_be_written_asks_for_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "x.png")

    monkeypatch.setattr(plot, "draw", refuse)
    told = CliRunner().invoke(main, ["plot", str(run(tmp_path / "one", 1)), "-o", str(tmp_path / "x.png")])
    assert told.exit_code == DiskFault.exit_code
    assert kinds_in(told.output) == ["file_not_writable"]
    assert all(fact in told.output for fact in ("x.png", "Permission denied", "another file"))


def test_without_actors_curves_go_over_rows_trained_and_none_is_of_steps(tmp_path: Path) -> None:
    """As of cloning, where nobody makes agent steps: evaluations, told by rows as well, lie beside the loss."""
    one = tmp_path / "one"
    one.mkdir()
    (one / "config.yaml").write_text("{actors: 0}")
    lines = [{"agent_steps": 0, "rows_trained": 5 * i, "rows_per_second": 9.0, "p": {"loss": 1 / i}} for i in (1, 2, 3)]
    (one / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    steps, values = read_run(one).curves["p", "loss"]
    assert (steps.tolist(), values.tolist()) == ([5, 10, 15], [1, 1 / 2, 1 / 3])
    line = {"policy": "p", "environment": "w", "agent_steps": 15, "mean": 7.0, "source": "run"}
    (one / "evaluations.jsonl").write_text(json.dumps(line) + "\n")
    figure, _ = draw(tmp_path)
    assert curves(figure) == {
        name: [("C0", "-")] for name in ("return without exploring", "loss", "rows trained per second")
    }
    assert {(axis.get_xlabel(), np.asarray(axis.lines[0].get_xdata())[-1]) for axis in figure.axes} == {
        ("rows trained", 15)
    }


def test_a_legend_is_as_wide_as_the_picture_however_long_its_names_are(tmp_path: Path) -> None:
    """Nothing of it is cut off."""
    for i in range(3):
        run(tmp_path / str(i), 1, policy={"a_key_with_a_name_as_long_as_they_come": i})
    figure, _ = draw(tmp_path)
    figure.draw_without_rendering()
    told = figure.legends[0].get_window_extent()
    assert (told.x0 >= 0, told.x1 <= figure.bbox.width) == (True, True)
