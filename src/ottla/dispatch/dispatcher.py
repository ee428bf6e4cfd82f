"""From a frame to its answer: decode, check the version, call, map errors, encode.

What cannot be understood closes the connection, as in Kafka: an unknown API, a version outside
the range, a body that does not decode. Only ApiVersions is answered at any version, because it is
how a client finds out.

The straight path (a handler that returns its response) creates no coroutine, future or task.

A request of many entries is decoded, handled and answered in turns with the others (`turns`): its
decoder, its handler and the encoder of its answer are generators. So is any handler that may have
much to do for a small request.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from time import perf_counter
from types import GeneratorType
from typing import Any

from ottla.dispatch.context import Request, Services
from ottla.dispatch.pieces import Pieces
from ottla.dispatch.repeats import Repeat, remember
from ottla.dispatch.table import Handler, Table
from ottla.dispatch.turns import DONE, InTurns, Turns, pass_on
from ottla.errors import ErrorCode, KafkaError
from ottla.net.connection import Connection, Hangup, NotYet, Part, Reply
from ottla.net.frame import Buffer
from ottla.protocol.apis import ApiKey
from ottla.protocol.compiler import Codec, codec
from ottla.protocol.decoder import MAX_ELEMENTS, TooManyElements
from ottla.protocol.header import parse_request_header
from ottla.protocol.primitives import DecodeError, EncodeError
from ottla.runtime.metrics import Counter, Histogram
from ottla.runtime.waiters import Deferred

logger = logging.getLogger(__name__)

# A handler in turns that took longer has made an answer that takes its time to encode.
QUICK = 0.001
# A request of so many bytes is handled in turns even if it has few entries.
LONG = 1 << 20
# How long work whose client has gone may still take when the broker stops.
CLOSE_SECONDS = 5.0

_unpack_head = struct.Struct(">Iih").unpack_from  # API and version in one, correlation id, size
_HEADER_V0 = struct.Struct(">ii")
_HEADER_V1 = struct.Struct(">iiB")


class Route:
    """Everything fixed about one (API, version): found once, used for every request."""

    __slots__ = (
        "decode", "encode", "errors", "flexible", "function", "handler", "header_v1", "latency",
        "long", "most", "repeats", "request_codec", "requests", "response_codec", "response_type",
        "version",
    )  # fmt: skip

    def __init__(self, handler: Handler, version: int, services: Services) -> None:
        spec = handler.spec
        self.handler = handler
        self.version = version
        self.function: Callable[..., Any] = handler.function
        if handler.for_controller:
            self.function = partial(_at_the_controller, handler.function)
        self.response_type = spec.response
        self.request_codec: Codec[Any] = codec(spec.request, version)
        self.response_codec: Codec[Any] = codec(spec.response, version)
        self.decode = self.request_codec.decode_few
        self.encode = self.response_codec.encode
        self.most = handler.most if handler.pieces is None else MAX_ELEMENTS
        self.repeats = spec.key == ApiKey.PRODUCE
        # Records are long and cheap. Names that are so long take their time.
        cut = handler.pieces is not None and spec.key != ApiKey.PRODUCE
        self.long = LONG if cut else sys.maxsize
        self.flexible = version >= spec.flexible_from
        self.header_v1 = self.flexible and spec.key != ApiKey.API_VERSIONS
        metrics = services.metrics
        self.requests: Counter = metrics.counter(
            "kafka_network_request_metrics_requests_total", "Requests received.", request=spec.name
        )
        self.errors: Counter = metrics.counter(
            "kafka_network_request_metrics_errors_total",
            "Requests that failed as a whole.",
            request=spec.name,
        )
        self.latency: Histogram = metrics.histogram(
            "kafka_network_request_metrics_total_time_seconds",
            "From a request's last byte to its answer.",
            request=spec.name,
        )


class Dispatcher:
    """Answers the requests of all connections: `answer` is what each of them calls."""

    def __init__(self, table: Table, services: Services) -> None:
        self._table = table
        self._services = services
        self._routes: dict[int, Route] = {}  # by the API and version that a frame begins with
        self._tasks: set[asyncio.Task[None]] = set()
        self._turns = Turns()
        # What changes something may wait for replicas, and these are among the readers.
        self._changes = Turns()

    def answer(self, connection: Connection, frame: memoryview) -> Reply | Deferred[Reply]:  # noqa: C901 - runs for every request, without a call too many
        started = perf_counter()
        repeat: Repeat | None = connection.remembered
        if repeat is not None and repeat.take(frame):
            route = repeat.route
            request = Request(route.version, repeat.client_id, connection, repeat.body)
            reply = self._call(route, request, repeat.correlation_id, started)
            repeat.let_go()
            return reply
        try:
            # The head of nearly every request: of a known route, with a client id, without tags.
            kind, correlation_id, size = _unpack_head(frame)
            route = self._routes[kind]
            version = route.version
            position = 10 + size
            if size < 0 or position > len(frame) or (route.flexible and frame[position]):
                raise LookupError
            client_id: str | None = frame[10:position].tobytes().decode()
            position += route.flexible
        except (LookupError, struct.error, UnicodeDecodeError):
            try:
                key, version, correlation_id, client_id, position = parse_request_header(frame)
            except DecodeError as error:
                raise Hangup(f"not a request header: {error}") from None
            route = self._routes.get(key << 16 | version) or self._route(key, version)
        if client_id is not None:
            connection.client = client_id
        try:
            if len(frame) > route.long:
                raise TooManyElements
            body, _ = route.decode(frame, position)
        except TooManyElements:
            if route.repeats and connection.owes_answers:
                raise NotYet from None  # a handler that is given pieces cannot say so any more
            kept = connection.keep(frame[position:])
            pieces = route.handler.pieces
            changes = pieces is not None and pieces.changes
            return (self._changes if changes else self._turns).begin(
                self._answer_many(route, connection, client_id, correlation_id, kept, started),
                to_the_end=changes,
            )
        except DecodeError as error:
            raise Hangup(f"malformed {route.handler.spec.name} v{version}: {error}") from None
        request = Request(version, client_id, connection, body)
        if not route.repeats:
            return self._call(route, request, correlation_id, started)
        connection.remembered = repeat = remember(route, client_id, body, frame)
        reply = self._call(route, request, correlation_id, started)
        if repeat is not None:
            repeat.let_go()
        return reply

    def _answer_many(
        self,
        route: Route,
        connection: Connection,
        client_id: str | None,
        correlation_id: int,
        kept: Buffer,
        started: float,
    ) -> InTurns[Reply | Deferred[Reply]]:
        """As `answer`, for a request of many entries: in turns with those of others."""
        name = route.handler.spec.name
        try:
            view, most = memoryview(kept), route.most
            body, _ = yield from route.request_codec.decode_in_turns(view, 0, most)
            request = Request(route.version, client_id, connection, body, has_many=True)
            route.requests.value += 1
            if route.handler.pieces is not None:
                result = yield from self._in_pieces(route, request, route.handler.pieces)
            else:
                try:
                    result = route.function(request, self._services)
                except Exception as error:
                    result = self._failed(route, request, error)
            return (yield from self._handle_many(route, request, correlation_id, result, started))
        except DecodeError as error:
            raise Hangup(f"malformed {name} v{route.version}: {error}") from None
        except Hangup:
            raise
        except Exception as error:
            logger.exception("%s v%d from %s failed", name, route.version, connection.peer)
            raise Hangup(f"internal error: {error}") from None
        finally:
            connection.let_go(kept)

    def _in_pieces(self, route: Route, request: Request[Any], pieces: Pieces) -> InTurns[Any]:
        """The answer to a request that its handler is given piece by piece.

        Where these change something, and only their answers are to come, these are waited for when
        the last piece has been handled: or the client's time would count for each of them.
        """
        handled = yield from self._handle_pieces(route, request, pieces)
        yield DONE
        whole = hangup = None
        for piece, response in handled:
            answer = response
            if isinstance(response, Deferred):
                answer = yield from self._wait_for_piece(route, piece, response)
                yield pieces.count(answer) if type(answer) is route.response_type else 0
            if isinstance(answer, Hangup):
                hangup = answer
            elif whole is None:
                whole = answer
            elif answer is not None:
                pieces.join(whole, answer)
                yield 0
        if hangup is not None:
            raise hangup
        return whole

    def _handle_pieces(
        self, route: Route, request: Request[Any], pieces: Pieces
    ) -> InTurns[list[tuple[Request[Any], Any]]]:
        """The pieces with their responses. When one has waited for a controller in vain the others
        do not: each would have the client's time anew, and be carried out when that is long over.
        """
        handled: list[tuple[Request[Any], Any]] = []
        given_up: Exception | None = None
        for body in pieces.split(request.body):
            piece = Request(route.version, request.client_id, request.connection, body)
            if given_up is not None:
                handled.append((piece, self._failed(route, piece, given_up)))
                continue
            try:
                response = yield from self._handle_piece(route, piece, waits=not pieces.changes)
            except Exception as error:
                if route.handler.for_controller and _was_waited_for(error):
                    given_up = error
                response = self._failed(route, piece, error)
            handled.append((piece, response))
            yield pieces.count(response) if type(response) is route.response_type else 0
        return handled

    def _handle_piece(self, route: Route, piece: Request[Any], *, waits: bool) -> InTurns[Any]:
        """The response to a piece, a Deferred of it unless one `waits`, or the Hangup that it is
        refused with: the others are still taken."""
        try:
            response = route.function(piece, self._services)
            if type(response) is GeneratorType:
                response = yield from response
            if isinstance(response, Coroutine):
                response = yield response
            if isinstance(response, Deferred) and waits:
                return (yield from self._wait_for_piece(route, piece, response))
            return response
        except Hangup as hangup:
            return hangup

    def _wait_for_piece(
        self, route: Route, piece: Request[Any], response: Deferred[Any]
    ) -> InTurns[Any]:
        try:
            return (yield response)
        except Hangup as hangup:
            return hangup
        except Exception as error:
            return self._failed(route, piece, error)

    def _handle_many(
        self,
        route: Route,
        request: Request[Any],
        correlation_id: int,
        result: Any,
        started: float,
    ) -> InTurns[Reply | Deferred[Reply]]:
        """Go on with what a handler has returned, and encode the response, in turns."""
        if type(result) is GeneratorType:
            try:
                result = yield from result
            except Exception as error:
                result = self._failed(route, request, error)
            if perf_counter() - started > QUICK:
                request.has_many = True
        if request.has_many and isinstance(result, Coroutine):
            try:
                result = yield result
            except Exception as error:
                result = self._failed(route, request, error)
        if type(result) is not route.response_type:
            if result is None:
                route.latency.record(perf_counter() - started)
                return None
            return self._later(route, request, correlation_id, result, started)
        route.latency.record(perf_counter() - started)
        if not request.has_many:
            return self._encode(route, correlation_id, result)
        return (yield from self._encode_many(route, correlation_id, result))

    def _call(
        self, route: Route, request: Request[Any], correlation_id: int, started: float
    ) -> Reply | Deferred[Reply]:
        route.requests.value += 1
        try:
            result = route.function(request, self._services)
        except NotYet:
            route.requests.value -= 1
            raise
        except Exception as error:
            result = self._failed(route, request, error)
        if type(result) is route.response_type:
            route.latency.record(perf_counter() - started)
            return self._encode(route, correlation_id, result)
        if type(result) is GeneratorType:
            steps = self._handle_many(route, request, correlation_id, result, started)
            return self._turns.begin(steps)
        if result is None:
            route.latency.record(perf_counter() - started)
            return None
        return self._later(route, request, correlation_id, result, started)

    def _later(
        self,
        route: Route,
        request: Request[Any],
        correlation_id: int,
        result: Deferred[Any] | Coroutine[Any, Any, Any],
        started: float,
    ) -> Deferred[Reply]:
        """The answer is not there yet: a Deferred of the encoded one."""
        if isinstance(result, Deferred):
            reply: Deferred[Reply] = Deferred(exclusive=result.exclusive)
            reply.on_abandon = result.abandon
            result.on_done(partial(self._finish, route, request, correlation_id, started, reply))
            return reply
        reply = Deferred(exclusive=True)
        self._start(self._run(route, request, correlation_id, result, started, reply))
        return reply

    def _finish(
        self,
        route: Route,
        request: Request[Any],
        correlation_id: int,
        started: float,
        reply: Deferred[Reply],
        done: Deferred[Any],
    ) -> None:
        """The result is there. Not a function within `_later`: one that hands itself on is a cycle,
        with all that it holds, for the garbage collector to find."""
        failure = done.error
        try:
            if isinstance(failure, Exception):  # not raised: its traceback would be such a cycle
                response = self._failed(route, request, failure)
            else:
                response = self._gone_on(route, request, done.result())
        except Hangup as hangup:
            reply.fail(hangup)
            return
        if isinstance(response, Deferred):
            reply.on_abandon = response.abandon
            response.on_done(partial(self._finish, route, request, correlation_id, started, reply))
        elif isinstance(response, Coroutine):
            self._start(self._run(route, request, correlation_id, response, started, reply))
        else:
            self._resolve(route, request, correlation_id, response, started, reply)

    def _gone_on(self, route: Route, request: Request[Any], result: Any) -> Any:
        """The result, or what has become of it in turns."""
        if type(result) is not GeneratorType:
            return result
        try:
            response = self._turns.begin(result)
        except Exception as error:
            return self._failed(route, request, error)
        request.has_many = True
        return response

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(
        self,
        route: Route,
        request: Request[Any],
        correlation_id: int,
        work: Coroutine[Any, Any, Any],
        started: float,
        reply: Deferred[Reply],
    ) -> None:
        try:
            response = await work
            if isinstance(response, Deferred):
                response = await response
        except Exception as error:
            try:
                response = self._failed(route, request, error)
            except Hangup as hangup:
                reply.fail(hangup)
                return
        self._resolve(route, request, correlation_id, response, started, reply)

    def _resolve(
        self,
        route: Route,
        request: Request[Any],
        correlation_id: int,
        response: Any,
        started: float,
        reply: Deferred[Reply],
    ) -> None:
        route.latency.record(perf_counter() - started)
        try:
            if response is None:
                reply.resolve(None)
            elif not request.has_many:
                reply.resolve(self._encode(route, correlation_id, response))
            else:
                parts = self._turns.begin(self._encode_many(route, correlation_id, response))
                if isinstance(parts, Deferred):
                    pass_on(parts, reply)
                else:
                    reply.resolve(parts)
        except Hangup as hangup:
            reply.fail(hangup)

    def _failed(self, route: Route, request: Request[Any], error: Exception) -> Any:
        """The response to a request that failed as a whole; Hangup where the API has none."""
        route.errors.value += 1
        if not isinstance(error, KafkaError):
            if isinstance(error, Hangup):
                raise error
            logger.error(
                "%s v%d from %s (client id %r) failed",
                route.handler.spec.name,
                route.version,
                request.connection.peer,
                request.client_id,
                exc_info=error,
            )
            error = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
        failure = route.handler.failure
        if failure is None:
            raise Hangup(f"{route.handler.spec.name} failed: {error}")
        return failure(request, error)

    def _encode(self, route: Route, correlation_id: int, response: Any) -> list[Part]:
        """Length, response header, body: the parts that go to the socket."""
        parts: list[Any] = []
        try:
            length = route.encode(response, parts)
        except EncodeError as error:
            raise _cannot_encode(route, error) from None
        return _with_head(route, correlation_id, length, parts)

    def _encode_many(self, route: Route, correlation_id: int, response: Any) -> InTurns[list[Part]]:
        """The same in turns."""
        parts: list[Any] = []
        try:
            length = yield from route.response_codec.encode_in_turns(response, parts)
        except EncodeError as error:
            raise _cannot_encode(route, error) from None
        return _with_head(route, correlation_id, length, parts)

    def _route(self, key: int, version: int) -> Route:
        handler = self._table.get(key)
        if handler is None:
            raise Hangup(f"API key {key} (version {version}) is not one this broker serves")
        if version not in handler.versions:
            if key != ApiKey.API_VERSIONS:
                served = f"{handler.versions[0]} to {handler.versions[-1]}"
                raise Hangup(f"{handler.spec.name} v{version} is outside the versions {served}")
            # Read and answered in the oldest form, whose request is empty: the handler sees the
            # version that was asked for and refuses it in words every client understands.
            return Route(handler, 0, self._services)
        route = self._routes[key << 16 | version] = Route(handler, version, self._services)
        return route

    async def close(self) -> None:
        """Wait for what is still being worked on."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_SECONDS)
        await asyncio.gather(self._turns.finish(CLOSE_SECONDS), self._changes.finish(CLOSE_SECONDS))


