"""Commands whose broker is not there: one line that says what to do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import Result

Run = Callable[..., Result]


@pytest.mark.parametrize(
    "command",
    [
        "topic list",
        "topic describe",
        "topic elect",
        "group list",
        "txn list",
        "cluster rebalance",
        "cluster drain 1",
        "cluster move-logs 1 /data",
    ],
)
def test_the_error_says_what_to_do(ottla: Run, command: str) -> None:
    result = ottla(*command.split(), "--bootstrap", "127.0.0.1:1")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "Error: no broker answers: nothing listens at 127.0.0.1:1; start one with `ottla server "
        "start`, or name another with --bootstrap\n"
    )


def test_there_is_no_screen(ottla: Run) -> None:
    result = ottla("top", "--bootstrap", "127.0.0.1:1")
    assert (result.exit_code, result.output.count("\n")) == (1, 1)
    assert "no broker answers: nothing listens at 127.0.0.1:1" in result.output
