"""What the pages tell people to type, typed.

A page's tour is everything between `<!-- tour: begin … -->` and `<!-- tour: end -->`; a page may
have several such parts, which are run one after the other. The `sh` and `python` blocks of a tour
are run as they stand, in the order of the page, in an empty folder with a broker that was started
like `make run` does. The `text` block behind one is what it prints, where `…` stands for whatever
differs from run to run. Only the port differs: OTTLA_BOOTSTRAP names one that is free, and programs
that name the address of `make run` get that one.

Other comments of that form are orders to this test:

- `<!-- tour: kill -9 and make run -->`: what the reader is asked to do here.
- `<!-- tour: type COMMAND -->`: a command that the page does not show, to prepare for the next one.
- `<!-- tour: example output -->`: the next `text` block is an example and is not compared.
- `<!-- tour: until stopped -->`: each line of the next block runs until Ctrl-C.

tests/docs/test_blocks.py fails when a block on any page is typed by nobody.
"""

from __future__ import annotations

import contextlib
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import pytest

from ottla.testing.process import BrokerProcess, free_port

ROOT = Path(__file__).parents[2]
README = "README.md"
BEGIN = "<!-- tour: begin"
PAGES = [
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / README, *sorted((ROOT / "docs").rglob("*.md")))
    if BEGIN in path.read_text()
]
LIST = ".venv/bin/ottla topic list"
STEP_SECONDS = 250
MAKE_RUNS = "127.0.0.1:9092"

KILL = "kill -9 and make run"
TYPE = "type "
EXAMPLE = "example output"
UNTIL_STOPPED = "until stopped"


class Step(NamedTuple):
    """A block of code and what it prints, or something the reader is asked to do."""

    kind: str
    text: str
    shows: str | None = None


class MakeRun(BrokerProcess):
    """`make run`, word for word, but for the port and for where `make` lies."""

    @property
    def command(self) -> list[str]:
        recipe = re.search(r"^run:.*\n\t@exec (.+)$", (ROOT / "Makefile").read_text(), re.M)
        assert recipe is not None, "the Makefile has no recipe `run` that ends in exec"
        line = recipe[1].replace("$(BIN)", ".venv/bin").replace(MAKE_RUNS, self.bootstrap)
        line = line.replace("127.0.0.1:9308", "127.0.0.1:0")
        return shlex.split(line)


def tour(page: str) -> list[Step]:
    text = (ROOT / page).read_text()
    parts = re.findall(rf"{BEGIN}.*?-->\n(.*?)<!-- tour: end -->", text, re.DOTALL)
    assert parts, f"{page} has no tour"
    assert len(parts) == text.count(BEGIN), f"{page} has a tour without an end"
    steps: list[Step] = []
    order = ""
    for language, code, comment in re.findall(
        r"^```(\w+)\n(.*?)^```$|^<!-- tour: (.*?) -->$", "".join(parts), re.DOTALL | re.MULTILINE
    ):
        if comment in (EXAMPLE, UNTIL_STOPPED):
            order = comment
        elif comment:
            kind = "sh" if comment.startswith(TYPE) else "order"
            steps.append(Step(kind, comment.removeprefix(TYPE)))
        elif language != "text":
            steps.append(Step(UNTIL_STOPPED if order == UNTIL_STOPPED else language, code))
            order = ""
        else:
            if order != EXAMPLE:
                steps[-1] = steps[-1]._replace(shows=code)
            order = ""
    assert not order, f"{page}: {order!r} has nothing behind it"
    return steps


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker in an empty folder that has this environment as its `.venv`."""
    if os.environ.get("OTTLA_TEST_BOOTSTRAP"):
        pytest.skip("this test must start the broker itself")
    (tmp_path / ".venv").symlink_to(sys.prefix)
    with MakeRun(tmp_path) as broker:
        broker.start()
        yield broker


def environment(broker: BrokerProcess) -> dict[str, str]:
    return {
        **os.environ,
        "HOME": str(broker.folder),
        "OTTLA_BOOTSTRAP": broker.bootstrap,
        "LC_ALL": "C.UTF-8",
    }


def run(broker: BrokerProcess, script: str) -> str:
    """What a terminal shows of a script."""
    result = subprocess.run(
        ["bash", "-e", "-u", "-o", "pipefail", "-c", script],
        cwd=broker.folder,
        env=environment(broker),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=STEP_SECONDS,
        check=False,
    )
    assert result.returncode == 0, f"{script}\nended with {result.returncode}:\n{result.stdout}"
    return result.stdout


def run_until_stopped(
    broker: BrokerProcess, folder: Path, line: str, eventually: Callable[..., None]
) -> None:
    """Run a line on a terminal, in a folder of its own, until it has printed something."""
    if line.startswith("ottla server start"):
        # Where the page listens on every interface, the test listens on loopback.
        line = line.replace("--listen 0.0.0.0:9092", "")
        line += " --listen 127.0.0.1:0"
    elif line.startswith("ottla cluster up"):
        line += f" --base-port {free_port(row=5)}"
    folder.mkdir()
    terminal, slave = pty.openpty()
    os.set_blocking(terminal, False)
    process = subprocess.Popen(
        ["bash", "-c", f'export PATH="{broker.folder}/.venv/bin:$PATH"; exec {line}'],
        cwd=folder,
        env={**environment(broker), "TERM": "xterm"},
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    printed = b""

    def has_ended() -> bool:
        nonlocal printed
        ended = process.poll() is not None
        with contextlib.suppress(BlockingIOError, OSError):  # a terminal without a program fails
            while part := os.read(terminal, 65536):
                printed += part
        return ended

    def has_started() -> bool:
        assert not has_ended(), f"{line}\nended:\n{printed.decode()}"
        serves = "server start" in line or "cluster up" in line
        return (b"Ctrl-C stops " if serves else b"\n") in printed

    try:
        eventually(has_started, timeout=STEP_SECONDS)
        process.send_signal(signal.SIGINT)
        eventually(has_ended, timeout=STEP_SECONDS)
        message = f"{line}\nended with {process.returncode} after Ctrl-C:\n{printed.decode()}"
        assert process.returncode == 0, message
    finally:
        process.kill()
        process.wait()
        kill_below(folder)
        os.close(terminal)


def kill_below(folder: Path) -> None:
    """End what a supervisor leaves behind that was killed: each broker has its own session."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if Path(os.readlink(f"/proc/{name}/cwd")).is_relative_to(folder):
                os.kill(int(name), signal.SIGKILL)


