"""What cannot go together in a run: `compile: true` with some policies, lock-step with some settings. Pure.

In lock-step the workers wait for one another, so that a run's bits do not depend on how many there are. The copies of
the environment are dealt to the actors in blocks of `act_block`: a block is an environment of its own, with a seed and
noise of its own, and its agents are evaluated together, whoever plays it. All agents act in every turn, so that each
stream fills a segment of T rows in T turns: a *round*. The last row of a segment is complete, and the segment shipped,
in the next turn (the row after it is the observation to bootstrap from). Learners take a round when all its streams
are there, in the order of the streams, learn from it and publish once; before turn (k + 1) * T + 1, counted from 0,
actors wait for what was published after round k.

In flow: a run's configuration. Out flows: errors, which actor plays which blocks, when a round ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from protocol.config.fixed_policy import ScriptedPolicy
from protocol.config.off_policy import DQN, IQN, ValueBased
from protocol.config.on_policy import PPO, Streamed
from protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from protocol.config.run import PolicyConfig, Run


_OWN = ("ppo", "impala", "bc", "dqn", "c51")
"""Algorithms whose whole network may be the user's own."""


def check_compiled(config: PolicyConfig) -> None:
    """ValueError unless its steps can be made in memory that never moves, by one process."""
    algorithm = config.algorithm
    if not isinstance(algorithm, Streamed | IQN | DQN):
        raise ConfigurationError("compile_not_supported", algorithm=algorithm.name, key="compile")
    why = ""
    if isinstance(algorithm, Streamed) and algorithm.central_critic:
        why = "central_critic, whose steps are"
    elif isinstance(algorithm, PPO) and algorithm.priority_alpha:
        why = "priority_alpha, by which the host draws and so steps are"
    elif config.ranks > 1:
        why = "ranks, which meet within a step that is"
    elif algorithm.entry is not None:
        why = "entry, whose loss is its own and so steps are"
    elif config.record:
        why = "record, whose segments are learned again to the bit by steps that are"
    elif config.freeze is not None:
        why = "start.freeze, whose parts steps leave as they are, and so these are"
    elif config.kl is not None:
        why = "start.kl, whose steps look at two policies and so are"
    if why:
        raise ConfigurationError("compile_conflict", reason=why, key="compile")


def check_start_kl(config: PolicyConfig) -> None:
    """ValueError where no update can tell how far `config` has gone from its start, as it asks for."""
    why = "" if isinstance(config.algorithm, Streamed) else f"{config.algorithm.name}, which is no ppo or impala"
    if config.network.core is not None:
        why = why or "network.core, as what its start would remember is not recorded"
    if config.kl is not None and why:
        raise ConfigurationError("start_kl_conflict", reason=why, key="start.kl")


def has_core(network: Any) -> bool:
    """Whether the section `network`, as it is given, names a core."""
    core = network.get("core") if isinstance(network, Mapping) else None
    return (core.get("name", core) if isinstance(core, Mapping) else core) not in (None, "none")


def check_memory(config: PolicyConfig) -> None:
    """ValueError unless what `config` remembers, if it does, can be learned from segments that are sampled."""
    algorithm = config.algorithm
    if config.network.core is None:
        if isinstance(algorithm, ValueBased) and algorithm.burn_in:
            raise ConfigurationError("burn_in_without_core", key="algorithm.burn_in")
        return
    if not isinstance(algorithm, ValueBased):
        raise ConfigurationError("algorithm_not_recurrent", algorithm=algorithm.name, key="network.core")
    given = {
        "algorithm.frames": algorithm.frames > 1,
        "algorithm.noisy": algorithm.noisy,
        "algorithm.priority_alpha": algorithm.priority_alpha > 0,
        "algorithm.entry": algorithm.entry is not None,
        "dataset": config.dataset is not None,
    }
    for key, is_set in given.items():
        if is_set:
            raise ConfigurationError("memory_on_replay_conflict", algorithm=algorithm.name, key=key)
    if algorithm.burn_in >= config.segment_length:
        limit = config.segment_length
        raise ConfigurationError("burn_in_too_long", value=algorithm.burn_in, limit=limit, key="algorithm.burn_in")


def check_own_network(algorithm: Any) -> None:
    """ValueError unless `algorithm` takes the outputs of a network that is the user's own as a whole."""
    if algorithm.name not in _OWN:
        choices = ", ".join(_OWN)
        raise ConfigurationError("own_network_refused", value=algorithm.name, choices=choices, key="network.entry")
    for key in ("central_critic", "dueling", "noisy"):
        if getattr(algorithm, key, False):
            raise ConfigurationError("own_network_conflict", key=f"algorithm.{key}")


def round_before(turn: int, length: int) -> int | None:
    """The round of `length` turns whose segments were shipped in the turn before `turn`, counted from 0; None if that
    is none."""
    rounds, rest = divmod(turn - 1, length)
    return rounds - 1 if rounds > 0 and rest == 0 else None


def dealt(run: Run, actor: int) -> range:
    """The blocks that actor number `actor` plays: all actors have equally many, next to one another."""
    share = run.groups // run.actors
    return range(actor * share, (actor + 1) * share)


def check_lockstep(run: Run, policies: list[PolicyConfig]) -> None:
    """ValueError, in one sentence, for what cannot be kept in step, of a run and its policies that learn."""
    where = run.environment
    for key, there in (
        ("environment.processes", where.processes),
        ("auxiliaries", run.auxiliaries),
        ("seconds", run.seconds is not None),
        ("target_return", run.target_return is not None),
        ("replay", run.replay is not None),
        ("act_device: cuda", run.act_device == "cuda"),
        ("precision: bfloat16", run.precision == "bfloat16"),
    ):
        if there:
            raise ConfigurationError("lockstep_setting_forbidden", setting=key, key="schedule")
    if where.copies % run.act_block:
        raise ConfigurationError(
            "lockstep_copies_do_not_divide", copies=where.copies, act_block=run.act_block, key="schedule"
        )
    if not run.actors or run.groups % run.actors:
        raise ConfigurationError(
            "lockstep_blocks_do_not_divide",
            blocks=run.groups,
            act_block=run.act_block,
            actors=run.actors,
            key="schedule",
        )
    for name in run.policies if run.lockstep_checkpoints else ():
        fixed = run.fixed(name)
        if isinstance(fixed, ScriptedPolicy) and fixed.entry != "constant":
            raise ConfigurationError("lockstep_checkpoint_with_script", policy=name, key="schedule")
    for config in policies:
        _check_policy(config, policies[0])


def _check_policy(config: PolicyConfig, first: PolicyConfig) -> None:
    if config.flow not in (None, "block"):
        raise ConfigurationError("lockstep_flow_drops", value=config.flow, key="schedule")
    if config.flush_after is not None:
        raise ConfigurationError("lockstep_with_flush_after", key="schedule")
    if config.wire_weights != "float32":
        raise ConfigurationError("lockstep_wire_weights_rounded", value=config.wire_weights, key="schedule")
    if config.compile:
        raise ConfigurationError("lockstep_with_compile", key="schedule")
    if config.dataset is not None:
        raise ConfigurationError("lockstep_with_dataset", key="schedule")
    if config.segment_length != first.segment_length:
        raise ConfigurationError(
            "lockstep_segment_lengths_differ",
            expected=first.segment_length,
            value=config.segment_length,
            key="schedule",
        )
