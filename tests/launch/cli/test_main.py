"""The command line: one sentence for every mistake, and nothing begun or written over."""

from __future__ import annotations

import os
import re
import shlex
from importlib import import_module
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from launch.cli import presets
from launch.cli.exec import BECOMES
from launch.cli.main import _SECTIONS, COMMANDS, command, main
from launch.config_loader import load
from launch.local import supervisor
from launch.run_dir import folder_for, make_folder
from protocol.config.run import Run
from protocol.errors import ConfigurationError
from protocol.transport.curve import connect_string, run_keys
from tests.faults import kinds_in, raises
from workers.runtime.process import lock_run_folder


def test_presets_are_listed_with_their_sentence() -> None:
    result = CliRunner().invoke(main, ["presets"])
    assert result.exit_code == 0
    assert any(line.startswith("treasure-hunt ") and "gridworld" in line for line in result.output.splitlines())


def test_a_preset_is_printed_as_a_file_that_trains_the_same(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["presets", "spread"])
    (tmp_path / "mine.yaml").write_text(result.output)
    assert load(str(tmp_path / "mine.yaml")) == load("spread")


@pytest.mark.parametrize("place", ["rookery_docs", "build/site/rookery_docs"])
def test_the_documents_are_opened_where_they_are(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(presets, "HOME", tmp_path)
    monkeypatch.setattr(presets.webbrowser, "open", opened.append)
    assert kinds_in(CliRunner().invoke(main, ["docs"]).output) == ["documents_not_built"]
    (tmp_path / place).mkdir(parents=True)
    (tmp_path / place / "index.html").touch()
    assert CliRunner().invoke(main, ["docs"]).output.split() == opened == [(tmp_path / place / "index.html").as_uri()]


def test_help_lists_every_command_once_with_its_whole_first_sentence() -> None:
    said = CliRunner().invoke(main, ["--help"], terminal_width=80).output.partition("Train:")[2]
    names = [name for section in _SECTIONS.values() for name in section]
    assert re.findall(r"^  (\S+)  +[A-Z]", said, re.MULTILINE) == names
    assert sorted(names) == sorted(COMMANDS)
    assert "..." not in said


def test_a_word_that_is_nearly_a_command_is_told_of_it() -> None:
    assert "'train'" in CliRunner().invoke(main, ["trian"]).output


def test_each_command_says_of_itself_what_help_says_of_it() -> None:
    """Help does not import them."""
    told = {name: command(name).get_short_help_str(200) for name in COMMANDS}
    assert {name: found[1] for name, found in COMMANDS.items() if found and found[1] != told[name]} == {}


@pytest.mark.parametrize("name", BECOMES)
def test_a_command_that_becomes_another_program_helps_in_both_ways(name: str) -> None:
    module = import_module(f"{BECOMES[name][0]}.__main__" if name in ("bench", "play") else BECOMES[name][0])
    (command,) = (
        found for found in vars(module).values() if isinstance(found, click.Command) and found.name in (name, "main")
    )
    for option in ("-h", "--help"):
        assert CliRunner().invoke(command, [option]).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "kind", "named"),
    [
        ("train tresure", "run_source_unknown", "'tresure'"),
        ("train w:Base", "word_misplaced", "--env w:Base"),
        ("train --env w:World restarts=3", "word_misplaced", "--set restarts=3"),
        ("train cartpole environment.restarts=3", "word_misplaced", "--set environment.restarts=3"),
        ("doctor cartpole w.py", "word_misplaced", "--env w:FUNCTION"),
        ("train --lr=1", "option_unknown", "--set policy.learning_rate=VALUE"),
        ("train cartpole --total-timesteps 5", "option_unknown", "--steps"),
        ("train --timesteps 1e6", "option_unknown", "--steps"),
        ("train --config mine.yaml", "option_unknown", "first word"),
        ("train --gpu", "option_unknown", "--set device=cuda"),
        ("train --num-envs 4", "option_unknown", "--set environment.copies=VALUE"),
        ("train --environment w:World", "option_unknown", "--env"),
        ("train --wandb", "option_unknown", "--set loggers=[wandb]"),
        ("train --clip=0.1", "option_unknown", "--set policy.algorithm.clip=VALUE"),
        ("train --target-kl=1", "option_unknown", "policy.algorithm.clip"),
        ("doctor --steps 4", "option_unknown", "--set steps=VALUE"),
        ("coordinator --env w:World", "option_unknown", "--set environment.id=VALUE"),
        ("k8s render --lr 1", "option_unknown", "--set policy.learning_rate=VALUE"),
        ("presets cartpol", "preset_unknown", "cartpole"),
        ("train cartpole --set stepz=1", "unknown_key", "'stepz'"),
        ("coordinator cartpole --set stepz=1", "unknown_key", "'stepz'"),
    ],
)
def test_a_mistake_is_one_sentence_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, kind: str, named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, arguments.split())
    assert result.exit_code == 2
    said = result.output.strip().splitlines()[-1]
    assert said.startswith("rookery: ")
    assert kinds_in(said) == [kind]
    assert named in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", ["train cartpole extra", "train --stepz=3", "status --lr 3", "doctor --output x"])
def test_what_nobody_knows_is_told_as_click_does(arguments: str) -> None:
    result = CliRunner().invoke(main, arguments.split())
    assert result.exit_code == 2
    assert result.output.splitlines()[-1].startswith("Error: ")


def test_the_doctor_looks_at_an_environment_that_is_named_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, Path]] = []

    def noted(run: Run, folder: Path, *_: object) -> tuple[int, str]:
        told.append((run.environment.id, folder))
        return 0, ""

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("launch.cli.doctor.preflight", noted)
    assert CliRunner().invoke(main, ["doctor", "--env", "w:World", "--preflight"]).exit_code == 0
    ((environment, folder),) = told
    assert (environment, folder.parent, folder.name[:2]) == ("w:World", tmp_path / "runs", "w-")


ENDED, STOPPED, STATE, PAGE = (
    ("summary.json", '{"complete": true}'),
    ("summary.json", '{"complete": false}'),
    ("state.json", ""),
    ("counters/actor-0.1", ""),
)
ALONE = "train --sequential", "train --set multiprocessing.enabled=false", "doctor --set multiprocessing.enabled=false"


@pytest.mark.parametrize(
    ("command", "files", "kind"),
    [
        *((command, [ENDED, STATE], "run_already_finished") for command in ("train", "coordinator")),
        *((command, [ENDED], "sequential_run_stopped") for command in ("train", "coordinator", ALONE[0])),
        *((command, [STOPPED], "sequential_run_stopped") for command in ("train", "coordinator", *ALONE)),
        *((command, [STOPPED, STATE], "run_of_workers_stopped") for command in ALONE),
        (ALONE[0], [STATE], "run_of_workers_stopped"),
        *((command, [PAGE], "sequential_run_stopped") for command in ("train", "coordinator", *ALONE)),
        (ALONE[0], [PAGE, STATE], "run_of_workers_stopped"),
    ],
)
def test_a_folder_whose_run_cannot_go_on_is_not_written_into(
    tmp_path: Path, command: str, files: list[tuple[str, str]], kind: str
) -> None:
    for name, content in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    verb, *options = command.split()
    result = CliRunner().invoke(main, [verb, "cartpole", *options, "--run-dir", str(tmp_path)])
    assert result.exit_code == 2
    assert kinds_in(result.output) == [kind]
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {str(path.relative_to(tmp_path)): path.read_text() for path in left} == dict(files)


@pytest.mark.parametrize("files", [[], [PAGE, STATE], [("checkpoints", "")], [("config.yaml", ""), ("logs", "")]])
def test_workers_go_on_where_their_state_is_or_nothing_has_begun(tmp_path: Path, files: list[tuple[str, str]]) -> None:
    for name, content in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    assert folder_for(Run(), "", tmp_path) == tmp_path


def test_the_folder_of_a_living_run_in_one_process_is_in_use_and_not_called_dead(tmp_path: Path) -> None:
    (tmp_path / "counters").mkdir()
    lock = lock_run_folder(Run(), tmp_path)
    with raises(ConfigurationError, "folder_in_use", file=tmp_path):
        make_folder(folder_for(Run(), "", tmp_path, alone=True))
    os.close(lock)


def test_the_command_that_goes_on_with_a_stopped_run_is_one_that_a_shell_understands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "my [first] run"
    folder.mkdir()
    (folder / "state.json").touch()
    books = {"returns": {}, "untrained": [], "baselines": {}, "baselines_missing": "", "environments": {}}
    monkeypatch.setattr(supervisor, "train", lambda *_, **__: supervisor.RunOutcome(False, books))
    result = CliRunner().invoke(main, ["train", "cartpole", "--run-dir", str(folder)])
    (offer,) = [line.removeprefix("to go on: ") for line in result.output.splitlines() if line.startswith("to go on")]
    assert shlex.split(offer) == ["rookery", "train", str(folder)]


