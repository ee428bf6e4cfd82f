"""Transforms keep the hidden column wherever the user has put a projection, and see single rows."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from ottla.pipelines.connectors.contract import HIDDEN, HIDDEN_TYPE
from ottla.pipelines.connectors.transform import NotRowWise, mistakes_in, transform_of


@pytest.fixture(scope="module")
def rows(spark: Any) -> Any:
    json = """concat('{"h": {"position": "', id, '"}}')"""
    hidden = f"from_json({json}, 'h {HIDDEN_TYPE}').h"
    empty = "cast(array() as array<int>)"
    table = f"values (1, 'a', array(1, 2)), (2, 'b', array(3)), (3, 'c', {empty}) as t(id, s, arr)"
    return spark.sql(f"select *, {hidden} as {HIDDEN} from {table}")


def positions(frame: Any) -> list[str]:
    return sorted(row[0] for row in frame.select(f"{HIDDEN}.position").collect())


@pytest.mark.parametrize(
    ("sql", "columns", "expected"),
    [
        ("select id, upper(s) as u from source where id > 1", ["id", "u"], ["2", "3"]),
        ("select * from source", ["id", "s", "arr"], ["1", "2", "3"]),
        ("select *, id + 1 as n from source", ["id", "s", "arr", "n"], ["1", "2", "3"]),
        ("select t.* from source t", ["id", "s", "arr"], ["1", "2", "3"]),
        ("select * except (arr) from source", ["id", "s"], ["1", "2", "3"]),
        ("select a from (select id + 1 as a from source) t where a > 2", ["a"], ["2", "3"]),
        ("with x as (select id, s from source) select s from x where id = 1", ["s"], ["1"]),
        ("select id, explode(arr) as e from source", ["id", "e"], ["1", "1", "2"]),
        ("select s from source lateral view explode(arr) q as z where z > 1", ["s"], ["1", "2"]),
        ("from source |> where id > 0 |> select s", ["s"], ["1", "2", "3"]),
        (f"select id, {HIDDEN}.position as p from source", ["id", "p"], ["1", "2", "3"]),
    ],
)
def test_the_hidden_column_goes_with_every_row(
    rows: Any, spark: Any, sql: str, columns: list[str], expected: list[str]
) -> None:
    assert mistakes_in(sql, spark.sparkContext._jvm) == []
    out = transform_of(sql)(rows)
    assert out.columns == [*columns, HIDDEN]
    assert positions(out) == expected


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("select count(*) from source", "aggregates (count)"),
        ("select s, max(id) from source group by s", "aggregates"),
        ("select distinct id from source", "distinct"),
        ("select id from source limit 1", "limit"),
        ("select id from source order by id", "order"),
        ("select id, row_number() over (order by id) from source", "window"),
        ("select a.id from source a join source b on a.id = b.id", "joins"),
        ("select id from source union all select id from source", "union"),
        ("select id from source where id = (select max(id) from source)", "subquery"),
        ("select id from source where id in (select 1)", "subquery"),
        ("select 1", "reads nothing"),
        ("select id from elsewhere", "elsewhere"),
        ("select id frm source whre", "PARSE_SYNTAX_ERROR"),
        ("drop table source", "no query"),
    ],
)
def test_what_is_not_row_by_row_is_found_in_the_text(spark: Any, sql: str, words: str) -> None:
    found = mistakes_in(sql, spark.sparkContext._jvm)
    assert any(words in each.sentence for each in found), found


def test_all_of_it_is_found_at_once_each_at_its_place(spark: Any) -> None:
    sql = "select distinct id,\n  max(id)\nfrom elsewhere\ngroup by id order by 1 limit 3"
    found = mistakes_in(sql, spark.sparkContext._jvm)
    assert len(found) == 5
    places = {each.sentence.partition(":")[0]: (each.line, each.column) for each in found}
    assert places["it aggregates (max)"] == (2, 3)
    assert places["it reads elsewhere; there is only source"] == (3, 6)
    assert "it aggregates" not in places, "one sentence says it"


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda rows: rows.groupBy("s").count(), "aggregates"),
        (lambda rows: rows.distinct(), "duplicates"),
        (lambda rows: rows.limit(1), "limit"),
        (lambda rows: rows.orderBy("id"), "order"),
        (lambda rows: rows.union(rows), "union"),
        (lambda rows: rows.alias("a").join(rows.select("id"), "id"), "join"),
        (lambda rows: rows.repartition(3), "repartitions"),
        (lambda rows: rows.sparkSession.range(3), "something else"),
        (lambda rows: None, "returns a DataFrame"),
        (lambda rows: rows.mapInArrow(lambda batches: batches, "id int"), "hand it on"),
    ],
)
def test_what_is_not_row_by_row_is_found_in_a_function(
    rows: Any, function: Callable[[Any], Any], words: str
) -> None:
    with pytest.raises(NotRowWise, match=words):
        transform_of(function)(rows)


@pytest.mark.parametrize(
    "function",
    [
        lambda rows: rows.select("id").withColumn("n", rows["id"] + 1).where("n > 2"),
        lambda rows: rows.drop(HIDDEN).selectExpr("id", "id + 1 as n").where("n > 2"),
        lambda rows: rows.mapInArrow(lambda batches: batches, rows.schema).where("id > 1"),
    ],
)
def test_a_function_need_not_know_of_the_hidden_column(
    rows: Any, function: Callable[[Any], Any]
) -> None:
    assert positions(transform_of(function)(rows)) == ["2", "3"]


def test_a_column_that_is_there_twice_is_refused(rows: Any) -> None:
    with pytest.raises(NotRowWise, match="more than once"):
        transform_of("select id, s as id from source")(rows)


def test_without_a_transform_rows_stay_as_they_are(rows: Any) -> None:
    assert transform_of(None)(rows) is rows


@pytest.mark.parametrize(
    "sql",
    [
        "select * from source where rand() < 0.5",
        "select id from (select id, uuid() as u from source) where u > '8'",
    ],
)
def test_rows_are_not_chosen_by_chance(rows: Any, sql: str) -> None:
    with pytest.raises(NotRowWise, match="must have the same rows"):
        transform_of(sql)(rows)


@pytest.mark.parametrize(
    ("sql", "function"),
    [
        ("select uuid() as k, id from source", "uuid()"),
        ("select concat(s, cast(rand() as string)) as k from source", "rand()"),
        ("select current_timestamp() as k from source", "current_timestamp()"),
        ("select date_format(now(), 'yyyy') as k from source", "now()"),
        ("select shuffle(arr)[0] as k from source", "shuffle()"),
    ],
)
def test_chance_makes_no_key(rows: Any, spark: Any, sql: str, function: str) -> None:
    with pytest.raises(NotRowWise, match=re.escape(f"makes the key k by {function}")) as told:
        transform_of(sql, ["k"])(rows)
    assert "sha2(_ottla.position, 256) as k" in str(told.value)
    jvm = spark.sparkContext._jvm
    [found] = mistakes_in(sql, jvm, ["k"])
    assert found.sentence == str(told.value)
    assert (found.line, found.column) == (1, 8)
    assert mistakes_in(sql, jvm, ["id"]) == mistakes_in(sql, jvm) == []


@pytest.mark.parametrize(
    "sql",
    [
        "select u as k from (select uuid() as u from source)",
        "with x as (select rand() as r from source) select r + 1 as k from x",
        "select k from source lateral view explode(array(uuid())) t as k",
    ],
)
def test_chance_makes_no_key_by_another_name(rows: Any, sql: str) -> None:
    with pytest.raises(NotRowWise, match="makes the key k by"):
        transform_of(sql, ["k"])(rows)


def test_a_function_makes_no_key_by_chance(rows: Any) -> None:
    with pytest.raises(NotRowWise, match=r"makes the key k by uuid\(\)"):
        transform_of(lambda rows: rows.selectExpr("id", "uuid() as k"), ["k"])(rows)


def test_a_key_of_the_row_and_a_value_by_chance_are_right(rows: Any, spark: Any) -> None:
    sql = f"select sha2({HIDDEN}.position, 256) as k, uuid() as u, now() as at from source"
    assert mistakes_in(sql, spark.sparkContext._jvm, ["k"]) == []
    assert positions(transform_of(sql, ["k"])(rows)) == ["1", "2", "3"]


def test_chance_may_make_a_value(rows: Any) -> None:
    sql = "select id, uuid() as u from source where id > 1 and current_date() > '2000-01-01'"
    assert positions(transform_of(sql)(rows)) == ["2", "3"]
