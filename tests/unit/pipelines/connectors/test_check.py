"""A pipeline's file: every mistake at once, each with its place, and no secret in any of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ottla.pipelines.connectors import catalog
from ottla.pipelines.connectors.option import Declaration, Kind, Mistake, Option
from ottla.pipelines.connectors.sources.http import shown
from ottla.pipelines.connectors.spec.check import read_file, read_text, read_tree
from ottla.pipelines.connectors.spec.tree import Mistakes, tree_of
from ottla.pipelines.connectors.spec.values import Case, PipelineSpec


def _make(values: Mapping[str, Any]) -> Mapping[str, Any]:
    if values["mode"] == "timestamp" and not values["columns"]:
        raise Mistake("mode", "timestamp needs columns")
    return values


SHELF = Declaration(
    "shelf",
    "a source for tests",
    (
        Option("dsn", Kind.TEXT, "where it is", required=True, secret=True),
        Option("mode", Kind.TEXT, "how", default="bulk", choices=("bulk", "timestamp")),
        Option("columns", Kind.LIST, "which"),
        Option("poll", Kind.DURATION, "how often", default=5.0),
        Option("page", Kind.SIZE, "how much", default=1024),
        Option("rows", Kind.INTEGER, "how many", default=10),
        Option("rate", Kind.NUMBER, "how fast", default=1.0),
        Option("header", Kind.FLAG, "whether", default=False),
        Option("options", Kind.MAP, "anything"),
        Option("format", Kind.CHOICE, "which"),
    ),
    _make,
)
NULL = Declaration("null", "a sink for tests", (), lambda values: values)


@pytest.fixture(autouse=True)
def _catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "SOURCES", {"shelf": "", "python": ""})
    monkeypatch.setattr(catalog, "SINKS", {"null": ""})
    monkeypatch.setattr(catalog, "source", lambda name: SHELF)
    monkeypatch.setattr(catalog, "sink", lambda name: NULL)


GOOD = """\
name: orders
bootstrap: 127.0.0.1:9092
source: {shelf: {dsn: "${DSN}"}}
sink: "null"
"""
SECRETS = {"DSN": "postgresql://me:hunter22@host/db", "N": "7"}


def read(text: str, environment: Mapping[str, str] = SECRETS) -> PipelineSpec:
    return read_text(text, environment)


def mistakes(text: str, environment: Mapping[str, str] = SECRETS) -> list[str]:
    with pytest.raises(Mistakes) as raised:
        read(text, environment)
    return [str(problem) for problem in raised.value.problems]


def options(text: str) -> Mapping[str, Any]:
    return read(GOOD.replace('{dsn: "${DSN}"}', f"{{dsn: x, {text}}}")).source.options


def test_a_few_lines_are_a_pipeline() -> None:
    spec = read(GOOD)
    assert (spec.name, spec.group, spec.trigger) == ("orders", "ottla-orders", 2.0)
    assert spec.source.make()["dsn"] == SECRETS["DSN"]
    assert (spec.sink.name, spec.transform, spec.on_error.dead_letter) == ("null", None, None)


def test_values_are_read_by_their_kind() -> None:
    found = options(
        'mode: timestamp, columns: id, poll: 500ms, page: 64KiB, rows: "${N}", rate: 2, '
        "header: true, options: {a: 1, b: [x]}, format: {avro: {registry: 'http://r'}}"
    )
    assert found == {
        "dsn": "x",
        "mode": "timestamp",
        "columns": ["id"],
        "poll": 0.5,
        "page": 65536,
        "rows": 7,
        "rate": 2,
        "header": True,
        "options": {"a": 1, "b": ["x"]},
        "format": {"avro": {"registry": "http://r"}},
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mode: bulky", "'bulky' is none of bulk, timestamp; did you mean bulk?"),
        ("mode: timestamp", "timestamp needs columns"),
        ("poll: 5", "a time has a unit"),
        ("page: much", "a size is expected"),
        ("rows: many", "a whole number is expected here, not 'many'"),
        ("rows: 1.5", "a whole number"),
        ("rate: [1]", "a number is expected here, not a list"),
        ("header: yes", "true or false is expected here, not 'yes'"),
        ("columns: {a: 1}", "a list is expected"),
        ("options: 5", "names and values"),
        ("format: {a: 1, b: 2}", "one name with its options"),
        ("rows:", "it has no value"),
        ("colums: [a]", "there is no option of shelf 'colums'; did you mean columns?"),
    ],
)
def test_a_value_that_an_option_does_not_take_is_told_with_its_place(text: str, words: str) -> None:
    [problem] = mistakes(GOOD.replace('{dsn: "${DSN}"}', f"{{dsn: x, {text}}}"))
    assert problem.startswith("3:")
    assert f"source.shelf.{text.partition(':')[0]}: " in problem
    assert words in problem


def test_every_mistake_is_told_at_once_in_the_order_of_the_file() -> None:
    text = """\
