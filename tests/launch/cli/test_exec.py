"""The front door of the command: workers begin without the rest of it."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import click
import pytest

from launch.cli.exec import BECOMES
from launch.cli.main import COMMANDS, command, main

CODE = """
import os, sys

def become(program, command):
    print(*command[1:])
    print(*sorted({"click", "pydantic", "zmq", "launch.cli.main"} & set(sys.modules)))
    raise SystemExit

os.execv = become
sys.argv = ["rookery", *sys.argv[1:]]
from launch.__main__ import main
main()
"""


def test_a_workers_command_becomes_the_worker_without_the_rest_of_the_command() -> None:
    """A fifth of the processor time of a worker's start."""
    command = [sys.executable, "-c", CODE, "learner", "--coordinator", "tcp://h:5600", "--name", "learner-0"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert said == ["-P -m workers.learner --coordinator tcp://h:5600 --name learner-0", ""]


LIGHT = """
import sys
from launch.__main__ import main

sys.argv = ["rookery", *sys.argv[1:]]
try:
    main()
except SystemExit:
    print(*sorted({"numpy", "pydantic", "zmq", "yaml"} & set(sys.modules)))
"""


@pytest.mark.parametrize("words", ["--help", "presets", "status nowhere"])
def test_what_people_wait_for_imports_nothing_large(words: str) -> None:
    """These take as long as their imports."""
    done = subprocess.run([sys.executable, "-c", LIGHT, *words.split()], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == ""


def test_a_shell_is_told_of_commands_without_importing_them() -> None:
    found = main.shell_complete(click.Context(main), "tr")
    assert [(one.value, one.help) for one in found] == [("train", command("train").get_short_help_str(200))]


def test_what_becomes_another_program_is_a_command_like_any_other() -> None:
    """It is in the help, and known to the shell."""
    assert [name for name, (module, _) in BECOMES.items() if find_spec(module) is None] == []
    assert BECOMES.keys() <= COMMANDS.keys()