@pytest.mark.parametrize(
    ("written", "steps"), [("1e5", 100_000), ("2.5E+3", 2_500), ("7", 7), ("1.5e0", None), ("1M", None), ("2k", None)]
)
def test_steps_may_be_written_as_1e5(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, steps: int | None
) -> None:
    told: list[int] = []

    def noted(run: Run, *_: object, **__: object) -> supervisor.RunOutcome:
        told.append(run.steps)
        return supervisor.RunOutcome(False, {})

    monkeypatch.setattr(supervisor, "train", noted)
    result = CliRunner().invoke(main, ["train", "cartpole", "--run-dir", str(tmp_path / "run"), "--steps", written])
    assert told == ([] if steps is None else [steps])
    assert result.exit_code == (2 if steps is None else 1)


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        ("policy.dataset.path", "nowhere", "dataset_folder_missing"),
        ("policies.agent.dataset.path", "file", "dataset_folder_missing"),
        ("policy.dataset.minari", "a/b-v0", "minari_dataset_not_found"),
        ("policy.dataset.minari", "there/c-v0", None),
        ("policy.dataset.path", "there", None),
    ],
)
def test_a_dataset_that_is_not_there_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, value: str, kind: str | None
) -> None:
    def begun() -> None:
        raise ConfigurationError("device_not_available", value="of anything", key="device")

    (tmp_path / "file").touch()
    (tmp_path / "there" / "c-v0").mkdir(parents=True)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(supervisor, "sweep", begun)
    settings = ["actors=0", "policies.agent.algorithm=bc", "policy.algorithm=bc", f"{key}={value}"]
    if key.startswith("policies."):
        settings.remove("policy.algorithm=bc")
    words = [word for setting in settings for word in ("--set", setting)]
    result = CliRunner().invoke(main, ["train", "cartpole", *words, "--run-dir", "run"])
    assert kinds_in(result.output) == [kind or "device_not_available"]
    assert not (tmp_path / "run").exists()


def test_a_device_that_is_not_there_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_GPUS", ("no-such-device",))
    monkeypatch.chdir(tmp_path)
    for key, kind in (("device", "device_not_available"), ("act_device", "acting_device_not_available")):
        for way in ([], ["--sequential"]):
            result = CliRunner().invoke(main, ["train", "cartpole", "--set", f"{key}=cuda", *way])
            assert (result.exit_code, kinds_in(result.output)) == (2, [kind])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("complete", [False, True])
def test_a_run_without_a_summary_says_where_to_look(
    complete: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "train", lambda *_, **__: supervisor.RunOutcome(complete, {}))
    result = CliRunner().invoke(main, ["train", "cartpole", "--json", "--run-dir", str(tmp_path / "run")])
    assert result.exit_code == 1
    assert "{" not in result.stdout
    assert "see the logs in its folder" in result.output


def test_clean_removes_what_nobody_uses_and_names_it(memory_dir: Path) -> None:
    (memory_dir / "rookery-dead-a.ring").write_bytes(b"x")
    result = CliRunner().invoke(main, ["clean"])
    assert result.output == f"removed {memory_dir}/rookery-dead-a.ring\n"
    assert list(memory_dir.iterdir()) == []


def test_whoever_revokes_the_simulators_key_of_a_run_is_told_the_new_connect_strings(tmp_path: Path) -> None:
    keys = run_keys(tmp_path)
    (tmp_path / "simulators").mkdir()
    (tmp_path / "simulators" / "actor-0.json").write_text('{"address": "tcp://127.0.0.1:5700", "pid": 1}')
    before = connect_string("tcp://127.0.0.1:5700", keys)
    said = CliRunner().invoke(main, ["keys", "revoke", str(tmp_path), "simulator"]).output
    (told,) = re.findall(r"tcp://\S+", said)
    assert told == connect_string("tcp://127.0.0.1:5700", keys) != before
    assert "tcp" not in CliRunner().invoke(main, ["keys", "revoke", str(keys), "simulator"]).output


def test_a_shell_completes_commands_presets_and_files() -> None:
    def offered(typed: str) -> list[str]:
        words = {"COMP_WORDS": f"rookery {typed}", "COMP_CWORD": str(len(typed.split())), "COLUMNS": "80"}
        result = CliRunner().invoke(main, prog_name="rookery", env={"_ROOKERY_COMPLETE": "bash_complete", **words})
        return result.output.splitlines()

    assert offered("sta") == ["plain,status"]
    assert offered("train cartp") == [
        *(f"plain,{name}" for name in ("cartpole", "cartpole-blind", "cartpole-iqn")),
        "file,cartp",
    ]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("", "treasure-hunt"),
        ("cartpole", "cartpole"),
        ("configs/mine.yaml", "mine"),
        ("package.module:make", "package"),
        ("gymnasium:LunarLander-v3", "LunarLander-v3"),
        ("gymnasium:ALE/Pong-v5", "Pong-v5"),
        ("gymnasium:minigrid:MiniGrid-Empty-5x5-v0", "MiniGrid-Empty-5x5-v0"),
        ("pettingzoo:pettingzoo.classic.chess_v6", "chess_v6"),
        ("openspiel:kuhn_poker", "kuhn_poker"),
    ],
)
def test_a_run_is_called_after_what_it_trains_on(source: str, name: str) -> None:
    assert folder_for(Run(), source, None).name.rsplit("-", 3)[0] == name
