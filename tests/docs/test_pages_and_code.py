"""What the pages say about the code is in the code: modules, names, defaults, limits, errors.

A failure names the page and what to change there. The pages of decisions (docs/adr) are history:
they name modules that may be gone, and are left alone.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from ottla.config.broker import BrokerConfig
from ottla.config.setting import Setting
from ottla.config.topic import TopicConfig
from ottla.dispatch.table import Table
from ottla.dispatch.turns import MAX_ENTRIES
from ottla.errors import ErrorCode
from ottla.handlers import HANDLERS
from ottla.net.listener import Limits
from ottla.protocol.apis import OWN, ApiKey
from ottla.protocol.decoder import FEW_ELEMENTS, MAX_ELEMENTS

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "ottla"
ARCHITECTURE = ROOT / "ARCHITECTURE.md"
DIFFERENCES = ROOT / "docs" / "broker-behaviour.md"
OPERATIONS = ROOT / "docs" / "operations.md"

HAND_WRITTEN = [ROOT / "README.md", ARCHITECTURE, ROOT / "CONTRIBUTING.md"]
HAND_WRITTEN += [ROOT / "tests" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
INTERNALS = sorted((ROOT / "docs" / "internals").glob("*.md"))
PAGES = HAND_WRITTEN + INTERNALS


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def prose(page: Path) -> str:
    return re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def row(page: Path, start: str) -> str:
    """The one row of a page's tables that starts with some words."""
    [found] = [line for line in page.read_text().splitlines() if line.startswith(f"| {start}")]
    return found


# -- ARCHITECTURE.md ---------------------------------------------------------------------------


def file_map() -> dict[str, str]:
    """Each package with its paragraphs in the file map."""
    section = ARCHITECTURE.read_text().partition("\n## File map\n")[2].partition("\n## ")[0]
    paragraphs = re.findall(
        r"^\*\*`(\w+)/`\*\*(.*?)(?=^\*\*`|\Z)", section, re.DOTALL | re.MULTILINE
    )
    assert len(dict(paragraphs)) == len(paragraphs), "a package is on the map twice"
    return dict(paragraphs)


def packages() -> set[str]:
    return {path.parent.name for path in SOURCE.glob("*/__init__.py")}


def test_every_package_has_its_row_and_its_place_on_the_map() -> None:
    section = ARCHITECTURE.read_text().partition("\n## Packages\n")[2].partition("\n## ")[0]
    rows = set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))
    assert rows == packages() | {"errors"}
    assert file_map().keys() == packages()


@pytest.mark.parametrize("package", sorted(packages()))
def test_every_module_is_on_the_map_once(package: str) -> None:
    paragraph = file_map()[package]
    named = re.findall(r"`([\w/]+\.py|[\w/]+/)`", paragraph)
    where = f"the paragraph **`{package}/`** of the file map in ARCHITECTURE.md"
    for name in named:
        there = (SOURCE / package / name).exists()
        assert there, f"{where} names {name}, which does not exist: rename or remove it there"
        assert named.count(name) == 1, f"{where} names {name} twice"
    folders = tuple(name for name in named if name.endswith("/"))
    # The handlers have a list of their own, which the page of all APIs is made from.
    folders += ("",) if package == "handlers" else ()
    for path in sorted((SOURCE / package).rglob("*.py")):
        name = path.relative_to(SOURCE / package).as_posix()
        if path.name in ("__init__.py", "__main__.py") or name.startswith(folders):
            continue
        assert name in named, f"{where} does not name {name}: add it, with a few words about it"


@functools.cache
def sources() -> dict[Path, str]:
    below = [SOURCE, ROOT / "tests", ROOT / "bench", ROOT / "examples"]
    return {path: path.read_text() for folder in below for path in folder.rglob("*.py")}


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_a_module_that_a_page_names_exists(page: Path) -> None:
    files = [path.as_posix() for path in sources()]
    files += [path.as_posix() for path in ROOT.glob("*.py")]
    for name in re.findall(r"`([\w/]+\.py)`", prose(page)):
        if name in ("job.py", "conftest.py"):  # the reader's own
            continue
        assert any(path.endswith(f"/{name}") for path in files), (
            f"{shown(page)} names {name}, which does not exist: was it renamed?"
        )


@pytest.mark.parametrize("page", [ARCHITECTURE, *INTERNALS], ids=shown)
def test_a_method_that_a_page_names_exists(page: Path) -> None:
    for class_name, method in re.findall(r"`([A-Z]\w+)\.(\w+)`", prose(page)):
        homes = [text for text in sources().values() if f"class {class_name}" in text]
        there = any(re.search(rf"\b{method}\b", text) for text in homes)
        assert there, f"{shown(page)} names {class_name}.{method}, which does not exist"


# -- settings ----------------------------------------------------------------------------------

