"""Files of torch's become files of weights, whatever is in them, and nothing of them is run."""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from launch.cli import import_weights as command
from protocol.errors import ConfigurationError
from tests.faults import raises
from workers.tools import import_weights
from workers.tools.import_weights import import_file


class Canary:
    """Whoever loads it as pickle does writes a file."""

    def __reduce__(self) -> tuple[Callable[[str], Any], tuple[str]]:
        return os.system, ("touch canary",)


def imported(file: Path, only: str = "", **renames: str) -> tuple[dict[str, torch.Tensor], str]:
    """What is written of the file, and the table."""
    out = file.with_suffix(".safetensors")
    told = import_file(file, out, only, [f"{old}={new}" for old, new in renames.items()])
    return load_file(out), told


def saved(folder: Path, value: object, **how: Any) -> Path:
    """A file of torch's with the value."""
    torch.save(value, folder / "a.pt", **how)
    return folder / "a.pt"


def a_loop() -> dict[str, Any]:
    """What contains itself."""
    loop: dict[str, Any] = {"w": torch.ones(2)}
    loop["again"] = loop
    return loop


def a_tree() -> list[Any]:
    """A few lists that are a million million entries."""
    tree: list[Any] = []
    for _ in range(40):
        tree = [tree, tree]
    return tree


@pytest.mark.parametrize("zipped", [True, False])
def test_tensors_of_a_part_are_written_by_their_names_there_bit_for_bit(tmp_path: Path, zipped: bool) -> None:
    """Those that share memory, or lie in it in another order, each by themselves; in their own precision."""
    weight = torch.arange(6.0).reshape(2, 3)
    model = {"body.0.weight": weight, "body.10.weight": weight, "head": weight.t(), "half": torch.ones(2).bfloat16()}
    whole = {"model": model, "optimizer": {"state": {0: {"step": torch.tensor(1.0)}}}, "args": [0.1, None]}
    file = saved(tmp_path, whole, _use_new_zipfile_serialization=zipped)
    found, told = imported(file, "model", **{"body.": "encoder.", "body.1": "core.1"})
    assert {name: (one.shape, one.dtype) for name, one in found.items()} == {
        "encoder.0.weight": ((2, 3), torch.float32),
        "core.10.weight": ((2, 3), torch.float32),
        "head": ((3, 2), torch.float32),
        "half": ((2,), torch.bfloat16),
    }
    assert torch.equal(found["head"], weight.t())
    assert torch.equal(found["encoder.0.weight"], weight)
    lines = [line.split() for line in told.splitlines()]
    assert ["half", "[2]", "bfloat16"] in lines
    assert ["optimizer.state.0.step", "[]", "float32", "not", "under", "model"] in lines
    assert "left out: 1 tensors, 2 others (args.0, args.1)" in told


def test_tensors_that_are_no_plain_numbers_are_left_out_and_no_name_reaches_the_terminal_as_it_is(
    tmp_path: Path,
) -> None:
    odd = {"a": torch.eye(2).to_sparse(), "b": torch.ones(2, dtype=torch.complex64), "c": torch.ones(2, device="meta")}
    found, told = imported(saved(tmp_path, {**odd, "\x1b[2J": torch.ones(1)}))
    assert [*found] == ["\x1b[2J"]
    assert "3 tensors, 0 others" in told
    assert "\x1b" not in told


@pytest.mark.parametrize(
    ("value", "only", "renames", "kind"),
    [
        ({"w": torch.ones(2), "x": Canary()}, "", {}, "import_needs_code"),
        (torch.nn.Linear(2, 2), "", {}, "import_needs_code"),
        ({"epoch": 3}, "", {}, "import_nothing"),
        ({"model": {"w": torch.ones(2)}}, "mod", {}, "import_only_unknown"),
        ({"w": torch.ones(2)}, "", {"x": "y"}, "import_rename_unused"),
        ({"w": torch.ones(2), "v": torch.ones(2)}, "", {"v": "w"}, "import_name_taken"),
        ({"a.b": torch.ones(2), "a": {"b": torch.ones(2)}}, "", {}, "import_name_taken"),
        ({"w": torch.ones(1).expand(2**40)}, "", {}, "import_too_large"),
        (a_loop(), "", {}, "import_without_end"),
        (a_tree(), "", {}, "import_without_end"),
        ({"w" * 1_001: torch.ones(2)}, "", {}, "import_without_end"),
    ],
)
@pytest.mark.parametrize("zipped", [True, False])
def test_what_cannot_be_taken_is_refused_and_nothing_is_run_or_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    value: object,
    only: str,
    renames: dict[str, str],
    kind: str,
    zipped: bool,
) -> None:
    monkeypatch.chdir(tmp_path)
    file = saved(tmp_path, value, _use_new_zipfile_serialization=zipped)
    with raises(ConfigurationError, kind, file=file) as caught:
        imported(file, only, **renames)
    assert "\n" not in str(caught.value)
    assert [*tmp_path.iterdir()] == [file]


@pytest.mark.parametrize("content", [b"", b"no file of torch's", b"PK\x03\x04", bytes(range(256))])
def test_what_torch_did_not_write_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.pt").write_bytes(content)
    with raises(ConfigurationError, "import_not_torch", file=tmp_path / "a.pt"):
        imported(tmp_path / "a.pt")


def test_a_part_of_a_file_is_refused(tmp_path: Path) -> None:
    file = saved(tmp_path, {"w": torch.ones(200)})
    file.write_bytes(file.read_bytes()[:900])
    with raises(ConfigurationError, "import_not_torch"):
        imported(file)
    with raises(ConfigurationError, "import_file_missing"):
        imported(tmp_path / "b.pt")


def test_a_file_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "a.pt").open("wb") as file:
        file.truncate(import_weights.LARGEST + 1)
    with raises(ConfigurationError, "import_too_large", value=import_weights.LARGEST + 1):
        imported(tmp_path / "a.pt")


@pytest.mark.parametrize(("version", "refused"), [("2.9.1+cu128", True), ("2.10.0", False)])
def test_a_torch_whose_reader_has_known_holes_reads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, refused: bool
) -> None:
    file = saved(tmp_path, {"w": torch.ones(2)})
    monkeypatch.setattr(torch, "__version__", version)
    if not refused:
        assert [*imported(file)[0]] == ["w"]
        return
    with raises(ConfigurationError, "import_torch_too_old", value=version):
        imported(file)


def test_what_is_there_stays_and_a_rename_has_two_sides(tmp_path: Path) -> None:
    file = saved(tmp_path, {"w": torch.ones(2)})
    with raises(ConfigurationError, "import_rename_malformed", value="w"):
        import_file(file, tmp_path / "new" / "out", "", ["w"])
    with raises(ConfigurationError, "import_out_exists", file=file):
        import_file(file, file)
    assert [*tmp_path.iterdir()] == [file]


def test_who_is_killed_by_a_file_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "python", lambda *_: [sys.executable, "-c", "import os; os.abort()"])
    with raises(ConfigurationError, "import_crashed", reason="SIGABRT"):
        CliRunner().invoke(command.import_weights, ["a.pt", "b"], catch_exceptions=False)


def a_bomb(file: Path, claimed: int) -> None:
    """The file's first tensor says in the list of the archive that it is so large."""
    with zipfile.ZipFile(file) as old:
        parts = {one.filename: old.read(one) for one in old.infolist()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as new:
        for name, data in parts.items():
            new.writestr(name, data)
        for one in new.filelist:
            if one.filename.endswith("data/0"):
                one.file_size = claimed
