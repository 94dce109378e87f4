"""A missing tool skips a test here and fails it where nothing may be missing."""

from __future__ import annotations

import pytest

from tests.skips import REASONS, Reason
from tests.tools import require, skip_or_fail


@pytest.fixture(autouse=True)
def listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REASONS, "no-such-tool is not installed", Reason("any machine"))


def test_missing_tool_skips_without_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROOKERY_CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no-such-tool is not installed"):
        require("no-such-tool")


def test_missing_tool_fails_with_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOKERY_CI", "1")
    with pytest.raises(pytest.fail.Exception, match="no-such-tool is not installed"):
        require("no-such-tool")
    with pytest.raises(pytest.skip.Exception, match="needs a CUDA device: none of 2 answers"):
        skip_or_fail("needs a CUDA device", "none of 2 answers")


def test_skip_for_a_reason_that_nobody_listed_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROOKERY_CI", raising=False)
    with pytest.raises(pytest.fail.Exception, match="'later' is no reason to skip"):
        skip_or_fail("later")


def test_tool_beside_the_interpreter_is_found() -> None:
    assert require("python").endswith("python")


def test_port_block_is_ten_free_ports(free_port_block: int) -> None:
    import socket

    for port in range(free_port_block, free_port_block + 10):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", port))
            listener.listen()
