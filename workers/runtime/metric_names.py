"""The metrics vocabulary: how counters and measurements of workers are called where Prometheus reads them. Pure.

In flow: a counter's name, `KIND`, `KIND.POLICY` or `KIND.CAUSE.POLICY`. Out flow: the metric and its labels. Names
follow Prometheus' conventions (https://prometheus.io/docs/practices/naming/): base units, `_total` for what only grows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple


@dataclass(frozen=True, slots=True)
class Identity:
    """Which worker of which run a process is; what is not known yet is empty."""

    run: str = ""
    role: str = ""
    worker: str = ""
    incarnation: int = 0


class Metric(NamedTuple):
    """One metric of a worker."""

    name: str
    kind: Literal["counter", "gauge"]
    says: str
    labels: tuple[str, ...] = ("policy",)
    scale: float = 1.0
    """Of the counter's unit, in the metric's."""


def _grows(name: str, says: str, *labels: str) -> Metric:
    return Metric(f"rookery_{name}_total", "counter", says, labels)


def _level(name: str, says: str, *labels: str) -> Metric:
    return Metric(f"rookery_{name}", "gauge", says, labels)


def _moment(name: str, says: str) -> Metric:
    return Metric(f"rookery_{name}_timestamp_seconds", "gauge", says, (), 3600.0)


METRICS: dict[str, Metric] = {
    "env_steps": _grows("env_steps", "turns of one copy of an environment"),
    "agent_steps": _grows("agent_steps", "actions taken"),
    "first_step_hours": _moment("first_step", "when its first step began, since 1970"),
    "last_step_hours": _moment("last_step", "when its newest step ended, since 1970"),
    "fixed_steps": _grows("fixed_steps", "of these by policies that do not learn"),
    "resumed_steps": _level(
        "resumed_steps", "agent steps before the lock-step checkpoint that this worker went on from"
    ),
    "unfinished_steps": _level("unfinished_steps", "steps in segments that were open at the end"),
    "environment_restarts": _grows("environment_restarts", "environments made anew"),
    "environment": _grows("environment", "what the world counts itself", "counter"),
    "episodes": _grows("member_episodes", "episodes that ended, by member of a collection", "policy", "member"),
    "infos": _grows("info_episodes", "episodes of which the world told a number, by its name", "policy", "member"),
    "info_sums": _level("info_values", "sum of what it told", "policy", "member"),
    "infos_cut": _level("info_cut", "0: the world tells it, and it is left out", "policy", "member"),
    "outside_value": _level("observation_outside", "first number outside its space", "policy", "member"),
    "outside_step": _level("observation_outside_step", "step that it came in, from 1", "policy", "member"),
    "returns": _level("member_returns", "sum of their returns", "policy", "member"),
    "first_going": _level("first_episodes_going", "that began in the first 5 % of its steps and go on", "policy"),
    "first_ended": _level("first_episodes_ended", "of these that have ended", "policy"),
    "first_returns": _level("first_returns", "sum of their returns", "policy"),
    "produced": _grows("segments_produced", "segments that an actor finished", "policy"),
    "resent": _grows("segments_resent", "announced anew", "policy"),
    "backlog": _level("segments_backlog", "finished, not announced", "policy"),
    "flight": _level("segments_in_flight", "announced, not acknowledged", "policy"),
    "dropped": _grows("segments_dropped", "never trained on", "policy", "cause"),
    "received": _grows("segments_received", "copied out with the sequence word verified", "policy"),
    "duplicates": _grows("segments_duplicates", "received again", "policy"),
    "trained": _grows("segments_trained", "used", "policy"),
    "rejected": _grows("segments_rejected", "refused by the check of their contents", "policy"),
    "held": _level("segments_held", "received or passed on, not settled", "policy"),
    "rate_limited": _level("segments_rate_limited", "received, waiting for the rate limiter of a replay", "policy"),
    "waiting_for_room": _grows("segments_waiting_for_room", "waited for room in the pool", "policy"),
    "torn": _grows("torn_reads", "reads that a writer overtook, repeated", "policy"),
    "read": _grows("segments_read", "read from a dataset", "policy"),
    "recorded": _grows("recorded_rows", "written to a dataset", "policy"),
    "rows_received": _grows("rows_received", "steps received", "policy"),
    "rows_trained": _grows("rows_trained", "steps used", "policy"),
    "rows_read": _grows("rows_read", "steps read from a dataset", "policy"),
    "rows_learned": _level("rows_learned", "steps of a dataset in the weights", "policy"),
    "rows_without_bonus": _grows("rows_without_bonus", "steps trained on before curiosity had weights", "policy"),
    "train_steps": _level("train_step", "number of the last update", "policy"),
    "steps_made": _grows("train_steps", "updates made", "policy"),
    "version": _level("version", "newest publication", "policy"),
    "lag_rows": _grows("lag_rows", "steps whose lag is in the sum", "policy"),
    "lag_sum": _grows("lag_sum", "sum over steps of the versions published since they were made", "policy"),
    "lag_max": _level("lag_max", "the largest lag of a step", "policy"),
    "checkpoints": _grows("checkpoints", "written", "policy"),
    "checkpoints_failed": _grows("checkpoints_failed", "could not be written", "policy"),
    "member_restarts": _grows("member_restarts", "times that a member of a cohort began anew", "policy"),
    "batches_checked": _grows("batches_checked", "batches that the data's health was judged by", "policy"),
    "health": _grows("findings", "of these with a finding of `rookery doctor`", "policy", "finding"),
    "finding_value": _level(
        "finding_value", "number of the newest finding of `rookery doctor` that has one", "policy", "finding"
    ),
    "finding_limit": _level("finding_limit", "and the limit that it is beyond", "policy", "finding"),
    "waits": _grows("wait_seconds", "time spent waiting: `data` is a learner's starvation", "policy", "cause"),
    "busy": _grows("busy_seconds", "time spent in updates", "policy"),
    "weights_answered": _grows("weights_answered", "requests for weights that were answered"),
    "weights_bytes": _grows("weights_bytes", "sent for them"),
    "weights_deferred": _grows("weights_deferred", "answers put off for the next publication"),
    "weights_refused": _grows("weights_refused", "subscriptions refused"),
    "weights_superseded": _grows("weights_superseded", "publications replaced before they arrived"),
    "weights_relayed": _grows("weights_relayed", "versions that a relay passed on", "policy"),
    "relayed": _grows("segments_relayed", "segments that a relay passed on", "policy"),
    "repeated": _grows("segments_repeated", "that a relay received again", "policy"),
    "refused_messages": _grows("segment_messages_refused", "messages of an actor that its learner refused", "policy"),
    "refused": _grows("segments_refused", "that the learner behind a relay refused", "policy"),
    "repeated_headers": _grows("repeated_headers", "segments announced again"),
    "out_of_order": _grows("out_of_order", "segments announced before one that is missing"),
    "recovered": _grows("segments_recovered", "taken from the memory of dead actors"),
    "quarantined_messages": _grows("quarantined_messages", "messages refused, unread or wrong"),
    "invalid_subscriptions": _grows("invalid_subscriptions", "subscriptions that mean nothing"),
    "acks_full": _grows("acks_full", "acknowledgements that found a full queue; the next beacon repeats them"),
    "refused_acks": _grows("refused_acks", "acknowledgements that were wrong"),
    "push_full": _grows("push_full", "announcements that found a full queue; sent again"),
    "lock_timeouts": _grows("lock_timeouts", "waits for a ring's lock that were given up"),
    "adopted": _level("adopted_version", "version that an actor acts with", "policy"),
    "adoption_lag": _level("adoption_lag", "publications it has not adopted", "policy"),
    "torn_reads": _grows("weights_torn", "reads of weights that were overtaken or damaged, repeated", "policy"),
    "weight_requests": _grows("weight_requests", "snapshots asked for", "policy"),
    "weight_requests_repeated": _grows("weight_requests_repeated", "of these again: the answer got lost", "policy"),
    "weight_messages_refused": _grows("weight_messages_refused", "that were none, or damaged", "policy"),
    "refusals": _grows("refusals", "what peers were refused, by reason and event of the log", "kind", "event"),
    "loop_silent_seconds": _level("loop_silent_seconds", "since the last turn of the worker's loop"),
    "connected": _level("connected", "1: the coordinator was heard of within the lease"),
}
"""Kind of counter -> its metric, of one worker."""
RUN: dict[str, Metric] = {
    "steps": _level("run_steps", "steps until the run ends"),
    "made": _grows("run_steps_made", "of these made so far"),
    "env_steps": _grows("run_env_steps", "turns of one copy of an environment, of all actors"),
    "agent_steps": _grows("run_agent_steps", "actions taken, of all actors"),
    "seconds": _grows("run_seconds", "from the first step to the newest"),
    "return": _level("run_return", "mean return of the episodes that ended lately", "policy"),
    "episode_length": _level("run_episode_length", "mean steps of the episodes that ended lately", "policy"),
    "lag": _level("run_lag", "mean number of versions between the making of a step and its use", "policy"),
    "version": _level("run_version", "newest publication", "policy"),
    "train_steps": _grows("run_train_steps", "updates made", "policy"),
    "workers": _level("run_workers", "living workers", "role", "state"),
    "restarts": _grows("run_restarts", "times that a worker was started again", "worker"),
    "waits": _grows("run_wait_seconds", "time that workers spent waiting", "cause", "policy"),
    "findings": _level("run_findings", "findings on the data's health now", "policy", "level"),
    "verdict": _level("run_verdict", "1 at what the run waits for now", "verdict"),
    "training": _level("run_training", "1: the run goes on; 0: it is paused, or about to end, or over"),
    "disk_free": _level("run_disk_free_bytes", "room where the run's folder lies"),
}
"""Part of the coordinator's view -> its metric, of the whole run."""
FLOW: dict[str, Metric] = {
    "segments_produced_per_second": _level("run_segments_produced_per_second", "over the last 10 seconds", "policy"),
    "segments_received_per_second": _level("run_segments_received_per_second", "over the last 10 seconds", "policy"),
    "segments_trained_per_second": _level("run_segments_trained_per_second", "over the last 10 seconds", "policy"),
    "train_steps_per_second": _level("run_train_steps_per_second", "over the last 10 seconds", "policy"),
    "versions_per_second": _level("run_versions_per_second", "publications over the last 10 seconds", "policy"),
    "starvation": _level(
        "run_starvation_ratio", "share of 10 s that its learner waited for data: more actors", "policy"
    ),
    "blocked": _level("run_blocked_ratio", "share of 10 s that its actors waited for credit: fewer actors", "policy"),
    "in_flight": _level("run_segments_in_flight", "announced and not acknowledged, of all actors", "policy"),
    "queue_fill": _level("run_queue_fill_ratio", "of the segments that may be in flight, how many are", "policy"),
    "adoption_lag": _level("run_adoption_lag", "publications that the actor furthest behind has not adopted", "policy"),
}
"""Part of a policy's flow -> its metric, of the whole run."""


def parse_counter_name(counter: str) -> tuple[str, tuple[str, ...]]:
    """(kind, values of the metric's labels) of a counter. One that is not known here is the world's own."""
    kind, _, rest = counter.partition(".")
    metric = METRICS.get(kind)
    if metric is None or bool(rest) != bool(metric.labels):
        return "environment", (counter,)
    if not metric.labels:
        return kind, ()
    if len(metric.labels) == 1:
        return kind, (rest,)
    if metric.labels[1] == "member":
        policy, _, member = rest.partition("/")
        return kind, (policy, member)
    cause, _, policy = rest.partition(".")
    return kind, (policy, cause)
