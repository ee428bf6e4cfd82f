"""Starts the measuring client processes and reads their results."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import IO, TYPE_CHECKING

from bench.maven import ROOT
from bench.processes import BenchError, die_with_parent

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

_PATIENCE = 600.0


class Client:
    """One fresh client process running one measurement of `bench.load`."""

    def __init__(self, measurement: str, **arguments: object) -> None:
        self._name = measurement
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.load", measurement, json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            process_group=0,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - one system call, no lock is taken
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def wait_ready(self) -> None:
        """Return when the client says that it is ready to be measured."""
        if _pipe(self._process.stdout).readline() != "ready\n":
            self._fail()

    def tell(self) -> None:
        """Send the next line of the conversation (open the window, close the window)."""
        pipe = _pipe(self._process.stdin)
        try:
            pipe.write("\n")
            pipe.flush()
        except BrokenPipeError:
            self._fail()

    def running(self) -> bool:
        return self._process.poll() is None

    def result(self) -> dict[str, float]:
        """Wait for the end and return the figures."""
        try:
            out, err = self._process.communicate(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise BenchError(f"the client `{self._name}` did not finish") from None
        if self._process.returncode != 0:
            raise BenchError(f"the client `{self._name}` failed:\n{err[-2000:]}")
        figures: dict[str, float] = json.loads(out.splitlines()[-1])
        return figures

    def _fail(self) -> None:
        _out, err = self._process.communicate(timeout=30)
        raise BenchError(f"the client `{self._name}` failed:\n{err[-2000:]}")


def measure(measurement: str, **arguments: object) -> dict[str, float]:
    """Run a measurement that needs no conversation."""
    with Client(measurement, **arguments) as client:
        return client.result()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe
