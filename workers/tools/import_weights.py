"""`rookery import`: the weights in a file of torch's as a file that runs start from, which read safetensors alone.

python -m workers.tools.import_weights FILE.pt OUT.safetensors

In flow: a file that `torch.save` wrote. Out flows: a file of weights, and a table of what was written and left out.
torch's restricted reader makes tensors and plain containers alone of it and calls nothing that it names; but it is made
to read what its own library wrote, much of it is C++, and it has had holes. So a process of its own reads, with a limit
to its memory, and `launch` tells its end.
"""

from __future__ import annotations

import os
import re
import resource
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import torch
from packaging.version import Version
from safetensors.torch import save_file
from torch import Tensor

from protocol.errors import ConfigurationError, one_sentence
from workers import freeze_startup_objects
from workers.policies.export.start import LARGEST
from workers.runtime import torch_setup

MEMORY = 4 * LARGEST
"""Bytes that reading, copying and writing may take: what is packed may be small in the file."""
MOST, LONGEST = 100_000, 1_000
"""Entries of a file, its containers among them, and characters of a name: one that contains itself has no end."""
OLDEST = Version("2.10")
"""torch's restricted reader could be made to run code: CVE-2025-32434 below 2.6, CVE-2026-24747 below 2.10."""
_DTYPES = {
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
}
_CODE = re.compile(r"GLOBAL (\S+) (?:was not an allowed|whose module)")


class Row(NamedTuple):
    """What became of a tensor: `left_out` says why, or is empty."""

    name: str
    tensor: Tensor
    left_out: str = ""


def import_file(file: Path, out: Path, only: str = "", renames: Sequence[str] = ()) -> str:
    """Writes the weights in `file`, of those under `only` (empty: all), into `out`. `renames`: beginnings of names and
    what they are replaced by, as OLD=NEW. Returns the table. ConfigurationError in one sentence."""
    if out.exists():
        raise ConfigurationError("import_out_exists", file=out)
    for one in renames:
        if "=" not in one:
            raise ConfigurationError("import_rename_malformed", key="--rename", value=one)
    entries = _read_entries(file)
    rows = _select(file, entries, only, {old: new for old, _, new in (one.partition("=") for one in renames)})
    _write(file, rows, out)
    return _table(entries, rows, out)


def _read_entries(file: Path) -> list[tuple[str, object]]:
    """(dotted name, what is there) of all that is no container. ConfigurationError in one sentence."""
    waiting, found = [("", _load(file))], list[tuple[str, object]]()
    for _ in range(MOST):
        if not waiting or len(waiting[-1][0]) > LONGEST:
            break
        name, value = waiting.pop()
        if isinstance(value, Mapping | list | tuple):
            inner = value.items() if isinstance(value, Mapping) else enumerate(value)
            waiting += [(f"{name}.{key}" if name else str(key), one) for key, one in inner][::-1]
        else:
            found.append((name, value))
    if waiting:
        raise ConfigurationError("import_without_end", file=file, limit=MOST, characters=LONGEST)
    return found


def _select(file: Path, entries: Sequence[tuple[str, object]], only: str, renames: Mapping[str, str]) -> list[Row]:
    """The tensors among `entries`: of those under `only` (empty: all) the longest beginning that `renames` has is
    replaced. ConfigurationError where two have one name, none is left, or a rename is of no use."""
    under, used, taken, rows = f"{only}." if only else "", set[str](), set[str](), []
    for name, value in entries:
        if not isinstance(value, Tensor):
            continue
        plain = value.dtype in _DTYPES and value.layout == torch.strided and value.device.type == "cpu"
        if not name.startswith(under) or not plain:
            rows.append(Row(name, value, "not plain numbers" if name.startswith(under) else f"not under {only}"))
            continue
        name = name.removeprefix(under)
        old = max((old for old in renames if name.startswith(old)), key=len, default=None)
        if old is not None:
            used.add(old)
            name = renames[old] + name.removeprefix(old)
        if name in taken:
            raise ConfigurationError("import_name_taken", file=file, name=name)
        taken.add(name)
        rows.append(Row(name, value))
    if not taken and only:
        tops = sorted({row.name.partition(".")[0] for row in rows})
        raise ConfigurationError("import_only_unknown", key="--only", file=file, value=only, choices=tops[:8])
    if not taken:
        raise ConfigurationError("import_nothing", file=file)
    for old in renames.keys() - used:
        some = [row.name for row in rows if not row.left_out][:8]
        raise ConfigurationError("import_rename_unused", key="--rename", file=file, value=old, choices=some)
    return rows


