"""When a player of a league joins the library: its weights of that moment as an immutable file.

In flows: rows that the player has learned from, its networks; weights that people add as a member. Out flow: files of
the library.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from protocol.config.run import PolicyConfig, Run
from protocol.errors import ConfigurationError
from protocol.spaces import DictPopulation, World
from protocol.weights.manifest import Version
from workers.league import policy_pool
from workers.league.policy_pool import PoolEntry
from workers.planning.league_plan import ADDED, PlayerPlan
from workers.policies.build import Policy, build
from workers.policies.export import safetensors
from workers.policies.export.export_manifest import Provenance
from workers.policies.export.from_checkpoint import describe
from workers.policies.export.start import put_in_place
from workers.policies.interface import Interface

log = logging.getLogger(__name__)


class LeaguePublisher:
    """Of `player`, whose members lie in the run's `folder`; those that earlier incarnations made count."""

    def __init__(
        self,
        player: PlayerPlan,
        run: Run,
        interface: Interface,
        world: World,
        config: PolicyConfig,
        folder: Path | None,
    ) -> None:
        if folder is None:
            raise ConfigurationError("run_folder_not_visible_to_learner")
        assert run.league is not None
        self._player, self._every, self._config, self._folder = player, run.league.snapshot_every, config, folder
        self._interface, agent = interface, interface.place.agent
        self._world = World(id=world.id, population=DictPopulation(agents=(agent,)))
        self.count = sum(entry.number < ADDED for entry in policy_pool.entries(folder, player.name))
        """Its snapshots so far."""

    @property
    def fresh(self) -> bool:
        """Whether the player begins again whenever it has joined."""
        return self._player.fresh

    def progress(self, rows: int) -> float:
        """How far a player that begins again has come, 0..1, on its way to joining as the next member: by this its
        schedules go, which begin again with it."""
        return min(1.0, max(0.0, rows / self._every - (self.count - 1)))

    def due(self, rows: int) -> bool:
        """Whether the player is to join, having learned from so many rows; at first as it is."""
        return self.count < self._player.most and rows >= self.count * self._every

    def freeze(self, policy: Policy, version: Version, train_steps: int, rows: int) -> None:
        """Adds the next member."""
        source = Provenance(
            run="",
            folder=self._folder.name,
            incarnation=version.incarnation,
            version=version.version,
            train_steps=train_steps,
            rows=rows,
        )
        entry = self._add(self.count, policy, source)
        self.count += 1
        log.info("event=frozen member=%s rows=%d checksum=%s", entry.name, rows, entry.checksum)

    def missing(self, told: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Those of the members which people add that are not in the library yet."""
        there = {entry.name for entry in policy_pool.entries(self._folder, self._player.name)}
        return [one for one in told if one["member"] not in there]

    def join(self, member: str, data: bytes) -> None:
        """Adds a `member` with the weights in `data` (workers/policies/export/start.py), which nobody here learned."""
        policy = build(self._interface, self._config, 0)
        put_in_place(policy, data)
        source = Provenance(run="", folder=self._folder.name, incarnation=0, version=0, train_steps=0, rows=0)
        entry = self._add(int(member.rpartition("/")[2]), policy, source)
        log.info("event=member_added member=%s checksum=%s", entry.name, entry.checksum)

    def _add(self, number: int, policy: Policy, source: Provenance) -> PoolEntry:
        alike = build(self._interface, self._config, 0)  # in host memory, where a manifest tries what it describes
        manifest = describe(self._player.name, self._world, self._config, alike, source)
        return policy_pool.add(self._folder, self._player.name, number, safetensors.to_bytes(manifest, policy))