nme: orders
bootstrap: a:b
source: {shelf: {dns: x, rows: y}}
transform: [1]
sink: {topik: {}}
on_error: {retry: {attempts: 0, backoff: 1m..1s}, stop_at: {share: 200%}, dead_letters: x}
trigger: 5
kafka: {fetch.min.byte: 1}
spark: {shuffle: 2}
tests: [{given: [], expect: 3}]
"""
    found = mistakes(text)
    places = [":".join(each.split(":")[:2]) for each in found]
    assert places == sorted(places, key=lambda place: [int(part) for part in place.split(":")])
    for words in (
        "no part of a pipeline 'nme'; did you mean name?",
        "name is missing",
        "bootstrap",
        "'dns'; did you mean dsn?",
        "dsn is missing",
        "source.shelf.rows",
        "transform: SQL",
        "'topik'",
        "attempts: there is at least 1",
        "the first wait is above 0",
        "between 0% and 100%",
        "'dead_letters'; did you mean dead_letter?",
        "trigger: '5': a time has a unit",
        "fetch.min.byte",
        "spark.shuffle",
        "tests[0]: name is missing",
        "tests[0].expect: a list of rows",
    ):
        assert any(words in each for each in found), words


def test_an_option_that_is_wrong_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the sources and sinks that there are
    text = """\
name: orders
bootstrap: 127.0.0.1:9092
source: {topic: {name: orders, fromat: json, start: yesterday, include: [colour], max_records: 0}}
sink: {files: {path: out, roll: {age: 1m}, tasks: 0}}
"""
    found = [each.partition(": ")[2] for each in mistakes(text)]
    assert found == [
        "source.topic.fromat: there is no option of topic 'fromat'; did you mean format?",
        "source.topic.start: this is no beginning: earliest, latest, or a time, "
        "2026-01-31T12:00:00Z",
        "source.topic.include: 'colour' is none of key, topic, partition, offset, timestamp, "
        "headers",
        "source.topic.max_records: a batch has at least one record",
        "sink.files.roll: roll has size and interval, and no age",
        "sink.files.tasks: there must be at least one task",
    ]


def test_what_depends_on_a_mistake_is_not_called_one() -> None:
    """The default stands in for what is wrong, and the columns do not fit it."""
    [problem] = mistakes(GOOD.replace('{dsn: "${DSN}"}', "{dsn: x, mode: timestmp}"))
    assert "did you mean timestamp?" in problem
    [problem] = mistakes(GOOD.replace('{dsn: "${DSN}"}', "{dsn: x, mode: timestamp, column: [a]}"))
    assert "did you mean columns?" in problem


def test_a_variable_that_is_not_there_is_told_once() -> None:
    [problem] = mistakes(GOOD.replace('"${DSN}"', 'x, rows: "${MANY}"'))
    assert "the environment has no variable MANY" in problem


def test_a_secret_is_in_no_message() -> None:
    text = GOOD.replace("dsn:", "rows: '${DSN}', mode: '${DSN}', poll: '${DSN}', dsn:")
    text += "transform: {sql: '${DSN}'}\ntrigger: ${DSN}\nbootstrap2: ${DSN}\n"
    found = "\n".join(mistakes(text))
    assert "hunter22" not in found
    assert "${DSN}" in found
    assert "hunter22" not in repr(read(GOOD))


def test_secrets_are_remembered_for_what_is_printed_later() -> None:
    assert "hunter22" in read(GOOD).secrets
    literal = read(GOOD.replace("${DSN}", "host=a password=open-sesame"))
    assert "open-sesame" in literal.secrets


def test_a_place_that_holds_no_secret_may_be_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a message would say that *** does not answer."""
    option = Option("url", Kind.TEXT, "where to", secret=True, place=shown)
    web = Declaration("null", "a sink for tests", (option,), lambda values: values)
    monkeypatch.setattr(catalog, "sink", lambda name: web)

    def secrets(url: str) -> frozenset[str]:
        return read(GOOD.replace('sink: "null"', f'sink: {{"null": {{url: "{url}"}}}}')).secrets

    assert "https://shop/rows" not in secrets("https://shop/rows")
    assert "https://shop/rows?key=s3cret" in secrets("https://shop/rows?key=s3cret")
    assert "s3cret" in secrets("https://me:s3cret@shop/rows")


