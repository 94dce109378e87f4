"""`rookery simulate`: tries the wire, and checks who speaks it."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from launch.cli.simulate import simulate
from protocol.errors import ConfigurationError
from protocol.simulator.client import Simulator
from protocol.spaces import World
from tests.faults import raises
from tests.protocol.conformance.test_conformance import HALL, idle
from tests.workers.environments.simulators.serving import serving


def said(*arguments: str, code: int = 0) -> str:
    """What it prints."""
    result = CliRunner().invoke(simulate, [*arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.output


def test_noise_plays_any_world_and_an_actor_is_checked() -> None:
    with serving(HALL, policy=idle) as served:
        steps = int(said("noise", "--connect", served.address, "--name", "one", "--episodes", "2").split()[1])
        served.settle()
        assert [len(served.rows(agent)) for agent in ("guard", "thief")] == [steps, steps]
        assert [row.end for row in served.rows("thief") if row.end] == ["terminated"] * 2
        assert "all holds" in said("--conform", served.address)


def test_who_plays_in_the_folder_of_a_run_that_has_ended_is_told_why_nothing_was_played(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text("{}")
    assert said("cartpole", "--connect", str(tmp_path)) == "sim-0: 0 steps; the run has ended\n"


def test_a_simulator_that_is_wrong_fails_the_check(tmp_path: Path) -> None:
    """As a process, which says where it listens."""
    (tmp_path / "world.json").write_text(World(id="hall", agents=HALL.agents[1:]).model_dump_json())
    (tmp_path / "train.yaml").write_text("environment: {id: external, settings: {world: world.json}}")
    command = [sys.executable, "-m", "launch.cli.simulate", "--listen", "127.0.0.1:0", "--world", "train.yaml"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as checking:
        assert checking.stdout is not None
        address = checking.stdout.readline().split()[-1]
        wrong = threading.Thread(target=_tell_garbage, args=(address,))
        wrong.start()
        rest = checking.stdout.read()
        wrong.join()
    assert checking.returncode == 1
    assert "WRONG" in rest
    assert "(protocol/README.md, Messages)" in rest


def _tell_garbage(address: str) -> None:
    sim = Simulator(address, "wrong")
    sim.connect()
    sim._line.send([b"\xc1"])
    sim._line.receive(60.0)
    sim._line.close()


@pytest.mark.parametrize(
    ("arguments", "kind", "facts"),
    [
        ([], "simulate_options_conflict", {}),
        (["cartpole"], "simulate_options_conflict", {}),
        (["chess", "--connect", "tcp://127.0.0.1:1"], "simulator_unknown", {"value": "chess"}),
        (["--listen", "5700"], "listen_address_invalid", {"value": "5700"}),
        (["--listen", "127.0.0.1:5700", "--world", "nowhere.json"], "world_file_invalid", {"file": "nowhere.json"}),
        (["--listen", "0.0.0.0:5700"], "bind_without_keys", {"peer": "0.0.0.0"}),
        (["--conform", "nowhere"], "simulators_not_served", {"file": "nowhere"}),
        (
            ["gymnasium:Chess-v0", "--connect", "tcp://127.0.0.1:1"],
            "gymnasium_not_made",
            {"value": "gymnasium:Chess-v0"},
        ),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(arguments: list[str], kind: str, facts: dict[str, str]) -> None:
    with raises(ConfigurationError, kind, **facts):
        said(*arguments)
