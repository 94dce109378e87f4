"""Files come while their learner goes on, and what did not come is asked for again."""

from __future__ import annotations

import threading

from protocol.control.file_fetch import FileFetcher
from protocol.errors import Timeout
from tests.waiting import until


def test_a_file_is_there_once_it_has_come_and_is_asked_for_again_where_it_did_not() -> None:
    asked, may_come = list[tuple[str, str]](), threading.Event()

    def fetch(name: str, checksum: str) -> bytes:
        asked.append((name, checksum))
        if len(asked) == 1:
            raise Timeout("library_part_silent", peer="x", member=name, seconds=1.0)
        may_come.wait()
        return b"file"

    fetcher = FileFetcher(fetch)
    until(lambda: fetcher.get("a/0", "c") is None and len(asked) > 1, what="it is asked for again")
    assert fetcher.get("a/0", "c") is None
    may_come.set()
    assert until(lambda: fetcher.get("a/0", "c"), what="it is there") == b"file"
    assert asked == [("a/0", "c")] * 2
    assert fetcher.get("b/0", "c") is None
    until(lambda: fetcher._coming["b/0", "c"].done())
    assert fetcher.get("b/1", "c") is None
    assert [*fetcher._coming] == [("b/1", "c")], "what came and nobody took is not kept"
    until(lambda: fetcher.get("b/1", "c"))
    fetcher.close()
