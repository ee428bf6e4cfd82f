"""The dispatcher with a table of made-up handlers, over real codecs."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla.coordinator.replies import settle
from ottla.dispatch.context import Request, Services
from ottla.dispatch.dispatcher import Dispatcher
from ottla.dispatch.pieces import ListOf
from ottla.dispatch.table import Table, handles
from ottla.dispatch.turns import InTurns
from ottla.errors import ErrorCode, KafkaError
from ottla.handlers.api_versions import api_versions
from ottla.model.image import ClusterImage
from ottla.net.connection import Connection, Hangup, Reply
from ottla.protocol.apis import ApiKey
from ottla.protocol.compiler import codec
from ottla.protocol.header import parse_response_header, request_header
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.offsets import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    DeleteRecordsTopicResult,
)
from ottla.protocol.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from ottla.runtime.metrics import Metrics
from ottla.runtime.waiters import Deferred

KEY = ApiKey.INIT_PRODUCER_ID
FIRST_FLEXIBLE = 2

Handled = Callable[[Request[Any], Services], Any]


class Bench:
    """A dispatcher that knows ApiVersions and one other API, answered by `handler`."""

    def __init__(self, handler: Handled, *, answers_failures: bool = True) -> None:
        def failed(request: Request[Any], error: KafkaError) -> InitProducerIdResponse:
            return InitProducerIdResponse(error_code=error.code, producer_epoch=-1)

        mark = handles(KEY, versions=range(6), failure=failed if answers_failures else None)
        table = Table([mark(handler), api_versions])
        self.metrics = Metrics()
        registry = SimpleNamespace(features={})
        self.services = cast(
            "Services",
            SimpleNamespace(
                metrics=self.metrics, table=table, image=ClusterImage(), registry=registry
            ),
        )
        self.connection = cast(
            "Connection",
            SimpleNamespace(client="", peer="10.0.0.1:5000", listener="PLAINTEXT", remembered=None),
        )
        self.dispatcher = Dispatcher(table, self.services)

    def send(
        self, version: int = 0, *, correlation_id: int = 7, extra: bytes = b"", **fields: Any
    ) -> Reply | Deferred[Reply]:
        values = {"transactional_id": None, "transaction_timeout_ms": 60_000, **fields}
        parts: list[Any] = []
        codec(InitProducerIdRequest, version).encode(InitProducerIdRequest(**values), parts)
        head = request_header(KEY, version, correlation_id, "tester")
        return self.send_frame(head + b"".join(parts) + extra)

    def send_frame(self, frame: bytes) -> Reply | Deferred[Reply]:
        return self.dispatcher.answer(self.connection, memoryview(bytearray(frame)))

    def counted(self, name: str, api: str = "InitProducerId") -> int:
        values = self.metrics.values()
        labels = f'{{request="{api}"}}'
        return int(values.get(f"{name}{labels}", values.get(f"{name}_count{labels}", 0)))


def read(
    reply: object,
    version: int = 0,
    *,
    correlation_id: int = 7,
    key: ApiKey = KEY,
    kind: type[Any] = InitProducerIdResponse,
) -> Any:
    """The response in a reply, after a look at its length and header."""
    assert isinstance(reply, list)
    frame = b"".join(bytes(part) for part in reply)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    body = memoryview(frame)[4:]
    found, position = parse_response_header(body, key, version)
    assert found == correlation_id
    message, end = codec(kind, version).decode(body, position)
    assert end == len(body)
    return message


def well(producer_id: int = 42) -> InitProducerIdResponse:
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def deferred(reply: object) -> Deferred[Reply]:
    assert isinstance(reply, Deferred)
    return reply


@contextmanager
def garbage() -> Iterator[list[object]]:
    """What only the garbage collector frees of all that is made meanwhile."""
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    found: list[object] = []
    try:
        yield found
        gc.collect()
        found += gc.garbage
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


# -- answers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(6))
def test_a_straight_answer_is_encoded_in_the_version_of_its_request(version: int) -> None:
    seen: list[Request[InitProducerIdRequest]] = []

    def handler(request: Request[Any], services: Services) -> InitProducerIdResponse:
        assert services is bench.services
        seen.append(request)
        return well()

    bench = Bench(handler)
    reply = bench.send(version, transactional_id="t", correlation_id=123)
    assert read(reply, version, correlation_id=123).producer_id == 42
    [request] = seen
    assert (request.api_version, request.client_id, request.listener) == (
        version,
        "tester",
        "PLAINTEXT",
    )
    assert (request.body.transactional_id, request.body.transaction_timeout_ms) == ("t", 60_000)
    assert bench.connection.client == "tester"
    assert bench.counted("kafka_network_request_metrics_requests_total") == 1
    assert bench.counted("kafka_network_request_metrics_total_time_seconds") == 1
    assert bench.counted("kafka_network_request_metrics_errors_total") == 0


def test_no_answer_is_sent_where_none_is_wanted() -> None:
    bench = Bench(lambda request, services: None)
    assert bench.send() is None
    assert bench.counted("kafka_network_request_metrics_total_time_seconds") == 1


def test_a_deferred_answer_is_encoded_in_the_call_that_resolves_it() -> None:
    later: Deferred[InitProducerIdResponse] = Deferred()
    bench = Bench(lambda request, services: later)
    reply = deferred(bench.send(FIRST_FLEXIBLE))
    assert not reply.done
    assert not reply.exclusive
    assert bench.counted("kafka_network_request_metrics_total_time_seconds") == 0
    later.resolve(well(9))
    assert reply.done
    assert read(reply.result(), FIRST_FLEXIBLE).producer_id == 9
    assert bench.counted("kafka_network_request_metrics_total_time_seconds") == 1


def test_a_deferred_answer_that_is_there_already_is_no_different() -> None:
    later: Deferred[InitProducerIdResponse] = Deferred()
    later.resolve(well(9))
    reply = deferred(Bench(lambda request, services: later).send())
    assert read(reply.result()).producer_id == 9


def test_a_deferred_answer_may_be_none() -> None:
    later: Deferred[None] = Deferred()
    reply = deferred(Bench(lambda request, services: later).send())
    later.resolve(None)
    assert reply.done
    assert reply.result() is None


@pytest.mark.parametrize("refused", [False, True])
def test_an_answer_that_came_later_leaves_nothing_to_the_garbage_collector(refused: bool) -> None:
    waiting: list[Deferred[Any]] = []

    def handler(request: Request[Any], services: Services) -> Deferred[Any]:
        waiting.append(Deferred())
        return waiting[0]

    bench = Bench(handler)
    answers: list[object] = []
    with garbage() as found:
        deferred(bench.send()).on_done(lambda done: answers.append(done.result()))
        settle(waiting.pop(), KafkaError(ErrorCode.NOT_COORDINATOR) if refused else well())
        assert answers
    assert not [kept for kept in found if isinstance(kept, Deferred | InitProducerIdRequest)]


def test_an_exclusive_deferred_stays_exclusive() -> None:
    later: Deferred[InitProducerIdResponse] = Deferred(exclusive=True)
    assert deferred(Bench(lambda request, services: later).send()).exclusive


def test_whoever_works_on_an_abandoned_answer_is_told() -> None:
    stopped: list[bool] = []
    later: Deferred[InitProducerIdResponse] = Deferred()
    later.on_abandon = lambda: stopped.append(True)
    deferred(Bench(lambda request, services: later).send()).abandon()
    assert stopped == [True]


async def test_a_coroutine_holds_back_the_next_request_and_its_result_is_encoded() -> None:
    go = asyncio.Event()

    async def handler(request: Request[Any], services: Services) -> InitProducerIdResponse:
        await go.wait()
        return well(5)

    bench = Bench(handler)
    reply = deferred(bench.send(4))
    assert reply.exclusive
    assert not reply.done
    go.set()
    assert read(await reply, 4).producer_id == 5
    assert bench.counted("kafka_network_request_metrics_total_time_seconds") == 1


async def test_closing_waits_for_coroutines() -> None:
    go = asyncio.Event()

    async def handler(request: Request[Any], services: Services) -> InitProducerIdResponse:
        await go.wait()
        return well()

    bench = Bench(handler)
    reply = deferred(bench.send())
    closing = asyncio.create_task(bench.dispatcher.close())
    await asyncio.sleep(0)
    assert not closing.done()
    go.set()
    await closing
    assert reply.done


async def test_closing_with_nothing_at_work_returns_at_once() -> None:
    await Bench(lambda request, services: well()).dispatcher.close()


# -- failures ----------------------------------------------------------------------------------


def failing(how: str, error: Exception) -> Handled:
    """A handler that fails at once, by its Deferred, or in its coroutine."""

    def straight(request: Request[Any], services: Services) -> Any:
        raise error

    def by_deferred(request: Request[Any], services: Services) -> Any:
        later: Deferred[InitProducerIdResponse] = Deferred()
        later.fail(error)
        return later

    async def by_coroutine(request: Request[Any], services: Services) -> Any:
        raise error

    return {"straight": straight, "deferred": by_deferred, "coroutine": by_coroutine}[how]


HOWS = pytest.mark.parametrize("how", ["straight", "deferred", "coroutine"])


async def outcome(bench: Bench) -> Reply:
    reply = bench.send()
    return await reply if isinstance(reply, Deferred) else reply


@HOWS
async def test_an_error_of_the_whole_request_becomes_the_response_for_it(how: str) -> None:
    bench = Bench(failing(how, KafkaError(ErrorCode.INVALID_REQUEST)))
    assert read(await outcome(bench)).error_code == ErrorCode.INVALID_REQUEST
    assert bench.counted("kafka_network_request_metrics_errors_total") == 1
    assert bench.counted("kafka_network_request_metrics_total_time_seconds") == 1


@HOWS
async def test_without_a_response_for_failures_the_connection_is_closed(how: str) -> None:
    error = KafkaError(ErrorCode.INVALID_REQUEST, "so it is")
    bench = Bench(failing(how, error), answers_failures=False)
    with pytest.raises(Hangup, match=r"InitProducerId failed: .*so it is"):
        await outcome(bench)
    assert bench.counted("kafka_network_request_metrics_errors_total") == 1


@HOWS
async def test_a_bug_is_logged_once_with_its_traceback_and_answered(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(failing(how, ZeroDivisionError("oops")))
    assert read(await outcome(bench)).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    [line] = caplog.records
    assert line.levelno == logging.ERROR
    assert line.getMessage() == "InitProducerId v0 from 10.0.0.1:5000 (client id 'tester') failed"
    assert line.exc_info is not None
    assert line.exc_info[0] is ZeroDivisionError


@HOWS
async def test_a_bug_without_a_response_for_it_closes_the_connection(how: str) -> None:
    bench = Bench(failing(how, ZeroDivisionError("oops")), answers_failures=False)
    with pytest.raises(Hangup) as hangup:
        await outcome(bench)
    assert "oops" not in str(hangup.value), "what went wrong inside is for the log alone"


@HOWS
async def test_a_handler_may_close_the_connection_itself(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(failing(how, Hangup("enough")))
    with pytest.raises(Hangup, match="enough"):
        await outcome(bench)
    assert not caplog.records


@HOWS
async def test_a_response_that_cannot_be_encoded_closes_the_connection_and_is_logged(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    impossible = InitProducerIdResponse(producer_epoch=1 << 20)

    async def by_coroutine(request: Request[Any], services: Services) -> Any:
        return impossible

    def plain(request: Request[Any], services: Services) -> Any:
        if how == "straight":
            return impossible
        later: Deferred[InitProducerIdResponse] = Deferred()
        later.resolve(impossible)
        return later

    bench = Bench(by_coroutine if how == "coroutine" else plain)
    with pytest.raises(Hangup, match="internal error"):
        await outcome(bench)
    assert [line.getMessage() for line in caplog.records] == ["a InitProducerId v0 response"]


# -- what cannot be understood -----------------------------------------------------------------


def never(request: Request[Any], services: Services) -> Any:
    raise AssertionError("the handler must not be reached")


@pytest.mark.parametrize("key", [0, 999, -1])
def test_an_api_that_is_not_served_closes_the_connection(key: int) -> None:
    with pytest.raises(Hangup, match=f"API key {key} "):
        Bench(never).send_frame(request_header(key, 3, 1, "tester"))


@pytest.mark.parametrize("version", [6, 99, -1])
def test_a_version_out_of_range_closes_the_connection(version: int) -> None:
    frame = request_header(KEY, version, 1, "tester") + bytes(40)
    with pytest.raises(Hangup, match=f"InitProducerId v{version} is outside the versions 0 to 5"):
        Bench(never).send_frame(frame)


@pytest.mark.parametrize("frame", [b"", b"\0", bytes([0, KEY, 0, 0, 0, 0]), b"\0" * 9])
def test_a_frame_that_is_too_short_for_a_header_closes_the_connection(frame: bytes) -> None:
    with pytest.raises(Hangup, match="not a request header"):
        Bench(never).send_frame(frame)


def test_a_client_id_that_is_not_text_closes_the_connection() -> None:
    head = bytearray(request_header(KEY, 0, 1, "abc"))
    head[-3:] = b"\xff\xfe\xfd"
    with pytest.raises(Hangup, match="not a request header"):
        Bench(never).send_frame(bytes(head))


@pytest.mark.parametrize("version", [0, FIRST_FLEXIBLE])
@pytest.mark.parametrize("body", [b"", b"\x7f", b"\x7f\xff" * 3, b"\x7e" * 30])
def test_a_body_of_garbage_closes_the_connection(version: int, body: bytes) -> None:
    bench = Bench(never)
    frame = request_header(KEY, version, 1, "tester") + body
    with pytest.raises(Hangup, match=f"malformed InitProducerId v{version}: "):
        bench.send_frame(frame)
    assert bench.counted("kafka_network_request_metrics_requests_total") == 0, (
        "what was not understood is not counted"
    )


@pytest.mark.parametrize("version", range(6))
def test_bytes_behind_the_body_are_ignored_as_kafka_does(version: int) -> None:
    bench = Bench(lambda request, services: well())
    assert read(bench.send(version, extra=b"more than was asked"), version).producer_id == 42


# -- ApiVersions -------------------------------------------------------------------------------


@pytest.mark.parametrize("frame", [b"", b"\xff" * 50])
def test_api_versions_of_the_future_is_answered_in_the_oldest_form(frame: bytes) -> None:
    bench = Bench(never)
    reply = bench.send_frame(request_header(ApiKey.API_VERSIONS, 99, 5, "newer") + frame)
    answer = read(reply, 0, correlation_id=5, key=ApiKey.API_VERSIONS, kind=ApiVersionsResponse)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    [served] = answer.api_keys
    assert (served.api_key, served.min_version, served.max_version) == (18, 0, 4)


@pytest.mark.parametrize("version", range(5))
def test_api_versions_lists_the_table_behind_the_old_header(version: int) -> None:
    body = ApiVersionsRequest(client_software_name="t", client_software_version="1")
    parts: list[Any] = []
    codec(ApiVersionsRequest, version).encode(body, parts)
    head = request_header(ApiKey.API_VERSIONS, version, 5, None)
    reply = Bench(never).send_frame(head + b"".join(parts))
    answer = read(
        reply, version, correlation_id=5, key=ApiKey.API_VERSIONS, kind=ApiVersionsResponse
    )
    assert [(each.api_key, each.min_version, each.max_version) for each in answer.api_keys] == [
        (18, 0, 4),
        (22, 0, 5),
    ]


def test_two_handlers_of_one_api_are_a_mistake() -> None:
    def first(request: Request[Any], services: Services) -> None: ...
    def second(request: Request[Any], services: Services) -> None: ...

    mark = handles(KEY, versions=range(6))
    with pytest.raises(ValueError, match="INIT_PRODUCER_ID has two handlers"):
        Table([mark(first), mark(second)])


# -- requests of many entries ------------------------------------------------------------------


class Crowd:
    """A dispatcher that deletes records, in pieces or not, over requests of any size."""

    def __init__(
        self,
        handler: Handled,
        *,
        pieces: bool = True,
        most: int = 100_000,
        changes: bool = False,
        link: object = None,
    ) -> None:
        cut = ListOf("topics", "topics", "partitions", "partitions", changes=changes)
        mark = handles(
            ApiKey.DELETE_RECORDS,
            versions=range(3),
            failure=None if link is None else lambda *_: DeleteRecordsResponse(topics=[]),
            pieces=cut if pieces else None,
            most=most,
            for_controller=link is not None,
        )
        table = Table([mark(handler), api_versions])
        self.services = cast(
            "Services", SimpleNamespace(metrics=Metrics(), table=table, controller_link=link)
        )
        self.lent = 0
        self.connection = cast(
            "Connection",
            SimpleNamespace(
                client="",
                peer="10.0.0.1:5000",
                listener="PLAINTEXT",
                remembered=None,
                keep=self._keep,
                let_go=self._let_go,
            ),
        )
        self.dispatcher = Dispatcher(table, self.services)

    def _keep(self, frame: memoryview) -> bytearray:
        self.lent += len(frame)
        return bytearray(frame)

    def _let_go(self, kept: bytearray) -> None:
        self.lent -= len(kept)

    def delete(self, count: int) -> Reply | Deferred[Reply]:
        partitions = [
            DeleteRecordsPartition(partition_index=number, offset=-1) for number in range(count)
        ]
        return self.ask([DeleteRecordsTopic(name="t", partitions=partitions)])

    def ask(self, topics: list[DeleteRecordsTopic]) -> Reply | Deferred[Reply]:
        parts: list[Any] = []
        codec(DeleteRecordsRequest, 2).encode(
            DeleteRecordsRequest(topics=topics, timeout_ms=0), parts
        )
        frame = request_header(ApiKey.DELETE_RECORDS, 2, 7, "tester") + b"".join(parts)
        return self.dispatcher.answer(self.connection, memoryview(bytearray(frame)))

    def versions(self) -> Reply | Deferred[Reply]:
        frame = request_header(ApiKey.API_VERSIONS, 0, 8, "tester")
        return self.dispatcher.answer(self.connection, memoryview(bytearray(frame)))


def deleted(request: Request[DeleteRecordsRequest], services: Services) -> DeleteRecordsResponse:
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[
                    DeleteRecordsPartitionResult(
                        partition_index=each.partition_index, low_watermark=len(topic.partitions)
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.body.topics
        ]
    )


async def test_a_request_of_many_entries_is_handled_in_turns_with_others() -> None:
    crowd = Crowd(deleted)
    reply = deferred(crowd.delete(20_000))
    assert reply.exclusive
    turns = 0
    while not reply.done:
        assert isinstance(crowd.versions(), list)  # others are answered meanwhile
        turns += 1
        await asyncio.sleep(0)
    assert turns > 3
    (topic,) = read(reply.result(), 2, key=ApiKey.DELETE_RECORDS, kind=DeleteRecordsResponse).topics
    assert [each.partition_index for each in topic.partitions] == list(range(20_000))
    assert max(each.low_watermark for each in topic.partitions) <= 128  # as the handler saw it
    assert crowd.lent == 0


async def test_a_request_of_few_but_long_entries_is_handled_in_turns() -> None:
    pieces: list[int] = []

    def seen(request: Request[Any], services: Services) -> DeleteRecordsResponse:
        pieces.append(len(request.body.topics))
        return deleted(request, services)

    crowd = Crowd(seen)
    names = [f"{number}" + "x" * 2_000 for number in range(1_000)]
    reply = crowd.ask([DeleteRecordsTopic(name=name, partitions=[]) for name in names])
    parts = await reply if isinstance(reply, Deferred) else reply
    found = read(parts, 2, key=ApiKey.DELETE_RECORDS, kind=DeleteRecordsResponse).topics
    assert [each.name for each in found] == names
    assert max(pieces) <= 128
    assert crowd.lent == 0


async def test_a_request_of_many_entries_may_wait_for_its_answers() -> None:
    async def handler(request: Request[Any], services: Services) -> DeleteRecordsResponse:
        await asyncio.sleep(0)
        if request.body.topics[0].partitions[0].partition_index == 0:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)
        return deleted(request, services)

    crowd = Crowd(handler)
    with pytest.raises(Hangup, match="DeleteRecords failed"):  # it has no answer for failures
        await deferred(crowd.delete(2_000))
    assert crowd.lent == 0


async def test_a_request_of_many_entries_that_cannot_be_cut_has_a_limit() -> None:
    crowd = Crowd(deleted, pieces=False, most=2_000)
    reply = crowd.delete(1_900)
    if isinstance(reply, Deferred):
        reply = await reply
    (topic,) = read(reply, 2, key=ApiKey.DELETE_RECORDS, kind=DeleteRecordsResponse).topics
    assert topic.partitions[0].low_watermark == 1_900
    with pytest.raises(Hangup, match="partitions: 2001 elements are too many for one request"):
        crowd.delete(2_001)
    assert crowd.lent == 0


async def test_a_client_that_has_gone_is_not_worked_for() -> None:
    crowd = Crowd(deleted)
    reply = deferred(crowd.delete(20_000))
    assert crowd.lent > 0
    reply.abandon()
    assert crowd.lent == 0
    await asyncio.sleep(0)


async def test_what_changes_something_is_done_to_the_end_even_if_the_client_has_gone() -> None:
    done: list[int] = []

    async def handler(request: Request[Any], services: Services) -> DeleteRecordsResponse:
        await asyncio.sleep(0)
        done.extend(each.partition_index for each in request.body.topics[0].partitions)
        return deleted(request, services)

    crowd = Crowd(handler, changes=True)
    deferred(crowd.delete(20_000)).abandon()
    assert crowd.lent > 0
    await crowd.dispatcher.close()  # which waits for it
    assert done == list(range(20_000))
    assert crowd.lent == 0


async def test_pieces_are_not_handed_on_when_one_has_waited_for_a_controller_in_vain() -> None:
    """Each had the client's time anew: what had failed for the client was done an hour later."""
    handed_on: list[int] = []

    class Link:
        def goes_on(self, client_id: str | None) -> bool:
            return True

        async def hand_on(self, body: DeleteRecordsRequest, *_: object) -> DeleteRecordsResponse:
            handed_on.append(body.topics[0].partitions[0].partition_index)
            if len(handed_on) > 2:
                raise KafkaError(ErrorCode.NOT_CONTROLLER)
            return DeleteRecordsResponse(topics=[])

    await deferred(Crowd(deleted, changes=True, link=Link()).delete(2_000))
    assert len(handed_on) == 3
    assert handed_on[0] == 0


async def test_a_request_of_many_entries_without_an_answer_is_handled_in_turns_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ottla.dispatch.turns.SLICE", 0)
    seen: list[int] = []

    def handler(request: Request[Any], services: Services) -> None:
        seen.extend(each.partition_index for each in request.body.topics[0].partitions)

    crowd = Crowd(handler)
    reply = deferred(crowd.delete(20_000))
    counts = set()
    while not reply.done:
        counts.add(len(seen))
        await asyncio.sleep(0)
    assert reply.result() is None
    assert seen == list(range(20_000))
    assert len(counts) > 3, "all at once"


async def test_a_handler_in_turns_may_have_much_to_do_for_a_small_request() -> None:
    def handler(request: Request[Any], services: Services) -> InTurns[DeleteRecordsResponse]:
        for number in range(50_000):
            yield int(number % 2)
        return deleted(request, services)

    crowd = Crowd(handler)
    reply = deferred(crowd.delete(3))
    (topic,) = read(await reply, 2, key=ApiKey.DELETE_RECORDS, kind=DeleteRecordsResponse).topics
    assert len(topic.partitions) == 3
