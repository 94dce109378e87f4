"""What people have told a run of its policies while it goes on: numbered commands in its history.

In flow: the words of a command, and who says them, from threads of the page. Out flows: a line of `history.jsonl`, on
the disk before anybody is told of it; what learners are told with each status. A coordinator that returns reads the
lines again: what was written is done, and what was not never happened.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import shutil
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from protocol.config.run import Run
from protocol.control.run_summary import NO_COMMANDS
from protocol.errors import ConfigurationError, DiskFault, Refused, WireError, disk_fault
from protocol.experience.layout import common_of
from protocol.experience.ring_buffer import ring_size
from protocol.memory.shared_file import memory_dir
from protocol.messages import compression
from protocol.messages.codec import decode, encode
from protocol.messages.core import Status
from protocol.refusal_log import one_line
from protocol.spaces import Place, World
from protocol.spaces.policy_map import check_alike
from workers.coordination.added_policy import entries_of, foreign, needs_trial, section_of
from workers.coordination.roster_state import State, after
from workers.coordination.sent_weights import SentWeights
from workers.coordination.trial import fitting, tried
from workers.league import policy_pool
from workers.learning.starts import start_name, weights_name
from workers.planning.cohorts import kinds_of, learners_of
from workers.planning.data_parallel import rank_names
from workers.planning.league_plan import ADDED, plan_league
from workers.planning.policy_plan import PolicyPlan, TrainingPlan, plan_added, with_policies
from workers.runtime.files import AppendFile, SafeWriter, sync

log = logging.getLogger(__name__)

USAGE = {
    "set": "set POLICY learning_rate=NUMBER",
    "freeze": "freeze POLICY",
    "thaw": "thaw POLICY",
    "replace": "replace POLICY --from FILE",
    "member": "member PLAYER --from FILE",
    "assign": "assign AGENT POLICY",
    "worlds": "worlds ENVIRONMENT share=NUMBER|KEY=VALUE [KEY=VALUE ...]",
    "add": "add POLICY AGENT [KEY=VALUE ...] [--from FILE]",
    "retire": "retire POLICY",
}
"""Command -> its words."""
_SAID = 128
"""Characters of who says a command that are kept."""


class Roster:
    """Of the run in `folder`, which learns by `plans` in `world`. `standing`: whether it goes on, and the agent steps
    that were made."""

    def __init__(
        self,
        run: Run,
        world: World,
        plans: Mapping[str, TrainingPlan],
        folder: Path,
        standing: Callable[[], tuple[bool, int]],
        tried: Callable[..., dict[str, Any]] = tried,
    ) -> None:
        self._world, self._played = world, run.policy_of(world)
        self._run, self._plans, self._standing, self._tried = run, {**plans}, standing, tried
        self._league = plan_league(run, world)
        self._folder, self.sent, self._sending = folder, SentWeights(folder), threading.Lock()
        self._placed: Path | None = None
        """Where the command that is tried has put weights of a policy that is not there yet."""
        own_plans = {name: plan for name, plan in plans.items() if name not in run.auxiliaries}
        self._learners = learners_of(run, [*plans], kinds_of(own_plans))
        self._path = folder / "history.jsonl"
        self.lock = threading.Lock()
        """While it is held no command changes anything."""
        own = {name for name, keys in run.policies.items() if "learning_rate" in keys}
        self._followers = plans.keys() - own - run.auxiliaries.keys()
        self.state = NO_COMMANDS
        """What learners are to do now; another one after each command."""
        self.commands: list[dict[str, Any]] = []
        """All that there were, each with its number."""
        for line in self._whole_lines() if self._path.exists() else ():
            self.state = after(self.state, line, self._followers)
            if "number" in line:
                self.commands.append(line)
        added, retired = self.state["added"], self.state["retired"]
        self.added = plan_added(run, world, {name: told for name, told in added.items() if name not in retired})
        """Plans of the policies that joined the run, but for those that were retired before this coordinator came."""
        self._plans |= self.added

    @property
    def told(self) -> dict[str, Any]:
        """The commands so far and what they come to, for people."""
        return {"commands": list(self.commands), **self.state}

    @property
    def prior(self) -> dict[str, float]:
        """The share of every member that is drawn by its share, where one was set."""
        return {**self._drawn, **self.state["shares"]} if self.state["shares"] else {}

    @property
    def _drawn(self) -> dict[str, float]:
        where = self._run.environment
        return where.prior or dict.fromkeys(where.split.train if where.split is not None else (), 1.0)

    @property
    def files(self) -> dict[str, str]:
        """Weights that learners may ask for: name in the run's library -> checksum."""
        starts = {name: told["policy"]["start"]["path"] for name, told in self.state["added"].items() if _starts(told)}
        sent = [*self.state["replaced"].items()]
        sent += [(name, each) for name, told in self.state["members"].items() for each in told]
        return {
            **{start_name(name): checksum for name, checksum in starts.items()},
            **{weights_name(name, told["sha256"]): told["checksum"] for name, told in sent},
        }

    def followed(self, published: Collection[str]) -> State:
        """What of `state` is to be followed now: an agent is played by the last policy that it was given which has
        weights, by `published`, and one that is retired goes when it plays none."""
        agents = dict[str, str]()
        for line in self.commands:
            if line["command"] == "assign" and (line["new"] not in self.state["added"] or line["new"] in published):
                agents[line["key"]] = line["new"]
        played = {**self._played, **agents}.values()
        return {**self.state, "agents": agents, "retired": [one for one in self.state["retired"] if one not in played]}

    def change(self, keys: Iterable[str]) -> None:
        """The run goes on with other values of these keys of its configuration, of which its history tells next."""
        before = self.state["rates"]
        for key in keys:
            self.state = after(self.state, {"key": key}, self._followers)
        for name in before.keys() - self.state["rates"].keys():
            log.info("event=rate_ended policy=%s learning_rate=%g by=configuration", name, before[name])

    def command(self, words: Sequence[str], by: str, peer: str, weights: str = "") -> int:
        """Writes down what `words` say, whereupon everybody follows it; the number of the command. `by` is who its
        sender says that it is, `peer` its address; `weights` the SHA-256 of a file that was sent before.
        ConfigurationError, Refused or DiskFault, and nothing has changed, where that is not possible."""
        with self._sending if weights or words[:1] == ["worlds"] else nullcontext():
            try:
                number = self._written(words, by, peer, weights, self._tried_out(words, weights))
                self._placed = None
                return number
            finally:
                self.sent.forget(weights)
                if weights and self._placed is not None:
                    shutil.rmtree(self._placed, ignore_errors=True)
                    self._placed = None

    def _written(self, words: Sequence[str], by: str, peer: str, weights: str, ready: Mapping[str, Any]) -> int:
        with self.lock:
            made, (name, key, old, new) = self._made(), self._understood(words, weights, ready)
            now = datetime.now(UTC).isoformat(timespec="seconds")
            who = {"number": len(self.commands) + 1, "by": one_line(by[:_SAID]), "peer": peer}
            line = {"time": now, "agent_steps": made, **who, "command": name, "key": key, "old": old, "new": new}
            state = after(self.state, line, self._followers)
            _check_sendable(state)
            self._write(json.dumps(line).encode() + b"\n")
            if name == "add":
                self.added = {**self.added, key: plan_added(self._run, self._world, {key: new})[key]}
                self._plans[key] = self.added[key]
            self.state = state
            self.commands.append(line)
        log.info("event=roster number=%d by=%s command=%r", who["number"], who["by"], " ".join(words))
        return len(self.commands)

    def _made(self) -> int:
        """Agent steps so far; Refused where the run takes no commands."""
        goes_on, made = self._standing()
        if not goes_on:
            raise Refused("roster_run_is_ending")
        return made

    def _tried_out(self, words: Sequence[str], weights: str) -> dict[str, Any]:
        """What only another process can tell of a command, and its weights in the library, while others are followed.
        Empty where nothing has to be tried."""
        with self.lock:
            self._made()
            name, key, _, new = self._understood(words, weights, None)
        if name == "worlds" and isinstance(new, Mapping):
            return self._tried(
                self._run, self._world, member=key, settings={**self.state["settings"].get(key, {}), **new}
            )
        coded = name == "add" and needs_trial(with_policies(self._run, {key: new["policy"]}).policy_config(key))
        if not weights and not coded:
            return {}
        added = new if name == "add" else self.state["added"].get(key)
        file = self.sent.whole(weights) if weights else None
        asked = {"policy": key, "added": added, "weights": str(file or ""), "whole": name != "add"}
        found = self._tried(self._run, self._world, **asked)
        ready = {"fields": found["fields"]} if coded else {}
        if file is None:
            return ready
        place = self._library(words, weights)
        if name == "add":  # a coordinator may have died before it wrote the command
            shutil.rmtree(place, ignore_errors=True)
            self._placed = place
        try:
            entry = policy_pool.add(self._folder, place.name, 0, fitting(file).read_bytes())
        except OSError as fault:
            raise disk_fault(fault, "the command once more") or fault from None
        return {**ready, "checksum": entry.checksum}

    def _library(self, words: Sequence[str], weights: str) -> Path:
        """The folder of the library where weights of a command lie."""
        name = start_name(words[1]) if words[0] == "add" else weights_name(words[1], weights)
        return self._folder / policy_pool.FOLDER / name.rpartition("/")[0]

    def _understood(
        self, words: Sequence[str], weights: str, ready: Mapping[str, Any] | None
    ) -> tuple[str, str, Any, Any]:
        """(command, key, old value, new value). `ready`: what was tried of it, once that is known."""
        name, *rest = words or [""]
        if name not in USAGE:
            raise ConfigurationError("roster_command_unknown", value=name[:_SAID], choices=[*USAGE])
        needed, more = USAGE[name].partition(" [")[0].partition(" --")[0].split(), "..." in USAGE[name]
        fits = len(words) == len(needed) or (more and len(words) > len(needed))
        if not fits or (bool(weights) if "--from" not in USAGE[name] else not weights and "[--from" not in USAGE[name]):
            raise ConfigurationError("roster_words_miscounted", value=name, expected=USAGE[name])
        if name == "assign":
            return name, rest[0], *self._given(*rest)
        if name == "worlds":
            return name, rest[0], *self._world_of(rest[0], rest[1:])
        if name == "add":
            return name, rest[0], None, self._addition(rest[0], rest[1], rest[2:], weights, ready)
        plan = self._plan(rest[0], in_rounds=name in ("set", "freeze", "thaw"))
        if name == "retire":
            self._check_idle(plan)
            return name, plan.name, True, False
        if name == "replace":
            if not isinstance(plan, PolicyPlan):
                raise ConfigurationError("roster_weights_of_auxiliary", policy=plan.name)
            before = self.state["replaced"].get(plan.name, {}).get("sha256")
            return name, plan.name, before, {"sha256": weights, "checksum": (ready or {}).get("checksum", "")}
        if name == "member":
            return name, plan.name, None, self._member(plan.name, weights, ready)
        if name == "set":
            key, rate = self._rate(plan, rest[1])
            return name, key, self.state["rates"].get(plan.name, plan.config.learning_rate), rate
        if (plan.name in self.state["frozen"]) == (name == "freeze"):
            already = "is frozen" if name == "freeze" else "learns"
            raise ConfigurationError("roster_changes_nothing", name=plan.name, value=name, reason=already)
        if plan.static:
            raise ConfigurationError("roster_policy_without_actors", policy=plan.name, key="dataset")
        return name, plan.name, name == "thaw", name == "freeze"

    def _plan(self, name: str, in_rounds: bool = False) -> TrainingPlan:
        """That of the policy of this name, of which something may be changed while it learns, and `in_rounds` between
        two of lock-step."""
        plan = None if name in self.state["retired"] else self._plans.get(name)
        if plan is None:
            choices = [one for one in self._plans if one not in self.state["retired"]]
            raise ConfigurationError("roster_policy_unknown", policy=name[:_SAID], choices=choices)
        run = self._run
        if plan.recorded or run.commands is not None or (run.lockstep and not in_rounds):
            key = "policy.record" if plan.recorded else "schedule" if run.commands is None else "commands"
            raise ConfigurationError("roster_run_is_repeated", policy=name, key=key)
        if plan.ranks > 1:
            raise ConfigurationError("roster_policy_of_ranks", policy=name, key="ranks")
        return plan

    def _given(self, agent: str, policy: str) -> tuple[str, str]:
        """The policy that plays the agent now, and the one that is to."""
        played = {**self._played, **self.state["agents"]}
        if agent not in played:
            raise ConfigurationError("roster_agent_unknown", agent=agent[:_SAID], choices=[*played])
        plan, before = self._plan(policy), played[agent]
        if before == policy:
            already = f"is played by {before!r}"
            raise ConfigurationError("roster_changes_nothing", name=agent, value="assign", reason=already)
        if (reason := self._kept(plan, before, played, self._world.place(agent))) is not None:
            raise ConfigurationError("roster_agent_not_given", agent=agent, policy=policy, reason=reason)
        self._plan(before)
        return before, policy

    def _kept(self, plan: TrainingPlan, before: str, played: Mapping[str, str], place: Place) -> str | None:
        """Why the agent at `place`, which policy `before` plays, cannot be given to that of `plan`, if so."""
        if plan.of_copies:
            return "who meets whom is for the league to say"
        if before not in self._plans:
            return f"{before!r}, which plays it, does not learn"
        if plan.static:
            return "nobody acts in this run"
        if self._run.auxiliaries:
            return "auxiliaries watch who plays what"
        if plan.common is not None:
            return "what all agents see is planned for those that each policy has"
        try:
            check_alike(self._world, plan.name, self._world.places[plan.agents[0]], place)
        except ConfigurationError as fault:
            return f"its spaces are not those of {fault.agent!r} ({fault.field})"
        if place.many != plan.agents_per_copy:
            return f"there are {place.many} of it and {plan.agents_per_copy} of those that the policy plays"
        agents = 1 + sum(policy == plan.name for policy in played.values())
        return None if agents * plan.groups <= plan.most_seats else "its rings, sized by credits, have no room for more"

    def _member(self, player: str, weights: str, ready: Mapping[str, Any] | None) -> dict[str, Any]:
        """What is written of the next member of `player` that is added. Its number is that of no snapshot, so there is
        room for it whenever its learner hears of it."""
        if self._league is None:
            raise ConfigurationError("roster_without_league", policy=player)
        before, room = len(self.state["members"].get(player, ())), self._league.players[player].room
        if before >= room:
            raise ConfigurationError("roster_library_full", policy=player, limit=room)
        name, checksum = f"{player}/{ADDED + before}", (ready or {}).get("checksum", "")
        return {"member": name, "sha256": weights, "checksum": checksum}

    def _addition(
        self, name: str, agent: str, settings: Sequence[str], weights: str, ready: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """What is written of a policy `name` with these `settings`, and `weights` to begin with, that is to have the
        spaces of `agent`; as much of it as is known before it was tried, where it is not `ready`."""
        run, played = self._run, {**self._played, **self.state["agents"]}
        if agent not in played:
            raise ConfigurationError("roster_agent_unknown", agent=agent[:_SAID], choices=[*played])
        if (reason := self._closed(name)) is not None:
            raise ConfigurationError("roster_policy_not_added", policy=name[:_SAID], reason=reason)
        told: dict[str, Any] = {"agent": agent, "policy": section_of(settings)}
        if weights:
            start = told["policy"].setdefault("start", {})
            if not isinstance(start, dict) or "path" in start:
                raise ConfigurationError("roster_setting_malformed", value="start")
            start["path"] = (ready or {}).get("checksum", weights)
        if ready and "fields" in ready:
            told["fields"] = ready["fields"]
        run = with_policies(run, {name: told["policy"]})
        if run.fixed(name) is not None:
            raise ConfigurationError("roster_policy_not_added", policy=name, reason="it learns nothing")
        config = run.policy_config(name)
        if (reason := foreign(config, entries_of(self._run), bool(weights))) is not None:
            raise ConfigurationError("roster_policy_not_added", policy=name, reason=reason)
        compression.check_package(config.compress)
        if ready is None and needs_trial(config):
            return told
        plan = plan_added(self._run, self._world, {name: told})[name]
        needed, free = ring_size(plan.layout, plan.blocks * plan.block), shutil.disk_usage(memory_dir()).free
        if needed * run.actors > free:
            reason = f"its rings need {needed * run.actors:,} bytes of shared memory, of which {free:,} are free"
            raise ConfigurationError("roster_policy_not_added", policy=name, reason=reason)
        return told

    def _closed(self, name: str) -> str | None:
        """Why no policy can be added that is called so, if so it is."""
        run, names = self._run, {*self._plans, *self._played.values(), *self.state["added"]}
        learners = {*self._learners, *(one for name in names for one in rank_names(name, 1))}
        if name in names or name.isdecimal() or rank_names(name, 1)[0] in learners:
            return "its name was used before, or is a number"
        if run.lockstep or run.league is not None or not run.actors or run.auxiliaries:
            return "the run is in lock-step, or has a league or auxiliaries, or no actors"
        if common_of(self._world) is not None:
            return "what all agents see is planned for those that each policy has"
        return None

    def _check_idle(self, plan: TrainingPlan) -> None:
        """ConfigurationError unless the policy of `plan` can go."""
        played = {**self._played, **self.state["agents"]}
        mine = [agent for agent, policy in played.items() if policy == plan.name]
        reason = None
        if plan.of_copies or self._run.auxiliaries:
            reason = "a league or auxiliaries are in use of it"
        elif mine or plan.static:
            reason = f"it plays {', '.join(map(repr, mine))}" if mine else "it learns from a dataset"
        elif any(plan.name in each and len(each) > 1 for each in self._learners.values()):
            reason = "its learner has other policies too, which would wait; freeze it instead"
        if reason is not None:
            raise ConfigurationError("roster_policy_not_retired", policy=plan.name, reason=reason)

    def _world_of(self, member: str, settings: Sequence[str]) -> tuple[Any, Any]:
        """The share that the member has of all episodes, by the sum of all shares, and the one that it is to have; or
        settings of its, and what they are to be."""
        run, shares = self._run, {**self._drawn, **self.state["shares"]}
        sharing = settings[0].startswith("share=") or "=" not in settings[0]
        members = shares if sharing else run.environment.members or {}
        if run.lockstep or not members:
            key = "schedule" if members else "environment.prior" if sharing else "environment.members"
            raise ConfigurationError("roster_worlds_not_drawn", key=key)
        if member not in members:
            raise ConfigurationError("roster_world_unknown", value=member[:_SAID], choices=[*members])
        if not sharing:
            if nested := [one for one in settings if "." in one.partition("=")[0]]:  # which would replace a whole part
                raise ConfigurationError("roster_setting_malformed", value=nested[0][:_SAID])
            new, known = section_of(settings), self.state["settings"].get(member, {})
            known = {**run.environment.members[member].settings, **known} if run.environment.members else known
            old = {key: known.get(key) for key in new}
            if old == new:
                raise ConfigurationError("roster_changes_nothing", name=member, value="set", reason="has that")
            return old, new
        if len(settings) > 1:
            raise ConfigurationError("roster_words_miscounted", value="worlds", expected=USAGE["worlds"])
        share = _number(settings[0], "share", member)
        if not any({**shares, member: share}.values()):
            raise ConfigurationError("roster_share_is_the_last", value=member)
        return shares[member], share

    def _rate(self, plan: TrainingPlan, setting: str) -> tuple[str, float]:
        """The key and the learning rate that it is to have."""
        section = "auxiliaries" if plan.name in self._run.auxiliaries else "policies"
        return f"{section}.{plan.name}.learning_rate", _number(setting, "learning_rate", plan.name)

    def _whole_lines(self) -> list[dict[str, Any]]:
        """All lines; what a coordinator that died had begun to write was never told anybody, and goes."""
        text = self._path.read_bytes()
        whole = text.rpartition(b"\n")[0]
        if not text.endswith(b"\n"):
            file = AppendFile(self._path, SafeWriter())
            file.shorten(len(whole) + bool(whole))
            file.close()
        lines = []
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                lines.append(json.loads(line))
                lines[-1]["key"]
            except (ValueError, TypeError, KeyError, RecursionError):
                raise ConfigurationError("history_unreadable", file=self._path, line=number) from None
        return lines

    def _write(self, line: bytes) -> None:
        """Returns when the line outlasts the machine; DiskFault, and nothing of it is there, where it cannot."""
        again = "the command once more"
        try:
            file = AppendFile(self._path, SafeWriter())
        except OSError as fault:  # also where it has too many files open
            facts = {"file": self._path, "place": f" {self._path}", "reason": fault.strerror, "other": again}
            raise DiskFault("file_not_writable", **facts) from None
        before = file.size
        try:
            if not file.append(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
            sync(self._path)
            if not before:  # the name may be new, also where the command that made it came to nothing
                sync(self._path.parent)
        except OSError as fault:
            file.shorten(before)
            raise disk_fault(fault, again) or fault from None
        finally:
            file.close()


def _starts(told: Mapping[str, Any]) -> bool:
    """Whether a policy that joined began with weights."""
    return bool(told["policy"].get("start"))


def _number(setting: str, wanted: str, of: str) -> float:
    """What `setting`, which is to be of the key that is `wanted`, gives as its number."""
    key, _, text = setting.partition("=")
    if key != wanted:
        raise ConfigurationError("roster_setting_unknown", value=key[:_SAID], expected=wanted)
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise ConfigurationError("roster_number_invalid", key=wanted, name=of, value=text[:_SAID])
    return number


def _check_sendable(state: State) -> None:
    """ConfigurationError where no member could be told of it: the history would be followed by nobody."""
    try:
        decode([encode(Status(command="go", view={"roster": state}))])
    except (WireError, OverflowError, TypeError, ValueError) as fault:  # msgpack's, of large numbers and broken text
        reason = str(fault) if isinstance(fault, WireError) else "a number is too large, or a text is no Unicode"
        raise ConfigurationError("roster_command_not_sendable", reason=reason) from None
