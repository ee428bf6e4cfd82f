"""Series of followers and groups: what they say, and how many there can be."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla.broker import series_metering
from ottla.broker.series_metering import TURN, group_lag, replica_lag, volumes
from ottla.replication.isr import UNKNOWN
from ottla.runtime.metrics import Reading


def partition(start: int, end: int, **followers: int) -> Any:
    known = {int(name[1:]): SimpleNamespace(end=at) for name, at in followers.items()}
    return SimpleNamespace(
        log=SimpleNamespace(log_start_offset=start, log_end_offset=end),
        high_watermark=end,
        in_sync=SimpleNamespace(followers=known) if known else None,
    )


def services(committed: list[tuple[str, str, int, int]] | None = None, **partitions: Any) -> Any:
    """Partitions by name and number: `t0` is the first one of `t`."""
    held = {(name[:-1], int(name[-1])): each for name, each in partitions.items()}
    return SimpleNamespace(
        replicas=SimpleNamespace(
            led=lambda: iter(held.values()), held=lambda topic, index: held.get((topic, index))
        ),
        groups=SimpleNamespace(all_committed=lambda: iter(committed or [])),
    )


def values(readings: Any) -> dict[tuple[str, ...], object]:
    [reading] = [each for each in readings if each is not None]
    return dict(cast("Reading", reading).series)


def test_the_lag_of_a_follower_is_that_of_its_worst_partition() -> None:
    led = services(
        t0=partition(0, 100, _2=100, _3=40),
        t1=partition(10, 50, _2=45, _3=UNKNOWN),
        u0=partition(0, 7),
    )
    assert values(replica_lag(led)) == {("2",): 5, ("3",): 60}


def test_the_lag_of_a_group_is_summed_over_a_topic() -> None:
    of = services(
        [("g", "t", 0, 90), ("g", "t", 1, 50), ("g", "u", 0, 0), ("h", "t", 0, 200)],
        t0=partition(0, 100),
        t1=partition(0, 60),
        u0=partition(5, 10),
    )
    lags = values(group_lag(of))
    assert lags[("g", "t")] == 20
    assert lags[("g", "u")] == 5, "what retention has deleted nobody is behind with"
    assert lags[("h", "t")] == 0, "not below zero"


def test_a_group_that_also_reads_elsewhere_has_no_lag_here() -> None:
    of = services([("g", "t", 0, 0), ("g", "t", 1, 0)], t0=partition(0, 100))
    assert values(group_lag(of)) == {}


@pytest.mark.parametrize("held", [True, False])
def test_lags_are_found_in_turns_wherever_the_partitions_are(held: bool) -> None:
    committed = [(f"g{n}", "t", 0, 0) for n in range(3 * TURN)]
    of = services(committed, t0=partition(0, 10)) if held else services(committed)
    turns = [each for each in group_lag(of) if each is None]
    assert len(turns) == (6 if held else 3)


def test_the_largest_lags_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series_metering, "MOST_LAGS", 2)
    committed = [(f"g{n}" + "x" * 300, "t", 0, n) for n in range(5)]
    lags = values(group_lag(services(committed, t0=partition(0, 10))))
    assert sorted(lags.values(), reverse=True) == [10, 9]
    assert {len(group) for group, _ in lags} == {series_metering.LONGEST_LABEL}


def test_a_folder_that_is_gone_has_no_volume(tmp_path: Any) -> None:
    size, free = volumes([str(tmp_path), str(tmp_path / "gone")])
    assert [labels for labels, _ in size.series] == [(str(tmp_path),)]
    assert [labels for labels, _ in free.series] == [(str(tmp_path),)]
