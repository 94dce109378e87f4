"""How the ranks of one policy find each other.

In flow: where the first rank's learner is, as the coordinator tells; or, of ranks that `torchrun` started, what it left
in the environment. Out flow: a `ProcessGroup`. Each start of any rank needs a meeting of all.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import platform
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import torch
import torch.distributed as dist

from protocol.errors import ConfigurationError
from protocol.memory.shared_file import Counters
from protocol.messages.core import Welcome
from protocol.transport.ports import MEETING
from protocol.transport.sockets import is_loopback
from workers.learning.distributed.process_group import ProcessGroup, RankLost
from workers.planning.data_parallel import rank_names, rank_of_learner
from workers.runtime.process import WorkerProcess

log = logging.getLogger(__name__)

_LOOK_EVERY = 0.05
_TRY_SECONDS = timedelta(seconds=5)
_BUSY_SECONDS = 20.0


def requested_name(name: str) -> str:
    """The name that a learner asks for: among ranks that `torchrun` started, that of its rank of the policy that
    `name`, learner-POLICY, says; or of the run's first learners."""
    return f"{name or 'learner'}-{os.environ['RANK']}" if _torchrun() else name


def check_meeting(host: str, insecure: bool, policy: str, rank: int, size: int) -> None:
    """ConfigurationError where ranks would meet on a network that nothing was said of, or not as `torchrun` says."""
    if not is_loopback(host) and not insecure:
        raise ConfigurationError("ranks_on_open_network", policy=policy, peer=host)
    told = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if _torchrun() and told != (str(rank), str(size)):
        raise ConfigurationError(
            "torchrun_rank_differs", value=told[0], told_size=told[1], rank=rank, size=size, policy=policy
        )


def wait_for_name(host: str, patience: float, tick: Callable[[], None]) -> None:
    """Until the name of this machine leads somewhere, as all ranks listen where theirs leads: that of a pod is known a
    moment after the pod runs. Who waits calls `tick`; ConfigurationError after `patience` seconds."""
    end, told = time.monotonic() + patience, False
    while True:
        try:
            socket.getaddrinfo(host, None)
            return
        except socket.gaierror as fault:
            if time.monotonic() >= end:
                raise ConfigurationError("own_address_not_resolved", peer=host, reason=fault.strerror) from None
            if not told:
                log.info("event=name_unknown name=%s reason=%s", host, fault.strerror)
            told = True
            tick()
            time.sleep(_LOOK_EVERY)


def rendezvous(
    life: WorkerProcess,
    welcome: Welcome,
    policy: str,
    size: int,
    address: str,
    device: torch.device,
    patience: float,
    counters: Counters,
) -> tuple[ProcessGroup, dict[str, int]]:
    """Waits until all ranks are there, and says which incarnations of their learners these are; `address` is where this
    one takes experience. Who waits goes on beating, and can be told to stop."""
    rank, started = rank_of_learner(welcome.name, size), time.monotonic()
    log.info("event=ranks_connecting policy=%s rank=%d ranks=%d", policy, rank, size)
    host, _ = _store_address(address)
    wait_for_name(host, patience, partial(_alive, life))
    own = json.dumps({"incarnation": welcome.incarnation, "gpu": _gpu(device)})
    while True:
        try:
            store = _store(life, policy, rank, size, address)
            store.set(str(rank), own)
            told = _all_told(life, store, rank, size, own)
            break
        except RuntimeError as fault:  # the first rank ended, and its store with it; another comes
            _alive(life)
            time.sleep(_LOOK_EVERY)
            log.info("event=ranks_connecting_again policy=%s reason=%s", policy, " ".join(str(fault).split())[:200])
    store.set_timeout(timedelta(seconds=patience))
    gpus = [one["gpu"] for one in told]
    nccl = "" not in gpus and len(set(gpus)) == size
    group = ProcessGroup(policy, dist.PrefixStore(json.dumps(told), store), rank, size, host, patience, device, nccl)
    waited = time.monotonic() - started
    counters.add(f"waits.ranks.{policy}", waited)
    backend = "nccl" if nccl else "gloo"
    log.info(
        "event=ranks_connected policy=%s rank=%d ranks=%d backend=%s waited=%.1f", policy, rank, size, backend, waited
    )
    met = {name: int(one["incarnation"]) for name, one in zip(rank_names(policy, size), told, strict=True)}
    return group, met


def _store(life: WorkerProcess, policy: str, rank: int, size: int, address: str) -> dist.Store:
    """Where all ranks tell who they are: torchrun's, or the first rank's, at a port of its block."""
    if _torchrun():
        found, _, _ = next(iter(dist.rendezvous("env://")))
        return dist.PrefixStore(policy, found)
    if rank == 0:
        host, port = _store_address(address)
        listener = _listen(life.options.host_and_base[0], port, partial(_alive, life))
        return dist.TCPStore(
            host, port, is_master=True, wait_for_workers=False, timeout=_TRY_SECONDS, master_listen_fd=listener.detach()
        )
    first = rank_names(policy, size)[0]
    while True:
        _alive(life)
        status = life.client.status if life.client is not None else None
        for route in status.routes if status is not None else ():
            if route.learner == first:
                return dist.TCPStore(*_store_address(route.experience), wait_for_workers=False, timeout=_TRY_SECONDS)
        time.sleep(_LOOK_EVERY)


def _all_told(life: WorkerProcess, store: dist.Store, rank: int, size: int, own: str) -> list[dict[str, Any]]:
    """What all ranks told of themselves, once the last has. The first one says when that is so: another that was
    started anew meanwhile is not among those, and waits for the next meeting."""
    keys = [str(one) for one in range(size)]
    while not store.check(keys if rank == 0 else ["all"]):
        _alive(life)
        time.sleep(_LOOK_EVERY)
    if rank == 0:
        told = [store.get(key).decode() for key in keys]
        store.set("all", json.dumps(told))
    else:
        told = json.loads(store.get("all"))
        while told[rank] != own:
            _alive(life)
            time.sleep(_LOOK_EVERY)
            store.check(["all"])  # ends with the first rank, which waits in vain for who was here before
    return [json.loads(one) for one in told]


def _torchrun() -> bool:
    """Whether it started this process: other schedulers say RANK as well, and mean something else."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def _alive(life: WorkerProcess) -> None:
    """Who waits is not hung, and may be told to stop."""
    life.vitals.tick()
    life.check()


def _listen(host: str, port: int, tick: Callable[[], None]) -> socket.socket:
    """RankLost where it cannot. Who has the port for a moment only, as any connection of this machine may, is waited
    for."""
    family, end = socket.AF_INET6 if ":" in host else socket.AF_INET, time.monotonic() + _BUSY_SECONDS
    while True:
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host.strip("[]"), port))
            listener.listen(1024)
            return listener
        except OSError as fault:
            listener.close()
            if fault.errno != errno.EADDRINUSE or time.monotonic() >= end:
                raise RankLost("ranks_cannot_meet", peer=host, port=port, reason=fault.strerror) from None
        tick()
        time.sleep(_LOOK_EVERY)


def _store_address(experience: str) -> tuple[str, int]:
    """Host and port of the meeting at a learner, by where it takes experience: at base + 1."""
    place = urlsplit(experience)
    return place.hostname or platform.node(), (place.port or 1) - 1 + MEETING


def _gpu(device: torch.device) -> str:
    """Which one in the world it is; empty for none."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""
