"""YAML with places: what every node is, where it is, and what is no pipeline's YAML."""

from __future__ import annotations

import pytest

from ottla.pipelines.connectors.spec.tree import Mistakes, parse, scalars, tree_of


def problems(text: str) -> list[str]:
    with pytest.raises(Mistakes) as raised:
        parse(text)
    return [str(problem) for problem in raised.value.problems]


def test_every_node_knows_its_line_column_and_path() -> None:
    tree = parse("name: a\nsink:\n  topic: {name: b, keys: [x, y]}\n")
    node = tree.at("sink", "topic", "keys", 1)
    assert node is not None
    assert (node.line, node.column, node.path, node.value) == (3, 30, "sink.topic.keys[1]", "y")
    assert tree.keys is not None
    assert tree.keys["sink"] == (2, 1)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("sql: select x\n", (1, 13)),
        ('sql: "select x"\n', (1, 14)),
        ("sql: |\n  select x\n", (2, 10)),
        ("sql: |\n\n  select\n    x\n", (4, 5)),
        ("a:\n    sql: |2\n        select x\n", (3, 16)),
        ("sql: select\n  x\n", (1, 6)),
        ("sql: >\n  select\n  x\n", (1, 6)),
        ('sql: "\\tselect x"\n', (1, 6)),
    ],
)
def test_a_place_in_a_text_is_one_in_the_file_where_the_text_is_there_as_it_is(
    text: str, place: tuple[int, int]
) -> None:
    [node] = scalars(parse(text))
    before, _, _ = node.value.partition("x")
    line, column = before.count("\n") + 1, len(before.rpartition("\n")[2]) + 1
    problem = node.problem_within(line, column, "x")
    assert (problem.line, problem.column) == place


def test_scalars_are_those_of_yaml_1_2() -> None:
    text = "[true, False, null, ~, 12, -3, 0x10, 0o17, 1.5, 1e3, no, on, 12:30, 2020-01-02, '12']"
    assert parse(text).plain() == [
        *(True, False, None, None, 12, -3, 16, 15, 1.5, 1000.0),
        *("no", "on", "12:30", "2020-01-02", "12"),
    ]


def test_an_empty_value_is_null() -> None:
    assert parse("name:\nsource: 1").plain() == {"name": None, "source": 1}


def test_a_key_that_is_said_twice_is_named_with_both_lines() -> None:
    assert problems("name: a\nsink: 1\nname: b") == [
        "3:1: name: this key is there already, in line 1"
    ]


def test_all_such_mistakes_are_told_at_once() -> None:
    assert len(problems("a: 1\na: 2\nb: {c: 1, c: 2}\n<<: {}")) == 3


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", 1, "empty"),
        ("# nothing\n", 1, "empty"),
        ("a: [1, 2", 1, "no YAML"),
        ("a: 1\n\tb: 2", 2, "tab"),
        ("a: b: c", 1, "quotes"),
        ("a: {b: ${C}}", 1, "put ${…} into quotes"),
        ("a: 1\n---\nb: 2", 3, "file of its own"),
        ("a: 1\nb: \x01", 2, "character"),
        ("a: !mine 1", 1, "tag"),
        ("a: &x [*x]", 1, "holds itself"),
    ],
)
def test_what_is_no_file_of_a_pipeline_is_told_with_its_line(
    text: str, line: int, words: str
) -> None:
    with pytest.raises(Mistakes) as raised:
        parse(text)
    [problem] = raised.value.problems
    assert problem.line == line
    assert words in problem.sentence


def test_aliases_of_aliases_do_not_grow_without_end() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert "too many aliases" in problems("\n".join(lines))[0]


def test_an_anchor_can_be_used_twice() -> None:
    assert parse("a: &x {b: 1}\nc: *x").plain() == {"a": {"b": 1}, "c": {"b": 1}}


def test_the_values_of_a_program_make_the_same_tree_without_lines() -> None:
    tree = tree_of({"sink": {"topic": {"name": "a", "keys": ["x"]}}})
    assert [(node.path, node.value) for node in scalars(tree)] == [
        ("sink.topic.name", "a"),
        ("sink.topic.keys[0]", "x"),
    ]
    assert str(tree.problem("what")) == "what"
