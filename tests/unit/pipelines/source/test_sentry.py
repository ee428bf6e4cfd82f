"""The driver's look at the cluster while a batch runs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from ottla.client.descriptions import OffsetInfo
from ottla.client.topology import Leader
from ottla.errors import ErrorCode
from ottla.model.ids import TopicPartition
from ottla.pipelines.cluster import Topic, Unreachable
from ottla.pipelines.source.sentry import Sentry

CLICKS = TopicPartition("clicks", 0)


class FakeCluster:
    bootstrap = "broker:9092"

    def __init__(self) -> None:
        self.gone = False
        self.looks = 0

    def topics(self, names: Any) -> dict[str, Topic]:
        self.looks += 1
        if self.gone:
            raise Unreachable(ErrorCode.BROKER_NOT_AVAILABLE, "broker:9092: Connection refused")
        return {name: Topic(name, bytes(16), {0: Leader(1, 0)}) for name in names}

    def ends(self, partitions: Any) -> dict[TopicPartition, OffsetInfo]:
        return {tp: OffsetInfo(5) for tp in partitions}

    def __enter__(self) -> FakeCluster:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_a_broker_that_goes_under_a_batch_is_told_of_and_remembered(
    caplog: pytest.LogCaptureFixture, eventually: Callable[..., Any]
) -> None:
    cluster = FakeCluster()
    cluster.gone = True
    sentry = Sentry(lambda: cluster, every=0.01)
    with caplog.at_level(logging.WARNING, "ottla.pipelines"):
        sentry.look_after([CLICKS])
        eventually(lambda: "broker:9092 cannot be reached" in caplog.text)
        assert sentry.last is not None
        cluster.gone = False
        eventually(lambda: "can be reached again" in caplog.text)
    sentry.rest()
    assert sentry.last["reason"] == "broker:9092: Connection refused"
    assert sentry.last.keys() == {"reason", "began", "seconds"}


def test_between_batches_nobody_is_asked(eventually: Callable[..., Any]) -> None:
    cluster = FakeCluster()
    sentry = Sentry(lambda: cluster, every=3600)
    sentry.look_after([CLICKS])
    sentry.rest()
    assert cluster.looks == 0
    assert sentry.last is None
