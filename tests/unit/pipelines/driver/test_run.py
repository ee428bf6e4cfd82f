"""What a driver does when a query ends, with a query that Spark has nothing to do with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ottla.pipelines.connectors.contract import Outage
from ottla.pipelines.connectors.option import Declaration
from ottla.pipelines.connectors.process import RowsFailed, Way
from ottla.pipelines.connectors.sources.staging import Folder
from ottla.pipelines.connectors.spec.values import Connector, ErrorPolicy, PipelineSpec
from ottla.pipelines.driver import run
from ottla.pipelines.driver.checkpoint import Checkpoint, LocalFiles
from ottla.pipelines.driver.home import Home
from ottla.pipelines.driver.progress import Figures, State
from ottla.pipelines.driver.run import Audience, Driver, Failed


class Query:
    """One that has ended, with an exception or without."""

    id = "query"
    isActive = False  # noqa: N815 - Spark's name for it

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    def exception(self) -> Exception | None:
        return self._error


class Nothing:
    """A source, a sink, a member, rows: whatever is called gives nothing, or what it is told."""

    trouble = None
    schema = None

    def __init__(self, *raises: Exception) -> None:
        self._raises = list(raises)

    def __getattr__(self, name: str) -> Any:
        return self._call

    def _call(self, *_: object, **__: object) -> Any:
        if self._raises:
            raise self._raises.pop(0)
        return self


class Driven(Driver):
    """Runs queries that are given to it."""

    def __init__(self, folder: Path, *queries: Query, source: Any = None, sink: Any = None) -> None:
        connector = Connector("x", {}, Declaration("x", "", (), dict))
        spec = PipelineSpec(
            "orders", "127.0.0.1:1", connector, connector, secrets=frozenset({"s3cret"}),
            on_error=ErrorPolicy(backoff=(0.0, 0.0)),
        )  # fmt: skip
        self.seen: list[Figures] = []
        way = Way(source or Nothing(), lambda rows: rows, sink or Nothing())
        super().__init__(spec, way, Home(folder, "orders"), audience=Audience(self.seen.append))
        self.queries = list(queries)
        self._home.make()

    def _start(self, raw: Any) -> Any:
        return self.queries.pop(0)

    def go(self) -> None:
        files = LocalFiles(self._home.folder / "checkpoint")
        self._query(Nothing(), Checkpoint("orders", files), Nothing(), Nothing())

    def waited_for(self) -> list[str]:
        return [each.waiting or "" for each in self.seen if each.state is State.WAITING]


def test_a_full_disk_at_the_checkpoint_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "_SPACE_PAUSE", 0.0)
    full = RuntimeError("java.io.IOException: No space left on device")
    driver = Driven(tmp_path, Query(full), Query(full), Query())
    driver.go()
    assert driver.queries == []
    waited = driver.waited_for()
    assert len(waited) == 2
    assert f"orders waits for space, at its checkpoint {tmp_path}/orders/checkpoint" in waited[0]


@pytest.mark.parametrize("role", ["source", "sink"])
def test_what_is_away_before_the_first_batch_is_waited_for(tmp_path, role):
    away = Nothing(Outage("PostgreSQL", "nobody listens at 127.0.0.1:5432"))
    driver = Driven(tmp_path, Query(), **{role: away})
    driver.go()
    assert "nobody listens at 127.0.0.1:5432" in driver.waited_for()[0]
    assert driver.figures().state is State.RUNNING


def test_a_stop_ends_that_waiting(tmp_path):
    driver = Driven(tmp_path, sink=Nothing(Outage("PostgreSQL", "nobody listens")))
    driver.stop()
    driver.go()
    assert driver.seen, "it has said what it waited for"


def test_a_source_that_is_away_is_shown(tmp_path):
    driver = Driven(tmp_path)
    staging = Folder(driver._home.staging)
    staging.wait_for("stale, of a run before")

    class Waits(Query):
        looks = 0

        @property
        def isActive(self):  # noqa: N802 - Spark's name for it
            self.looks += 1
            assert (staging.waits_for() is None) == (self.looks in (1, 3))
            staging.wait_for("PostgreSQL at db says s3cret" if self.looks == 1 else None)
            return self.looks < 3

    driver.queries.append(Waits())
    driver.go()
    assert driver.waited_for() == ["its source: PostgreSQL at db says ***"]
    assert driver.figures().state is State.RUNNING


def test_a_membership_that_is_lost_ends_that_waiting_and_no_query_starts(tmp_path):
    driver = Driven(tmp_path, Query(), sink=Nothing(Outage("PostgreSQL", "nobody listens")))
    driver._way = replace(
        driver._way, tell=lambda note: driver._membership_lost("another driver is the member")
    )
    driver._note = driver._way.tell
    with pytest.raises(Failed, match="was stopped: another driver is the member"):
        driver.go()
    assert len(driver.queries) == 1


def test_a_query_that_waits_for_space_is_not_started_again_without_the_membership(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(run, "_SPACE_PAUSE", 0.0)
    full = RuntimeError("java.io.IOException: No space left on device")
    driver = Driven(tmp_path, Query(full), Query())
    waits = driver._wait_for_space
    driver._wait_for_space = lambda what: (driver._membership_lost("it is away"), waits(what))
    with pytest.raises(Failed, match="was stopped: it is away"):
        driver.go()
    assert len(driver.queries) == 1


@pytest.mark.parametrize(
    "said",
    [
        "Python worker failed to connect back.",
        "java.net.ConnectException: Call to names:8020 failed: Connection refused",
    ],
)
def test_a_query_that_ends_for_what_passes_is_started_again(tmp_path, said):
    plan = "\n=== Streaming Query ===\nProject [id]"
    driver = Driven(tmp_path, Query(RuntimeError(said + plan)), Query())
    driver.go()
    assert driver.queries == []
    [waited] = driver.waited_for()
    assert "the query is started again in 0 s" in waited
    assert driver.figures().state is State.RUNNING


def test_words_of_the_plan_are_no_reason_to_wait(tmp_path):
    text = "[PARSE] no such thing\n=== Streaming Query ===\nFilter (said = Permission denied)"
    with pytest.raises(Failed, match="no such thing"):
        Driven(tmp_path, Query(RuntimeError(text)), Query()).go()


def test_nor_are_those_of_a_batch_which_waits_by_itself(tmp_path):
    driver = Driven(tmp_path, Query(RuntimeError("Connection refused")), Query())
    start = driver._start

    def started(raw: Any) -> Any:
        driver._raised = RowsFailed("the row at 7 was not taken: Connection refused")
        return start(raw)

    driver._start = started
    with pytest.raises(Failed, match="the row at 7"):
        driver.go()


def test_any_other_end_names_the_pipeline_and_no_secret(tmp_path, caplog):
    driver = Driven(tmp_path, Query(RuntimeError("ValueError: s3cret is no number")))
    with pytest.raises(Failed, match="pipeline orders has failed: ") as failed:
        driver.go()
    assert "is no number" in str(failed.value)
    assert "s3cret" not in f"{failed.value} {caplog.text}"
