"""What a supervisor is asked while it runs: one more broker, or to begin anew with the program
that is on the disk by now.

A line of JSON each way, over a socket in the cluster's folder that only its owner may use. Whoever
connects asks once and waits: an answer comes when the broker serves clients, or names why it does
not. A request that cannot be granted changes nothing.

    {"add": {"id": 4, "port": null}}      null lets the supervisor choose the next one
    {"broker": 4, "address": "127.0.0.1:9095", "data": ["cluster-data/broker-4"]}
    {"error": "broker 4 is there already"}

    {"renew": "0.2.0"}                    unless it is of this version
    {"process": 4711, "renewed": true}    it stays the same process, and its brokers run on
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import stat
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any

from ottla import __version__
from ottla.broker.start_failed import StartFailed
from ottla.cluster.unix_path import short_path

LONGEST = 1 << 16
PATIENCE = 60.0
LOOK_SECONDS = 0.05
ADD_PATIENCE = 600.0
"""Seconds for an answer: a broker that was there before may have to check its logs first."""


@dataclass(frozen=True, slots=True)
class Added:
    """A broker that was added, and serves clients."""

    broker: int
    address: str
    data: tuple[str, ...]


Add = Callable[[int | None, int | None], Awaitable[Added]]
"""Adds a broker with this id and port. Raises StartFailed."""


class Control:
    """Serves one socket. `await start()`, `await stop()`.

    `renew` is called when it was asked for, after that was answered."""

    def __init__(self, path: str, add: Add, renew: Callable[[], None]) -> None:
        self._path = path
        self._add = add
        self._renew = renew
        self._server: asyncio.AbstractServer | None = None

    async def start(self) -> None:
        """Serve from now on. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)  # left behind: there is one supervisor at a time
        with short_path(self._path) as path:
            before = os.umask(0o177)
            try:
                self._server = await asyncio.start_unix_server(self._serve, path, limit=LONGEST)
            finally:
                os.umask(before)
        os.chmod(self._path, stat.S_IRUSR | stat.S_IWUSR)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answer = await self._answer(await reader.readline())
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
            if answer.get("renewed"):
                self._renew()
        except (OSError, ValueError):
            pass  # whoever asked is gone, or sends what nobody reads
        finally:
            writer.close()

    async def _answer(self, line: bytes) -> dict[str, object]:
        try:
            request = json.loads(line)
            if "renew" in request:
                return _renewed(request["renew"])
            wanted = request["add"]
            broker, port = wanted["id"], wanted["port"]
        except (ValueError, TypeError, LookupError):
            return {"error": "this supervisor does not understand the request"}
        try:
            return asdict(await self._add(broker, port))
        except StartFailed as error:
            return {"error": str(error)}


def _renewed(version: str) -> dict[str, object]:
    """Whether this process becomes another program: unless there is none in its place."""
    renewed = version != __version__
    if renewed and not os.access(sys.executable, os.X_OK):
        return {"error": f"the process that runs the cluster cannot begin anew: {sys.executable}, "
                "with which it was started, is not there any more. Install the new version there, "
                "or kill -9 that process and type anew what it was started with: the brokers "
                "run on"}  # fmt: skip
    return {"process": os.getpid(), "renewed": renewed}


def ask_to_add(path: str, broker: int | None, port: int | None) -> Added:
    """Have the supervisor at this socket add a broker; blocks. Raises StartFailed."""
    answer = _ask(path, {"add": {"id": broker, "port": port}}, ADD_PATIENCE)
    return Added(answer["broker"], answer["address"], tuple(answer["data"]))


def ask_to_renew(path: str, version: str, *, patience: float = PATIENCE) -> bool:
    """Have the supervisor begin anew with what is on the disk, unless it has this version; says
    whether it did, when it runs the brokers again. Blocks. Raises StartFailed."""
    before = _identity(path)
    answer = _ask(path, {"renew": version}, patience)
    if not answer["renewed"]:
        return False
    deadline = time.monotonic() + patience
    while _identity(path) in (None, before):
        if time.monotonic() > deadline or not _lives(answer["process"]):
            raise StartFailed(
                "the process that runs the cluster has not come back: its own last lines say why. "
                "The brokers run on, and nobody starts one again that ends; type in its terminal "
                "what it was started with"
            )
        time.sleep(LOOK_SECONDS)
    return True


def _identity(path: str) -> tuple[int, int] | None:
    """Which socket is there."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_ctime_ns


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # somebody else's
    return True


def _ask(path: str, wanted: dict[str, object], patience: float) -> dict[str, Any]:
    request = json.dumps(wanted).encode() + b"\n"
    try:
        with short_path(path) as short, socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(patience)
            connection.connect(short)
            connection.sendall(request)
            with connection.makefile("rb") as answers:
                answer: dict[str, Any] = json.loads(answers.readline(LONGEST))
    except TimeoutError:
        raise StartFailed(
            f"the process that runs the cluster has not answered at {path} for {patience:.0f} s: "
            "is it stopped (SIGSTOP, Ctrl-Z), or its machine overloaded?"
        ) from None
    except PermissionError as error:
        raise StartFailed(
            f"{path}: {error.strerror}: only the user that runs the cluster can ask that"
        ) from None
    except (OSError, ValueError) as error:
        raise StartFailed(
            f"the process that runs the cluster does not answer at {path} ({error}); it may have "
            "been started by an older version: stop it and run `ottla cluster up` again"
        ) from None
    if "error" in answer:
        raise StartFailed(answer["error"])
    return answer