def test_secrets_of_a_mapping_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    from ottla.pipelines.connectors.sinks.http import SINK

    monkeypatch.setattr(catalog, "SINKS", {"http": ""})
    monkeypatch.setattr(catalog, "sink", lambda name: SINK)
    sink = 'sink: {http: {url: "http://a/", headers: {Authorization: Bearer open-sesame}}}'
    assert "Bearer open-sesame" in read(GOOD.replace('sink: "null"', sink)).secrets
    avro = "{avro: {registry: 'http://a/', registry_auth: 'me:open-sesame'}}"
    sink = f'sink: {{http: {{url: "http://a/", format: {avro}}}}}'
    assert "me:open-sesame" in read(GOOD.replace('sink: "null"', sink)).secrets


def test_errors_are_set_as_they_are_said() -> None:
    text = "on_error: {retry: {attempts: 3, backoff: 100ms..5s}, dead_letter: dlq, "
    policy = read(GOOD + text + "stop_at: {letters: 5, share: 2%}}").on_error
    assert (policy.attempts, policy.backoff, policy.dead_letter) == (3, (0.1, 5.0), "dlq")
    assert (policy.most_letters, policy.most_share) == (5, 0.02)


def test_a_single_value_is_that_of_the_first_option() -> None:
    spec = read(GOOD.replace('{dsn: "${DSN}"}', "somewhere"))
    assert spec.source.options["dsn"] == "somewhere"


def test_a_name_has_only_some_characters() -> None:
    assert "up to 100" in mistakes(GOOD.replace("orders", "or/ders"))[0]
    assert "up to 249" in mistakes(GOOD + "on_error: {dead_letter: a/b}")[0]


def test_settings_of_kafka_that_cannot_be_followed_are_told() -> None:
    [problem] = mistakes(GOOD + "kafka: {security.protocol: SASL_SSL}")
    assert problem.startswith("5:9: kafka.security.protocol:")


def test_tests_are_read_from_the_file_and_from_beside_it(tmp_path: Path) -> None:
    case = "[{name: a, given: [{x: 1}], expect: [{x: 2}], fails: 1, schema: x int}]"
    (tmp_path / "orders.yaml").write_text(f"{GOOD}tests: {case}")
    (tmp_path / "orders.tests.yaml").write_text(case.replace("name: a", "name: b"))
    spec = read_file(tmp_path / "orders.yaml", SECRETS)
    assert spec.tests == tuple(
        Case(name, ({"x": 1},), ({"x": 2},), 1, "x int", line)
        for name, line in (("a", 5), ("b", 1))
    )
    assert spec.path == str(tmp_path / "orders.yaml")