UNITS = {"ms": 1, "s": 1_000, "second": 1_000, "minute": 60_000, "hour": 3_600_000}
UNITS |= {"day": 86_400_000, "week": 604_800_000}
SIZES = {"KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "GiB": 1 << 30}
NUMBERS = {"a": 1, "an": 1, "two": 2, "three": 3, "four": 4, "five": 5, "ten": 10}
STATED = re.compile(
    r"`([a-z]+(?:\.[a-z]+)+)`(?: \(|, )(\d+|an?|two|three|four|five|ten)"
    r" (ms|s|seconds?|minutes?|hours?|days?|weeks?|KB|MB|GB|GiB)(?=[ ,;)|]|$)",
    re.MULTILINE,
)


def amount(setting: str, number: str, unit: str) -> float:
    """A stated value in the unit that the setting's name has."""
    count = NUMBERS.get(number) or int(number)
    if unit in SIZES:
        return count * SIZES[unit]
    milliseconds = count * UNITS[unit if unit in UNITS else unit.removesuffix("s")]
    return milliseconds / UNITS.get(setting.rpartition(".")[2].removesuffix("s"), 1)


def setting(name: str) -> Setting:
    return TopicConfig.settings.get(name) or BrokerConfig.settings[name]


def test_a_default_that_a_page_states_is_the_default() -> None:
    checked = 0
    for page in PAGES:
        for name, number, unit in STATED.findall(" ".join(prose(page).split())):
            if name not in TopicConfig.settings and name not in BrokerConfig.settings:
                continue
            default = setting(name).default
            assert isinstance(default, int), name
            stated = amount(name, number, unit)
            # Kafka's message.max.bytes is a megabyte and the header of a batch.
            assert abs(stated - default) <= 0.001 * default, (
                f"{shown(page)} says `{name}` is {number} {unit} by default, but it is {default}"
            )
            checked += 1
    assert checked >= 12, "the pattern finds fewer defaults than the pages state"


# -- docs/broker-behaviour.md ------------------------------------------------------------------


def test_the_defaults_that_are_not_kafkas_are_listed_and_no_others() -> None:
    section = DIFFERENCES.read_text().partition("\nThese defaults differ")[2].partition("\n## ")[0]
    listed = set()
    for line in section.splitlines():
        if line.startswith("| `"):
            listed |= set(re.findall(r"`([a-z.]+)`", line.split("|")[1]))
    differ = {each.name for each in BrokerConfig.settings.values() if each.differs is not None}
    assert listed == differ, "bring the table of defaults in docs/broker-behaviour.md up to date"
    assert f"| {BrokerConfig.settings['node.id'].default} |" in row(DIFFERENCES, "`node.id`")
    [folder] = BrokerConfig.settings["log.dir"].default
    assert f"`{folder}`" in row(DIFFERENCES, "`log.dir`")
    [listener] = BrokerConfig.settings["listeners"].default
    assert f"| {listener.split('/')[2].rpartition(':')[0]}:" in row(DIFFERENCES, "`listeners`")


def test_the_limits_on_requests_are_those_of_the_code() -> None:
    long = row(DIFFERENCES, "A request with very many entries")
    assert f"beyond {FEW_ELEMENTS:,} array elements" in long
    assert f"beyond {MAX_ELEMENTS:,}," in long
    assert "a response of a million entries" in long
    assert MAX_ENTRIES >> 20 == 1
    memory = f"{Limits().receive_memory >> 20} MB"
    assert memory in row(DIFFERENCES, "Memory for incomplete requests")
    assert memory in row(OPERATIONS, "all incomplete requests together")
    assert memory in row(OPERATIONS, "`ottla_receive_memory_bytes`")
    backlog = BrokerConfig.settings["socket.listen.backlog.size"].default
    assert f"({backlog})" in row(DIFFERENCES, "`socket.listen.backlog.size`")


def test_apis_that_kafka_does_not_have_are_among_the_differences() -> None:
    for key in ApiKey:
        if key >= OWN:
            row(DIFFERENCES, f"API key {int(key)} ")


def test_apis_that_are_called_missing_are_missing() -> None:
    served = {handler.spec.name for handler in Table(HANDLERS)}
    text = DIFFERENCES.read_text()
    names = "|".join(key.api_name for key in ApiKey)
    for name in re.findall(rf"\b({names}) is not served", text):
        assert name not in served, f"docs/broker-behaviour.md says that {name} is not served"


ENVIRONMENT = {"JAVA_HOME", "KAFKA_HEAP_OPTS"}
ERROR_PAGES = (DIFFERENCES, OPERATIONS, ROOT / "docs" / "reliability.md")


@pytest.mark.parametrize("page", ERROR_PAGES, ids=shown)
def test_an_error_that_a_page_names_exists(page: Path) -> None:
    named = set(re.findall(r"\b[A-Z]+(?:_[A-Z]+)+\b", prose(page)))
    assert named, "no error at all"
    unknown = named - ErrorCode.__members__.keys() - ENVIRONMENT
    assert not unknown, f"{shown(page)} names {sorted(unknown)}, which Kafka does not have"
