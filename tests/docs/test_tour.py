"""What the README and the quickstart tell people to type, typed.

A page's tour is everything between `<!-- tour: begin … -->` and `<!-- tour: end -->`. Its `sh` and
`python` blocks are run as they stand, in the order of the page, in an empty folder with a broker
that was started like `make run` does; the `text` block behind one is what it prints, where `…`
stands for whatever differs from run to run. Other comments of that form say what the reader is
asked to do meanwhile. Only the port differs: OTTLA_BOOTSTRAP names one that is free, and programs
that name the address of `make run` get that one.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import pytest

from ottla.testing.process import BrokerProcess

ROOT = Path(__file__).parents[2]
README = "README.md"
PAGES = (README, "docs/quickstart.md", "docs/coming-from.md")
LIST = ".venv/bin/ottla topic list"
STEP_SECONDS = 60
MAKE_RUNS = "127.0.0.1:9092"

KILL = "kill -9 and make run"


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
        return shlex.split(line)


def tour(page: str) -> list[Step]:
    text = (ROOT / page).read_text()
    found = re.search(r"<!-- tour: begin.*?-->\n(.*?)<!-- tour: end -->", text, re.DOTALL)
    assert found is not None, f"{page} has no tour"
    steps: list[Step] = []
    for language, code, order in re.findall(
        r"^```(\w+)\n(.*?)^```$|^<!-- tour: (.*?) -->$", found[1], re.DOTALL | re.MULTILINE
    ):
        if language == "text":
            steps[-1] = steps[-1]._replace(shows=code)
        else:
            steps.append(Step(language or "order", code or order))
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


def run(broker: BrokerProcess, script: str) -> str:
    """What a terminal shows of a script."""
    result = subprocess.run(
        ["bash", "-e", "-u", "-o", "pipefail", "-c", script],
        cwd=broker.folder,
        env={**os.environ, "OTTLA_BOOTSTRAP": broker.bootstrap, "LC_ALL": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=STEP_SECONDS,
        check=False,
    )
    assert result.returncode == 0, f"{script}\nended with {result.returncode}:\n{result.stdout}"
    return result.stdout


def check_shown(shown: str, printed: str) -> None:
    for wanted, got in zip_longest(shown.splitlines(), printed.splitlines()):
        pattern = ".*".join(map(re.escape, (wanted or "").split("…")))
        same = None not in (wanted, got) and re.fullmatch(pattern, got or "")
        assert same, f"the page shows {wanted!r}, but {got!r} was printed, in:\n{printed}"


@pytest.mark.parametrize("page", PAGES)
def test_a_tour_does_what_its_page_shows(page: str, broker: BrokerProcess) -> None:
    steps = tour(page)
    assert steps
    if page != README:
        # The reader comes from there, and what was typed there is still in the broker.
        run(broker, tour(README)[0].text)
    before = run(broker, LIST)
    exported = ""
    for step in steps:
        if step.kind == "order":
            assert step.text == KILL, f"nobody knows how to {step.text!r}"
            broker.kill()
            broker.start()
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
            f"who types {page} a second time is stopped by the first"
        )


def test_the_banner_says_where_things_are_and_what_to_type(broker: BrokerProcess) -> None:
    broker.wait_log("Ctrl-C stops it.")
    said = broker.log()
    assert re.search(r"^Ottla \S+ started in \d+\.\d+ s$", said, re.MULTILINE)
    assert f"\n  listening   PLAINTEXT://{broker.bootstrap}\n" in said
    assert "\n  data        data\n" in said
    assert (broker.folder / "data").is_dir()
    lines = said.partition("Try it from another terminal:\n")[2].splitlines()[:3]
    create, produce, consume = (line.strip() for line in lines)
    run(broker, f"{create}\n{produce}")
    # as it stands it would wait for more
    assert run(broker, f"{consume} --max 1") == "hello, world\n"
