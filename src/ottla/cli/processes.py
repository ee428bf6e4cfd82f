"""Several broker processes on this machine, under one supervisor: what each is told, and running
them. `ottla server start --processes` and `ottla cluster up` are both this.

Brokers differ in four settings: id, ports and data folders go on from what the first one has. All
others are the same for all, and each broker reads the properties file by itself. A broker that was
added to a running cluster may have an id and ports of its own choice: its seat is remembered.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ottla.cli.options import BEGUN_ANEW
from ottla.cli.streams import show_if_read

if TYPE_CHECKING:
    from ottla.broker.cluster_folder import ClusterFolder, Seat
    from ottla.broker.members import MemberPlan
    from ottla.broker.supervisor import Supervisor
    from ottla.config.broker import BrokerConfig
    from ottla.config.listeners import Listener
    from ottla.config.load import Given, Loaded

logger = logging.getLogger(__name__)

EXIT_FAILED = 1
MOST = 256
_LAST_PORT = 65_535


class AtLeast(int):
    """So many brokers, or as many as there were before."""


def process_count(
    _context: click.Context, _option: click.Parameter, given: str | None
) -> int | None:
    """A number of processes, or `auto` for the number of cores; the callback of an option."""
    if given is None:
        return None
    if given == "auto":
        return AtLeast(len(os.sched_getaffinity(0)))
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
    seats: tuple[Seat, ...]
    growth: Growth
    zookeeper: MemberPlan | None = None  # to be run along


@dataclass(frozen=True, slots=True)
class Growth:
    """What one more broker of a cluster would be. `broker.supervisor` asks for it."""

    config: BrokerConfig
    told: Told
    folder: ClusterFolder

    def seat(self, known: Sequence[Seat], broker: int | None, port: int | None) -> Seat:
        """The one with this id and port, or with the next ones. Raises StartFailed."""
        from ottla.broker.cluster_folder import Seat
        from ottla.broker.start_failed import StartFailed

        base = self.config.listeners[0].port
        offset = max(seat.offset for seat in known) + 1
        if port is not None:
            if not base:
                raise StartFailed("these brokers listen on free ports: leave out --port")
            if port < base:
                raise StartFailed(f"ports below {base}, the first broker's, cannot be chosen")
            offset = port - base
        chosen = max(seat.broker for seat in known) + 1 if broker is None else broker
        seat = Seat(chosen, offset)
        for other in known:
            if base and other.offset == offset:
                raise StartFailed(f"broker {other.broker} listens on port {port}: choose another")
        try:
            check_ports(self.config, [*known, seat])
        except click.UsageError as error:
            raise StartFailed(error.message) from None
        return seat

    def address(self, seat: Seat) -> str:
        """What clients are told."""
        first = _shifted(self.config.listener_plan.advertised, seat.offset)[0]
        host = f"[{first.host}]" if ":" in first.host else first.host
        return f"{host}:{first.port}"

    def plan(self, seat: Seat) -> MemberPlan:
        """Its command line."""
        from ottla.broker.members import MemberPlan

        command = _command(self.told, self.config, self.folder, seat)
        listeners = _shifted(self.config.listeners, seat.offset)
        return MemberPlan(
            seat.broker,
            (*command, "--member-of", self.folder.home),
            self.folder.process(seat.broker),
            listens=tuple((one.host, one.port) for one in listeners),
            moved=self.told.moved,
        )


def seats_for(count: int, first: int, known: Sequence[Seat] = ()) -> tuple[Seat, ...]:
    """So many brokers: the known ones as they were, then new ones with the next ids and ports."""
    from ottla.broker.cluster_folder import Seat, in_order

    found = in_order(known)[:count]
    if not found or found[0] != (first, 0):
        found = [Seat(first, 0)]  # somebody has changed the first id
    while len(found) < count:
        following = max(seat.broker for seat in found) + 1
        found.append(Seat(following, max(seat.offset for seat in found) + 1))
    return tuple(found)


def make_plan(
    loaded: Loaded,
    told: Told,
    count: int,
    zookeeper_port: int | None = None,
    known: Sequence[Seat] = (),
) -> Plan:
    """The command lines of so many brokers, where `known` were there before; UsageError where
    their ports would not fit."""
    from ottla.broker.cluster_folder import ClusterFolder

    config = loaded.config
    seats = seats_for(count, config.node_id, known)
    check_ports(config, seats)
    folder = ClusterFolder(tuple(config.log_dirs))
    growth = Growth(config, told, folder)
    members = tuple(map(growth.plan, seats))
    addresses = tuple((seat.broker, growth.address(seat)) for seat in seats)
    zookeeper = None if zookeeper_port is None else _zookeeper(folder, zookeeper_port)
    return Plan(folder, members, addresses, seats, growth, zookeeper)


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


def _command(told: Told, config: BrokerConfig, folder: ClusterFolder, seat: Seat) -> Iterator[str]:
    yield from (sys.executable, "-m", "ottla", "server", "start")
    if told.config_file is not None:
        yield from ("--config", str(told.config_file))
    if told.strict:
        yield "--strict"
    yield from ("--log-format", told.log_format, "--log-level", told.log_level)
    settings = {one.name: one.text for one in told.given}
    broker, number = str(seat.broker), seat.offset
    settings |= {"node.id": broker, "log.dirs": ",".join(folder.data(seat.broker))}
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


def check_ports(config: BrokerConfig, seats: Sequence[Seat]) -> None:
    """UsageError where there is no such port, or one would be that of two brokers."""
    last = max(seat.offset for seat in seats)
    metrics = 0 if config.metrics_address is None else config.metrics_address[1]
    if metrics and metrics + last > _LAST_PORT:
        raise click.UsageError(
            f"{len(seats)} brokers with metrics from port {metrics} on need ports above "
            f"{_LAST_PORT}"
        )
    taken: dict[int, int] = {}
    for broker, offset in seats:
        for listener in _shifted(config.listeners, offset):
            port = listener.port
            if not port:
                continue  # any free one
            if port > _LAST_PORT:
                raise click.UsageError(
                    f"{len(seats)} brokers from port {port - offset} on need ports above "
                    f"{_LAST_PORT}"
                )
            other = taken.setdefault(port, broker)
            if other != broker:
                raise click.UsageError(
                    f"broker {other} and broker {broker} would both listen on port {port}: each "
                    "broker's ports are one higher than those of the one before, so listeners "
                    f"have to be {len(seats)} ports apart"
                )
    for broker, offset in seats:
        rival = taken.get(metrics + offset) if metrics else None
        if rival is not None:
            raise click.UsageError(
                f"the metrics of broker {broker} and a listener of broker {rival} would both be at "
                f"port {metrics + offset}: each broker's ports are one higher than those of the "
                "one before; name another port with metrics.listen"
            )


def run(plan: Plan, banner: Callable[[float], str], *, quiet: bool, started: float) -> int:
    """Run the brokers until Ctrl-C or SIGTERM; returns the exit code."""
    # Nothing here needs the faster loop, and asyncio's own starts child processes as needed.
    return asyncio.run(_run(plan, banner, quiet, started))


async def _renew_when_asked(supervisor: Supervisor) -> None:
    """Be the program that is on the disk, once somebody asks for it."""
    await supervisor.renewal.wait()
    logger.info("beginning anew with the program on the disk; the brokers run on")
    await supervisor.leave()
    words = [each for each in sys.argv[1:] if each != BEGUN_ANEW]
    os.execv(sys.executable, [sys.executable, "-m", "ottla", *words, BEGUN_ANEW])


async def _run(plan: Plan, banner: Callable[[float], str], quiet: bool, started: float) -> int:
    from ottla.broker.start_failed import StartFailed
    from ottla.broker.supervisor import Supervisor
    from ottla.runtime.process import ending

    supervisor = Supervisor(
        plan.folder, plan.members, zookeeper=plan.zookeeper, seats=plan.seats, growth=plan.growth
    )

    def kill() -> None:  # recovery is made for this
        supervisor.kill()
        os._exit(EXIT_FAILED)

    stop = ending(kill)
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
        show_if_read(banner(seconds))
    failed = asyncio.ensure_future(supervisor.wait_failed())
    renewing = asyncio.ensure_future(_renew_when_asked(supervisor))
    await asyncio.wait((failed, stopping, renewing), return_when=asyncio.FIRST_COMPLETED)
    renewing.cancel()
    await supervisor.stop()
    stopping.cancel()
    if failed.done() and not failed.cancelled() and failed.exception() is not None:
        failed.result()
    logger.info("all brokers are stopped")
    return 0
