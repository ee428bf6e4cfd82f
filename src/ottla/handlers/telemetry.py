"""GetTelemetrySubscriptions (71), PushTelemetry (72): what clients measure of themselves.

Versions   GetTelemetrySubscriptions 0, PushTelemetry 0.
Behaviour  Subscriptions are resources of DescribeConfigs and IncrementalAlterConfigs (16, client
           metrics). A client gets the metrics of all that it matches, at the shortest interval.
           What it pushes is shown with the broker's own metrics, for three intervals at least.
           A request before its time fails with THROTTLING_QUOTA_EXCEEDED, and so does a push of
           more than 16 KB while eight others are being read. One with an outdated subscription
           fails with UNKNOWN_SUBSCRIPTION_ID, one with more than `telemetry.max.bytes`, before or
           after decompression, with TELEMETRY_TOO_LARGE, one that cannot be read with
           INVALID_RECORD; after one that is the last by its own account everything is refused.
Odd        Both are advertised only where metrics are served (`metrics.listen`), as Kafka does only
           with an exporter, and only while there is a subscription: else every client would ask
           for nothing every five minutes. Clients that are connected when the first one is made
           are asked after they have connected anew.
           Clients are asked for cumulative sums, Kafka asks for differences; both are taken.
Not done   Histograms and summaries, which clients do not send, are counted and left out.
See        KIP-714
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from ottla.dispatch.context import Request, Services
from ottla.dispatch.table import handles
from ottla.dispatch.turns import InTurns
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.apis import ApiKey
from ottla.protocol.messages.telemetry import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
    PushTelemetryResponse,
)
from ottla.records.compression import Compression, decompress
from ottla.records.errors import InvalidBatch, TooLarge
from ottla.runtime.waiters import Deferred
from ottla.telemetry.clients import SMALL_BYTES, Instance
from ottla.telemetry.otlp import Malformed, Read, read

ACCEPTED = [Compression.ZSTD, Compression.LZ4, Compression.GZIP, Compression.SNAPPY]


def _client(
    request: Request[GetTelemetrySubscriptionsRequest] | Request[PushTelemetryRequest],
) -> dict[str, str]:
    """What subscriptions select clients by."""
    connection = request.connection
    host, _, port = connection.peer.rpartition(":")
    name, version = connection.software
    return {
        "client_id": request.client_id or "",
        "client_software_name": name,
        "client_software_version": version,
        "client_source_address": host.strip("[]"),
        "client_source_port": port,
    }


def _not_told(
    request: Request[GetTelemetrySubscriptionsRequest], error: KafkaError
) -> GetTelemetrySubscriptionsResponse:
    return GetTelemetrySubscriptionsResponse(error_code=error.code)


@handles(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, versions=range(1), failure=_not_told)
def get_telemetry_subscriptions(
    request: Request[GetTelemetrySubscriptionsRequest], services: Services
) -> GetTelemetrySubscriptionsResponse:
    instance_id, wanted = services.telemetry.subscribe(
        bytes(request.body.client_instance_id), _client(request)
    )
    return GetTelemetrySubscriptionsResponse(
        client_instance_id=instance_id,
        subscription_id=wanted.id,
        accepted_compression_types=list(map(int, ACCEPTED)),
        push_interval_ms=wanted.interval_ms,
        telemetry_max_bytes=services.config.telemetry_max_bytes,
        delta_temporality=False,
        requested_metrics=list(wanted.metrics),
    )


def _not_taken(request: Request[PushTelemetryRequest], error: KafkaError) -> PushTelemetryResponse:
    return PushTelemetryResponse(error_code=error.code)


@handles(ApiKey.PUSH_TELEMETRY, versions=range(1), failure=_not_taken)
def push_telemetry(
    request: Request[PushTelemetryRequest], services: Services
) -> InTurns[PushTelemetryResponse]:
    body, telemetry = request.body, services.telemetry
    pushed = body.metrics
    instance = telemetry.admit(
        bytes(body.client_instance_id),
        _client(request),
        body.subscription_id,
        terminating=body.terminating,
    )
    with telemetry.reading(instance) as of_size:
        of_size(len(pushed))
        content = yield from _content(request, instance, services)
        of_size(len(content))
        steps = read(content)
        found = Read()
        while True:
            try:
                next(steps)
            except StopIteration as end:
                found = end.value
                break
            except Malformed:
                telemetry.failures += 1
                raise telemetry.failed(instance, ErrorCode.INVALID_RECORD) from None
            yield 0
        if pushed:
            for _ in telemetry.keep(instance, found.points, found.left_out):
                yield 0
    return PushTelemetryResponse()


def _content(
    request: Request[PushTelemetryRequest], instance: Instance, services: Services
) -> InTurns[bytes]:
    """What was pushed, decompressed. Raises KafkaError."""
    pushed, telemetry = request.body.metrics, services.telemetry
    limit = services.config.telemetry_max_bytes
    try:
        codec = Compression.of(request.body.compression_type)
    except InvalidBatch:
        raise telemetry.failed(instance, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE) from None
    try:
        if len(pushed) > limit:
            raise TooLarge(f"{len(pushed)} bytes")
        if codec is Compression.NONE or not pushed:
            return pushed
        work = partial(decompress, codec, pushed, limit)
        if len(pushed) <= SMALL_BYTES:
            return work()
        content: bytes = yield _in_thread(request.connection, work, services)
        return content
    except TooLarge:
        telemetry.failures += 1
        raise telemetry.failed(instance, ErrorCode.TELEMETRY_TOO_LARGE) from None
    except InvalidBatch:
        telemetry.failures += 1
        raise telemetry.failed(instance, ErrorCode.INVALID_RECORD) from None


def _in_thread(owner: object, work: Callable[[], bytes], services: Services) -> Deferred[bytes]:
    """The result of work that may be long: a megabyte can be two hundred thousand blocks of
    nothing, which take half a second. Who hangs up before its turn has not asked."""
    running = services.workers.long_look_ups.run(owner, work)
    outcome: Deferred[bytes] = Deferred()
    outcome.on_abandon = running.cancel

    def done(running: asyncio.Future[bytes]) -> None:
        if running.cancelled():
            return
        error = running.exception()
        if error is not None:
            outcome.fail(error)
        else:
            outcome.resolve(running.result())

    running.add_done_callback(done)
    return outcome
