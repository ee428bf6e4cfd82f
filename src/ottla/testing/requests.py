"""Which requests a fault is for, and what is wrong with their answers.

A `Match` looks at one decoded request. Topics are found wherever a request names them, by name or
by id, so that a test says `topic="orders"` and need not know which version a client speaks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ottla.dispatch.context import Request
from ottla.errors import ErrorCode
from ottla.model.ids import TopicId
from ottla.model.image import ClusterImage
from ottla.protocol.apis import ApiKey

Api = ApiKey | int | str
"""`ApiKey.PRODUCE`, its number, or its name as Kafka writes it: "Produce", "OffsetCommit"."""

Condition = Callable[[Request[Any]], bool]

_NAMES = {key.api_name.lower(): key for key in ApiKey}
_TOPIC_RESOURCE = 2
UNKNOWN = -1


def api_keys(apis: Api | Iterable[Api] | None) -> frozenset[ApiKey] | None:
    """The APIs that are meant; None for all."""
    if apis is None:
        return None
    given = [apis] if isinstance(apis, str | int) else list(apis)
    return frozenset(_api_key(api) for api in given)


def _api_key(api: Api) -> ApiKey:
    if isinstance(api, str):
        found = _NAMES.get(api.replace("_", "").lower())
        if found is None:
            raise ValueError(f'no API is called {api!r}; names are as in "Produce", "ListOffsets"')
        return found
    return ApiKey(api)


@dataclass(frozen=True, slots=True)
class Match:
    """The requests that a fault concerns; what is None is not looked at."""

    apis: frozenset[ApiKey] | None = None
    topic: str | None = None
    client_id: str | None = None
    when: Condition | None = None

    def includes(self, key: ApiKey, request: Request[Any], image: ClusterImage) -> bool:
        return (
            self.may_include(key, request)
            and (self.topic is None or self.topic in topics_of(request.body, image))
            and (self.when is None or self.when(request))
        )

    def may_include(self, key: ApiKey, request: Request[Any]) -> bool:
        """As far as can be told without the request's content."""
        return (self.apis is None or key in self.apis) and (
            self.client_id is None or self.client_id == request.client_id
        )


def topics_of(message: Any, image: ClusterImage) -> set[str]:
    """Every topic that a request or response names."""
    found: set[str] = set()
    for part in _parts(message):
        kind = type(part).__name__
        for name in part.__slots__:
            value = getattr(part, name)
            if name == "topic_id" and isinstance(value, bytes):
                known = image.topic_names.get(TopicId(value))
                if known is not None:
                    found.add(known)
            elif isinstance(value, str) and (
                name in ("topic", "topic_name")
                or (name == "name" and "Topic" in kind)
                or (name == "resource_name" and part.resource_type == _TOPIC_RESOURCE)
            ):
                found.add(value)
            elif name in ("topics", "topic_names") and isinstance(value, list):
                found.update(name for name in value if isinstance(name, str))
    found.discard("")
    return found


def spoil(response: Any, code: ErrorCode) -> Any:
    """Put the code wherever the response has room for one."""
    for part in _parts(response):
        if "error_code" in part.__slots__:
            part.error_code = int(code)
    return response


def spoil_fetch(response: Any, code: ErrorCode, topic: str | None, image: ClusterImage) -> bool:
    """Let the partitions in a fetch response fail; False when it has none of them to fail.

    Errors of a fetch belong to partitions: those that a client's fetch session holds are not even
    named in its request. As in Kafka a partition that failed says nothing of its offsets, or
    librdkafka would find itself at the partition's end and overlook the error.
    """
    spoilt = False
    for found in response.responses:
        if topic is None or topic in topics_of(found, image):
            for partition in found.partitions:
                partition.error_code = int(code)
                partition.high_watermark = UNKNOWN
                partition.last_stable_offset = UNKNOWN
                partition.log_start_offset = UNKNOWN
                partition.records = b""
                spoilt = True
    return spoilt


def _parts(message: Any) -> Iterator[Any]:
    """A message and all messages in it."""
    yield message
    for name in message.__slots__:
        value = getattr(message, name)
        for item in value if isinstance(value, list) else (value,):
            if hasattr(item, "__slots__") and not isinstance(item, bytes | str | int):
                yield from _parts(item)
