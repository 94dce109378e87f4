"""Files that people hand in: configurations, as data and as text, checkpoints, keys and rings; spoilt, and read.

In flow: a mutator. Nothing but a `RookeryError` of one sentence may come out of a reader.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml

from launch.config_loader import load
from launch.presets import PRESETS
from protocol.config.run import parse_run
from protocol.errors import RookeryError
from protocol.experience.ring_buffer import Ring
from protocol.transport.curve import Keys, connect_string, new_keys
from tests.fuzz.mutations import Mutator
from tests.protocol.golden_vectors import LAYOUT, record, write_ring
from workers.policies import checkpoint
from workers.policies.checkpoint import Checkpoint, CheckpointManifest

__all__ = ["Documents"]

_LONGEST = 2_000
"""Characters of a sentence; the value that is wrong may be in it."""


class Documents:
    """The readers of files, in `folder`."""

    def __init__(self, folder: Path, mutator: Mutator) -> None:
        self._mutator = mutator
        self._texts = [path.read_bytes() for path in sorted(PRESETS.glob("*.yaml"))]
        self._config = folder / "spoilt.yaml"
        config = parse_run({}).policy.model_dump(mode="json")
        manifest = CheckpointManifest(
            step=7,
            policy="gem",
            version=3,
            incarnation=1,
            train_steps=7,
            rows=70,
            weights_hash="0" * 64,
            agent={"observation": {}},
            common=None,
            config=config,
        )
        weights = {"body.0.weight": torch.arange(6.0).reshape(2, 3), "body.0.bias": torch.zeros(2)}
        whole = Checkpoint(manifest, weights, {"moments": torch.ones(8), "steps": torch.tensor(7)})
        self._checkpoint = checkpoint.save(folder / "gem", whole, 1)
        self._files = {path.name: path.read_bytes() for path in self._checkpoint.iterdir()}
        self._ring = folder / "rookery-0123abcd-fuzz.1-gem.ring"
        write_ring(self._ring).close()
        self._whole = self._ring.read_bytes()
        self._keys = folder / "keys"
        self._secrets = {path: path.read_bytes() for path in new_keys(self._keys)}
        self._carried = connect_string("", self._keys).partition("=")[2].encode()
        self.ways: list[Callable[[], None]] = [self.data, self.text, self.checkpoint, self.keys, self.ring]

    def data(self) -> None:
        """A preset as data, with a value or a key changed; what is taken is written and read again as it was."""
        found = yaml.safe_load(self._mutator.choose(self._texts))
        self._spoil_within(found)
        run = self._refused_in_a_sentence(lambda: parse_run(found))
        if run is not None:
            assert parse_run(run.model_dump(mode="json")) == run, "a configuration that is written is read as it was"

    def text(self) -> None:
        """A preset as a file, with some bytes changed."""
        self._config.write_bytes(self._mutator.spoil_bytes(self._mutator.choose(self._texts)))
        self._refused_in_a_sentence(lambda: load(str(self._config)))

    def checkpoint(self) -> None:
        """One file of a checkpoint, with some bytes or a value of its manifest changed; what is taken is finite."""
        name = self._mutator.choose(list(self._files))
        raw = self._files[name]
        if name == "manifest.json" and self._mutator.choose((True, False)):
            told = json.loads(raw)
            self._mutator.spoil(told)
            raw = json.dumps(told, default=repr).encode()
        else:
            raw = self._mutator.spoil_bytes(raw)
        (self._checkpoint / name).write_bytes(raw)
        found = self._refused_in_a_sentence(lambda: checkpoint.load(self._checkpoint))
        (self._checkpoint / name).write_bytes(self._files[name])
        if found is not None:
            sums = [float(tensor.double().sum()) for tensor in found.weights.values()]
            assert all(map(math.isfinite, sums)), "weights that are taken are numbers"

    def keys(self) -> None:
        """One file of a folder of keys with some bytes changed, and a connect string like it."""
        path = self._mutator.choose([*self._secrets])
        path.write_bytes(self._mutator.spoil_bytes(self._secrets[path]))
        self._refused_in_a_sentence(lambda: Keys.load(self._keys, "actor"))
        path.write_bytes(self._secrets[path])
        text = self._mutator.spoil_bytes(self._carried).decode("latin-1")
        self._refused_in_a_sentence(lambda: Keys.carried(text))

    def ring(self) -> None:
        """A ring with some bytes changed, or shorter; what is taken can be read whole."""
        raw = self._mutator.spoil_bytes(self._whole)
        size = self._mutator.choose((len(self._whole), len(raw), 4096, 100, 0))
        self._ring.write_bytes(raw[:size].ljust(size, b"\0"))
        ring = self._refused_in_a_sentence(lambda: Ring.attach(self._ring, LAYOUT))
        if ring is not None:
            ring.intact(record(slot=1))
            ring.close()

    def _spoil_within(self, found: dict[str, Any]) -> None:
        """Changes the map itself, or a section of it."""
        sections = [value for value in found.values() if isinstance(value, dict) and value]
        self._mutator.spoil(self._mutator.choose([found, *sections]))

    def _refused_in_a_sentence(self, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except RookeryError as fault:
            said = str(fault)
            if len(said) > _LONGEST or not said.strip():
                raise ValueError(f"no sentence: {said[:_LONGEST]}") from None
        return None
