"""A real terminal, drawn by tmux: lines are typed into its shell, and what the screen shows is waited for."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.tools import require
from tests.waiting import PATIENCE, until

__all__ = ["Terminal", "terminal"]

_numbers = itertools.count()
_PROMPT = re.compile(r"^(?:\^C)?\[(\d+):(\d+)\] > ?", re.MULTILINE)
"""How many lines were typed before, and how the last one ended."""


class Terminal:
    """One window with a shell. `tmux`: the words that every command to its server begins with."""

    def __init__(self, tmux: Sequence[str]) -> None:
        self._tmux = tmux

    @property
    def screen(self) -> str:
        """All that it shows, and what has gone off its upper edge."""
        return self._do("capture-pane", "-p", "-J", "-S", "-")

    def type(self, line: str) -> None:
        """Types a line at the prompt."""
        until(lambda: self._prompts()[-1].end() >= len(self.screen.rstrip()), what=f"a prompt: {self.screen}")
        self._do("send-keys", "-l", line)
        self.press("Enter")

    def press(self, key: str) -> None:
        """A key, as tmux calls it: `C-c`, `Up`."""
        self._do("send-keys", key)

    def shows(self, words: str, seconds: float = PATIENCE) -> str:
        """What stands behind `words` in their line, once the last command has printed them."""
        until(lambda: words in self.printed, seconds, f"{words!r} on the screen", every=0.2)
        return self.printed.rpartition(words)[2].partition("\n")[0].strip()

    def ended(self, code: int = 0, seconds: float = PATIENCE) -> str:
        """What the last command has printed, once it has ended with `code`."""
        until(lambda: self._prompts()[-1].end() >= len(self.screen.rstrip()), seconds, "its end", every=0.2)
        assert int(self._prompts()[-1][2]) == code, self.screen
        return self.printed

    def run(self, line: str, code: int = 0, seconds: float = PATIENCE) -> str:
        """Types a line; what it has printed when it has ended with `code`."""
        before = len(self._prompts())
        self.type(line)
        until(lambda: len(self._prompts()) > before, seconds, f"the end of {line}: {self.screen}", every=0.2)
        return self.ended(code)

    @property
    def printed(self) -> str:
        """By the last command, without the line that was typed."""
        screen, prompts = self.screen, self._prompts()
        over = prompts[-1].end() >= len(screen.rstrip()) and len(prompts) > 1
        begin, end = (prompts[-2].end(), prompts[-1].start()) if over else (prompts[-1].end(), len(screen))
        return screen[begin:end].partition("\n")[2]

    def _prompts(self) -> list[re.Match[str]]:
        return list(until(lambda: list(_PROMPT.finditer(self.screen)), what="a shell"))

    def _do(self, *command: str) -> str:
        return subprocess.run([*self._tmux, *command], check=True, capture_output=True, text=True, timeout=60).stdout


@contextmanager
def terminal(
    folder: Path, variables: Mapping[str, str], columns: int = 100, on: Sequence[str] = ()
) -> Iterator[Terminal]:
    """A window whose shell is in `folder`; `on`: what a command line begins with that shall run on another machine."""
    tmux = [require("tmux"), "-L", f"rookery-{os.getpid()}-{next(_numbers)}", "-f", os.devnull]
    shell = [*on, "bash", "--norc", "--noprofile", "-i"]
    size = ["-x", str(columns), "-y", "40"]
    told = {**variables, "PS1": r"[\#:$?] > ", "LC_ALL": "C.UTF-8"}
    subprocess.run([*tmux, "new-session", "-d", *size, *shell], check=True, cwd=folder, env=told, timeout=60)
    try:
        yield Terminal(tmux)
    finally:
        subprocess.run([*tmux, "kill-server"], check=True, timeout=60)
