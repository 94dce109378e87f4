"""What a check says: what held, or in one sentence what is wrong and where protocol/README.md says how it should be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from protocol.errors import RookeryError


class Flaw(RookeryError):
    """The other side breaks a rule of `section`. `code`: what a simulator is refused with for it."""

    def __init__(self, kind: str, section: str, code: str = "message", /, **facts: Any) -> None:
        super().__init__(kind, **facts)
        self.section, self.code = section, code


@dataclass(frozen=True, slots=True)
class Finding:
    """Of one check: what should hold; what is wrong, if it does not."""

    holds: str
    flaw: str = ""
    section: str = ""

    @property
    def good(self) -> bool:
        """Whether it holds."""
        return not self.flaw

    def __str__(self) -> str:
        if self.good:
            return f"ok     {self.holds}"
        return f"WRONG  {self.holds}: {self.flaw} (protocol/README.md, {self.section})"
