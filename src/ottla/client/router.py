"""The one way to the brokers for whoever does not go through librdkafka.

    with Router("127.0.0.1:9092", timeout=5) as router:
        answer = router.coordinator("billing").ask(OffsetDeleteRequest(…))

Which broker to ask: any that answers, one by its number, the controller, a group's coordinator, the
leader of a partition. Connections (`wire`) are made when they are first needed, one to each broker
beside the one for `any`, and anew after one broke. What brokers say of the cluster is kept
(`topology`) until it turns out to be wrong.

Three things are kept apart, since people and programs treat them differently:

- Nobody answers at any address: `NoBrokerAnswers`, at once. With the addresses to start from gone,
  brokers that were heard of meanwhile are tried too, and whoever failed last is tried last.
- One broker cannot be reached while there are others: its partitions and groups will move, so
  `retried` and `ask_leaders` look again until the deadline. Nobody waits for the only broker.
- A broker is not the one to ask, or not yet: looked up anew and asked again until the deadline.
  Answers to Produce and Fetch name the leader themselves: `learn_leaders`.

A request that is not `repeatable` is sent again only if it did not leave us.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar

from ottla.client.descriptions import Node
from ottla.client.retry import ABSENT, UNREACHABLE, WRONG_BROKER, Backoff, passes, retry
from ottla.client.settings import bootstrap_servers, parse_address
from ottla.client.topology import Leader, Topology
from ottla.client.wire import Wire
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.protocol.apis import ApiKey
from ottla.protocol.messages.groups import FindCoordinatorRequest
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)

T = TypeVar("T")
Failures = dict[TopicPartition, KafkaError]

GROUP: Final = 0
TRANSACTION: Final = 1
"""What coordinators take care of."""

_BY_NUMBER: Final = {int(code): code for code in ErrorCode}
_BACKOFF: Final = Backoff()

# In later versions these have the ids of topics in place of their names, which people type.
_NAMED: Final = {
    ApiKey.PRODUCE: 12,
    ApiKey.FETCH: 12,
    ApiKey.OFFSET_COMMIT: 9,
    ApiKey.OFFSET_FETCH: 9,
}


class LeaderHint(Protocol):
    """The leader of a partition, in an answer to Produce or Fetch."""

    leader_id: int
    leader_epoch: int


class Place(Protocol):
    """Where a leader is, in such an answer."""

    node_id: int
    host: str
    port: int
    rack: str | None


class NoBrokerAnswers(KafkaError):
    """No broker answers at any address that is known."""

    __slots__ = ()


class NotConnected(KafkaError):
    """There is no connection to this broker: nothing was sent to it."""

    __slots__ = ()


class NoSuchBroker(NotConnected):
    """The cluster has no broker of this number, or not at the moment."""

    __slots__ = ()


class Router:
    """A cluster as its clients see it; threads may share it.

    bootstrap  brokers to start from, "host:port,…"; else OTTLA_BOOTSTRAP, else 127.0.0.1:9092
    timeout    seconds that an answer may take, and for which what passes is tried again
    config     properties as in a client's configuration file; only PLAINTEXT is spoken
    by_id      APIs to use in the versions that name topics by their ids, where brokers have them
    """

    def __init__(
        self,
        bootstrap: str | Iterable[str] | None = None,
        *,
        timeout: float = 30.0,
        client_id: str = "ottla",
        config: Mapping[str, str] | None = None,
        by_id: Collection[ApiKey] = (),
    ) -> None:
        protocol = (config or {}).get("security.protocol", "PLAINTEXT").upper()
        if protocol != "PLAINTEXT":
            raise ValueError(
                f"security.protocol={protocol} is not supported here; use a PLAINTEXT listener"
            )
        self.bootstrap = bootstrap_servers(bootstrap)
        self.topology = Topology()
        self.timeout = timeout
        self._newest = {key: newest for key, newest in _NAMED.items() if key not in by_id}
        self._client_id = (config or {}).get("client.id", client_id)
        # guarded by `_lock`, which nobody holds while waiting for a broker
        self._lock = threading.Lock()
        self._first: Wire | None = None
        self._first_server = ""
        self._wires: dict[int, Wire] = {}
        self._reached: set[str] = set()  # addresses
        self._failed: dict[str, float] = {}  # addresses, and when each failed last
        self._closings = 0

    # -- who is asked

    def any(self) -> Wire:
        """The first broker of `bootstrap` that answers, or else another that is known by now."""
        with self._lock:
            if self._first is not None and self._first.usable:
                return self._first
            if self._first is not None:
                # Brokers close connections that are idle: that is no reason to go elsewhere.
                if not self._first.proven:
                    self._failed[self._first_server] = time.monotonic()
                self._first = None
            closings = self._closings
            servers = dict.fromkeys([*self.bootstrap.split(","), *map(str, self.topology.known)])
            order = sorted(servers, key=lambda server: self._failed.get(server, 0.0))
        deadline = time.monotonic() + self.timeout
        reasons: list[str] = []
        for number, server in enumerate(order):
            # Each has its share of the time, so that one that is silent leaves some to the others.
            share = max(0.0, deadline - time.monotonic()) / (len(order) - number)
            try:
                wire = self._connect(*parse_address(server), max(share, 0.001))
            except KafkaError as error:
                reasons.append(error.message or error.code.text)
                with self._lock:
                    self._failed[server] = time.monotonic()
                continue
            with self._lock:
                self._failed.pop(server, None)
                self._reached.add(server)
                if self._closings == closings:
                    if self._first is not None and self._first.usable:
                        wire.close()  # another thread was faster
                    else:
                        self._first, self._first_server = wire, server
                    return self._first
            wire.close()
            raise _closed(server)
        raise NoBrokerAnswers(ErrorCode.BROKER_NOT_AVAILABLE, "; ".join(reasons))

    def nodes(self) -> tuple[Node, ...]:
        """The brokers of the cluster by number."""
        if not self.topology.complete:
            self.metadata(())
        nodes = self.topology.nodes
        return tuple(nodes[number] for number in sorted(nodes))

    def node(self, number: int) -> Wire:
        """A broker by its number, where the brokers last said that it is."""
        place = self.topology.node(number)
        with self._lock:
            known = self._wires.get(number)
            if known is not None and known.usable and _is_at(known, place):
                return known
            closings = self._closings
        if place is None:
            self.metadata(())
            place = self.topology.node(number)
        if place is None:
            raise NoSuchBroker(ErrorCode.BROKER_NOT_AVAILABLE, f"there is no broker {number}")
        try:
            wire = self._connect(place.host, place.port)
        except KafkaError as error:
            self.topology.lose(number)
            if str(place) in self._reached:
                raise NotConnected(error.code, error.message) from None
            raise _not_where_advertised(place, error) from None
        with self._lock:
            if self._closings == closings:
                known = self._wires.get(number)
                if known is not None and known.usable:
                    if _is_at(known, place):
                        wire.close()  # another thread was faster
                        return known
                    known.close()  # whoever answers there is another broker by now
                self._wires[number] = wire
                self._reached.add(str(place))
                return wire
        wire.close()
        raise _closed(str(place))

    def controller(self) -> Wire:
        """Who changes topics; any broker where the cluster does not name one."""
        if self.topology.controller is None:
            self.metadata(())
        number = self.topology.controller
        if number is None or number not in self.topology.nodes:
            return self.any()
        return self.node(number)

    def coordinator(self, name: str, kind: int = GROUP) -> Wire:
        """Who takes care of a group, or of a transactional id."""
        return self.node(self.coordinator_node(name, kind).id)

    def coordinator_node(self, name: str, kind: int = GROUP) -> Node:
        """The same as a number and an address."""

        def find() -> Node:
            if self.any().version_of(ApiKey.FIND_COORDINATOR) >= 4:
                request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[name])
                [found] = self.ask_any(request).coordinators
            else:
                found = self.ask_any(FindCoordinatorRequest(key=name, key_type=kind))
            check(found.error_code, found.error_message)
            return Node(found.node_id, found.host, found.port)

        node = self.retried(find)
        self.topology.learn_node(node)
        return node

    # -- what they know

    def metadata(self, topics: Iterable[str] | None, *, create: bool = False) -> MetadataResponse:
        """The brokers, and these topics (None: all); asking creates one only with `create`."""
        wanted = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        answer: MetadataResponse = self.ask_any(
            MetadataRequest(topics=wanted, allow_auto_topic_creation=create)
        )
        self.topology.learn(answer)
        return answer

    def leader(self, tp: TopicPartition) -> Leader:
        """Who leads a partition, as far as is known; KafkaError when it is not there, or nobody
        does."""
        known = self.topology.leader(tp)
        if known is not None:
            return known
        _, errors = self.by_leader([tp])
        if tp in errors:
            raise errors[tp]
        found = self.topology.leader(tp)
        if found is None:  # another thread has just found out that it is not
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)
        return found

    def by_leader(
        self, partitions: Iterable[TopicPartition]
    ) -> tuple[dict[int, list[TopicPartition]], Failures]:
        """Partitions by the broker that leads them, and why there is none for the others.

        Brokers are asked only if somebody's leader is not known.
        """
        wanted = list(dict.fromkeys(partitions))
        codes: dict[str | TopicPartition, int] = {}
        unknown = {tp.topic for tp in wanted if self.topology.leader(tp) is None}
        if unknown:
            for topic in self.metadata(sorted(unknown)).topics:
                codes[topic.name or ""] = topic.error_code
                for part in topic.partitions:
                    codes[TopicPartition(topic.name or "", part.partition_index)] = (
                        part.error_code or int(ErrorCode.LEADER_NOT_AVAILABLE)
                    )
        led: dict[int, list[TopicPartition]] = defaultdict(list)
        errors: Failures = {}
        for tp in wanted:
            leader = self.topology.leader(tp)
            if leader is not None:
                led[leader.node].append(tp)
                continue
            code = codes.get(tp.topic) or codes.get(tp) or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            errors[tp] = KafkaError(error_code(code))
        return led, errors

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Look who leads these before they are asked about again."""
        self.topology.forget(partitions)

    def learn_leaders(
        self, hints: Iterable[tuple[TopicPartition, LeaderHint | None]], places: Iterable[Place]
    ) -> set[TopicPartition]:
        """Take in who leads partitions, and where, from the answer of a broker that does not
        (KIP-951); returns those of which a new leader is known, so that nobody need be asked."""
        for place in places:
            self.topology.learn_node(Node(place.node_id, place.host, place.port, place.rack))
        return {
            tp
            for tp, hint in hints
            if hint is not None
            and self.topology.learn_leader(tp, Leader(hint.leader_id, hint.leader_epoch))
        }

    # -- questions

    def ask_any(self, request: Any) -> Any:
        """What any broker can answer, and may be asked twice: a broker that has gone, or has closed
        a connection that was idle for long, is not the end of it."""
        closings = self._closings
        deadline = time.monotonic() + self.timeout
        attempts = 1 + len({*self.bootstrap.split(","), *map(str, self.topology.known)})
        while True:
            wire = self.any()
            attempts -= 1
            try:
                return wire.ask(request)
            except KafkaError as error:
                if error.code not in UNREACHABLE or not attempts or self._closings != closings:
                    raise
                if time.monotonic() >= deadline:
                    raise

    def ask_leaders(
        self,
        partitions: Iterable[TopicPartition],
        request: Callable[[Sequence[TopicPartition]], Any],
        answers: Callable[[Any], Iterable[tuple[TopicPartition, int, T]]],
        *,
        wait_for_leader: bool = False,
        wait_for_node: bool = True,
    ) -> dict[TopicPartition, T | KafkaError]:
        """Ask the leaders of partitions, each about all of its own: a value or an error for each.

        A leader that moves while it is asked is followed until the deadline.

        request          the request for some of the partitions
        answers          what an answer says of each: the partition, an error code, a value
        wait_for_leader  wait also for partitions that nobody leads, or that cannot be asked for
                         another reason that passes; without it these are errors at once
        wait_for_node    wait for a leader that cannot be reached while there are other brokers;
                         otherwise its failure is raised
        """
        closings = self._closings
        deadline = time.monotonic() + self.timeout
        missing = list(dict.fromkeys(partitions))
        remembered = {tp for tp in missing if self.topology.leader(tp) is not None}
        followed: set[TopicPartition] = set()
        found: dict[TopicPartition, T | KafkaError] = {}
        rounds = 0
        while True:
            led, unled = self.by_leader(missing)
            values, refused, unreached = self._ask_round(led, request, answers, deadline)
            found |= values
            for error in unreached.values():
                if not wait_for_node or not self._may_be_elsewhere(error, closings):
                    raise error
            again = dict(unreached)
            for tp, error in refused.items():
                # A topic that its leader does not know may be another by now, led by another.
                absent = error.code in ABSENT and (wait_for_leader or tp in remembered)
                if absent or error.code in WRONG_BROKER or (wait_for_leader and passes(error.code)):
                    again[tp] = error
            again |= {
                tp: error
                for tp, error in unled.items()
                if error.code in WRONG_BROKER and (wait_for_leader or tp in followed)
            }
            found |= {tp: error for tp, error in (refused | unled).items() if tp not in again}
            if not again:
                return found
            remembered -= again.keys()
            followed |= again.keys()
            self.topology.forget(again)
            pause = _BACKOFF.pause(rounds)
            if time.monotonic() + pause > deadline:
                for error in unreached.values():
                    raise error
                if wait_for_leader:
                    again = {tp: _still_there(error) for tp, error in again.items()}
                return found | again
            time.sleep(pause)
            rounds += 1
            missing = list(again)

    def _ask_round(
        self,
        led: Mapping[int, Sequence[TopicPartition]],
        request: Callable[[Sequence[TopicPartition]], Any],
        answers: Callable[[Any], Iterable[tuple[TopicPartition, int, T]]],
        deadline: float,
    ) -> tuple[dict[TopicPartition, T], Failures, Failures]:
        """Ask each leader once: the values, what leaders refused, and who did not answer. When the
        first that are silent have taken all the time, the others are not waited for in turn."""
        values: dict[TopicPartition, T] = {}
        refused: Failures = {}
        unreached: Failures = {}
        for number, own in led.items():
            if unreached and time.monotonic() >= deadline:
                late = f"no time was left to ask broker {number}"
                unreached |= dict.fromkeys(own, KafkaError(ErrorCode.REQUEST_TIMED_OUT, late))
                continue
            try:
                answer = self.node(number).ask(request(own))
            except KafkaError as error:
                if error.code not in UNREACHABLE:
                    raise
                unreached |= dict.fromkeys(own, error)
                continue
            left_out = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "left out of the answer")
            refused |= dict.fromkeys(own, left_out)
            for tp, code, value in answers(answer):
                if code:
                    refused[tp] = KafkaError(error_code(code))
                else:
                    values[tp] = value
                    refused.pop(tp, None)
        return values, refused, unreached

    def ask_leader(
        self,
        tp: TopicPartition,
        request: Any,
        answers: Callable[[Any], Iterable[tuple[TopicPartition, int, T]]],
        *,
        wait_for_node: bool = True,
    ) -> T:
        """The same about one partition; raises what went wrong."""
        found = self.ask_leaders([tp], lambda _: request, answers, wait_for_node=wait_for_node)
        answer = found[tp]
        if isinstance(answer, KafkaError):
            raise answer
        return answer

    def ask_each_node(self, call: Callable[[Node], T]) -> list[T]:
        """What becomes of a call for every broker.

        One that leaves the cluster meanwhile is left out, and all others are asked anew: what was
        its business may have come to one that was asked before.
        """

        def unless_gone(node: Node) -> list[T]:
            try:
                return [call(node)]
            except NoSuchBroker:
                return []

        while True:
            answers = []
            for node in self.nodes():
                answer = self.retried(partial(unless_gone, node))
                if not answer:
                    break
                answers += answer
            else:
                return answers

    def retried(self, call: Callable[[], T], *, repeatable: bool = True) -> T:
        """Call again while the failure is one that passes, until the deadline."""

        closings = self._closings

        def again(error: KafkaError) -> bool:
            if error.code in WRONG_BROKER:
                return True
            unsent = isinstance(error, NotConnected)
            return (repeatable or unsent) and self._may_be_elsewhere(error, closings)

        def note(error: KafkaError) -> None:
            if error.code is ErrorCode.NOT_CONTROLLER or error.code in UNREACHABLE:
                self.topology.forget_controller()

        return retry(call, timeout=self.timeout, passes=again, on_failure=note)

    def _may_be_elsewhere(self, error: KafkaError, closings: int) -> bool:
        """Whether what one broker did not do will be done by another; not after `close`."""
        if error.code not in UNREACHABLE or isinstance(error, NoBrokerAnswers):
            return False
        return len(self.topology.known) > 1 and self._closings == closings

    # -- the end

    def close(self) -> None:
        """Close all connections. Whatever another thread waits for fails at once, and is not tried
        again; the next request makes new connections."""
        with self._lock:
            self._closings += 1
            wires = [*self._wires.values(), *([self._first] if self._first is not None else [])]
            self._first = None
            self._wires = {}
        for wire in wires:
            wire.close()

    def _connect(self, host: str, port: int, connect_timeout: float | None = None) -> Wire:
        return Wire(
            host,
            port,
            timeout=self.timeout,
            client_id=self._client_id,
            connect_timeout=connect_timeout,
            newest=self._newest,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _is_at(wire: Wire, place: Node | None) -> bool:
    """Whether a connection is to where a broker is; to where it was while nobody knows."""
    return place is None or (wire.host, wire.port) == (place.host, place.port)


def _still_there(error: KafkaError) -> KafkaError:
    """A partition that is in the metadata, and that its leader does not know, is not gone."""
    return KafkaError(ErrorCode.LEADER_NOT_AVAILABLE) if error.code in ABSENT else error


def _closed(place: str) -> KafkaError:
    return NotConnected(ErrorCode.NETWORK_EXCEPTION, f"{place}: closed while it was connected to")


def _not_where_advertised(node: Node, error: KafkaError) -> KafkaError:
    """A broker does not listen at the address that it advertises."""
    return NotConnected(
        ErrorCode.NETWORK_EXCEPTION,
        f"broker {node.id} is advertised as {node}, and cannot be reached there "
        f"({error.message or error.code.text}); it must advertise an address that can be "
        f"reached from here (--advertise, advertised.listeners)",
    )


def supports(wire: Wire, key: ApiKey) -> bool:
    """Whether a broker answers such requests in a version we know."""
    try:
        wire.version_of(key)
    except KafkaError:
        return False
    return True


def check(code: int, message: str | None = None) -> None:
    """Raise what an answer says went wrong, if anything did."""
    if code:
        raise KafkaError(error_code(code), message)


def error_code(number: int) -> ErrorCode:
    """A code by its number; one that is newer than we are is an unknown server error."""
    return _BY_NUMBER.get(number, ErrorCode.UNKNOWN_SERVER_ERROR)


def allowed_ms(seconds: float) -> int:
    """What a broker may take of the time for which its answer is waited: less, so that the answer
    is there in time when it says why nothing was done."""
    return max(1, round(max(seconds - 1.0, seconds / 2) * 1000))