def _at_the_controller(
    function: Callable[..., Coroutine[Any, Any, Any]], request: Request[Any], services: Services
) -> Coroutine[Any, Any, Any]:
    """Handle the request here if this broker is the controller; else hand it on to that one."""
    link = services.controller_link
    if not link.goes_on(request.client_id):
        return function(request, services)
    return link.hand_on(request.body, request.api_version, lambda: function(request, services))


def _was_waited_for(error: Exception) -> bool:
    """Whether a request was handed on to no controller, or was not answered, in all of its time."""
    late = ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT
    return isinstance(error, KafkaError) and error.code in late


def _cannot_encode(route: Route, error: EncodeError) -> Hangup:
    # A handler made a response that this version has no room for. The request has been carried
    # out, so any error code would be wrong: close the connection. A bug of ours, so log it.
    logger.error("a %s v%d response", route.handler.spec.name, route.version, exc_info=error)
    return Hangup(f"internal error: {error}")


def _with_head(route: Route, correlation_id: int, length: int, parts: list[Any]) -> list[Part]:
    if route.header_v1:
        head = _HEADER_V1.pack(length + 5, correlation_id, 0)
    else:
        head = _HEADER_V0.pack(length + 4, correlation_id)
    if parts:
        parts[0] = head + parts[0]
    else:
        parts.append(head)
    return parts
