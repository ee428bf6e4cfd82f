"""The answer to a fetch: what was read, as its session wants to be told, counted as sent."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from ottla.dispatch.context import Services
from ottla.errors import KafkaError
from ottla.handlers.fetch.plan import Plan
from ottla.handlers.fetch.reading import Reading, size_of
from ottla.model.ids import ZERO_TOPIC_ID
from ottla.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from ottla.replication.fetch_sessions import NO_SESSION
from ottla.replication.rounds import Key


def respond(plan: Plan, reading: Reading, services: Services) -> FetchResponse:
    """The answer, which is about to be sent."""
    by_topic: dict[str | bytes, FetchableTopicResponse] = {}
    note_sent(plan, reading, services)
    respond_some(plan, reading.parts, by_topic)
    count_sent(plan, reading)
    return response_of(plan, by_topic, services)


def note_sent(plan: Plan, reading: Reading, services: Services) -> None:
    """Have what followers are sent counted, where that is limited."""
    replication = services.replication
    if not plan.reader.follows or not replication.sending.limited:
        return
    for key, part in reading.parts:
        size = size_of(part)
        if size:
            with suppress(KafkaError):  # it is not led here any more
                replication.note_sent(plan.reader.find(key, services.replicas), size)


def count_sent(plan: Plan, reading: Reading) -> None:
    """Count what goes out of topics, to clients or to followers."""
    for traffic, size in reading.sent:
        if plan.follower is None:
            traffic.bytes_out += size
        else:
            traffic.replicated_out += size


def respond_some(
    plan: Plan,
    parts: Iterable[tuple[Key, PartitionData]],
    by_topic: dict[str | bytes, FetchableTopicResponse],
) -> None:
    """Put parts with news for the session into the answer, by topic."""
    session = plan.session
    for key, part in parts:
        if session is not None:
            wanted = session.partitions.get(key)
            size = size_of(part)
            news = wanted is None or wanted.note_told(
                size > 0, part.error_code, part.high_watermark, part.log_start_offset
            )
            if size and wanted is not None:
                session.served(key)
            told_anyway = part.diverging_epoch is not None or part.preferred_read_replica >= 0
            if plan.incremental and not news and not told_anyway:
                continue
        name = key[0]
        topic = by_topic.get(name)
        if topic is None:
            topic = by_topic[name] = FetchableTopicResponse(
                topic=name if isinstance(name, str) else "",
                topic_id=name if isinstance(name, bytes) else ZERO_TOPIC_ID,
                partitions=[],
            )
        topic.partitions.append(part)


def response_of(
    plan: Plan, by_topic: dict[str | bytes, FetchableTopicResponse], services: Services
) -> FetchResponse:
    """The answer with these topics; when a follower gets it is noted."""
    if plan.follower is not None:
        plan.follower.noted = services.replication.now_ms()
    session_id = plan.session.id if plan.session is not None else NO_SESSION
    response = FetchResponse(session_id=session_id, responses=list(by_topic.values()))
    if plan.hints is not None:
        response.node_endpoints = plan.hints.endpoints
    return response
