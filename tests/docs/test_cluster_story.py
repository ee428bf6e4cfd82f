"""The story of a cluster in docs/operations.md, typed from beginning to end.

The part that names this file in a comment (`typed: begin`) is run as it stands, in an empty folder.
The first command runs until the story ends; the others run beside it. The `text` block behind one
is what it prints: `…` in a line stands for what differs from run to run, a line of nothing but `…`
for any number of lines. `<!-- story: until in sync -->` waits, as the reader does, until whoever
was killed is back, all brokers are up and all replicas in sync. Only the ports differ.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla.broker.cluster_folder import ClusterFolder
from ottla.runtime.pid_file import holder
from ottla.testing.process import free_port

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
STORY = "<!-- typed: begin tests/docs/test_cluster_story.py -->\n(.*?)<!-- typed: end -->"
STEP = r"^```(\w+)\n(.*?)^```$|^<!-- story: (.*?) -->$"
FIRST_PORT = 9092
SECONDS = 300
PORTS = 4


def steps() -> list[tuple[str, str]]:
    [story] = re.findall(STORY, PAGE.read_text(), re.DOTALL)
    found = re.findall(STEP, story, re.DOTALL | re.MULTILINE)
    return [("wait", comment) if comment else (kind, text) for kind, text, comment in found]


def matches(shown: str, printed: str) -> bool:
    pattern = ""
    for line in shown.splitlines():
        if line == "…":
            pattern += r"(?:.*\n)*"
        else:
            pattern += "[^\n]*".join(map(re.escape, line.split("…"))) + "\n"
    return re.fullmatch(pattern, printed) is not None


class Terminal:
    """The reader's: one command runs in the background, the others one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.base = free_port(row=PORTS)
        self.environment = {
            **os.environ,
            "HOME": str(folder),
            "OTTLA_BOOTSTRAP": f"127.0.0.1:{self.base}",
            "LC_ALL": "C.UTF-8",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        self.output, self.log = folder / "output", folder / "log"
        self.cluster: subprocess.Popen[bytes] | None = None
        self.killed_ms = 0.0

    def start(self, line: str) -> None:
        with self.output.open("wb") as output, self.log.open("wb") as log:
            self.cluster = subprocess.Popen(
                ["bash", "-c", f"exec {line.strip()} --base-port {self.base}"],
                cwd=self.folder, env=self.environment, stdout=output, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def run(self, script: str) -> str:
        if "kill -9" in script:
            self.killed_ms = time.time() * 1000
        done = subprocess.run(
            ["bash", "-e", "-u", "-o", "pipefail", "-c", script],
            cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SECONDS,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{script}\nended with {done.returncode}:\n{done.stdout}"
        return self.as_on_the_page(done.stdout)

    def as_on_the_page(self, printed: str) -> str:
        for number in range(PORTS):
            ours = f"127.0.0.1:{self.base + number}"
            printed = printed.replace(ours, f"127.0.0.1:{FIRST_PORT + number}")
        # Where a port has more digits than those on the page, columns are wider.
        return re.sub(r" +$", "", printed, flags=re.MULTILINE)

    def is_up(self) -> bool:
        assert self.cluster is not None
        if self.cluster.poll() is not None:
            pytest.fail(self.log.read_text())
        return "Ctrl-C stops them all." in self.output.read_text()

    def in_sync(self) -> bool:
        try:
            found = json.loads(self.run("ottla cluster status --json"))
        except ValueError:  # with a word about somebody who does not answer
            return False
        brokers = found["brokers"]
        if found["troubled"] or any(each["state"] != "up" for each in brokers):
            return False
        return max(each["since"] for each in brokers) >= self.killed_ms

    def close(self) -> None:
        if self.cluster is not None and self.cluster.poll() is None:
            self.cluster.kill()
            self.cluster.wait()
        home = ClusterFolder((str(self.folder / "cluster-data"),))
        for broker in home.brokers() if os.path.isdir(home.home) else ():
            pid = holder(home.process(broker))
            if pid is not None:
                os.kill(pid, signal.SIGKILL)


def squeezed(text: str) -> str:
    """Without the widths of columns, which follow what is in them."""
    return re.sub(r" {2,}", "  ", re.sub(r"^ +", "", text, flags=re.MULTILINE))


@pytest.mark.timeout(1800)
def test_the_story_goes_as_the_page_tells_it(
    tmp_path: Path, eventually: Callable[..., None]
) -> None:
    terminal = Terminal(tmp_path)
    printed = ""
    first = True
    try:
        for kind, text in steps():
            if kind == "wait":
                assert text == "until in sync"
                eventually(terminal.in_sync, timeout=SECONDS)
            elif kind == "text":
                assert matches(squeezed(text), squeezed(printed)), f"printed:\n{printed}"
            elif first:
                terminal.start(text)
                eventually(terminal.is_up, timeout=SECONDS)
                printed = terminal.as_on_the_page(terminal.output.read_text()).rstrip("\n") + "\n"
                first = False
            else:
                printed = terminal.run(text)
        assert terminal.cluster is not None
        terminal.cluster.send_signal(signal.SIGINT)
        assert terminal.cluster.wait(SECONDS) == 0
    finally:
        terminal.close()
