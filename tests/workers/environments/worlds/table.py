"""An environment, guarded, with a seat for each agent that writes its segments: what a learner would be given.

Whoever plays chooses t mod 5, where t is the last number of its observation.
"""

from __future__ import annotations

import numpy as np

from protocol.config.run import PPO
from protocol.experience.layout import segment_layout
from tests.workers import scripted
from tests.workers.environments.adapters.random_games import Row
from workers.environments.base import Environment
from workers.environments.checks.checked_environment import CheckedEnvironment
from workers.rollout.agent_collector import AgentCollector

LENGTH = 4


class Table:
    """A seat for each agent, with segments of 4 rows."""

    def __init__(self, environment: Environment) -> None:
        self.environment, self.copies = CheckedEnvironment(environment), environment.copies
        policy, world = scripted.config(PPO(), LENGTH), environment.world
        self.senders = [
            scripted.Sender(segment_layout(world, place, policy), environment.copies * place.many, 400)
            for place in world.places
        ]
        self.seats = [
            AgentCollector(
                agent.name,
                scripted.Performer(world, i),  # type: ignore[arg-type]
                sender,
                range(environment.copies),
                np.random.default_rng(0),
            )
            for i, (agent, sender) in enumerate(zip(world.agents, self.senders, strict=True))
        ]

        self.next: dict[int, set[int]] = {}
        """agent -> copies in which it was to act when the play stopped."""

    def play(self, turns: int) -> int:
        """Returns the environment steps."""
        turn, steps = self.environment.reset(0), 0
        for _ in range(turns):
            for outcome in turn.outcomes:
                self.seats[outcome.agent].add_outcome(outcome, scripted.never)
            actions = [self.seats[one.agent].act(one, scripted.never) for one in turn.present]
            turn = self.environment.step(actions)
            steps += turn.env_steps
        self.turn = turn
        for outcome in turn.outcomes:  # what the last actions brought
            self.seats[outcome.agent].add_outcome(outcome, scripted.never)
        for one in turn.present:
            self.seats[one.agent].observe(one, scripted.never)
            self.next[one.agent] = set(range(self.copies) if one.copies is None else one.copies.tolist())
        self.environment.close()
        return steps

    def found(self, agent: int) -> list[list[Row]]:
        """[E]: the rows in segments, in the order in which they were written."""
        rows: list[list[Row]] = [[] for _ in range(self.copies)]
        sender = self.senders[agent]
        for record in (record for records in sender.finished for record in records):
            columns = {name: column[record["slot"]] for name, column in sender.ring.columns.items()}
            finals = {
                int(row): float(columns["final_observation"][k].flat[-1])
                for k, row in enumerate(columns["final_row"])
                if row >= 0
            }
            for row in range(int(record["valid"])):
                seen = float(columns["observation"][row].flat[-1])
                assert columns["action"][row] == seen % 5
                rows[int(record["stream"])].append(
                    Row(
                        seen,
                        float(columns["reward"][row]),
                        bool(columns["terminated"][row]),
                        bool(columns["truncated"][row]),
                        finals.pop(row, None),
                    )
                )
            assert not finals
        return rows
