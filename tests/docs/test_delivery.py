"""docs/delivery.md keeps its promises: its programs are killed at every numbered line.

A program runs as it stands on the page, but for one call behind each line that ends in `# N`, which
kills the process there when it has the second of three orders in hand. Then it runs again, to its
end. The page's table says how many invoices there are at the crash, and how many in the end.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import ottla
from ottla.testing import Broker

PAGE = Path(__file__).parents[2] / "docs" / "delivery.md"
ORDERS = ("order 1", "order 2", "order 3")
IN_HAND = "order 2"
RUN_SECONDS = 250
MARK = re.compile(r"^( *)(.*?)  # (\d)$")
KILL = """\
import os as _os
def _killed(mark, order):
    if _os.environ.get("KILLED_AFTER") == str(mark) and order == {order!r}:
        _os.kill(_os.getpid(), {signal})
"""


class Row(NamedTuple):
    """What the page promises for a crash after a line."""

    line: int
    group: str
    at_crash: int
    in_the_end: int


class Program(NamedTuple):
    """A section's program, and its table."""

    title: str
    code: str
    rows: list[Row]


def programs() -> list[Program]:
    found = []
    for section in PAGE.read_text().split("\n## ")[1:]:
        block = re.search(r"^```python\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
        rows = re.findall(r"^\| (\d) \| ([^|]+) \| (\d) \| [^|]+ \| (\d) \|$", section, re.M)
        if block is not None and rows:
            table = [Row(int(n), group, int(then), int(end)) for n, group, then, end in rows]
            found.append(Program(section.partition("\n")[0], block[1], table))
    return found


PROGRAMS = programs()
CRASHES = [(each, row) for each in PROGRAMS for row in each.rows]


def with_kills(code: str) -> str:
    """The program with a call behind each marked line."""
    lines = code.splitlines()
    written = [KILL.format(order=IN_HAND, signal=int(signal.SIGKILL))]
    for line in lines:
        written.append(line)
        if marked := MARK.match(line):
            inside = "    " if marked[2].endswith(":") else ""
            written.append(f"{marked[1]}{inside}_killed({marked[3]}, record.value)")
    return "\n".join(written)


@pytest.fixture
def broker() -> Iterator[Broker]:
    settings = {
        "group.initial.rebalance.delay.ms": 0,
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.num.partitions": 1,
    }
    with Broker(topics={"orders": 1, "invoices": 1}, config=settings) as made:
        made.produce("orders", *ORDERS)
        yield made


def run(code: str, broker: Broker, killed_after: int | None = None) -> None:
    environment = {**os.environ, "OTTLA_BOOTSTRAP": broker.bootstrap}
    if killed_after is not None:
        environment["KILLED_AFTER"] = str(killed_after)
    ended = subprocess.run(
        [sys.executable, "-c", with_kills(code)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    assert ended.returncode == (0 if killed_after is None else -signal.SIGKILL), ended.stderr


def invoices(broker: Broker) -> list[str]:
    """The orders that a reader of committed records finds an invoice for."""
    found = [(record.value or b"").decode() for record in broker.consume("invoices")]
    return [each.removeprefix("invoice for ") for each in found]


def committed(broker: Broker) -> int:
    with ottla.Admin(broker.bootstrap) as admin:
        return sum(each.offset for each in admin.group_offsets("billing").values())


@pytest.mark.parametrize(
    ("program", "row"), CRASHES, ids=[f"{each.title}-{row.line}" for each, row in CRASHES]
)
def test_a_crash_does_what_the_page_says(program: Program, row: Row, broker: Broker) -> None:
    run(program.code, broker, killed_after=row.line)
    assert invoices(broker).count(IN_HAND) == row.at_crash
    assert committed(broker) == (2 if row.group == "has committed" else 1)
    run(program.code, broker)
    in_the_end = invoices(broker)
    assert in_the_end.count(IN_HAND) == row.in_the_end
    assert in_the_end.count("order 1") == in_the_end.count("order 3") == 1
    assert committed(broker) == len(ORDERS)


def test_every_semantics_has_a_program_and_every_line_of_it_a_row() -> None:
    titles = [each.title for each in PROGRAMS]
    assert titles == [
        "At most once",
        "At least once",
        "Exactly once",
        "Exactly once, with asyncio",
    ]
    for program in PROGRAMS:
        marks = [int(found[3]) for line in program.code.splitlines() if (found := MARK.match(line))]
        assert marks == [row.line for row in program.rows]


def test_the_program_that_goes_on_by_itself(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    section = PAGE.read_text().partition("\n## When a transaction fails\n")[2]
    block = re.search(r"^```python\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    assert block is not None
    names: dict[str, object] = {}
    exec(block[1], names)  # what the page tells people to type
    bill = names["bill"]
    assert callable(bill)
    with (
        ottla.Consumer(
            broker.bootstrap,
            value=ottla.STRING,
            group="billing",
            reset="earliest",
            auto_commit=False,
        ) as consumer,
        ottla.Producer(broker.bootstrap, transactional_id="billing-1") as producer,
    ):
        consumer.subscribe("orders")
        broker.configure({"max.message.bytes": 60}, topic="invoices")
        for _ in range(RUN_SECONDS):
            bill(consumer, producer)
            if not invoices(broker):
                broker.configure({"max.message.bytes": 100_000}, topic="invoices")
            if committed(broker) == len(ORDERS):
                break
    assert invoices(broker) == list(ORDERS)
    assert "too large" in capsys.readouterr().out


@pytest.mark.parametrize("page", ["README.md", "docs/concepts.md"])
def test_pages_lead_here(page: str) -> None:
    assert "delivery.md" in (PAGE.parents[1] / page).read_text()
