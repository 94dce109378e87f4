"""The clients in other languages, built: commands that run a program of theirs."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from pathlib import Path

from tests.tools import ROOT, require, skip_or_fail

__all__ = ["LANGUAGES", "actor", "compiled", "driver", "example", "started"]

CLIENTS = ROOT / "protocol" / "clients"
LANGUAGES = ("cpp", "javascript")
ONNX_RUNTIME = (f"-I{CLIENTS / 'cpp'}", "-I/usr/include/onnxruntime", "-lonnxruntime")
"""Flags of a program in C++."""
_ENDINGS = {"cpp": ("cpp", "cpp"), "javascript": ("js", "mjs")}
"""Of an example, and of a test's program."""


def example(language: str, folder: Path) -> list[str]:
    """Runs the example, a cart-pole; what is compiled lies in `folder`."""
    return _program(language, CLIENTS / language / f"cartpole.{_ENDINGS[language][0]}", folder)


def _program(language: str, source: Path, folder: Path) -> list[str]:
    """Runs `source`; the test is skipped, or fails, where its compiler or a library is missing."""
    return compiled(source, folder / source.stem) if language == "cpp" else _interpreted(source)


def driver(language: str, folder: Path) -> list[str]:
    """Runs the tests' own program."""
    return _program(language, Path(__file__).with_name(f"driver.{_ENDINGS[language][1]}"), folder)


def actor(language: str, folder: Path) -> list[str]:
    """Runs the tests' own actor, which computes by ONNX Runtime."""
    source = Path(__file__).with_name(f"actor.{_ENDINGS[language][1]}")
    if language == "cpp":
        return compiled(source, folder / "actor", *ONNX_RUNTIME)
    if not (CLIENTS / "javascript" / "node_modules" / "onnxruntime-web").is_dir():
        skip_or_fail("the npm package onnxruntime-web is not installed")
    node, *arguments = _interpreted(source)
    return [node, "--liftoff-only", *arguments]  # to optimize the runtime's code takes seconds


def compiled(source: Path, target: Path, *flags: str) -> list[str]:
    """Runs a program in C++; the test is skipped, or fails, where compiler or libraries are missing."""
    command = [require("g++"), "-std=c++17", "-Wall", "-Wextra", "-o", str(target), str(source), "-lzmq", *flags]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if "onnxruntime_cxx_api.h: No such file" in built.stderr:
        skip_or_fail("libonnxruntime-dev is not installed")
    if "zmq.h: No such file" in built.stderr:
        skip_or_fail("libzmq3-dev is not installed")
    assert built.returncode == 0, built.stderr
    return [str(target)]


def _interpreted(source: Path) -> list[str]:
    node = require("node")
    if not (CLIENTS / "javascript" / "node_modules" / "zeromq").is_dir():
        skip_or_fail("the npm package zeromq is not installed")
    return [node, str(source)]


def started(stack: ExitStack, log: Path, *command: str) -> subprocess.Popen[bytes]:
    """A process that writes to `log`, and that the end of `stack` kills and waits for if it still runs."""
    output = stack.enter_context(log.open("wb"))
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT)
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process
