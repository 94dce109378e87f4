"""What the workers of a run under faults really do, noted from inside them and independently of their own books.

In flow: `ROOKERY_WITNESS`, a file; `install()` is called when Python starts. Out flow: a line of JSON for each thing
done, in the order of time: segments that learners copied and settled, weights that they published and actors adopted.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Iterator
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["SITE", "VARIABLE", "install"]

VARIABLE = "ROOKERY_WITNESS"
SITE = "from tests.chaos import clocks, witness\n\nclocks.install()\nwitness.install()\n"
"""The text of a `sitecustomize.py` for those who shall be watched."""


def note(*facts: Any) -> None:
    """One line, written at once: it is there whatever becomes of this process."""
    descriptor = os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, json.dumps(facts).encode() + b"\n")
    finally:
        os.close(descriptor)


def _after(owner: Any, name: str, tell: Callable[..., None]) -> None:
    """`tell` is called with the arguments of `owner.name`, after it, unless it says that nothing was done."""
    plain = getattr(owner, name)

    @functools.wraps(plain)
    def told(*given: Any, **named: Any) -> Any:
        answer = plain(*given, **named)
        if answer is not False:
            tell(*given)
        return answer

    setattr(owner, name, told)


def _stage(module: ModuleType) -> None:
    plain = module.BatchAssembler._chunks

    def chunks(stage: Any) -> Iterator[Any]:
        for arrival, records in plain(stage):
            yield arrival, records
            numbers = records["number"].tolist()  # copied by now, and not settled yet
            note("copied", os.getpid(), stage._policy, arrival.actor, arrival.incarnation, numbers)

    module.BatchAssembler._chunks = chunks


def _replay(module: ModuleType) -> None:
    class Told(module.SegmentIndex):  # type: ignore[name-defined]
        """Admits and tells."""

        def append(self, records: Any, arrival: Any) -> int:
            rows = super().append(records, arrival)
            note("copied", os.getpid(), self.policy, arrival.actor, arrival.incarnation, records["number"].tolist())
            return int(rows)

    def told(replay: Any, context: Any, *_: Any) -> None:
        replay._all.policy = context.policy

    module.SegmentIndex = Told  # type: ignore[attr-defined]
    _after(module.ReplayBuffer, "__init__", told)


def _arrivals(module: ModuleType) -> None:
    def settled(_receiver: Any, policy: str, arrival: Any, upto: int, _count: int) -> None:
        note("settled", os.getpid(), policy, arrival.actor, arrival.incarnation, upto)

    _after(module.ExperienceReceiver, "acknowledge", settled)


def _member(module: ModuleType) -> None:
    def published(member: Any) -> None:
        note("published", os.getpid(), member.name, member.version.incarnation, member.version.version)

    _after(module.PolicyLearner, "publish", published)


def _performer(module: ModuleType) -> None:
    def adopted(performer: Any, _copy: Any) -> None:
        note("adopted", os.getpid(), id(performer), performer.version.incarnation, performer.version.version)

    _after(module.ActingPolicy, "adopt", adopted)


_WATCHED = {
    "workers.learning.buffers.batch_assembler": _stage,
    "workers.learning.buffers.replay_buffer": _replay,
    "protocol.experience.receiver": _arrivals,
    "workers.learning.policy_learner": _member,
    "workers.rollout.acting_policy": _performer,
}


class _Watched(Loader):
    """Loads a module as usual and then lets its doings be told."""

    def __init__(self, plain: Loader, tell: Callable[[ModuleType], None]) -> None:
        self._plain, self._tell = plain, tell

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._plain.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._plain.exec_module(module)
        self._tell(module)


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in _WATCHED:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _Watched(spec.loader, _WATCHED[name])
                return spec
        return None


def install() -> None:
    """Watches this process, if it is to be."""
    if os.environ.get(VARIABLE):
        sys.meta_path.insert(0, _Finder())
