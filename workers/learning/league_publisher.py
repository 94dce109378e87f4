"""When a player of a league joins the library: its weights of that moment as an immutable file.

In flows: rows that the player has learned from, its networks. Out flow: files of the library.
"""

from __future__ import annotations

import logging
from pathlib import Path

from protocol.config.run import PolicyConfig, Run
from protocol.errors import ConfigurationError
from protocol.spaces import DictPopulation, World
from protocol.weights.manifest import Version
from workers.league import policy_pool
from workers.planning.league_plan import PlayerPlan
from workers.policies.build import Policy, build
from workers.policies.export import safetensors
from workers.policies.export.export_manifest import Provenance
from workers.policies.export.from_checkpoint import describe
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
        self.count = len(policy_pool.entries(folder, player.name))
        """Members so far."""

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
        alike = build(self._interface, self._config, 0)  # in host memory, where a manifest tries what it describes
        manifest = describe(self._player.name, self._world, self._config, alike, source)
        entry = policy_pool.add(self._folder, self._player.name, self.count, safetensors.to_bytes(manifest, policy))
        self.count += 1
        log.info("event=frozen member=%s rows=%d checksum=%s", entry.name, rows, entry.checksum)
