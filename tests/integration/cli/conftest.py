from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ottla.cli.main import cli


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTTLA_BOOTSTRAP", raising=False)


@pytest.fixture
def ottla() -> Callable[..., Result]:
    """`ottla("topic", "list", input=…)`: run a command line in this process."""

    def run(*arguments: str, **options: Any) -> Result:
        return CliRunner().invoke(cli, arguments, prog_name="ottla", **options)

    return run
