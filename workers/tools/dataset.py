"""`rookery dataset`: what a run recorded, for other libraries.

python -m workers.tools.dataset runs/expert --minari cartpole/expert-v0

In flow: a run's folder with recorded segments. Out flow: a dataset of Minari on this machine.
"""

from __future__ import annotations

import json
from pathlib import Path

import click
import psutil

from protocol.errors import ConfigurationError, one_sentence
from workers import freeze_startup_objects
from workers.learning.datasets.dataset_manifest import FILES, MANIFEST, DatasetManifest, read_manifest
from workers.learning.datasets.minari_datasets import write_minari
from workers.learning.datasets.reader import RecordedDataset

_COPIES = 3
"""Times that all rows are in memory at once: as read, in episodes, and as Minari writes them."""


def open_recording(run: Path, policy: str | None) -> tuple[RecordedDataset, DatasetManifest]:
    """What the run in the folder `run` recorded of `policy` (None: the only one). ConfigurationError in a sentence."""
    names = sorted(path.parent.name for path in (run / "datasets").glob(f"*/{MANIFEST}"))
    if not names:
        raise ConfigurationError("no_recorded_segments", file=run)
    if len(names) > 1 if policy is None else policy not in names:
        fault = "recorded several policies" if policy is None else f"recorded no policy {policy!r}"
        raise ConfigurationError("policy_option_needed", file=run, reason=fault, choices=list(names))
    folder = run / "datasets" / (policy or names[0])
    needed, free = _COPIES * sum(path.stat().st_size for path in folder.glob(FILES)), psutil.virtual_memory().available
    if needed > free:
        raise ConfigurationError("recording_exceeds_memory", file=folder, needed=needed / 2**30, free=free / 2**30)
    return RecordedDataset(folder, folder.name), read_manifest(folder)[0]


@click.command(name="dataset", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("run", metavar="RUN", type=click.Path(file_okay=False, path_type=Path))
@click.option("--policy", metavar="NAME", help="Whose segments; not needed where there is one policy.")
@click.option("--minari", "id", required=True, metavar="ID", help="What Minari is to call it: [space/]name-v0.")
def main(run: Path, policy: str | None, id: str) -> None:
    """Writes what RUN recorded (policy.record) as a dataset of Minari, among those on this machine.

    \b
    rookery dataset runs/expert --minari cartpole/expert-v0
    rookery train cartpole --set actors=0 --set policy.algorithm.name=bc --set policy.dataset.minari=cartpole/expert-v0
    """
    with one_sentence("another RUN"):
        recorded, manifest = open_recording(run, policy)
        told = (
            f"Segments of policy {manifest.policy} in {manifest.world}, recorded by Rookery {manifest.release}; behind "
            f"a termination the observation before it stands again. Environment: {json.dumps(manifest.environment)}"
        )
        episodes, rows = write_minari(recorded, id, told)
        click.echo(f"{id}: {episodes} episodes, {rows} rows")


if __name__ == "__main__":
    freeze_startup_objects()
    main(prog_name="rookery dataset")