def _write(file: Path, rows: Sequence[Row], out: Path) -> None:
    """Puts those that are not left out into `out`, whole, each with memory of its own; ConfigurationError if a run
    would not read it."""
    kept = {row.name: row.tensor.detach() for row in rows if not row.left_out}
    size = sum(tensor.numel() * tensor.itemsize for tensor in kept.values())
    if size > LARGEST:  # before it is copied: a few bytes may stand for any number of elements
        raise ConfigurationError("import_too_large", file=file, value=size, limit=LARGEST)
    out.parent.mkdir(parents=True, exist_ok=True)
    aside = out.with_name(f".{out.name}.new")
    try:
        save_file({name: one.clone(memory_format=torch.contiguous_format) for name, one in kept.items()}, aside)
        os.replace(aside, out)
    finally:
        aside.unlink(missing_ok=True)


def _table(entries: Sequence[tuple[str, object]], rows: Sequence[Row], out: Path) -> str:
    """What to print."""
    lines = [
        (_shown(row.name), str(list(row.tensor.shape)), str(row.tensor.dtype).removeprefix("torch."), row.left_out)
        for row in sorted(rows, key=lambda row: bool(row.left_out))
    ]
    lines = [("name", "shape", "dtype", "left out"), *lines]
    widths = [max(len(line[at]) for line in lines) for at in range(3)]
    text = ["  ".join((*(f"{line[at]:{widths[at]}}" for at in range(3)), line[3])).rstrip() for line in lines]
    others = [_shown(name) for name, value in entries if not isinstance(value, Tensor)]
    named = f" ({', '.join(others[:8])}{', …' if others[8:] else ''})" if others else ""
    left = sum(bool(row.left_out) for row in rows)
    text.append(f"{out}: {len(rows) - left} tensors; left out: {left} tensors, {len(others)} others{named}")
    text.append(
        "Nothing of the file was run, but the reader has had holes: import only files of people whom you trust."
    )
    return "\n".join(text)


def _load(file: Path) -> Any:
    if Version(torch.__version__) < OLDEST:
        raise ConfigurationError("import_torch_too_old", value=torch.__version__, expected=OLDEST)
    try:
        opened = file.open("rb")
    except OSError as fault:
        raise ConfigurationError("import_file_missing", file=file, reason=fault.strerror) from None
    with opened:
        size = os.fstat(opened.fileno()).st_size
        if size > LARGEST:
            raise ConfigurationError("import_too_large", file=file, value=size, limit=LARGEST)
        try:
            return torch.load(opened, map_location="cpu", weights_only=True)
        except Exception as fault:  # a file that is not as it should be may raise anything
            raise _unread(file, fault) from None


def _unread(file: Path, fault: Exception) -> ConfigurationError:
    said = str(fault)
    code = _CODE.search(said)
    if code:
        return ConfigurationError("import_needs_code", file=file, value=_shown(code[1]))
    if isinstance(fault, MemoryError) or "allocate memory" in said:
        return ConfigurationError("import_needs_memory", file=file, limit=MEMORY)
    said = said.partition("WeightsUnpickler error:")[2].strip() or said.strip() or type(fault).__name__
    first = said.splitlines()[0].partition(". ")[0]  # the rest is torch's advice to read it without any restriction
    return ConfigurationError("import_not_torch", file=file, reason=_shown(first.rstrip(".")))


def _shown(text: str) -> str:
    """What a file said, for a terminal."""
    return text if text.isprintable() else ascii(text)


@click.command(name="import", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("out", metavar="OUT", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--only", default="", metavar="KEY", help="Take what is under KEY alone, by its names there.")
@click.option("--rename", "renames", multiple=True, metavar="OLD=NEW", help="Replace the beginning OLD of names.")
def main(file: Path, out: Path, only: str, renames: tuple[str, ...]) -> None:
    """Writes the weights in FILE, which torch.save wrote, into OUT as safetensors, which runs start from.

    \b
    rookery import policy.pth weights.safetensors --rename features.=encoder.
    rookery train mine.yaml --set policy.start=weights.safetensors

    FILE holds a pickle. torch's restricted reader makes tensors and plain containers alone of it and runs no code that
    it names, in a process of its own; but that reader has had holes. Import files only of people whom you trust: runs
    themselves never read such files.
    """
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    torch_setup.configure_torch()
    warnings.simplefilter("ignore")  # torch's advice is for who calls it
    with one_sentence("another OUT"):
        click.echo(import_file(file, out, only, renames))


if __name__ == "__main__":
    freeze_startup_objects()
    main(prog_name="rookery import")
