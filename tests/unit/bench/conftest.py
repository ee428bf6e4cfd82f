"""The bench is no installed package: it is run from the repository's root."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))


@pytest.fixture(autouse=True)
def ports_without_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.systems.free_ports", lambda count: list(range(1, count + 1)))
    monkeypatch.setattr("bench.systems.free_port_block", lambda _count: 1)