def test_the_mistakes_of_both_files_are_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "orders.yaml").write_text(GOOD + "trigger: 5\n")
    for text, words in (
        ("[{name: a, given: 3, expect: []}]", "1:19: [0].given: a list of rows is expected here"),
        ("[", "this is no YAML"),
    ):
        (tmp_path / "orders.tests.yaml").write_text(text)
        with pytest.raises(Mistakes) as raised:
            read_file(tmp_path / "orders.yaml", SECRETS)
        first, second = str(raised.value).splitlines()
        assert first.startswith(f"{tmp_path / 'orders.yaml'}:5:10: trigger: ")
        assert second.startswith(f"{tmp_path / 'orders.tests.yaml'}:")
        assert words in second


def test_a_variable_that_is_not_there_hides_nothing_of_the_other_file(tmp_path: Path) -> None:
    (tmp_path / "orders.yaml").write_text("name: ${NAME}\nsource: shelf\nsink: 'null'\n")
    (tmp_path / "orders.tests.yaml").write_text("      3\n")
    with pytest.raises(Mistakes, match=r"orders\.tests\.yaml:1:7: a list of tests is expected"):
        read_file(tmp_path / "orders.yaml", {})


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("checkpoint: 'http://u:hidden@['", "5:13: checkpoint: this is neither a path nor"),
        ("checkpoint: ''", "5:13: checkpoint: a path is expected here, and this is empty"),
        ("on_error: {retry: {backoff: 1}}", "'1': a time has a unit"),
        ("on_error: {retry: {backoff: true}}", "text is expected here, not true or false"),
        ("on_error: {stop_at: {share: true}}", "text is expected here, not true or false"),
    ],
)
def test_odd_values_are_mistakes_like_others(line: str, words: str) -> None:
    [found] = mistakes(f"{GOOD}{line}\n")
    assert words in found
    assert "hidden" not in found


@pytest.mark.parametrize("url", ["http://u:hunter22@[/", "http://u:hunter22@h\u2100st/"])
@pytest.mark.parametrize("role", ["source", "sink"])
def test_an_address_that_is_none_is_told_without_its_password(
    monkeypatch: pytest.MonkeyPatch, role: str, url: str
) -> None:
    """Python's own sentence about the second shows all of it."""
    from ottla.pipelines.connectors.sinks.http import SINK
    from ottla.pipelines.connectors.sources.http import SOURCE

    monkeypatch.setattr(catalog, f"{role.upper()}S", {"http": ""})
    monkeypatch.setattr(catalog, role, lambda name: SOURCE if role == "source" else SINK)
    parts = {"source": "shelf: {dsn: x}", "sink": "'null':"} | {role: "http: {url: '${URL}'}"}
    text = f"name: p\nsource: {{{parts['source']}}}\nsink: {{{parts['sink']}}}\n"
    [found] = mistakes(text, {"URL": url, "OTTLA_BOOTSTRAP": "127.0.0.1:9092"})
    assert "a URL begins with http:// or https:// and names a host" in found
    assert "hunter22" not in found


def test_a_format_is_looked_at_whatever_else_is_wrong() -> None:
    text = "name: p\nsource: {shelf: {rows: y, format: {json: {shema: x, evolution: ad}}}}\n"
    found = mistakes(text + 'sink: "null"\n')
    assert [each.split(": ", 2)[1] for each in found] == [
        "source.shelf",
        "source.shelf.rows",
        "source.shelf.format.json.shema",
        "source.shelf.format.json.evolution",
    ]
    assert "did you mean schema?" in found[2]


@pytest.mark.parametrize(
    ("given", "meant"),
    [("in", "{folder}/in"), ("../in/*.csv", "{parent}/in/*.csv"), ("s3a://b/in", "s3a://b/in")],
)
def test_paths_are_relative_to_the_file_wherever_a_command_is_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, meant: str
) -> None:
    shelf = Declaration(
        "shelf",
        "files",
        (Option("path", Kind.PATH, "where"), Option("format", Kind.CHOICE, "which")),
        dict,
    )
    monkeypatch.setattr(catalog, "source", lambda name: shelf)
    folder = tmp_path / "pipelines"
    folder.mkdir()
    options = f'{{path: "{given}", format: {{json: {{schema_file: "{given}"}}}}}}'
    (folder / "p.yaml").write_text(f'name: p\nsource: {{shelf: {options}}}\nsink: "null"\n')
    expected = meant.format(folder=folder, parent=tmp_path)
    for where, typed in ((tmp_path, "pipelines/p.yaml"), (folder, "p.yaml")):
        monkeypatch.chdir(where)
        spec = read_file(Path(typed), {})
        assert spec.path == str(folder / "p.yaml"), "known wherever the next command is typed"
        assert spec.source.options["path"] == expected
        assert spec.source.options["format"] == {"json": {"schema_file": expected}}


