"""What `ottla pipeline redrive` says while it waits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from click.testing import CliRunner

from ottla.cli import pipeline_check
from ottla.cli.main import cli
from ottla.pipelines.connectors.process import NOTHING, Event, Note, Outcome, Way

FILE = """\
name: orders
bootstrap: 127.0.0.1:9092
kafka: {client.rack: "${RACK}"}
source: generator
sink: console
on_error: {dead_letter: orders.dlq}
"""


class Redrive:
    """Waits once, and has nothing to send."""

    def __init__(self, _spec: Any, way: Way, _topic: Any, _spark: Any) -> None:
        self._way = way

    def chosen(self, _where: str | None) -> list[Any]:
        return []

    def go(self, _found: list[Any]) -> Outcome:
        self._way.tell(Note(Event.OUTAGE, "PostgreSQL in s3cret does not answer; waiting"))
        return NOTHING

    def without_value(self) -> int:
        return 0


def test_an_outage_is_told_on_the_terminal_without_secrets(tmp_path, monkeypatch, capfd):
    @contextmanager
    def session(_spec: Any) -> Iterator[None]:
        with pipeline_check._quiet():
            yield

    monkeypatch.setattr("ottla.pipelines.connectors.redrive.Redrive", Redrive)
    monkeypatch.setattr(pipeline_check, "_session", session)
    monkeypatch.setenv("RACK", "s3cret")
    file = tmp_path / "orders.yaml"
    file.write_text(FILE)
    done = CliRunner().invoke(cli, ["pipeline", "redrive", str(file)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert capfd.readouterr().err == "orders: PostgreSQL in *** does not answer; waiting\n"
