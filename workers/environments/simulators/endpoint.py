"""Where an actor serves simulators: the port, what its server tells everybody, and the file that says where it is.

In flows: settings, the world, what the actor lends. Out flow: sockets, and the terms of admission.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path

import zmq

from protocol.errors import ConfigurationError
from protocol.messages.core import Welcome
from protocol.messages.simulator import Admit, facts_of
from protocol.refusal_log import RefusalLog
from protocol.spaces import World
from protocol.transport.sockets import Ports, check_bind, keys_of
from workers.environments.simulators.array_codec import RowCodec
from workers.environments.simulators.server import AdmissionTerms
from workers.environments.simulators.simulator_settings import SimulatorSettings
from workers.runtime.process import WorkerProcess, run_dir_of

log = logging.getLogger(__name__)

_LEAST_FRAME = 65_536
_WAITING = 1_000
"""Messages of one connection that wait; whoever sends more waits, and who reads none of so many is lost."""
_BYTES, _BYTES_OF_ALL = 16 * 2**20, 64 * 2**20
"""Of one connection, and of all, that wait or belong to a message that has not ended, beside `_OBSERVATIONS`."""
_OBSERVATIONS = 64


@dataclass(frozen=True, slots=True)
class SimulatorEndpoint:
    """What an actor lends to an environment that others connect to. `base` 0: any free port. `index`: which of the
    run's actors it is. `folder`: the run's, if it can be seen from here."""

    context: zmq.Context[zmq.Socket[bytes]]
    host: str
    base: int
    advertise: str
    run: str
    name: str
    index: int
    folder: Path | None
    world: str = ""
    """The tree as the coordinator knows it, JSON: a file with it need not be here. Empty: as the settings say."""
    keys: str = ""
    """The folder of the run's keys, which those that the actor starts inherit. Empty: it has none."""
    refusals: RefusalLog | None = None
    """Of the actor's process."""


def simulator_endpoint(life: WorkerProcess, welcome: Welcome) -> SimulatorEndpoint:
    """What this actor lends; ConfigurationError where others could reach it that nothing keeps out."""
    options, (host, base) = life.options, life.options.host_and_base
    check_bind(host, options.keys, options.insecure)
    who, known = (welcome.run, welcome.name, welcome.index), keys_of(life.context)
    keys = "" if known is None else str(known.folder)
    return SimulatorEndpoint(
        life.context,
        host,
        base,
        options.advertise,
        *who,
        run_dir_of(welcome),
        welcome.world,
        keys,
        life.vitals.refusals,
    )


def terms_of(world: World, copies: int, settings: SimulatorSettings, run: str) -> AdmissionTerms:
    """What every simulator is told, with the name and the number of the copy still to be filled in."""
    text = world.model_dump_json()
    whole = sum(place.many * RowCodec(place).whole for place in world.places)
    admit = Admit(
        run=run,
        name="_",
        incarnation=1,
        copy_number=0,
        hash=hashlib.sha256(text.encode()).hexdigest()[:16],
        world=text,
        places=[facts_of(place) for place in world.places],
        lease=1.0,
        largest=max(_LEAST_FRAME, whole),
        rate=settings.rate,
        deadline=settings.deadline,
        fallback=settings.fallback,
    )
    return AdmissionTerms(admit, copies, settings.rate)


def open_ports(outside: SimulatorEndpoint, settings: SimulatorSettings, largest: int) -> tuple[Ports, str]:
    """One ROUTER, and its address: an actor that is started again returns to the port it had."""
    announced = None if outside.folder is None else outside.folder / "simulators" / f"{outside.name}.json"
    bases = [settings.port + outside.index if settings.port else outside.base]
    if not bases[0] and announced is not None and announced.exists():
        bases.insert(0, int(json.loads(announced.read_text())["address"].rpartition(":")[2]))
    for base in bases:
        ports = Ports(outside.context, outside.host, base, outside.advertise, {0: "simulators"}, outside.refusals)
        waiting = _BYTES + _OBSERVATIONS * largest, _BYTES_OF_ALL + _OBSERVATIONS * largest
        try:
            address = ports.bind({0: zmq.ROUTER}, {0: largest}, _WAITING, bytes_waiting={0: waiting})[0]
            break
        except ConfigurationError:
            if base == bases[-1]:
                raise
    if announced is not None:
        announced.parent.mkdir(exist_ok=True)
        aside = announced.with_name(f".{announced.name}")
        aside.write_text(json.dumps({"address": address, "pid": os.getpid(), "keys": outside.keys}) + "\n")
        aside.rename(announced)
    log.info("event=serving_simulators address=%s", address)
    return ports, address
