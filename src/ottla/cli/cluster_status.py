"""`ottla cluster status`: brokers, controller, leaders, and the partitions that lack something."""

from __future__ import annotations

import textwrap
import time
from typing import TYPE_CHECKING

import click

from ottla.cli.command import Command
from ottla.cli.live import Frame, Table, keep_showing, show
from ottla.cli.options import bootstrap_option, connect, json_option
from ottla.cli.output import Column, aligned, broker_errors, count, explain, say
from ottla.cli.retention import moment
from ottla.errors import KafkaError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ottla.client.cluster_health import ClusterHealth, Known, PartitionHealth
    from ottla.client.direct import DirectAdmin

_PATIENCE = 10.0  # seconds for one answer
_MOST = 20  # partitions that are listed for people
_LESS_IMPORTANT = ("SINCE", "HOST", "ELIGIBLE", "RACK")
_NARROWEST = 20  # columns, for sentences
_TERMINATED = 143  # as a shell tells of SIGTERM


@click.command(cls=Command)
@click.option("--watch", is_flag=True, help="Look again and again, until q or Ctrl-C.")
@click.option("--interval", type=click.FloatRange(0.1), default=2.0, show_default=True,
              metavar="SECONDS", help="Between two looks.")  # fmt: skip
@bootstrap_option
@json_option
def status(watch: bool, interval: float, bootstrap: str, as_json: bool) -> None:
    """Show brokers, controller and leaders, and the partitions that lack something.

    A broker is up, stopping, fenced (there, but shut out) or missing (until `kafka-cluster
    unregister` has the cluster forget it); SINCE is a time in UTC. A partition is offline while
    nobody leads it, under min.insync while writes with acks=all are refused, and under-replicated
    while a replica has not caught up; those that are being moved get new replicas beside the
    others, which are no lack. WAITS FOR tells which brokers have to come back or to catch up: for
    an offline partition any of them, or all, when only their logs together can tell who has the
    most records.

    \b
    JSON: {"cluster", "controller", "partitions", "offline", "under_min_insync", "under_replicated",
     "moving", "min_insync" (of the cluster),
     "overruled": [{"broker", "min_insync"} (in its own file)],
     "store_away": [{"broker", "since"} (without the metadata store, and since when)],
     "silent": [a broker that is called up and does not answer],
     "brokers": [{"id", "address", "host", "rack", "state", "since" (milliseconds since 1970),
                  "leads", "replicas", "in_sync"}],
     "troubled": [{"topic", "partition", "state", "leader", "replicas", "in_sync", "eligible",
                   "last_known_eligible", "min_insync", "waits_for", "waits_for_all",
                   "broken" (replicas whose log cannot be served)}]}
    With --watch a line per look.
    """
    from ottla.cli.terminal import usable

    looker = Looker(bootstrap)
    with broker_errors(bootstrap):
        try:
            first = frame(looker.look())
            if not watch:
                show(first, as_json=as_json)
            elif as_json or not usable():
                keep_showing(lambda: _next_frame(looker, interval), interval, as_json=as_json)
            else:
                _draw(looker, interval)
        finally:
            looker.close()


def _next_frame(looker: Looker, interval: float) -> Frame:
    """As soon as there is one: a cluster in trouble is what people watch for."""
    while True:
        try:
            return frame(looker.look())
        except KafkaError as error:
            say(f"{explain(error, looker.bootstrap).partition(';')[0]}; trying again")
        time.sleep(interval)


