"""Several broker processes on this machine, under one supervisor: what each is told, and running
them. `ottla server start --processes` and `ottla cluster up` are both this.

Brokers differ in four settings: id, ports and data folders go on from what the first one has. All
others are the same for all, and each broker reads the properties file by itself.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ottla.broker.cluster_folder import ClusterFolder
    from ottla.broker.members import MemberPlan
    from ottla.config.broker import BrokerConfig
    from ottla.config.listeners import Listener
    from ottla.config.load import Given, Loaded

logger = logging.getLogger(__name__)

EXIT_FAILED = 1
MOST = 256
_LAST_PORT = 65_535


def process_count(
    _context: click.Context, _option: click.Parameter, given: str | None
) -> int | None:
    """A number of processes, or `auto` for the number of cores; the callback of an option."""
    if given is None:
        return None
    if given == "auto":
        return len(os.sched_getaffinity(0))
    if not (given.isascii() and given.isdigit() and 1 <= int(given) <= MOST):
        raise click.BadParameter(f"{given!r} is neither a number from 1 to {MOST} nor auto")
    return int(given)


@dataclass(frozen=True, slots=True)
class Told:
    """What all brokers are told: the file, the flags, and how to log."""

    config_file: Path | None
    given: Sequence[Given]
    strict: bool
    log_format: str
    log_level: str
    moved: str = "choose another with --listen, or listeners in the file"  # when a port is taken


@dataclass(frozen=True, slots=True)
class Plan:
    """A cluster that can be started."""

    folder: ClusterFolder
    members: tuple[MemberPlan, ...]
    addresses: tuple[tuple[int, str], ...]  # of each broker, by its id
    zookeeper: MemberPlan | None = None  # to be run along


def make_plan(loaded: Loaded, told: Told, count: int, zookeeper_port: int | None = None) -> Plan:
    """The command lines of so many brokers; UsageError where their ports would not fit."""
    from ottla.broker.cluster_folder import ClusterFolder
    from ottla.broker.members import MemberPlan

    config = loaded.config
    _check_ports(config, count)
    folder = ClusterFolder(tuple(config.log_dirs))
    members, addresses = [], []
    for number in range(count):
        broker = config.node_id + number
        plan = MemberPlan(
            broker,
            (*_command(told, config, folder, number), "--member-of", folder.home),
            folder.process(broker),
            listens=tuple((one.host, one.port) for one in _shifted(config.listeners, number)),
            moved=told.moved,
        )
        members.append(plan)
        first = _shifted(config.listener_plan.advertised, number)[0]
        host = f"[{first.host}]" if ":" in first.host else first.host
        addresses.append((broker, f"{host}:{first.port}"))
    zookeeper = None if zookeeper_port is None else _zookeeper(folder, zookeeper_port)
    return Plan(folder, tuple(members), tuple(addresses), zookeeper)


def _zookeeper(folder: ClusterFolder, port: int) -> MemberPlan:
    from ottla.broker.members import MemberPlan

    pid_file = f"{folder.zookeeper}.pid"
    command = (sys.executable, "-m", "ottla", "zookeeper", "start", "--pid-file", pid_file)
    place = ("--listen", f"127.0.0.1:{port}", "--data-dir", folder.zookeeper)
    log = ("--log-file", folder.zookeeper_log)
    return MemberPlan(
        0,
        (*command, *place, *log),
        pid_file,
        port,
        listens=(("127.0.0.1", port),),
        moved="choose another with --zookeeper-port",
    )


def _command(told: Told, config: BrokerConfig, folder: ClusterFolder, number: int) -> Iterator[str]:
    yield from (sys.executable, "-m", "ottla", "server", "start")
    if told.config_file is not None:
        yield from ("--config", str(told.config_file))
    if told.strict:
        yield "--strict"
    yield from ("--log-format", told.log_format, "--log-level", told.log_level)
    settings = {one.name: one.text for one in told.given}
    broker = str(config.node_id + number)
    settings |= {"node.id": broker, "log.dirs": ",".join(folder.data(int(broker)))}
    if config.is_given("broker.id"):
        settings["broker.id"] = broker
    settings["listeners"] = ",".join(map(str, _shifted(config.listeners, number)))
    if config.is_given("advertised.listeners"):
        advertised = _shifted(config.listener_plan.advertised, number)
        settings["advertised.listeners"] = ",".join(map(str, advertised))
    if config.metrics_address is not None:
        settings["metrics.listen"] = _metrics_address(config.metrics_address, number)
    for name, text in settings.items():
        yield from ("--set", f"{name}={text}")


def _shifted(listeners: Sequence[Listener], number: int) -> list[Listener]:
    """The listeners of the broker that is `number` after the first."""
    return [replace(one, port=one.port + number) if one.port else one for one in listeners]


def _metrics_address(first: tuple[str, int], number: int) -> str:
    """Where the broker that is `number` after the first serves its metrics."""
    host, port = first
    return f"{f'[{host}]' if ':' in host else host}:{port + number if port else 0}"


def _check_ports(config: BrokerConfig, count: int) -> None:
    metrics = 0 if config.metrics_address is None else config.metrics_address[1]
    if metrics + count - 1 > _LAST_PORT:
        raise click.UsageError(
            f"{count} brokers with metrics from port {metrics} on need ports above {_LAST_PORT}"
        )
    taken: dict[int, int] = {}
    for number in range(count):
        for listener in _shifted(config.listeners, number):
            port = listener.port
            if port > _LAST_PORT:
                raise click.UsageError(
                    f"{count} brokers from port {port - number} on need ports above {_LAST_PORT}"
                )
            if port and taken.setdefault(port, number) != number:
                raise click.UsageError(
                    f"broker {config.node_id + taken[port]} and broker {config.node_id + number} "
                    f"would both listen on port {port}: each broker's ports are one higher than "
                    f"those of the one before, so listeners have to be {count} ports apart"
                )


def run(plan: Plan, banner: Callable[[float], str], *, quiet: bool, started: float) -> int:
    """Run the brokers until Ctrl-C or SIGTERM; returns the exit code."""
    # Nothing here needs the faster loop, and asyncio's own starts child processes as needed.
    return asyncio.run(_run(plan, banner, quiet, started))


async def _run(plan: Plan, banner: Callable[[float], str], quiet: bool, started: float) -> int:
    from ottla.broker.start_failed import StartFailed
    from ottla.broker.supervisor import Supervisor

    supervisor = Supervisor(plan.folder, plan.members, zookeeper=plan.zookeeper)
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():  # the second one: recovery is made for this
            supervisor.kill()
            os._exit(EXIT_FAILED)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
            loop.add_signal_handler(number, on_signal)
    stopping = asyncio.ensure_future(stop.wait())
    starting = asyncio.ensure_future(supervisor.start())
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
    try:
        await starting
    except asyncio.CancelledError:
        return 0
    except StartFailed as error:
        click.echo(f"Error: {error}", err=True)
        return EXIT_FAILED
    seconds = time.perf_counter() - started
    if quiet:
        logger.info("%d brokers started in %.2f s", len(plan.members), seconds)
    else:
        click.echo(banner(seconds))
    failed = asyncio.ensure_future(supervisor.wait_failed())
    await asyncio.wait((failed, stopping), return_when=asyncio.FIRST_COMPLETED)
    await supervisor.stop()
    stopping.cancel()
    if failed.done() and not failed.cancelled() and failed.exception() is not None:
        failed.result()
    logger.info("all brokers are stopped")
    return 0