def test_a_mistake_names_its_file(tmp_path: Path) -> None:
    (tmp_path / "orders.yaml").write_text("name: [")
    with pytest.raises(Mistakes, match=r"orders\.yaml:1:8: this is no YAML"):
        read_file(tmp_path / "orders.yaml", {})
    (tmp_path / "orders.yaml").write_bytes(b"name: x\n\xff")
    with pytest.raises(Mistakes, match=r"orders\.yaml:2:1: this is no text in UTF-8"):
        read_file(tmp_path / "orders.yaml", {})


def test_a_function_beside_the_file_is_found(tmp_path: Path) -> None:
    (tmp_path / "beside_the_file.py").write_text("def double(rows):\n    return rows\nx = 1\n")
    path = tmp_path / "orders.yaml"
    path.write_text(GOOD + "transform: {python: beside_the_file:double}")
    transform = read_file(path, SECRETS).transform
    assert callable(transform)
    assert transform.__name__ == "double"
    for name, words in (
        ("beside_the_file:x", "no function"),
        ("beside_the_file:nothing", "cannot be imported"),
        ("nowhere_at_all:x", "cannot be imported"),
        ("beside_the_file", "module:function"),
    ):
        path.write_text(GOOD + f"transform: {{python: '{name}'}}")
        with pytest.raises(Mistakes, match=words):
            read_file(path, SECRETS)


def test_a_program_says_the_same_with_values() -> None:
    tree = tree_of({"name": "a", "source": {"shelf": {"dsn": "${DSN}"}}, "sink": "null"})
    assert read_tree(tree, {}).source.options["dsn"] == "${DSN}"
    with pytest.raises(Mistakes, match=r"^source\.shelf: dsn is missing"):
        read_tree(tree_of({"name": "a", "source": {"shelf": {}}, "sink": "null"}), {})


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("state", "{folder}/state"),
        ("/var/state", "/var/state"),
        ("file:///var/state", "file:///var/state"),
        ("hdfs://names/state", "hdfs://names/state"),
    ],
)
def test_the_checkpoint_is_where_the_file_says_wherever_a_command_is_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, meant: str
) -> None:
    folder = tmp_path / "pipelines"
    folder.mkdir()
    text = f"name: p\nsource: {{shelf: {{dsn: x}}}}\nsink: {{null: {{}}}}\ncheckpoint: {given}\n"
    (folder / "p.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    expected = meant.format(folder=folder)
    assert read_file(Path("pipelines/p.yaml"), {}).checkpoint == expected
    monkeypatch.chdir(folder)
    for typed in ("p.yaml", "../pipelines/p.yaml"):
        assert read_file(Path(typed), {}).checkpoint == expected


@pytest.mark.parametrize(("more", "trigger"), [("", 300.0), ("trigger: 10s\n", 10.0)])
def test_files_that_roll_at_an_interval_set_the_trigger(
    monkeypatch: pytest.MonkeyPatch, more: str, trigger: float
) -> None:
    from ottla.pipelines.connectors.sinks.files import SINK

    monkeypatch.setattr(catalog, "SINKS", {"files": ""})
    monkeypatch.setattr(catalog, "sink", lambda name: SINK)
    text = "name: orders\nsource: {shelf: {dsn: x}}\n"
    text += "sink: {files: {path: /data, roll: {interval: 5m}}}\n"
    assert read_text(text + more, {}).trigger == trigger
