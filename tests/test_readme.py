"""Every block of the documents that a reader might copy is run, in order, in a copy of the repository."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.forge import Forge, forging, program
from tests.readme import Block, blocks, clone, environment, guide
from tests.tools import ROOT
from tests.waiting import until

SITE = "launch/docs"
DOCUMENTS = ("README.md", "launch/README.md", "workers/README.md", "protocol/README.md", *guide())


def runnable() -> list[object]:
    """One parameter for each block of each document; a faulty document gives its fault instead."""
    parameters: list[object] = []
    for document in DOCUMENTS:
        try:
            found = blocks((ROOT / document).read_text(encoding="utf-8"))
        except ValueError as fault:
            parameters.append(pytest.param(document, fault, id=f"{document}:fault"))
            continue
        parameters += [
            pytest.param(
                document,
                block,
                id=f"{document}:{block.line}",
                marks=pytest.mark.timeout(block.deadline + 60),
            )
            for block in found
            if block.skipped_because is None
        ]
    return parameters


@pytest.fixture(scope="module")
def home(forge: Forge | None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The reader's, one for all documents, as what is forked has the same variables; his `rookery` lies there."""
    home = tmp_path_factory.mktemp("home")
    variables = environment(home, ROOT)
    with (
        forging(variables, home / "forge.out", forge) as own,
        program(home, own, {"PYTHONPATH": variables["PYTHONPATH"]}),
    ):
        yield home


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """document -> the copy of the repository in which its blocks run one after another; the site's pages share one."""
    folder = tmp_path_factory.mktemp("readme")
    places = {document: SITE if document.startswith(SITE) else document for document in DOCUMENTS}
    copies = {place: folder / place.replace("/", "-") for place in dict.fromkeys(places.values())}
    for copy in copies.values():
        clone(copy)
    return {document: copies[place] for document, place in places.items()}


@pytest.mark.parametrize(("document", "block"), runnable())
def test_block_runs(
    document: str, block: Block | ValueError, copies: dict[str, Path], home: Path, tmp_path: Path
) -> None:
    if isinstance(block, ValueError):
        pytest.fail(f"{document}: {block}", pytrace=False)
    code, output = run(block, copies[document], tmp_path, home)
    assert code == 0, f"{document}, line {block.line} ended with {code}:\n{output}"


def run(block: Block, folder: Path, out: Path, home: Path | None = None) -> tuple[int | str, str]:
    """Exit code (or the sentence that the deadline has passed) and output of the block, or of what stands in for it."""
    if block.test_as is None and block.kind == "python":
        forked = (home or out) / "python-c"
        command = [str(forked), block.text] if forked.exists() else [sys.executable, "-c", block.text]
    else:
        command = ["bash", "-euo", "pipefail", "-c", block.test_as or block.text]
    log = out / "output"
    with (
        log.open("w") as output,
        subprocess.Popen(
            command,
            cwd=folder,
            env=environment(home or out, folder),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        code: int | str
        try:
            code = process.wait(block.deadline)
        except subprocess.TimeoutExpired:
            code = f"its deadline of {block.deadline:g} s"
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return code, log.read_text(errors="replace")[-8000:]


def test_readme_has_a_block_that_runs() -> None:
    assert any(block.skipped_because is None for block in blocks((ROOT / "README.md").read_text(encoding="utf-8")))


def test_blocks_are_read_with_their_notes() -> None:
    document = """\
Text.

```bash
echo one
```
<!-- test-as: rookery train --steps 1 -->
<!-- deadline: 300 -->

```bash
make train
```

<!-- no-test: takes two minutes -->
```python no-test
run()
```

<!-- test-as: forgotten, because a paragraph follows -->
A paragraph.

1. listed:

   ```python
   if True:
       print()
   ```

```
a picture
```
````text
```bash
quoted
```
````
"""
    assert blocks(document) == [
        Block(3, "bash", "echo one\n"),
        Block(9, "bash", "make train\n", test_as="rookery train --steps 1", deadline=300.0),
        Block(14, "python", "run()\n", skipped_because="takes two minutes"),
        Block(23, "python", "if True:\n    print()\n"),
    ]


@pytest.mark.parametrize(
    ("document", "fault"),
    [
        ("```bash no-test\nx\n```\n", "with the reason"),
        ("<!-- no-test: slow -->\n```bash\nx\n```\n", "stands both"),
        ("```sh\nx\n```\n", "call the block bash"),
        ("```bash notest\nx\n```\n", "unknown words"),
        ("```bash\nx\n", "never closed"),
    ],
)
def test_block_that_would_escape_is_refused(document: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        blocks(document)


def test_block_runs_in_the_copy_with_the_tools_on_the_path(tmp_path: Path) -> None:
    (tmp_path / "here").touch()
    code, output = run(Block(1, "bash", "ls here; command -v python\n"), tmp_path, tmp_path)
    assert (code, output.splitlines()) == (0, ["here", str(Path(sys.executable).parent / "python")])


@pytest.mark.parametrize("text", ["false\ntrue\n", "false | cat\n", "echo $no_such_variable\n"])
def test_block_with_a_failing_line_fails(text: str, tmp_path: Path) -> None:
    code, _ = run(Block(1, "bash", text), tmp_path, tmp_path)
    assert code != 0


def test_block_past_its_deadline_is_killed_with_all_it_started(tmp_path: Path) -> None:
    code, output = run(Block(1, "bash", "sleep 60 &\necho $!\nwait\n", deadline=3.0), tmp_path, tmp_path)
    assert code == "its deadline of 3 s"
    until(lambda: not alive(int(output)), what="what it started has ended: a kill is not over when it is sent")


def alive(number: int) -> bool:
    """Does the process exist, other than as a zombie that nobody has collected yet?"""
    with suppress(FileNotFoundError):
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
