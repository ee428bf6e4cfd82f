"""The examples of pipelines, their numbers checked against a computation without Spark."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import pytest

from ottla.pipelines.connectors.spec.check import read_file
from ottla.testing import Broker
from ottla.testing.postgres import PostgresProcess

EXAMPLES = Path(__file__).parents[2] / "examples" / "pipelines"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem != "stage")
VARIABLES = {
    **dict.fromkeys(("LOGS", "ARCHIVE", "DROPS", "DEVICE", "BOARD", "STORE", "BOOKS"), "somewhere"),
    **dict.fromkeys(("LABELS", "LAKE", "REPLICA"), "somewhere"),
    "SERVICE": "http://127.0.0.1:1",
    "PG_DSN": "postgresql://127.0.0.1:1/shop",
}
"""Something for each variable of the files, to check them without running them."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def stage(broker: Broker, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """One for each example, on the broker and the Spark of all."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from stage import Stage

    return Stage(broker.bootstrap, tmp_path, spark)


def example(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


def shown(name: str) -> str:
    """What the page of the examples says that one prints."""
    page = (EXAMPLES / "README.md").read_text()
    found = re.search(rf"\n\[{name}\.py\].*?```text\n(.*?)```", page, re.DOTALL)
    assert found is not None, f"examples/pipelines/README.md does not show what {name}.py prints"
    return found[1]


def test_every_line_of_every_machine_is_in_the_archive_once(
    stage: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    program = example("log_aggregation")
    outcome = program["run"](stage)
    assert capsys.readouterr().out == shown("log_aggregation")
    lines = [line for lines in (program["AT_FIRST"] | program["LATER"]).values() for line in lines]
    right = [line for line in lines if re.match(r"\d{4}-", line)]
    assert outcome.archived == Counter((line[:10], line.split()[2]) for line in right)
    assert sorted(outcome.letters) == sorted(set(lines) - set(right))


def test_figures_of_all_places_are_there_once(
    stage: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    program = example("metrics_gathering")
    outcome = program["run"](stage)
    assert capsys.readouterr().out == shown("metrics_gathering")
    values: dict[tuple[str, str], list[float]] = {}
    for figure in program["SERVICE"]:
        values.setdefault(("checkout", figure["name"]), []).append(figure["value"])
    for rows in program["FILES"].values():
        for machine, _, cpu, memory in rows:
            values.setdefault((machine, "cpu"), []).append(cpu)
            values.setdefault((machine, "memory"), []).append(memory)
    for device, _, fahrenheit in program["DEVICE"]:
        values.setdefault((device, "temperature"), []).append((fahrenheit - 32) / 1.8)
    assert outcome.board == {
        place: (len(found), pytest.approx(sum(found) / len(found)))
        for place, found in values.items()
    }


def test_a_replica_has_the_state_of_its_log(stage: Any, capsys: pytest.CaptureFixture[str]) -> None:
    program = example("commit_log")
    outcome = program["run"](stage)
    assert capsys.readouterr().out == shown("commit_log")

    def state(log: list[Any]) -> dict[str, int]:
        last = {change.account: change.balance for change in log}
        return {account: balance for account, balance in last.items() if balance is not None}

    first, second = program["FIRST"], program["SECOND"]
    assert outcome.halfway == state(first)
    assert outcome.first == outcome.second == state(first + second)
    assert any(change.balance is None for change in second), "no account is closed"


def test_each_group_gets_every_order_at_its_own_pace(
    stage: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    program = example("decoupling")
    outcome = program["run"](stage)
    assert capsys.readouterr().out == shown("decoupling")
    orders = program["ORDERS"]
    assert outcome.lags == {"billing": 0, "shipping": len(orders) - 10}
    gross = {each["id"]: Decimal(each["cents"]) * Decimal("1.21") for each in orders}
    assert outcome.invoices == {
        number: int(each.quantize(Decimal(1), ROUND_HALF_UP)) for number, each in gross.items()
    }
    assert outcome.labels == [(each["id"], each["city"]) for each in orders if each["city"]]


def test_every_state_of_every_order_is_in_the_files_once(
    stage: Any, postgres: PostgresProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    program = example("database_to_files")
    outcome = program["run"](stage, postgres)
    assert capsys.readouterr().out == shown("database_to_files")
    paid = [(n, amount) for n, (_, amount) in enumerate(program["ORDERS"], start=1) if amount]
    shipped = [(n, amount) for n, amount in paid if n % 4 == 0]
    assert outcome.rows == {"new": len(paid), "shipped": len(shipped)}
    assert outcome.amounts == {
        "new": sum(amount for _, amount in paid),
        "shipped": sum(amount for _, amount in shipped),
    }


def test_an_example_is_one_command() -> None:
    """The one with the fewest pipelines, as a reader starts it: it brings all that it needs."""
    environment = {key: each for key, each in os.environ.items() if not key.startswith("OTTLA_")}
    ended = subprocess.run(
        [sys.executable, str(EXAMPLES / "commit_log.py")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == shown("commit_log")


@pytest.mark.parametrize("name", NAMES)
def test_an_example_says_what_it_shows_and_its_page_has_the_command(name: str) -> None:
    source = (EXAMPLES / f"{name}.py").read_text()
    first, _, rest = source.removeprefix('"""').partition("\n")
    assert first.endswith(".")
    assert rest.strip()
    page = (EXAMPLES / "README.md").read_text()
    assert f"examples/pipelines/{name}.py\n" in page
    files = re.findall(r"\w+\.yaml", source)
    assert files
    for file in files:
        assert f"]({file})" in page, f"the page does not lead to {file}"
        assert read_file(EXAMPLES / file, VARIABLES).name
