"""What a check says: what held, or in one sentence what is wrong and where protocol/README.md says how it should be."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Finding", "Flaw"]


class Flaw(Exception):
    """The other side breaks a rule of `section`. `code`: what a simulator is refused with for it."""

    def __init__(self, sentence: str, section: str, code: str = "message") -> None:
        super().__init__(sentence)
        self.sentence, self.section, self.code = sentence, section, code


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
