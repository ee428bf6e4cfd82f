"""The documentation cannot drift: what exists is documented, and what is documented exists."""

from __future__ import annotations

import functools
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from ottla.broker.reference import paragraphs
from ottla.cli.command import ALIASES
from ottla.cli.main import cli
from ottla.cli.reference import pages
from ottla.config.broker import BrokerConfig
from ottla.config.group import GroupConfig
from ottla.config.load import is_known
from ottla.config.topic import TopicConfig
from ottla.dispatch.table import Handler, Table
from ottla.handlers import HANDLERS
from ottla.pipelines import reference as pipelines_reference
from ottla.pipelines.connectors.sinks import slots
from ottla.pipelines.driver.metrics import METRICS as PIPELINE_METRICS
from ottla.pipelines.kafka_settings import SETTINGS as CLIENT_SETTINGS
from ottla.pipelines.option_table import OPTIONS
from ottla.testing import plugin

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
SPARK = ROOT / "docs" / "spark.md"

# What `make docs` writes; where a page says the same by hand, the tests below hold it to that.
GENERATED = ("cli.md", "config.md", "metrics.md", "protocol-support.md", "python.md")


@functools.cache
def tracked() -> tuple[Path, ...]:
    """Every file of the project: those that git has or would take, or all without git."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    names = listed.stdout.decode().split("\0") if listed.returncode == 0 else []
    found = [ROOT / name for name in names if name] or list(ROOT.rglob("*"))
    return tuple(path for path in found if path.is_file() and not hidden(path))


def hidden(path: Path) -> bool:
    parts = path.relative_to(ROOT).parts
    made = {"node_modules", "__pycache__"}  # which git would not list
    return any((part.startswith(".") and part != ".ci") or part in made for part in parts)


def markdown() -> list[Path]:
    return sorted(path for path in tracked() if path.suffix == ".md")


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def prose(path: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^ *```.*?^ *```$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)


def inline_code(path: Path) -> list[str]:
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose(path))]


# -- generated pages ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rendered() -> dict[str, str]:
    return pages()


def test_make_docs_writes_every_page_of_the_reference(rendered: dict[str, str]) -> None:
    assert sorted(rendered) == sorted(GENERATED)
    assert sorted(path.name for path in REFERENCE.iterdir()) == sorted(GENERATED)
    assert "ottla.cli.reference docs/reference" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("name", GENERATED)
def test_a_generated_page_is_what_would_be_written_now(name: str, rendered: dict[str, str]) -> None:
    assert (REFERENCE / name).read_text() == rendered[name], "run: make docs"


# -- settings ----------------------------------------------------------------------------------


def test_every_setting_is_documented() -> None:
    page = (REFERENCE / "config.md").read_text()
    for kind in (BrokerConfig, TopicConfig, GroupConfig):
        for setting in kind.settings.values():
            assert f"| `{setting.name}` |" in page
            assert setting.doc.strip(), f"{setting.name} has no words"


SETTING = re.compile(r"[a-z]+(?:\.[a-z]+)+(?:=\S*)?")
# `name.name` in code that is no setting of a broker or topic: files, modules, and what belongs to
# clients, to features, to databases and to Spark.
NOT_SETTINGS = re.compile(
    r".*\.(py|md|sh|js|log|json|toml|yaml|lock|txt|svg|metadata|properties)"
    r"|.*\.(index|timeindex|txnindex|snapshot)"
    r"|(ottla|storage|runtime|protocol|confluent|df|spark)\..*"
    r"|schema\.table|data\.items"
    r"|bootstrap\.servers|client\.id|group\.id|enable\.auto\.commit|auto\.offset\.reset"
    r"|isolation\.level|enable\.idempotence|enable\.metrics\.push|linger\.ms|batch\.size|message\.timeout\.ms|(transaction|group)\.version"
)


@pytest.mark.parametrize("page", markdown(), ids=shown)
def test_a_setting_that_a_page_names_exists(page: Path) -> None:
    if page.parent == REFERENCE:
        return
    for code in inline_code(page):
        if SETTING.fullmatch(code) and not NOT_SETTINGS.fullmatch(code.partition("=")[0]):
            name = code.partition("=")[0]
            known = is_known(name) or name in TopicConfig.settings or name in GroupConfig.settings
            if page == SPARK:
                known |= name.removeprefix("kafka.") in CLIENT_SETTINGS
                known |= any(option.name == name for option in OPTIONS)
            assert known, f"{shown(page)} speaks of a setting {name}, which does not exist"


def test_the_tables_of_options_for_spark_are_current() -> None:
    page = SPARK.read_text()
    assert pipelines_reference.filled(page) == page, "run `make docs`"


# -- commands ----------------------------------------------------------------------------------


def commands(context: click.Context) -> Iterator[click.Context]:
    yield context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            child = context.command.get_command(context, name)
            assert child is not None
            yield from commands(click.Context(child, info_name=name, parent=context))


@functools.cache
def command_tree() -> dict[str, click.Context]:
    # with its settings: click makes a command's --help only once, for the first who asks
    root = click.Context(cli, info_name="ottla", **cli.context_settings)
    return {context.command_path: context for context in commands(root)}


def test_every_command_and_option_is_documented() -> None:
    page = (REFERENCE / "cli.md").read_text()
    for path, context in command_tree().items():
        section = page.partition(f"\n## {path}\n")[2].partition("\n## ")[0]
        assert section, f"{path} has no section"
        assert context.command.help, f"{path} does not say what it is for"
        for parameter in context.command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                for option in parameter.opts:
                    assert option in section, f"{path} {option}"


def typed_lines(page: Path) -> Iterator[str]:
    """What a page tells people to type, as far as it is ours."""
    text = page.read_text().replace("\\\n", " ")
    for block in re.findall(r"^ *```(?:sh|console)\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE):
        for line in block.splitlines():
            yield from re.findall(r"(?:^|[|$] |\()(ottla .*?)(?= \||\)|$)", line.strip())
    yield from (code for code in inline_code(page) if code.startswith("ottla "))


@pytest.mark.parametrize("page", markdown(), ids=shown)
def test_a_command_that_a_page_tells_to_type_exists(page: Path) -> None:
    tree = command_tree()
    for line in typed_lines(page):
        words = shlex.split(line, comments=True)
        path = words[0]
        rest = words[1:]
        while rest and f"{path} {ALIASES.get(rest[0], rest[0])}" in tree:
            word = rest.pop(0)
            path = f"{path} {ALIASES.get(word, word)}"
        context = tree[path]
        if isinstance(context.command, click.Group) and rest:
            assert rest[0].startswith(("-", "…")) or "|" in rest[0], f"{shown(page)}: {line}"
        known = {"--help", "-h"}
        known |= {option for parameter in context.command.params for option in parameter.opts}
        for word in rest:
            if re.fullmatch(r"-[A-Za-z]|--[a-z][a-z-]*", word):
                assert word in known, f"{shown(page)}: {line}: there is no option {word}"


# -- metrics -----------------------------------------------------------------------------------


METRIC = re.compile(r"`((?:ottla|kafka_[a-z]+|process)_\w+)`")


def metric_names(page: str) -> set[str]:
    return set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))


def test_every_metric_is_explained_to_operators(rendered: dict[str, str]) -> None:
    exist = metric_names(rendered["metrics.md"])
    section = (ROOT / "docs" / "operations.md").read_text().partition("\n## Metrics\n")[2]
    explained = set(METRIC.findall(section.partition("\n## ")[0]))
    assert exist == explained


@pytest.mark.parametrize("page", markdown(), ids=shown)
def test_a_metric_that_a_page_names_exists(page: Path, rendered: dict[str, str]) -> None:
    exist = metric_names(rendered["metrics.md"])
    exist |= {metric.name for metric in PIPELINE_METRICS}
    fixtures = {name for name in vars(plugin) if name.startswith("ottla_")}
    named = {code for code in inline_code(page) if METRIC.fullmatch(f"`{code}`")}
    assert named - fixtures - {slots.TABLE} <= exist


# -- APIs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("handler", list(Table(HANDLERS)), ids=lambda handler: handler.spec.name)
def test_an_api_says_its_versions_as_they_are(handler: Handler) -> None:
    module = sys.modules[handler.function.__module__]
    sections = dict(paragraphs(module.__doc__ or ""))
    assert {"Versions", "See"} <= sections.keys(), (
        f"{module.__name__} does not open with its contract"
    )
    first, last = handler.versions[0], handler.versions[-1]
    span = str(first) if first == last else f"{first}-{last}"
    alone = sum(each.function.__module__ == module.__name__ for each in Table(HANDLERS)) == 1
    wanted = span if alone else f"{handler.spec.name} {span}"
    assert re.search(rf"(?<!\S){re.escape(wanted)}(?![\d-])", sections["Versions"]), sections[
        "Versions"
    ]


# -- the tests ---------------------------------------------------------------------------------


def test_the_page_about_the_tests_names_every_folder() -> None:
    named = set(re.findall(r"^\| `(\w+)/` \|", (ROOT / "tests" / "README.md").read_text(), re.M))
    below = (path.relative_to(ROOT).parts for path in tracked())
    assert named == {parts[1] for parts in below if parts[0] == "tests" and len(parts) > 2}


# -- pages -------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """The anchors that a renderer gives a page's headings."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE):
        plain = re.sub(r"[^\w\- ]", "", re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading).lower())
        found.add(plain.strip().replace(" ", "-"))
    return found