def check_shown(shown: str, printed: str) -> None:
    for wanted, got in zip_longest(shown.splitlines(), printed.splitlines()):
        pattern = ".*".join(map(re.escape, (wanted or "").split("…")))
        same = None not in (wanted, got) and re.fullmatch(pattern, got or "")
        assert same, f"the page shows {wanted!r}, but {got!r} was printed, in:\n{printed}"


# Each step has a deadline of its own, and a page has many steps.
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", PAGES)
def test_a_tour_does_what_its_page_shows(
    page: str, broker: BrokerProcess, eventually: Callable[..., None]
) -> None:
    steps = tour(page)
    assert steps
    if page != README:
        # The reader comes from there, and what was typed there is still in the broker.
        run(broker, tour(README)[0].text)
    before = run(broker, LIST)
    exported = "" if page == README else 'export PATH="$PWD/.venv/bin:$PATH"\n'
    for number, step in enumerate(steps):
        if step.kind == "order":
            assert step.text == KILL, f"nobody knows how to {step.text!r}"
            broker.kill()
            broker.start()
            continue
        if step.kind == UNTIL_STOPPED:
            for place, line in enumerate(step.text.splitlines()):
                folder = broker.folder / f"until-stopped-{number}-{place}"
                run_until_stopped(broker, folder, line, eventually)
            continue
        script = step.text
        if step.kind == "python":
            (broker.folder / "tour.py").write_text(script.replace(MAKE_RUNS, broker.bootstrap))
            script = "python tour.py"
        else:
            assert step.kind == "sh", f"a block of {step.kind} is not run by anybody"
        printed = run(broker, exported + script)
        if step.shows is not None:
            check_shown(step.shows, printed)
        exported += "".join(
            f"{line}\n" for line in step.text.splitlines() if line.startswith("export ")
        )
    assert "Traceback" not in broker.log()
    if page != README:
        assert run(broker, LIST) == before, (
            f"{page} leaves topics behind, so typing it a second time fails"
        )


def test_the_banner_says_where_things_are_and_what_to_type(broker: BrokerProcess) -> None:
    broker.wait_log("Ctrl-C stops it.")
    log = broker.log()
    assert re.search(r"^Ottla \S+ started in \d+\.\d+ s$", log, re.MULTILINE)
    assert f"\n  listening   PLAINTEXT://{broker.bootstrap}\n" in log
    assert "\n  data        data\n" in log
    assert re.search(r"^  metrics     http://127\.0\.0\.1:\d+/metrics$", log, re.MULTILINE)
    assert (broker.folder / "data").is_dir()
    lines = log.partition("Try it from another terminal:\n")[2].splitlines()[:3]
    create, produce, consume = (line.strip() for line in lines)
    run(broker, f"{create}\n{produce}")
    # as it stands it would wait for more
    assert run(broker, f"{consume} --max 1") == "hello, world\n"
