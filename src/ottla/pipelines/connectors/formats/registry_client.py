"""A schema registry over its HTTP API: schemas by id, and ids of schemas.

The API is Confluent's, which Karapace and Apicurio have, too. An id means the same schema for ever,
so what was read once is never asked for again; that an id is unknown is believed for half a minute,
so that a stream of damaged records does not become a stream of requests.

A registry that does not answer, is overloaded or does not let us in is an `Outage`: no record is to
blame. So is whatever no registry says: another server at its address, a proxy on the way, an answer
that was cut. Passwords are never part of a message.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from http.client import HTTPException
from typing import Any, Final
from urllib.parse import quote, urlsplit
from urllib.request import HTTPHandler, HTTPSHandler, OpenerDirector, ProxyHandler, Request

from ottla.pipelines.connectors.contract import Outage
from ottla.pipelines.connectors.option import Kind, Mistake, Option

_CONTENT: Final = "application/vnd.schemaregistry.v1+json"
_LARGEST_ANSWER: Final = 16 << 20
_MOST_SCHEMAS: Final = 10_000
_BELIEVED: Final = 30.0
_DEEPEST_REFERENCES: Final = 20
_NOT_FOUND: Final = 404
_LARGEST_ID: Final = (1 << 31) - 1
_PIECE: Final = 1 << 16
_WHAT: Final = "the schema registry"
_MAY_PASS: Final = frozenset({401, 403, 407, 408, 425, 429})

OPTIONS: Final = (
    Option("registry", Kind.LIST, "Addresses of a schema registry: http://host:8081, …"),
    Option(
        "registry_auth",
        Kind.TEXT,
        "`user:password` for the registry, or `token:…` for a bearer token.",
        secret=True,
    ),
    Option("registry_ca", Kind.TEXT, "A file with the certificates that the registry's is from."),
    Option(
        "registry_timeout",
        Kind.DURATION,
        "How long to wait for the registry's answer.",
        default=10.0,
    ),
)


class UnknownSchema(LookupError):
    """The registry has nothing of this name or id."""


@dataclass(frozen=True, slots=True)
class Registry:
    """Where a registry is; goes to the tasks, which ask it by themselves."""

    addresses: tuple[str, ...]
    auth: str | None = field(default=None, repr=False)
    ca: str | None = None
    timeout: float = 10.0

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Registry | None:
        """None if no registry is given; `Mistake` for what is no address."""
        listed = options["registry"]
        if not listed:
            return None
        for address in listed:
            _check_address(address)
        auth = options["registry_auth"]
        if auth is not None and not _fits_into_header(auth):
            raise Mistake("registry_auth", "has a line break, or a letter that no header can have")
        return cls(tuple(listed), auth, options["registry_ca"], options["registry_timeout"])


def _check_address(address: str) -> None:
    wrong = Mistake("registry", f"{address.rpartition('@')[2]} is no http:// address")
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        raise wrong from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise wrong
    if not address.isascii() or not address.isprintable() or " " in address:
        raise wrong
    if parts.password is not None:
        raise Mistake("registry", "put user and password into registry_auth")


def _fits_into_header(auth: str) -> bool:
    """A password goes through base64, a token does not."""
    return auth.isprintable() and (auth.isascii() or not auth.startswith("token:"))


@dataclass(frozen=True, slots=True)
class Registered:
    """A schema's text and the texts of those that it refers to, in an order to read them in."""

    id: int
    text: str
    references: tuple[str, ...] = ()


@lru_cache(maxsize=16)
def client(registry: Registry) -> Client:
    """The client of a registry, one in a process."""
    return Client(registry)


