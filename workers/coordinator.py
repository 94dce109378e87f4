"""The coordinator of one run, as an executable: `rookery coordinator`, `python -m workers.coordinator`.

    describe the world -> open the doors -> the loop of `workers/coordination.py` -> summary -> end

In flow: a configuration. Out flow: a run that workers can join, and its folder.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from pathlib import Path

import click
import zmq

from protocol.control_server import ControlServer
from protocol.document import read_run
from protocol.errors import ConfigurationError, RookeryError, disk_fault
from protocol.sockets import HTTP, Ports, check_bind, open_context
from workers import all_imported
from workers.auxiliary_plan import plan_all
from workers.coordination import Coordinator
from workers.entries import importable
from workers.environments.episodes import environments_of
from workers.environments.registry import describe
from workers.fixed_plan import check_fixed
from workers.life import INCOMPLETE, claim
from workers.logs import log_to
from workers.watchdog import answer_with_stacks
from workers.web.dashboard import Dashboard
from workers.web.server import HttpServer

__all__ = ["command"]

log = logging.getLogger(__name__)


@click.command(name="coordinator", help="The coordinator of one run: CONFIG is a YAML file.")
@click.argument("config", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--run-dir", type=click.Path(file_okay=False, path_type=Path), required=True, help="The run's folder.")
@click.option("--bind", default="127.0.0.1:5600", show_default=True, metavar="HOST:PORT", help="Port 0: a free one.")
@click.option("--advertise", default="", metavar="HOST", help="Address that others reach it at, if another.")
@click.option("--insecure", is_flag=True, help="Allow sockets that other machines can reach without authentication.")
@click.option("--keys", envvar="ROOKERY_KEYS", default="", metavar="DIR", help="Keys, as `rookery keys new` makes.")
@click.option(
    "--resident", envvar="ROOKERY_RESIDENT", is_flag=True, help="A scheduler starts it again whenever it ends."
)
@click.option("--until-end", is_flag=True, help="Resident, but end when the run has.")
def command(
    config: Path, run_dir: Path, bind: str, advertise: str, insecure: bool, keys: str, resident: bool, until_end: bool
) -> None:
    """Command line of the coordinator."""
    importable()
    context: zmq.Context[zmq.Socket[bytes]] | None = None
    code = 1
    try:
        check_bind(_host_of(bind), keys, insecure)
        context = open_context(keys, "coordinator")
        code = _run(context, config, run_dir.resolve(), bind, advertise, resident, until_end)
    except RookeryError as fault:
        log.error("event=failed kind=%s error=%s", fault.kind, fault)
        click.echo(f"coordinator: {fault.coded}", err=True)
        code = fault.exit_code
    except OSError as fault:
        told = disk_fault(fault)
        if told is None:
            raise
        log.exception("event=failed kind=%s error=%s", told.kind, told)
        click.echo(f"coordinator: {told.coded}", err=True)
        code = told.exit_code
    finally:
        if context is not None:
            context.destroy(linger=0)
    sys.exit(code)


def _host_of(bind: str) -> str:
    host, _, port = bind.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigurationError("bind_not_host_port", value=bind)
    return host


def _run(
    context: zmq.Context[zmq.Socket[bytes]],
    config: Path,
    folder: Path,
    bind: str,
    advertise: str,
    resident: bool,
    until_end: bool,
) -> int:
    run = read_run(config)
    host, port = _host_of(bind), bind.rpartition(":")[2]
    if run.multiprocessing.enabled is False:
        raise ConfigurationError("coordinator_without_processes", key="multiprocessing.enabled")
    if run.replay is not None:
        raise ConfigurationError("replay_with_coordinator", file=run.replay, key="replay")
    world = describe(run.environment, run.cuts)
    plan_all(run, world)
    check_fixed(run, world)
    if run.evaluation is not None:
        environments_of(run.environment, 1)
    ports = Ports(context, host, int(port), advertise)
    addresses = ports.bind({0: zmq.ROUTER}, http=True)
    lock = claim(run, folder)
    log_to("coordinator", run, folder)
    coordinator = Coordinator(run, world, folder, ControlServer(ports.sockets[0]), resident)
    assert ports.http is not None
    page = Dashboard(folder, run, coordinator.controls, coordinator.told, coordinator.history, host)
    routes = {**coordinator.vitals.routes(), **page.routes(), ("GET", "/metrics"): coordinator.metrics}
    server = HttpServer(ports.http, routes)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, coordinator.stop)
    answer_with_stacks()
    _announce(folder, addresses[0], addresses[HTTP])
    try:
        complete = coordinator.serve()
        if not coordinator.left:
            coordinator.finish()
            coordinator.linger(3.0, stay=resident and not until_end)
    finally:
        server.close()
        coordinator.close()
        ports.close()
        os.close(lock)
    return 0 if complete or coordinator.left else INCOMPLETE


def _announce(folder: Path, address: str, http: str) -> None:
    """Tells those who can see the folder where the coordinator is. It has the folder for itself: what another one left
    that died meanwhile is written over."""
    aside = folder / ".coordinator"
    aside.write_text(json.dumps({"address": address, "http": http, "pid": os.getpid()}) + "\n")
    aside.rename(folder / "coordinator.json")


if __name__ == "__main__":
    all_imported()
    command()
