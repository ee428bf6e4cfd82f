"""`ottla pipeline run`, once for each pipeline, and started again whenever it has ended."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import psutil

from kills.executors import kill_all
from ottla.pipelines.driver.checkpoint import Checkpoint, LocalFiles

_LOOK: Final = 0.1
_PAUSE: Final = 0.5
"""Before one that has ended by itself is started again."""
_STOP: Final = 120.0


class Driver:
    """One pipeline's driver, which a thread keeps running between `start` and `stop`.

    scratch  where its Spark keeps what is worth nothing after it, which one that was killed leaves
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        command: list[str],
        environment: Mapping[str, str],
        *,
        scratch: Path,
    ) -> None:
        self.name = name
        self._scratch = scratch
        self._log = folder / f"{name}.log"
        self._command = [sys.executable, "-m", "ottla", "pipeline", "run", *command]
        self._command += ["--state-dir", str(folder / "state"), "--json"]
        self._environment = dict(environment)
        self.checkpoint = Checkpoint(name, LocalFiles(folder / "state" / name / "checkpoint"))
        self._process: subprocess.Popen[bytes] | None = None
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._expected = False
        self.starts = 0
        self.gave_up: list[str] = []
        """What it said whenever it ended by itself."""

    def start(self) -> None:
        self._launch()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def kill(self) -> None:
        """Kill -9 of the driver and its Java, and of all Python that these have started."""
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                self._expected = True
                kill_all(psutil.Process(self._process.pid))
                self._process.wait()

    def stop(self) -> None:
        """Let it finish its batch, and end."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        if self._process is None or self._process.poll() is not None:
            return
        family = psutil.Process(self._process.pid)
        self._process.terminate()
        try:
            self._process.wait(_STOP)
        except subprocess.TimeoutExpired:
            kill_all(family)
            self._process.wait()

    def end(self) -> None:
        """At once."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        self.kill()

    def said(self) -> str:
        """The last line that it has printed."""
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        return lines[-1] if lines else "nothing"

    def _launch(self) -> None:
        with self._lock, self._log.open("ab") as log:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._expected = False
            self.starts += 1
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self._environment},
                start_new_session=True,
            )

    def _watch(self) -> None:
        while not self._over.wait(_LOOK):
            process = self._process
            if process is None or process.poll() is None:
                continue
            if not self._expected:
                self.gave_up.append(f"exit code {process.returncode}: {self.said()}")
                time.sleep(_PAUSE)
            if not self._over.is_set():
                self._launch()
