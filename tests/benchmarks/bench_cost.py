"""What an agent step costs, acting and learning together, as one thing after another grows; run by `make bench`.

    python -m tests.benchmarks.bench_cost [--axes agents-cohort,actors] [--most 64] [--seconds 8] [--out FOLDER]

Runs of the world that costs nothing, as `rookery bench pipeline --workload W3-lite` defines them but smaller: two
agents, a policy each, 32 copies. Counted are processor seconds of all processes for a million agent steps, which
neighbours on the machine change less than they change speed. A line of JSON for each run, then a table; with `--out`
the runs' folders stay there, and beside them a picture for each axis as `rookery plot` draws it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from launch.cli.plot import draw
from launch.sweeps.curves import groups_of, read_run
from workers.tools.bench.pipeline.pipeline import watch
from workers.tools.bench.pipeline.workloads import workload

__all__ = ["AXES", "cost", "parsed", "table"]

_ROLES = ("actor", "learner", "coordinator", "launcher")
Figures = dict[str, Any]


class Axis(NamedTuple):
    """What grows: one of `made`'s arguments, with the values it takes and what else is given."""

    argument: str
    values: tuple[int, ...]
    given: dict[str, Any]

    def run(self, value: int) -> Figures:
        """The configuration of one point."""
        settings: dict[str, Any] = {self.argument: value, **self.given}
        return made(**settings)


AXES = {
    "agents-processes": Axis("agents", (1, 2, 4, 8, 16, 32, 64), {"learners": "process"}),
    "agents-cohort": Axis("agents", (1, 2, 4, 8, 16, 32, 64), {}),
    "actors": Axis("actors", (1, 2, 4, 8), {}),
    "segment-length": Axis("length", (8, 16, 32, 64, 128), {}),
    "batch": Axis("segments", (16, 32, 64, 128, 256), {}),
    "network": Axis("hidden", (32, 64, 128, 256), {}),
}


def made(
    agents: int = 2,
    learners: str = "cohort",
    actors: int = 1,
    length: int = 64,
    segments: int = 32,
    hidden: int = 32,
) -> Figures:
    """A run's configuration: a policy for each agent, which learns from so many segments of `length` at a time."""
    data, _ = workload("W3-lite", {"copies": 32})
    data["environment"]["settings"] |= {"agents": agents}
    data["policy"]["algorithm"] |= {"segments": segments}
    data["policy"] |= {"segment_length": length, "network": {"hidden": [hidden, hidden]}}
    return {**data, "learners": learners, "actors": actors}


def cost(figures: dict[str, float]) -> Figures:
    """Processor seconds for a million agent steps, of all processes and of each kind, with what else is told."""
    per = {name.removeprefix("cpu."): 1e6 * share for name, share in figures.items() if name.startswith("cpu.")}
    steps = figures["agent_steps_per_second"]
    told = {role: per.get(role, 0.0) / steps for role in _ROLES}
    kept = ("agent_steps_per_second", "samples_trained_per_made", "lag", "peak_pss_gib")
    return {
        "processor_seconds_per_million": sum(per.values()) / steps,
        **{f"{role}_processor_seconds_per_million": share for role, share in told.items()},
        **{key: figures[key] for key in kept},
    }


def table(lines: Sequence[Figures]) -> str:
    """Markdown: an axis a row, `value: seconds` for each run."""
    rows = [
        f"| {axis} | " + " | ".join(f"{line['value']}: {line['processor_seconds_per_million']:.1f}" for line in found)
        for axis in AXES
        if (found := [line for line in lines if line["axis"] == axis])
    ]
    return "\n".join(f"{row} |" for row in rows)


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """What is to be measured; an error for an axis that there is not."""
    parser = argparse.ArgumentParser(prog="bench_cost", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--axes", default=",".join(AXES), help="some of them, with commas between")
    parser.add_argument("--most", type=int, default=16, help="agents or actors; values above are left out")
    parser.add_argument("--seconds", type=float, default=8.0, help="of the window that is measured")
    parser.add_argument("--warm", type=float, default=3.0, help="seconds of learning before it")
    parser.add_argument("--out", type=Path, help="folder that the runs and the pictures stay in")
    given = parser.parse_args(arguments)
    given.axes = given.axes.split(",")
    for axis in given.axes:
        if axis not in AXES:
            parser.error(f"there is no axis {axis}; choose of {', '.join(AXES)}")
    return given


def main() -> None:
    """Prints as it goes."""
    given, lines = parsed(), []
    with _folder(given.out) as folder:
        for name in given.axes:
            axis = AXES[name]
            for value in axis.values:
                if value > given.most and axis.argument in ("agents", "actors"):
                    continue
                figures = watch(folder / f"{name}-{value}", axis.run(value), 1, given.seconds, given.warm)
                lines.append({"axis": name, "value": value, **cost(figures)})
                print(json.dumps(lines[-1]), flush=True)
            if given.out:
                runs = [folder / f"{name}-{value}" / "run" for value in axis.values]
                draw(groups_of(read_run(run) for run in runs if run.is_dir()), folder / f"{name}.png")
    print(table(lines))


@contextmanager
def _folder(out: Path | None) -> Iterator[Path]:
    if out:
        out.mkdir(parents=True, exist_ok=True)
        yield out
        return
    with tempfile.TemporaryDirectory(prefix="rookery-cost-") as name:
        yield Path(name)


if __name__ == "__main__":
    main()
