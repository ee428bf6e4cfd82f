"""Which broker to ask: the first that answers, one by its number, a group's coordinator.

    with Router("127.0.0.1:9092", timeout=5) as router:
        answer = router.coordinator("billing").ask(OffsetDeleteRequest(…))

Connections are `wire.Wire`, made when they are first needed. Failures that pass by themselves, such
as a coordinator that is still loading its groups, are tried again until the deadline.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from types import TracebackType
from typing import Final, Self, TypeVar

from ottla.client.descriptions import Node
from ottla.client.settings import bootstrap_servers
from ottla.client.wire import Wire, advertised
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.apis import ApiKey
from ottla.protocol.messages.groups import FindCoordinatorRequest
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)

T = TypeVar("T")

_PASSING: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
    }
)
_BY_NUMBER: Final = {int(code): code for code in ErrorCode}
_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.5

# In later versions these have the ids of topics in place of their names, which people type.
_NAMED: Final = {ApiKey.OFFSET_COMMIT: 9, ApiKey.OFFSET_FETCH: 9, ApiKey.FETCH: 12}


class Router:
    """A cluster as a tool sees it; for one thread at a time.

    bootstrap  brokers to start from, "host:port,…"; else OTTLA_BOOTSTRAP, else 127.0.0.1:9092
    timeout    seconds that a request, with its repetitions, may take
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
        self._timeout = timeout
        self._by_id = by_id
        self._client_id = (config or {}).get("client.id", client_id)
        self._first: Wire | None = None
        self._nodes: dict[int, Node] = {}
        self._wires: dict[int, Wire] = {}

    # -- who is asked

    def any(self) -> Wire:
        """The first broker of `bootstrap` that answers, or else another that is known by now."""
        if self._first is None:
            known = [str(node) for node in self._nodes.values()]
            servers = dict.fromkeys([*self.bootstrap.split(","), *known])
            self._first = Wire.first_of(
                ",".join(servers), timeout=self._timeout, client_id=self._client_id
            )
            self._cap(self._first)
        return self._first

    def nodes(self) -> tuple[Node, ...]:
        """The brokers of the cluster by number."""
        if not self._nodes:
            self.metadata(())
        return tuple(self._nodes[number] for number in sorted(self._nodes))

    def node(self, number: int) -> Wire:
        """A broker by its number."""
        known = self._wires.get(number)
        if known is not None:
            return known
        if number not in self._nodes:
            self.metadata(())
        if number not in self._nodes:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"there is no broker {number}")
        place = self._nodes[number]
        with advertised(place):
            wire = Wire(place.host, place.port, timeout=self._timeout, client_id=self._client_id)
        self._cap(wire)
        self._wires[number] = wire
        return wire

    def coordinator(self, group: str) -> Wire:
        """Who takes care of a group."""
        return self.node(self.coordinator_node(group).id)

    def coordinator_node(self, group: str) -> Node:
        """The same as a number and an address."""

        def find() -> Node:
            wire = self.any()
            if wire.version_of(ApiKey.FIND_COORDINATOR) >= 4:
                [found] = wire.ask(FindCoordinatorRequest(coordinator_keys=[group])).coordinators
            else:
                found = wire.ask(FindCoordinatorRequest(key=group))
            check(found.error_code, found.error_message)
            return Node(found.node_id, found.host, found.port)

        node = self.retried(find)
        self._nodes.setdefault(node.id, node)
        return node

    # -- what they know

    def metadata(self, topics: Iterable[str] | None, *, create: bool = False) -> MetadataResponse:
        """The brokers, and these topics (None: all); asking creates one only with `create`."""
        wanted = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        answer: MetadataResponse = self.any().ask(
            MetadataRequest(topics=wanted, allow_auto_topic_creation=create)
        )
        for broker in answer.brokers:
            self._nodes[broker.node_id] = Node(
                broker.node_id, broker.host, broker.port, broker.rack
            )
        return answer

    def retried(self, call: Callable[[], T]) -> T:
        """Call again while the failure is one that passes, until the deadline."""
        deadline = time.monotonic() + self._timeout
        pause = _FIRST_PAUSE
        while True:
            try:
                return call()
            except KafkaError as error:
                if error.code not in _PASSING or time.monotonic() + pause > deadline:
                    raise
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    # -- the end

    def close(self) -> None:
        """Close all connections; the next request makes new ones."""
        for wire in (self._first, *self._wires.values()):
            if wire is not None:
                wire.close()
        self._first = None
        self._wires.clear()

    def _cap(self, wire: Wire) -> None:
        for key, newest in _NAMED.items():
            if key in wire.versions and key not in self._by_id:
                low, high = wire.versions[key]
                wire.versions[key] = (low, min(high, newest))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


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
