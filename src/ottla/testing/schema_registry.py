"""A schema registry inside the test's own process, with the HTTP API that clients use.

    with SchemaRegistry() as registry:
        registry.register("orders-value", '"string"')
        ...                                     # registry.url is what a client is given

    GET    /subjects, /subjects/S/versions, /subjects/S/versions/V|latest, /schemas/ids/N,
           /schemas/ids/N/versions, /schemas/types, /config, /config/S, /mode
    POST   /subjects/S/versions   register      /subjects/S   look up
    POST   /compatibility/subjects/S/versions/V
    PUT    /config, /config/S
    DELETE /subjects/S

Ids are of a schema's text, whatever the subject, and begin with 1; versions are a subject's. Errors
have the registry's codes (40401, 40402, 40403, 42201). `fail` makes it answer with an error until
it is told otherwise, and `requests` lists what it was asked.

Not done   Compatibility is never refused: every schema that is JSON is accepted. Deletes are for
           good. Nothing is kept when it stops.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import unquote, urlsplit

_CONTENT: Final = "application/vnd.schemaregistry.v1+json"
_LARGEST: Final = 16 << 20


class _Refused(Exception):
    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


@dataclass(slots=True)
class _Schema:
    number: int
    text: str
    kind: str = "AVRO"
    references: list[dict[str, Any]] = field(default_factory=list)

    def described(self) -> dict[str, Any]:
        made: dict[str, Any] = {"schema": self.text}
        if self.kind != "AVRO":
            made["schemaType"] = self.kind
        if self.references:
            made["references"] = self.references
        return made


class SchemaRegistry:
    """Listens on loopback from `start` to `stop`, or within a `with` block."""

    def __init__(self, port: int = 0, auth: str | None = None) -> None:
        """`auth` is `user:password`; whoever does not give it is answered 401."""
        self.requests: list[str] = []
        self._port = port
        self._auth = auth
        self._lock = threading.Lock()
        self._schemas: list[_Schema] = []
        self._subjects: dict[str, list[_Schema]] = {}
        self._levels: dict[str, str] = {"": "BACKWARD"}
        self._failing: int | None = None
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> SchemaRegistry:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """http://127.0.0.1:PORT; the port stays the same over `stop` and `start`."""
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Begin to listen; what was registered before is still there."""
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), _handler(self))
        self._server.daemon_threads = True
        self._port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Connections are refused from here on."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
            self._server = None

    def fail(self, status: int | None) -> None:
        """Answer everything with this status, until it is None again."""
        self._failing = status

    def register(
        self,
        subject: str,
        schema: str,
        references: list[dict[str, Any]] | None = None,
        kind: str = "AVRO",
    ) -> int:
        """The id of a schema under a subject, without HTTP."""
        with self._lock:
            return self._register(subject, schema, references or [], kind).number

    def _register(
        self, subject: str, text: str, references: list[dict[str, Any]], kind: str
    ) -> _Schema:
        try:
            json.loads(text)
        except (ValueError, TypeError):
            if kind != "PROTOBUF":
                raise _Refused(422, 42201, f"Invalid schema {text!r}") from None
        for known in self._schemas:
            if (known.text, known.kind, known.references) == (text, kind, references):
                found = known
                break
        else:
            found = _Schema(len(self._schemas) + 1, text, kind, references)
            self._schemas.append(found)
        versions = self._subjects.setdefault(subject, [])
        if found not in versions:
            versions.append(found)
        return found

    def _versions(self, subject: str) -> list[_Schema]:
        found = self._subjects.get(subject)
        if not found:
            raise _Refused(404, 40401, f"Subject '{subject}' not found.")
        return found

    def _version(self, subject: str, version: str) -> dict[str, Any]:
        versions = self._versions(subject)
        number = len(versions) if version in ("latest", "-1") else int(version)
        if not 1 <= number <= len(versions):
            raise _Refused(404, 40402, f"Version {version} not found.")
        schema = versions[number - 1]
        return {"subject": subject, "version": number, "id": schema.number, **schema.described()}

    def _by_id(self, number: int) -> _Schema:
        if not 1 <= number <= len(self._schemas):
            raise _Refused(404, 40403, f"Schema {number} not found")
        return self._schemas[number - 1]

    def answer(self, method: str, path: str, body: Any, auth: str | None) -> tuple[int, Any]:
        """The status and the content for one request."""
        with self._lock:
            self.requests.append(f"{method} {path}")
            try:
                if self._failing is not None:
                    raise _Refused(self._failing, 50001, "told to fail")
                if self._auth is not None and auth != self._auth:
                    raise _Refused(401, 401, "Unauthorized")
                for wanted, pattern, call in _ROUTES:
                    match = re.fullmatch(pattern, path)
                    if match and wanted == method:
                        return 200, call(self, body, *map(unquote, match.groups()))
                raise _Refused(404, 404, "HTTP 404 Not Found")
            except _Refused as refused:
                return refused.status, {"error_code": refused.code, "message": str(refused)}

    # One method for each route; the lock is held.

    def _get_subjects(self, body: Any) -> Any:
        return sorted(self._subjects)

    def _get_versions(self, body: Any, subject: str) -> Any:
        return list(range(1, len(self._versions(subject)) + 1))

    def _get_version(self, body: Any, subject: str, version: str) -> Any:
        return self._version(subject, version)

    def _get_schema(self, body: Any, number: str) -> Any:
        return self._by_id(int(number)).described()

    def _get_places(self, body: Any, number: str) -> Any:
        schema = self._by_id(int(number))
        return [
            {"subject": subject, "version": versions.index(schema) + 1}
            for subject, versions in self._subjects.items()
            if schema in versions
        ]

    def _post_version(self, body: Any, subject: str) -> Any:
        asked = _asked(body)
        return {"id": self._register(subject, *asked).number}

    def _post_lookup(self, body: Any, subject: str) -> Any:
        asked = _asked(body)
        for number, schema in enumerate(self._versions(subject), start=1):
            if (schema.text, schema.references, schema.kind) == asked:
                return self._version(subject, str(number))
        raise _Refused(404, 40403, "Schema not found")

    def _post_compatible(self, body: Any, subject: str, version: str) -> Any:
        self._version(subject, version)
        return {"is_compatible": True}

    def _get_level(self, body: Any, subject: str = "") -> Any:
        return {"compatibilityLevel": self._levels.get(subject, self._levels[""])}

    def _put_level(self, body: Any, subject: str = "") -> Any:
        self._levels[subject] = str(body.get("compatibility"))
        return {"compatibility": self._levels[subject]}

    def _delete(self, body: Any, subject: str) -> Any:
        self._versions(subject)
        return list(range(1, len(self._subjects.pop(subject)) + 1))

    def _get_types(self, body: Any) -> Any:
        return ["AVRO"]

    def _get_mode(self, body: Any) -> Any:
        return {"mode": "READWRITE"}


def _asked(body: Any) -> tuple[str, list[dict[str, Any]], str]:
    if not isinstance(body, dict) or not isinstance(body.get("schema"), str):
        raise _Refused(422, 42201, "Invalid schema")
    return body["schema"], body.get("references") or [], body.get("schemaType") or "AVRO"


_ROUTES: Final[tuple[tuple[str, str, Callable[..., Any]], ...]] = (
    ("GET", "/subjects", SchemaRegistry._get_subjects),
    ("GET", "/subjects/([^/]+)/versions", SchemaRegistry._get_versions),
    ("GET", r"/subjects/([^/]+)/versions/(latest|-?\d+)", SchemaRegistry._get_version),
    ("GET", r"/schemas/ids/(\d+)", SchemaRegistry._get_schema),
    ("GET", r"/schemas/ids/(\d+)/versions", SchemaRegistry._get_places),
    ("GET", "/schemas/types", SchemaRegistry._get_types),
    ("GET", "/config", SchemaRegistry._get_level),
    ("GET", "/config/([^/]+)", SchemaRegistry._get_level),
    ("GET", "/mode", SchemaRegistry._get_mode),
    ("POST", "/subjects/([^/]+)/versions", SchemaRegistry._post_version),
    ("POST", "/subjects/([^/]+)", SchemaRegistry._post_lookup),
    (
        "POST",
        r"/compatibility/subjects/([^/]+)/versions/(latest|\d+)",
        SchemaRegistry._post_compatible,
    ),
    ("PUT", "/config", SchemaRegistry._put_level),
    ("PUT", "/config/([^/]+)", SchemaRegistry._put_level),
    ("DELETE", "/subjects/([^/]+)", SchemaRegistry._delete),
)


def _handler(registry: SchemaRegistry) -> type[BaseHTTPRequestHandler]:
    import base64

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            length = min(int(self.headers.get("Content-Length") or 0), _LARGEST)
            data = self.rfile.read(length) if length else b""
            try:
                body = json.loads(data) if data else None
            except ValueError:
                body = None
            kind, _, rest = (self.headers.get("Authorization") or "").partition(" ")
            auth = base64.b64decode(rest).decode() if kind == "Basic" else None
            path = urlsplit(self.path).path
            status, answer = registry.answer(self.command, path, body, auth)
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", _CONTENT)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815 - the names http.server calls

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name it has
            """`requests` is the log."""

    return Handler
