"""A run on this machine: the same workers as anywhere, started, supervised and cleared away.

coordinator -> learners and actors it asks for -> restart what dies, within its budget -> end when the coordinator ends
"""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from launch.cli.status import find
from launch.local.fork_client import ForkClient
from launch.local.hang_detector import HangDetector, SilenceWatch, joined
from launch.local.process import INCOMPLETE, Process, end_all, fork_client, start_process
from launch.local.restarts import RestartManager, RunFailed
from launch.local.signals import END_SECONDS, Interrupt
from launch.local.view_reader import ViewReader
from launch.run_dir import left_as_found, make_folder, on_this_machine, remove, write_config
from protocol.config.run import Run
from protocol.config.yaml_file import Change, going_on
from protocol.control.client import ControlClient
from protocol.control.heartbeat import Report
from protocol.control.processors import available_cores
from protocol.control.run_summary import read_summary
from protocol.control.wording import shown
from protocol.errors import ConfigurationError, EnvironmentFault, Refused, RookeryError, Timeout
from protocol.memory.shared_file import sweep
from protocol.messages.core import Welcome
from protocol.transport.curve import connect_string, run_keys
from protocol.transport.sockets import open_context

__all__ = ["RunFailed", "RunOutcome", "train", "train_sequential"]

_EXTERNAL = "external"
_START_SECONDS = 60.0
_WORLD_SECONDS = 300.0 + _START_SECONDS
"""In which a coordinator begins, which has its world made first, for at most 300 s."""
_LOOK_EVERY, _LOOK_OFTEN = 0.1, 0.01
"""Seconds from one look at a run to the next, and while it ends: whoever pressed Ctrl-C waits for its steps in turn."""
_SAID_EVERY = 0.5
"""Seconds from one look at what a coordinator says, of a world that takes long to be made, to the next."""
_GPUS = ("nvidia[0-9]*", "nvhost-gpu", "dxg", "kfd")
_MINARI = "~/.minari/datasets"
"""Where Minari keeps datasets, unless MINARI_DATASETS_PATH names another folder."""
_ABSENT_SECONDS = 3.0
"""How long the coordinator may not know a worker that runs; one that leaves ends sooner."""

View = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How a run ended."""

    complete: bool
    summary: dict[str, Any]


def train(
    run: Run,
    folder: Path,
    show: Callable[[View], None],
    tell: Callable[[str], None],
    interrupt: Interrupt | None = None,
    without_keys: bool = False,
) -> RunOutcome:
    """Trains `run` with separate workers in `folder`; `show` gets the live view, `tell` one line for each event.
    Signals end it in order, and so does a program by `interrupt`. Workers know each other by keys that lie in the
    folder, unless every user of the machine may reach them, `without_keys`. Raises RunFailed, in one sentence, when a
    worker cannot be kept alive; nothing is left behind in any case.
    """
    _check_devices(run)
    _check_datasets(run)
    sweep()
    run, changes = going_on(on_this_machine(run, folder, gpu=_on_gpu(run, "learner")), folder)
    with left_as_found(folder, fresh := make_folder(folder)):
        config = write_config(run, folder)
        keys = "" if without_keys else str(run_keys(folder))
        context = open_context(keys, "supervisor")
    known = ["--keys", keys] if keys else []
    processes: list[Process] = []
    client: ControlClient | None = None
    forks: ForkClient | None = None
    with interrupt or Interrupt() as interrupt:
        try:
            forks = fork_client(folder / "logs" / "fork-server.out", lambda: bool(interrupt.count))
            command = ["--run-dir", str(folder), *known, "--bind"]
            first = ["workers.coordinator", str(config), *command, "127.0.0.1:0"]
            coordinator = start_process("coordinator", first, folder / "logs" / "coordinator.out", run.restarts)
            processes.append(coordinator)
            address = _address(folder, coordinator, interrupt, tell)
            _tell_page(folder, tell)
            client = ControlClient(context, address, "supervisor")
            welcome = _join(client, coordinator)
            if welcome is None:
                return RunOutcome(True, read_summary(folder) or {})
            _tell_plan(run, changes, welcome, tell)
            client.start(lambda: Report(state="watching"))
            where, joined = ["--coordinator", address, *known], {*welcome.roster.get("added", ())}
            for process in _started(run, folder, welcome, where, forks):
                processes.append(process)  # each at once: what fails later ends it
            coordinator.command = [first[0], str(folder / "config.yaml"), *command, address.removeprefix("tcp://")]
            if run.environment.id == _EXTERNAL and "command" not in run.environment.settings:
                show = _with_addresses(folder, keys, show, tell)
            newcomers = _Newcomers(run, folder, where, forks, joined)
            _supervise(run, client, coordinator, processes, newcomers, interrupt, show, tell)
        finally:
            end_all(processes[::-1], seconds=interrupt.patience(max(run.actor_timeout, run.learner_timeout)))
            if forks is not None:
                forks.close()
            if client is not None:
                client.close()
            context.destroy(linger=0)
            sweep()
            (folder / "config.new.yaml").unlink(missing_ok=True)
            if fresh and processes and processes[0].code == ConfigurationError.exit_code:  # nothing began: all is told
                remove(folder)
    return RunOutcome(coordinator.code == 0, read_summary(folder) or {})


def _started(
    run: Run, folder: Path, welcome: Welcome, where: Sequence[str], forks: ForkClient | None
) -> Iterator[Process]:
    """The workers that the coordinator asks for, as they begin."""
    counts = {"learner": welcome.learners, "actor": welcome.actors, "evaluator": int(run.evaluation is not None)}
    counts["hooks"] = int(bool(run.hooks))
    for role, index in [(role, index) for role, count in counts.items() for index in range(count)]:
        command = [f"workers.{role}", *where, *_named(role, index, welcome.policies)]
        server = None if _on_gpu(run, role) else forks
        yield start_process(role, command, folder / "logs" / f"{role}-{index}.out", run.restarts, forks=server)


@dataclass(slots=True)
class _Newcomers:
    """Learners of policies that join the run while it goes on; those of `known` ones were begun with it."""

    run: Run
    folder: Path
    where: Sequence[str]
    forks: ForkClient | None
    known: set[str]

    def begin(self, view: View) -> list[Process]:
        """Those that are new in `view`, as they begin."""
        roster, stage = view.get("roster", {}), view.get("stage")
        coming = [name for name in roster.get("added", ()) if name not in self.known] if stage == "running" else []
        self.known |= {*coming}
        server, begun = None if _on_gpu(self.run, "learner") else self.forks, []
        for name in coming:
            if name not in roster["retired"]:
                command = ["workers.learner", *self.where, "--name", f"learner-{name}"]
                output = self.folder / "logs" / f"learner-{name}.out"
                begun.append(start_process("learner", command, output, self.run.restarts, forks=server))
        return begun


def _named(role: str, index: int, policies: Sequence[str]) -> list[str]:
    """Who is started again takes no place but its own, not even one that is free: whoever had that may have been
    stopped for longer than its lease, and comes back to it. Names of learners of policies that are numbers say no
    number of a place."""
    if role in ("evaluator", "hooks") or (role == "learner" and any(policy.isdecimal() for policy in policies)):
        return []
    return ["--name", f"{role}-{index}"]


def _tell_page(folder: Path, tell: Callable[[str], None]) -> None:
    place = find(str(folder))
    tell(f"the run's page: {place.url}/#token={place.token}")


def _tell_plan(run: Run, changes: list[Change] | None, welcome: Welcome, tell: Callable[[str], None]) -> None:
    """Who learns where; to what end the run goes on, if it does, over what its schedules run, and what is another value
    than before."""
    if run.learners == "auto" and len(welcome.policies) > 1:
        tell(_placed(len(welcome.policies), welcome.learners))
    if changes is None:
        return
    tell(f"the run goes on to {run.end:,} agent steps; its schedules run over {run.horizon:,}")
    for change in changes:
        tell(f"{change.key}: {json.dumps(change.new)} instead of {json.dumps(change.old)}")


def _placed(policies: int, learners: int) -> str:
    """Which policies share learner processes, and why."""
    cores = shown(available_cores())
    if learners < policies:
        processes = "a learner process" if learners == 1 else f"{learners} learner processes"
        own = "`learners: process` gives each its own"
        return f"{policies} policies share {processes}: alike ones learn fastest together on {cores} cores; {own}"
    why = f"there are {cores} cores" if policies <= available_cores() else "too few are alike to gain by sharing one"
    return f"each of {policies} policies has a learner process of its own: {why}"


def train_sequential(
    run: Run,
    folder: Path,
    show: Callable[[View], None],
    tell: Callable[[str], None],
    interrupt: Interrupt | None = None,
) -> RunOutcome:
    """The sequential reference in one process, shown and ended in the same way."""
    _check_devices(run)
    _check_datasets(run)
    fresh = make_folder(folder)
    config = write_config(run, folder)
    output = folder / "logs" / "sequential.out"
    with interrupt or Interrupt() as interrupt:
        command = ["workers.sequential", str(config), "--run-dir", str(folder)]
        process = start_process("sequential", command, output, pipe=True)
        assert process.popen.stdout is not None
        with closing(ViewReader(process.popen.stdout)) as views:
            try:
                _follow(run, process, views, interrupt, show, tell)
            finally:
                end_all([process], seconds=interrupt.patience(run.learner_timeout))
    summary, why = read_summary(folder) or {}, process.fault or process.why()
    if process.in_order() and summary:
        return RunOutcome(process.code == 0, summary)
    if interrupt.count and summary:
        tell(f"the sequential run {why}")
        return RunOutcome(False, summary)
    if interrupt.count and process.code == -signal.SIGTERM:
        raise RunFailed("run_interrupted_early", reason="")
    refused = _refused(process, tell, ConfigurationError)
    if refused is not None and fresh:
        remove(folder)
    kept = "; what it had trained is kept, with a summary" if summary else ""
    raise refused or _failure(process, RunFailed("sequential_run_failed", reason=why, kept=kept, file=output))


def _follow(
    run: Run,
    process: Process,
    views: ViewReader,
    interrupt: Interrupt,
    show: Callable[[View], None],
    tell: Callable[[str], None],
) -> None:
    """Until a run in one process has ended, for which it has its time when it is interrupted. One that gives no sign of
    life, as where a library lets no other thread run, is killed, and says before where it is."""
    silence, end, said_at = SilenceWatch(), math.inf, 0.0
    while True:
        interrupt.sleep(_LOOK_OFTEN if interrupt.count else _LOOK_EVERY)
        now, over = time.monotonic(), process.code is not None
        if (view := views.newest()) is not None:
            show(view)
        if over or now - said_at >= _SAID_EVERY:
            said_at = now
            _tell_waits([process], set(), tell)
        if over:
            return
        silent = silence.poll(views.heard_at, now) >= max(_START_SECONDS, run.stall_timeout)
        if interrupt.count and end == math.inf:
            tell("stopping: the run finishes its turn; press Ctrl-C again to end at once")
            end = now + interrupt.patience(run.learner_timeout)
            process.popen.send_signal(signal.SIGTERM)
            views.close()  # no signal reaches a run whose main thread a library keeps
        if silent or now >= end or interrupt.count > 1:
            how = "gave no sign of life" if silent else "did not end when it was to"
            process.kill(f"{how}{process.at()} and was killed")


def _supervise(
    run: Run,
    client: ControlClient,
    coordinator: Process,
    processes: list[Process],
    newcomers: _Newcomers,
    interrupt: Interrupt,
    show: Callable[[View], None],
    tell: Callable[[str], None],
) -> None:
    """Until the coordinator ends by itself, or an interrupt made it end."""
    shown_at, said_at, asked, end, left = 0.0, 0.0, 0, 0.0, False
    revival = RestartManager(tell, run.lockstep)
    heartbeat = min(run.monitor_period, max(run.actor_timeout, run.learner_timeout) / 3)
    presence = HangDetector(max(_ABSENT_SECONDS, 2 * heartbeat), max(_START_SECONDS, 2 * run.stall_timeout))
    silence, stalled, waits = SilenceWatch(), "", set[str]()
    while True:
        now = time.monotonic()
        if interrupt.count > asked:
            asked = interrupt.count
            tell("stopping: workers finish their turn; press Ctrl-C again to end at once")
            coordinator.popen.send_signal(signal.SIGTERM)
            end = interrupt.first_at + END_SECONDS
        if (over := coordinator.code is not None and (asked or coordinator.code >= 0)) or now - said_at >= _SAID_EVERY:
            said_at = now
            _tell_waits(processes, waits, tell)
        if over:
            if coordinator.code not in (0, INCOMPLETE):
                revival.show(coordinator)
                raise _coordinator_failure(coordinator)
            return
        if asked > 1 or (asked and now > end):
            return
        for process in processes:
            revival.poll(process, stopping=bool(asked))
        status = client.status
        revival.restart_together(processes, status.view.get("stage", "running") if status is not None else "running")
        processes += newcomers.begin(status.view if status is not None and not asked else {})
        fresh = now - client.heard_at < presence.seconds and not asked
        members = {process.popen.pid: process for process in processes if process.code is None}
        seen = ("learner", "actor", "evaluator")  # who watches is in no table
        running = {pid: process.mark for pid, process in members.items() if process.role in seen}
        if status is not None and fresh and status.view.get("stalled", "") != stalled:
            stalled = _tell_stall(status.view, members, tell)
        hanging = presence.hanging(status.view if status is not None and fresh else {}, running, now)
        if (silent := silence.poll(client.heard_at, now)) >= run.stall_timeout and coordinator.code is None:
            hanging.append((coordinator.popen.pid, silent))
        for pid, silent in hanging:
            members[pid].kill(f"did not answer for {silent:.0f} s; killed")
        if status is not None and now - shown_at >= 0.25:
            shown_at = now
            show(status.view)
        if status is not None and status.command == "stop" and not left:
            left = True
            show(status.view)
            if (seconds := status.view.get("baselines_left", 0.0)) and not asked:
                tell(f"the run has ended; random players go on for at most {shown(seconds, 2)} s, to compare with")
            client.leave()  # the coordinator waits for it with its own end
        ending = asked or (status is not None and status.view.get("stage", "running") != "running")
        interrupt.sleep(_LOOK_OFTEN if ending else _LOOK_EVERY)


def _check_devices(run: Run) -> None:
    """ConfigurationError for a device that this machine does not have, before anything is begun."""
    if not _has_gpu():
        if run.device == "cuda":
            raise ConfigurationError("device_not_available", value="cuda", key="device")
        if run.act_device == "cuda":
            raise ConfigurationError("acting_device_not_available", key="act_device")


def _check_datasets(run: Run) -> None:
    """ConfigurationError for a dataset that is not on this machine."""
    for name in ("", *(name for name in run.policies if run.fixed(name) is None)):
        key = f"policies.{name}.dataset" if name else "policy.dataset"
        if (dataset := run.policy_config(name).dataset) is None:
            continue
        if dataset.path is not None:
            if not Path(dataset.path).is_dir():
                raise ConfigurationError("dataset_folder_missing", file=dataset.path, key=f"{key}.path")
        elif find_spec("minari") is None:
            raise ConfigurationError("dataset_needs_minari", dataset=dataset.minari, key=f"{key}.minari")
        elif not (Path(os.environ.get("MINARI_DATASETS_PATH") or _MINARI).expanduser() / str(dataset.minari)).is_dir():
            raise ConfigurationError("minari_dataset_not_found", dataset=dataset.minari, key=f"{key}.minari")


def _has_gpu() -> bool:
    return any(any(Path("/dev").glob(name)) for name in _GPUS)


def _on_gpu(run: Run, role: str) -> bool:
    """Whether a worker may use a CUDA device, which does not outlast a fork."""
    wanted = {"learner": run.device, "actor": run.act_device}.get(role, "cpu")
    return wanted != "cpu" and _has_gpu()


def _with_addresses(
    folder: Path, keys: str, show: Callable[[View], None], tell: Callable[[str], None]
) -> Callable[[View], None]:
    """Shows, and tells where simulators connect whenever another actor serves them."""
    begun, told = (folder / "coordinator.json").stat().st_mtime_ns, set[str]()

    def shown(view: View) -> None:
        show(view)
        for path in sorted((folder / "simulators").glob("[!.]*.json")):
            address = str(json.loads(path.read_text())["address"])
            if path.stat().st_mtime_ns >= begun and address not in told:
                told.add(address)
                tell(f"simulators connect to {connect_string(address, Path(keys)) if keys else address}")

    return shown


def _tell_stall(view: View, running: Mapping[int, Process], tell: Callable[[str], None]) -> str:
    """Says who waits for what in a run that stands still, and has all workers that have joined write their stacks."""
    said = str(view["stalled"])
    if said:
        for pid in joined(view, {pid: process.mark for pid, process in running.items()}):
            running[pid].popen.send_signal(signal.SIGUSR1)
        tell(f"{said}; what each of them does stands at the end of logs/*.out")
    return said


def _tell_waits(processes: Sequence[Process], told: set[str], tell: Callable[[str], None]) -> None:
    """What they say of code of the user that they wait for, but for what others have `told`."""
    for process in processes:
        for said in process.new_waits():
            if said not in told:
                told.add(said)
                tell(f"{process.output.stem}: {said}")


def _refused(process: Process, tell: Callable[[str], None], *kinds: type[RookeryError]) -> RookeryError | None:
    """What the user has to correct, if a fault of these `kinds` ended a process that nobody starts again; its traceback
    is told in any case."""
    if said := process.traceback():
        tell(said)
    said = process.last_words(1).removeprefix(f"{process.role}: ")
    return next((kind.heard(said) for kind in kinds if process.code == kind.exit_code), None)


def _coordinator_failure(coordinator: Process) -> RunFailed:
    """Why the run failed whose coordinator has ended."""
    fault = RunFailed("coordinator_failed", reason=coordinator.why(), file=coordinator.output)
    return _failure(coordinator, fault)


def _failure(process: Process, fault: RunFailed) -> RunFailed:
    """What `process` said itself, where nothing was trained; else `fault`."""
    told = RunFailed.heard(process.own_words())
    return told if told.kind == "nothing_trained" else fault


def _address(folder: Path, coordinator: Process, interrupt: Interrupt, tell: Callable[[str], None]) -> str:
    """Where the coordinator listens, as soon as it says so."""
    place = folder / "coordinator.json"
    end, said_at, slow, told = time.monotonic() + _WORLD_SECONDS, 0.0, "", False
    while (now := time.monotonic()) < end and not interrupt.count:
        if coordinator.code is not None:
            fault = RunFailed("coordinator_not_started", reason=coordinator.why(), file=coordinator.output)
            raise _refused(coordinator, tell, ConfigurationError, EnvironmentFault) or fault
        if place.exists():
            said = json.loads(place.read_text())
            if said["pid"] == coordinator.popen.pid:
                return str(said["address"])
        if now - said_at >= _SAID_EVERY:
            said_at, before, slow = now, slow, coordinator.own_words()
            if slow and slow == before and not told:  # what it says last of all is told as its end
                told = True
                tell(slow)
        time.sleep(0.02)
    if interrupt.count:
        raise RunFailed("run_interrupted_early", reason=slow and f": {slow}")
    raise RunFailed("coordinator_start_timeout", seconds=_WORLD_SECONDS, file=coordinator.output)


def _join(client: ControlClient, coordinator: Process) -> Welcome | None:
    """None if the run was stopped when all its steps were made: its coordinator ends it alone, and may be gone before
    it is asked."""
    try:
        return client.join(_START_SECONDS, lambda: coordinator.code is not None)
    except (Refused, Timeout) as fault:
        if isinstance(fault, Timeout) and coordinator.code is None:
            raise
        if isinstance(fault, Refused) and fault.kind != "run_has_ended":
            raise
    coordinator.popen.wait(_START_SECONDS)
    if coordinator.code != 0:
        raise _coordinator_failure(coordinator)
    return None
