"""`rookery doctor RUN --bundle FILE.zip`: what others need to look into a run, and nothing of its user.

In flow: a run's folder. Out flow: a file of at most 5 MB. What goes in is on a list; texts of a configuration stay out
but for those on a list as well; from all that goes in secrets, paths, names of persons and machines, and addresses are
taken away.
"""

from __future__ import annotations

import getpass
import importlib.metadata
import io
import json
import os
import platform
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from protocol import RELEASE
from protocol.config.yaml_file import read_mapping
from protocol.errors import ConfigurationError

__all__ = ["collected", "write"]

_LINES, _LETTERS, _MOST = 200, 2_000, 5_000_000
"""Of a worker's log: its last lines, and of each of them so much. Bytes of the whole."""
_PACKAGES = ("torch", "numpy", "pyzmq", "msgpack", "gymnasium", "pettingzoo", "pydantic")
_VARIABLES = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "PYTHONHASHSEED", "LANG")
_TEXTS = re.compile(
    "id|name|entry|schedule|flow|transport|device|precision|learners|activation|encoder|core|publish_mode|wire_weights"
    "|log_format|turn_mode|auxiliary|cohort"
)
"""Keys of a configuration whose texts may be seen. Of all others only numbers are, and how long texts are."""
_OWN = "settings"
"""The section whose keys are the user's own."""
_NAMED = r"(?i:token|secret|passw\w*|api_?key|authorization|credential\w*)"
_IP6 = r"(?<![\w:])(?:[0-9a-fA-F]{1,4}:{1,2}){2,7}[0-9a-fA-F]{1,4}(?![\w:])"
_PATTERNS = tuple(
    (re.compile(pattern), instead)
    for pattern, instead in (
        (rf"\b([\w-]*{_NAMED}[\w-]*[\"']?\s*[=:]\s*)\S+.*", r"\1HIDDEN"),
        (r"\w+://[^\s/@]*@", "ADDRESS@"),
        (r"[\w.+-]+@[\w-]+\.[\w.-]+", "MAIL"),
        (rf"\b\d{{1,3}}(?:\.\d{{1,3}}){{3}}\b|{_IP6}", "IP"),
        (r"(?<![\w<:/])~?(?:/[^\s/:'\",;()]+)+/([^\s/:'\",;()]*)", r"PATH/\1"),
        (r"(?<!\w)(?=[\w+/=-]*\d)(?=[\w+/=-]*[A-Za-z])[\w+/=-]{20,}(?!\w)", "HIDDEN"),
    )
)
"""What is named as a secret, with the rest of its line; addresses with a user, mail, numbers of machines, paths (of
which the last part stays), long words of letters and digits."""


def collected(folder: Path, findings: Callable[[], str]) -> dict[str, str]:
    """What a bundle of the run in `folder` holds, by file. `findings` asks the doctor. ConfigurationError
    where there is no run."""
    if not (folder / "config.yaml").is_file():
        raise ConfigurationError("folder_without_config", file=folder)
    known = [*_known(folder)]
    summary = folder / "summary.json"
    told = json.loads(summary.read_text()) if summary.is_file() else {}
    logs = sorted((folder / "logs").glob("*.log")) + sorted((folder / "logs").glob("*.out"))
    data = {"versions": _versions(), "config": _bare(read_mapping(folder / "config.yaml")), "summary": told}
    return {
        **{f"{name}.json": json.dumps(_scrubbed_in(part, known), indent=2) for name, part in data.items()},
        "findings.txt": scrubbed(findings(), known),
        **{f"logs/{path.name}": scrubbed(_end_of(path), known) for path in logs if path.stat().st_size},
    }


def write(files: Mapping[str, str], target: Path) -> int:
    """Puts them into `target`, which must be new and only its owner may read; how many bytes that are.
    ConfigurationError if it is there, or if they are more than 5 MB."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    raw = packed.getvalue()
    if len(raw) > _MOST:
        raise ConfigurationError("bundle_too_large", count=len(raw), limit=_MOST)
    try:
        handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigurationError("bundle_file_exists", file=target) from None
    with os.fdopen(handle, "wb") as file:
        file.write(raw)
    return len(raw)


def scrubbed(text: str, known: list[tuple[str, str]]) -> str:
    """`text` without what is `known`, each with what stands in its place, and without what looks like a secret."""
    for secret, instead in known:
        text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", instead, text)
    for pattern, instead in _PATTERNS:
        text = pattern.sub(instead, text)
    return text


def _scrubbed_in(part: Any, known: list[tuple[str, str]]) -> Any:
    """`part` of something that is written as JSON, with all texts in it `scrubbed`."""
    if isinstance(part, Mapping):
        found = {scrubbed(str(name), known): _scrubbed_in(one, known) for name, one in part.items()}
        return {name: "HIDDEN" if re.search(_NAMED, name) else one for name, one in found.items()}
    if isinstance(part, list):
        return [_scrubbed_in(one, known) for one in part]
    return scrubbed(part, known) if isinstance(part, str) else part


def _known(folder: Path) -> Iterator[tuple[str, str]]:
    """What must not be seen, and is known: the longest first, where one is part of another."""
    found: dict[str, str] = {}
    for path in [folder / "token", *(folder / "run-keys").glob("*")]:
        if path.is_file():
            found |= dict.fromkeys(path.read_text(errors="replace").split(), "HIDDEN")
    named = {key: value for key, value in os.environ.items() if key not in _VARIABLES}
    found |= {value: "HIDDEN" for value in named.values() if len(value) >= 8 and not value.startswith("/")}
    found |= {str(folder): "RUN", str(Path.home()): "~", getpass.getuser(): "USER", platform.node(): "HOST"}
    yield from sorted(((one, instead) for one, instead in found.items() if one), key=lambda pair: -len(pair[0]))


def _versions() -> dict[str, Any]:
    def version(package: str) -> str | None:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return None

    return {
        "rookery": RELEASE,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processors": os.cpu_count(),
        "packages": {package: version(package) for package in _PACKAGES},
        "variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
    }


def _bare(part: Any, key: str = "") -> Any:
    """Part of a configuration, below `key`, without texts that are on no list."""
    if isinstance(part, Mapping):
        return {name: _bare(one, key if key == _OWN else str(name)) for name, one in part.items()}
    if isinstance(part, list):
        return [_bare(one, key) for one in part]
    return part if _TEXTS.fullmatch(key) or not isinstance(part, str) else f"a text of {len(part)} letters"


def _end_of(path: Path) -> str:
    lines = path.read_text(errors="replace").splitlines()[-_LINES:]
    return "".join(f"{line[:_LETTERS]}\n" for line in lines)
