"""What is said on a driver whose installation has no native code."""

from __future__ import annotations

import pytest

from ottla.pipelines.native import missing_here
from ottla.records import walker


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walker, "NATIVE", False)
    monkeypatch.setattr(walker, "TURNED_OFF", False)
    monkeypatch.setattr(walker, "WHY_PLAIN", "the native code is not there")


def test_a_task_names_its_machine_to_the_driver(plain, monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "worker-7")
    assert missing_here().startswith("worker-7 (the native code is not there; install Ottla")