NO_RUN = "No run has been recorded yet."


@pytest.mark.parametrize("page", markdown(), ids=shown)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        if target.endswith("bench/results/latest.svg") and NO_RUN in page.read_text():
            continue  # the picture comes with the figures
        name, _, anchor = target.partition("#")
        linked = (page.parent / name).resolve() if name else page
        assert linked.exists(), f"{shown(page)} links to {target}, which is not there"
        if anchor and linked.suffix == ".md":
            assert anchor in anchors(linked), f"{shown(page)} links to {target}: no such heading"


def test_every_page_is_linked_from_another() -> None:
    linked = {
        (page.parent / target.partition("#")[0]).resolve()
        for page in markdown()
        for target in re.findall(r"\]\(([^)\s]+)\)", prose(page))
    }
    for page in markdown():
        recorded = page.parent == ROOT / "bench" / "results"  # docs/performance.md has it
        if page.parent != ROOT and page.name != "README.md" and not recorded:
            assert page.resolve() in linked, f"nobody finds {shown(page)}"


COMMON = {Path("/"), Path("/home"), Path("/tmp"), Path("/usr"), Path("/opt"), Path("/srv")}


def test_no_file_mentions_the_machine_it_was_written_on() -> None:
    places = {ROOT, Path.home()} | ({ROOT.parent} - COMMON)
    pattern = re.compile(
        rb"(?<![\w.])(?:" + b"|".join(re.escape(str(place).encode()) for place in places) + rb")/"
    )
    for path in tracked():
        found = pattern.search(path.read_bytes())
        assert found is None, f"{shown(path)} mentions {found[0].decode()}"
