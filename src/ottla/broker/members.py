"""Member: one process under a supervisor, a broker or a ZooKeeper, kept running.

A member is started, watched, and started again when it has ended, after pauses that grow while it
does not stay up. It outlives a supervisor that is killed: the next one finds it by the file that it
holds (`runtime.pid_file`) and watches it as if it were its own child.

A member that cannot even be started (no memory, no more processes, or its program is being
installed anew) is tried again like one that ends: the others must not suffer from it.

A member writes its log straight to the supervisor's standard error, each line with its name, so
that the supervisor's death takes no line away. It runs in a session of its own: Ctrl-C on the
terminal reaches the supervisor alone, which stops the members in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
from dataclasses import dataclass

from ottla.broker.addresses import why_not_free
from ottla.runtime.pid_file import clear, holder

logger = logging.getLogger(__name__)

FIRST_PAUSE = 0.2
LONGEST_PAUSE = 10.0
STAYED_UP = 10.0
"""Seconds after which a member that ends is started again without much of a pause."""

STOP_SECONDS = 60.0
LOOK_SECONDS = 0.1
"""Between looks at a process that is not our child."""


class NotStarted(Exception):
    """A member ended before it was up for the first time."""


@dataclass(frozen=True, slots=True)
class MemberPlan:
    """What a member is, and how it is run.

    It is up when it says so through a pipe (`--ready-fd`), or else when its port is open.
    """

    id: int
    command: tuple[str, ...]
    pid_file: str
    port: int | None = None
    listens: tuple[tuple[str, int], ...] = ()
    moved: str = "choose another address"  # how a person has it listen elsewhere

    @property
    def name(self) -> str:
        return f"broker {self.id}" if self.port is None else "ZooKeeper"


class Member:
    """One broker process. `await start()`, then `await keep()`; `await stop()` at the end."""

    def __init__(self, plan: MemberPlan) -> None:
        self.id = plan.id
        self._name = plan.name
        self._plan = plan
        self._child: asyncio.subprocess.Process | None = None
        self._adopted: int | None = None
        self._stopping = False
        self._spawning = asyncio.Lock()
        self._began = 0.0

    def check_running(self) -> int | None:
        """The process that an earlier supervisor has left, if it lives."""
        return holder(self._plan.pid_file)

    def check_free(self) -> str | None:
        """Why it could not listen where it is to; None when it can, or runs already."""
        if self.check_running() is not None:
            return None
        for host, port in self._plan.listens:
            why = why_not_free(host, port, self._plan.moved) if port else None
            if why is not None:
                return f"{self._name} {why}"
        return None

    @property
    def pid(self) -> int | None:
        """The process, while there is one."""
        if self._child is not None:
            return self._child.pid if self._child.returncode is None else None
        return holder(self._plan.pid_file) if self._adopted is not None else None

    async def start(self) -> None:
        """Returns when it serves clients. Raises NotStarted when it ends before that."""
        self._adopted = holder(self._plan.pid_file)
        if self._adopted is not None:
            logger.info("%s still runs, as process %d", self._name, self._adopted)
            return
        try:
            up = await self._launch()
        except OSError as error:
            raise NotStarted(f"{self._name} cannot be started: {error}") from None
        if not up:
            ended = await self._wait_ended()
            raise NotStarted(f"{self._name} did not start: {ended}; its own lines above say why")

    async def keep(self) -> None:
        """Start it again whenever it ends, until `stop` is called."""
        pause = FIRST_PAUSE
        while True:
            how = await self._wait_ended()
            if self._stopping:
                return
            if asyncio.get_running_loop().time() - self._began > STAYED_UP:
                pause = FIRST_PAUSE
            logger.warning("%s %s; it is started again in %.1f s", self._name, how, pause)
            await asyncio.sleep(pause)
            if self._stopping:
                return
            pause = min(2 * pause, LONGEST_PAUSE)
            try:
                await self._launch()
            except OSError as error:
                logger.error("%s cannot be started: %s", self._name, error)

    async def stop(self) -> None:
        """SIGTERM, and wait until it has ended."""
        self._stopping = True
        async with self._spawning:  # one that is being started again would be left behind
            self._send(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._wait_ended()
        except TimeoutError:
            logger.warning("%s does not end, and is killed", self._name)
            self.kill()
            await self._wait_ended()
        clear(self._plan.pid_file)

    def kill(self) -> None:
        """SIGKILL."""
        self._stopping = True
        self._send(signal.SIGKILL)

    # --- inside -----------------------------------------------------------------------------------

    async def _launch(self) -> bool:
        """Start a process; whether it came up."""
        self._adopted = None
        self._began = asyncio.get_running_loop().time()
        if self._plan.port is not None:
            child = await self._spawn(self._plan.command)
            return child is not None and await _wait_open(self._plan.port, child)
        ours, theirs = os.pipe()
        try:
            await self._spawn((*self._plan.command, "--ready-fd", str(theirs)), theirs)
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        return await _wait_word(ours)

    async def _spawn(
        self, command: tuple[str, ...], *inherited: int
    ) -> asyncio.subprocess.Process | None:
        """The process, which can be stopped from here on; None when it is not wanted any more."""
        async with self._spawning:
            if self._stopping:
                return None
            self._child = await asyncio.create_subprocess_exec(
                *command, stdin=subprocess.DEVNULL, pass_fds=inherited, start_new_session=True
            )
            return self._child

    async def _wait_ended(self) -> str:
        """How it ended."""
        if self._child is not None:
            code = await self._child.wait()
            if code < 0:
                return f"was ended by {signal.Signals(-code).name}"
            return f"ended with exit code {code}"
        while holder(self._plan.pid_file) is not None:
            await asyncio.sleep(LOOK_SECONDS)
        if self._adopted is not None:
            with contextlib.suppress(ChildProcessError):  # whose child it may still be
                # A process that ends gives its locks back a moment before it can be waited for.
                while os.waitpid(self._adopted, os.WNOHANG) == (0, 0):
                    await asyncio.sleep(LOOK_SECONDS)
        return "has ended"

    def _send(self, number: signal.Signals) -> None:
        pid = self.pid
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


async def _wait_open(port: int, child: asyncio.subprocess.Process) -> bool:
    """Whether a port of this machine is opened before the process ends."""
    while child.returncode is None:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return True
        await asyncio.sleep(LOOK_SECONDS)
    return False


async def _wait_word(descriptor: int) -> bool:
    """Whether a word comes through a pipe before its other end is closed."""
    loop = asyncio.get_running_loop()
    come: asyncio.Future[bool] = loop.create_future()

    def readable() -> None:
        if not come.done():
            come.set_result(bool(os.read(descriptor, 1)))

    loop.add_reader(descriptor, readable)
    try:
        return await come
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
