"""How a read connects: the driver to the cluster, a task to the leader of its partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.pipelines.source.options import ReadOptions
from ottla.pipelines.source.task import FetchSettings

if TYPE_CHECKING:
    from ottla.pipelines.cluster import Cluster

_LEAST: Final = 1.0  # seconds for an answer


def connect(options: ReadOptions) -> Cluster:
    """The driver's view of the cluster; nothing is sent yet."""
    from ottla.pipelines.cluster import Cluster

    return Cluster(
        options.bootstrap,
        timeout=_request_timeout(options),
        client_id=options.kafka.text("client.id"),
        stable=options.read_committed,
    )


def fetch_settings(options: ReadOptions) -> FetchSettings:
    """What a task goes by. The task of a stream waits for its leader as long as it takes."""
    kafka = options.kafka
    return FetchSettings(
        loss=options.loss,
        bootstrap=options.bootstrap,
        client_id=kafka.text("client.id"),
        read_committed=options.read_committed,
        max_partition_bytes=kafka.whole("max.partition.fetch.bytes"),
        max_bytes=kafka.whole("fetch.max.bytes"),
        min_bytes=kafka.whole("fetch.min.bytes"),
        max_wait=kafka.seconds("fetch.max.wait.ms"),
        request_timeout=_request_timeout(options),
        check_crcs=kafka.truth("check.crcs"),
        columns=options.columns,
        retry_backoff=kafka.seconds("retry.backoff.ms"),
        retry_backoff_max=kafka.seconds("retry.backoff.max.ms"),
        patience=None if options.streaming else options.poll_timeout,
        rack=kafka.text("client.rack"),
    )


def _request_timeout(options: ReadOptions) -> float:
    """A batch read does not wait for one answer longer than for a broker altogether."""
    timeout = options.kafka.seconds("request.timeout.ms")
    return timeout if options.streaming else min(timeout, max(options.poll_timeout, _LEAST))