class Looker:
    """Looks at a cluster; after a failure the next look connects anew, to any broker that was up
    when one looked last, or to those that were named."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._up: Sequence[str] = ()
        self._admin: DirectAdmin | None = None
        self._ours: bool | None = None  # not known yet

    @property
    def admin(self) -> DirectAdmin:
        from ottla.client.direct import DirectAdmin

        if self._admin is None:
            servers = ",".join(dict.fromkeys([*self._up, *self.bootstrap.split(",")]))
            connect(servers)
            self._admin = DirectAdmin(servers, timeout=_PATIENCE, client_id="ottla-cli")
        return self._admin

    def look(self) -> ClusterHealth:
        from ottla.client.cluster_health import look

        try:
            health = look(self.admin, ours=self._ours)
            # A broker that is going away does not answer either: who has been Ottla's stays that.
            self._ours = self._ours or health.known.ours
            up = [each for each in health.brokers if each.id in health.live]
            self._up = [each.address for each in up if each.address]
            return health
        except KafkaError:
            self.close()
            self._up = [*self._up[1:], *self._up[:1]]  # the first may be who stands still
            raise

    def close(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()


def _draw(looker: Looker, interval: float) -> None:
    """On a terminal: one picture over the other."""
    from ottla.cli.terminal import Terminal

    with Terminal() as terminal:
        shown: Frame | None = None
        looked = ""
        while True:
            note, stale, now = "", "", time.strftime("%H:%M:%S")
            try:
                shown = frame(looker.look())
                looked = now
            except KafkaError as error:
                note = f"  {explain(error, looker.bootstrap).partition(';')[0]}; trying again"
                stale = f"below is how it was at {looked}" if shown else ""
            width, height = terminal.size()
            head = f"ottla cluster status  {now}{note}"
            lines = [head, stale, *(as_lines(shown, width) if shown else ())]
            if len(lines) > height:
                left = len(lines) - height + 1
                lines[height - 1 :] = [f"… {count(left, 'more line')}: the window is too small"]
            terminal.draw([line[:width] for line in lines])
            for event in terminal.wait(interval):
                if event in ("q", "interrupt"):
                    return
                if event == "terminate":
                    raise click.exceptions.Exit(_TERMINATED)


def as_lines(shown: Frame, width: int) -> Iterator[str]:
    """The tables of a frame as plain lines. Where one is too wide, columns are left out, those
    without content first; sentences go on in the next line."""
    from ottla.cli.harmless import harmless

    for number, table in enumerate(shown.tables):
        if number:
            yield ""
        if table.title:
            for line in map(harmless, table.title.splitlines()):
                yield from textwrap.wrap(line, max(width, _NARROWEST)) or [""]
        rows = [
            [harmless(column.text(cell)) for column, cell in zip(table.columns, row, strict=True)]
            for row in table.rows
        ]
        if rows:
            yield from _fitting(table.columns, rows, width)


def _fitting(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> Sequence[str]:
    """The lines of a table, without as many of the less important columns as have to go."""
    titles = [column.title for column in columns]
    empty = [at for at in range(len(titles)) if all(row[at] in ("", "-") for row in rows)]
    going = [*empty, *(titles.index(each) for each in _LESS_IMPORTANT if each in titles)]
    kept = list(range(len(titles)))
    while True:
        lines = list(
            aligned([columns[at] for at in kept], [[row[at] for at in kept] for row in rows])
        )
        if max(map(len, lines)) <= width or not going:
            return lines
        left_out = going.pop(0)
        kept = [at for at in kept if at != left_out]


def frame(health: ClusterHealth) -> Frame:
    """What is shown, and the same for programs."""
    tables = [_broker_table(health)]
    if health.troubled:
        tables.append(_partition_table(health))
    return Frame(tables, document(health))


def _broker_table(health: ClusterHealth) -> Table:
    columns = (
        Column("BROKER", numeric=True, is_name=True),
        Column("ADDRESS"),
        Column("HOST"),
        Column("RACK"),
        Column("STATE"),
        Column("SINCE"),
        Column("LEADS", numeric=True),
        Column("REPLICAS", numeric=True),
        Column("IN SYNC", numeric=True),
    )
    rows = [
        (
            each.id,
            each.address,
            each.host,
            each.rack,
            "controller" if each.id == health.controller and each.state == "up" else each.state,
            moment(each.since_ms),
            each.leads,
            each.replicas,
            each.in_sync,
        )
        for each in health.brokers
    ]
    controller = "nobody" if health.controller is None else f"broker {health.controller}"
    counts = ", ".join(_counts(health)) or "all in sync"
    title = (
        f"cluster {health.cluster}: {count(len(health.live), 'broker')} up, {controller} is the "
        f"controller; {count(health.partitions, 'partition')}, {counts}"
    )
    for line in _stale(health.known):
        title += f"\n{line}"
    if health.known.overruled:
        title += f"\n{_overruled(health)}"
    return Table(columns, rows, title)


def _stale(known: Known) -> Iterator[str]:
    """What is not known for certain, and why."""
    if known.store_away:
        since = moment(min(known.store_away.values()))
        whose = "broker" if len(known.store_away) == 1 else "brokers"
        yield (
            f"the metadata store is out of reach of {whose} {_ids(sorted(known.store_away))} since "
            f"{since}: what is shown may be as old as that, and leaders cannot change"
        )
    if known.silent:
        yield f"called up, but without an answer: broker {_ids(sorted(known.silent))}"


def _overruled(health: ClusterHealth) -> str:
    files = ", ".join(
        f"{value} in that of broker {each}"
        for each, value in sorted(health.known.overruled.items())
    )
    return (
        f"min.insync.replicas is {health.known.min_insync} in the whole cluster; what files of "
        f"brokers say does not count: {files}"
    )


def _counts(health: ClusterHealth) -> Iterator[str]:
    for number, what in (
        (health.offline, "offline"),
        (health.under_min_insync, "under min.insync"),
        (health.under_replicated, "under-replicated"),
        (health.moving, "being moved"),
    ):
        if number:
            yield f"{number:,} {what}"


def _partition_table(health: ClusterHealth) -> Table:
    columns = (
        Column("PARTITION"),
        Column("STATE"),
        Column("LEADER", numeric=True, is_name=True),
        Column("REPLICAS"),
        Column("IN SYNC"),
        Column("ELIGIBLE"),
        Column("WAITS FOR"),
    )
    shown = health.troubled[:_MOST]
    rows = [
        (
            each.name,
            each.state,
            each.leader,
            _ids(each.replicas),
            _ids(each.isr),
            _ids(each.elr),
            _waits(each, health),
        )
        for each in shown
    ]
    more = len(health.troubled) - len(shown)
    title = f"the worst {len(shown)}; {more:,} more are listed with --json" if more else None
    return Table(columns, rows, title)


def _waits(each: PartitionHealth, health: ClusterHealth) -> str | None:
    brokers, all_of_them = each.waits_for(health.live)
    if not brokers:
        return "the controller" if each.offline else None
    if each.offline and all(broker in health.live for broker in brokers) and not each.broken:
        return f"reports of {_ids(brokers)}"
    if len(brokers) == 1:
        [broker] = brokers
        up = broker in each.broken and broker in health.live
        return f"the log of broker {broker}" if up else f"broker {broker}"
    return f"{'all' if all_of_them else 'any'} of {_ids(brokers)}"


def _ids(brokers: Iterable[int]) -> str | None:
    return ",".join(map(str, brokers)) or None


def document(health: ClusterHealth) -> dict[str, object]:
    """The status for programs."""
    troubled = []
    for each in health.troubled:
        brokers, all_of_them = each.waits_for(health.live)
        troubled.append(
            {
                "topic": each.topic,
                "partition": each.partition,
                "state": each.state,
                "leader": each.leader,
                "replicas": list(each.replicas),
                "in_sync": list(each.isr),
                "eligible": list(each.elr),
                "last_known_eligible": list(each.last_known_elr),
                "min_insync": each.min_insync,
                "waits_for": list(brokers),
                "waits_for_all": all_of_them,
                "broken": list(each.broken),
            }
        )
    return {
        "cluster": health.cluster,
        "controller": health.controller,
        "partitions": health.partitions,
        "offline": health.offline,
        "under_min_insync": health.under_min_insync,
        "under_replicated": health.under_replicated,
        "moving": health.moving,
        "min_insync": health.known.min_insync,
        "overruled": [
            {"broker": broker, "min_insync": value}
            for broker, value in sorted(health.known.overruled.items())
        ],
        "store_away": [
            {"broker": broker, "since": since}
            for broker, since in sorted(health.known.store_away.items())
        ],
        "silent": sorted(health.known.silent),
        "brokers": [
            {
                "id": each.id,
                "address": each.address,
                "host": each.host,
                "rack": each.rack,
                "state": each.state,
                "since": each.since_ms,
                "leads": each.leads,
                "replicas": each.replicas,
                "in_sync": each.in_sync,
            }
            for each in health.brokers
        ],
        "troubled": troubled,
    }