class Client:
    """Asks, and remembers the answers. Threads may share it."""

    def __init__(self, registry: Registry, clock: Callable[[], float] = time.monotonic) -> None:
        self._registry = registry
        self._clock = clock
        self._lock = threading.Lock()
        self._by_id: dict[int, Registered] = {}
        self._ids: dict[tuple[str, str], int] = {}
        self._unknown: dict[int, tuple[float, str]] = {}
        self._opener = OpenerDirector()
        try:
            context = ssl.create_default_context(cafile=registry.ca)
        except OSError as error:
            raise ValueError(f"registry_ca {registry.ca}: {error.strerror or error}") from None
        # No proxy from the environment: it would be asked for addresses of this machine, too.
        for handler in (ProxyHandler({}), HTTPHandler(), HTTPSHandler(context=context)):
            self._opener.add_handler(handler)

    def schema(self, number: int) -> Registered:
        """The schema of an id; `UnknownSchema` if there is none, or none of what it refers to."""
        sentence = f"the registry has no schema {number}"
        if (
            number > _LARGEST_ID
        ):  # what Confluent's says to such a number looks like a wrong address
            raise UnknownSchema(sentence)
        with self._lock:
            found = self._by_id.get(number)
            if found is not None:
                return found
            until, said = self._unknown.get(number, (0.0, ""))
            if until > self._clock():
                raise UnknownSchema(said)
        try:
            answer = self._ask("GET", f"/schemas/ids/{number}")
            sentence = f"the registry has not all that schema {number} refers to"
            return self._remember(number, answer)
        except UnknownSchema:
            with self._lock:
                if len(self._unknown) >= _MOST_SCHEMAS:
                    self._unknown.clear()
                self._unknown[number] = self._clock() + _BELIEVED, sentence
            raise UnknownSchema(sentence) from None

    def latest(self, subject: str) -> Registered:
        """The newest version of a subject; `UnknownSchema` if there is none."""
        answer = self._ask("GET", f"/subjects/{quote(subject, safe='')}/versions/latest")
        return self._remember(_there(answer, "id", int), answer)

    def register(self, subject: str, text: str) -> int:
        """The id of a schema under a subject, new or not; ValueError if it is refused."""
        return self._id_of(subject, text, "/versions")

    def lookup(self, subject: str, text: str) -> int:
        """The id of a schema that the subject has; `UnknownSchema` if it has not."""
        return self._id_of(subject, text, "")

    def _id_of(self, subject: str, text: str, what: str) -> int:
        with self._lock:
            known = self._ids.get((subject, text))
        if known is None:
            path = f"/subjects/{quote(subject, safe='')}{what}"
            known = int(_there(self._ask("POST", path, {"schema": text}), "id", int))
            with self._lock:
                self._ids[subject, text] = known
        return known

    def _remember(self, number: int, answer: Mapping[str, Any]) -> Registered:
        kind = answer.get("schemaType", "AVRO")
        if kind != "AVRO":
            raise ValueError(f"schema {number} is {kind}, and only AVRO can be read")
        references = self._references(answer, 0, set())
        found = Registered(number, _there(answer, "schema", str), tuple(references))
        with self._lock:
            if len(self._by_id) >= _MOST_SCHEMAS:
                self._by_id.clear()
            self._by_id[number] = found
        return found

    def _references(self, answer: Mapping[str, Any], depth: int, seen: set[str]) -> list[str]:
        """What a schema refers to, each behind what it refers to itself."""
        if depth > _DEEPEST_REFERENCES:
            raise ValueError("schemas refer to one another without end")
        found: list[str] = []
        listed = _there(answer, "references", list) if answer.get("references") else []
        for reference in listed:
            subject = quote(_there(reference, "subject", str), safe="")
            version = _there(reference, "version", int)
            inner = self._ask("GET", f"/subjects/{subject}/versions/{version}")
            text = _there(inner, "schema", str)
            if text not in seen:
                found += self._references(inner, depth + 1, seen)
                seen.add(text)
                found.append(text)
        return found

    def _ask(self, method: str, path: str, content: Any = None) -> Any:
        """The first answer; what one does not know, another may: followers learn a little later."""
        trouble: Outage | UnknownSchema | None = None
        for address in self._registry.addresses:
            try:
                return self._ask_one(address, method, path, content)
            except UnknownSchema as error:
                trouble = error
            except Outage as error:
                trouble = trouble or error
        assert trouble is not None  # there is at least one address
        raise trouble

    def _ask_one(self, address: str, method: str, path: str, content: Any) -> Any:
        data = None if content is None else json.dumps(content).encode()
        request = Request(address.rstrip("/") + path, data, self._headers(), method=method)
        what = f"the schema registry at {address}"
        try:
            with self._opener.open(request, timeout=self._registry.timeout) as response:
                status, body = response.status, self._body(response)
        except (OSError, HTTPException) as error:  # the latter is for what is no HTTP, or was cut
            said = str(error) if isinstance(error, OSError) else repr(error)[:200]
            reason = getattr(error, "reason", said)
            raise Outage(what, f"{what} does not answer: {reason}") from None
        return _understood(what, method, path, status, body)

    def _body(self, response: Any) -> bytes:
        """All of it, in the time that one piece may take: a drop now and then is no answer."""
        end = self._clock() + self._registry.timeout
        found = bytearray()
        while len(found) <= _LARGEST_ANSWER and (piece := response.read1(_PIECE)):
            found += piece
            if self._clock() > end:
                raise TimeoutError("it takes too long to answer")
        return bytes(found)

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": _CONTENT, "Content-Type": _CONTENT}
        auth = self._registry.auth
        if auth is not None:
            kind, _, rest = auth.partition(":")
            if kind == "token":
                headers["Authorization"] = f"Bearer {rest}"
            else:
                headers["Authorization"] = f"Basic {base64.b64encode(auth.encode()).decode()}"
        return headers


def _understood(what: str, method: str, path: str, status: int, body: bytes) -> Any:
    try:
        answer = json.loads(body) if len(body) <= _LARGEST_ANSWER else None
    except (ValueError, RecursionError):
        answer = None
    if status // 100 == 2 and isinstance(answer, dict):
        return answer
    said = answer.get("message") if isinstance(answer, dict) else None
    sentence = f"{what} answers {method} {path} with {status}: {str(said)[:300]}"
    # What is not in the registry's own words is a wrong address, or a proxy on the way. Its words
    # for a path that it does not have are those of its web server.
    own = isinstance(answer, dict) and "error_code" in answer
    if status == _NOT_FOUND and own and not str(said).startswith("HTTP 404"):
        raise UnknownSchema(sentence)
    refused = method != "GET" and own and status // 100 == 4
    if not refused or status in _MAY_PASS or status == _NOT_FOUND:
        raise Outage(what, sentence)
    raise ValueError(sentence)


def _there(answer: Any, name: str, kind: type) -> Any:
    """A part of an answer; without it, it is no registry that has answered."""
    found = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(found, kind):
        sentence = f"{_WHAT} answers without {name!r}: {json.dumps(answer)[:200]}"
        raise Outage(_WHAT, f"{sentence}; is it the address of a registry?")
    return found
