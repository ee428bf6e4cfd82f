"""Ports for servers that tests start: nobody else is given them, also before anybody listens."""

from __future__ import annotations

import pytest

from ottla.testing.process import PORTS, free_port

MANY = 150


def given(monkeypatch: pytest.MonkeyPatch, worker: str, count: str) -> list[int]:
    monkeypatch.setenv("PYTEST_XDIST_WORKER", worker)
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", count)
    return [free_port() for _ in range(MANY)]


def test_no_port_is_given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    found = given(monkeypatch, "gw29", "30")  # of 600
    assert len(set(found)) == len(found)


def test_workers_that_run_at_the_same_time_are_given_ports_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stretches = [given(monkeypatch, f"gw{number}", "3") for number in range(3)]
    assert max(stretches[0]) < min(stretches[1])
    assert max(stretches[1]) < min(stretches[2])


@pytest.mark.parametrize(("worker", "count"), [("", ""), ("master", "3"), ("gw3", "3")])
def test_without_workers_all_ports_are_there(
    monkeypatch: pytest.MonkeyPatch, worker: str, count: str
) -> None:
    found = given(monkeypatch, worker, count)
    assert all(port in PORTS for port in found)
    assert max(found) - min(found) > len(PORTS) // 2
