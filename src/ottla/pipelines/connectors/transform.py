"""The transform of a pipeline: SQL over the view `source`, or a function; row by row.

    apply = transform_of("select id, upper(name) as name from source where id > 0")
    out = apply(rows)          # the columns that were asked for, and `HIDDEN`

The user names only columns of their own. `HIDDEN` is put into every projection between the source
and the result, in the plan that Spark has analyzed: there `*` is resolved, and SQL and functions
look the same.

Row by row means that what becomes of a row depends on that row alone. So the plan between the
source and the result may project, filter and explode, and nothing else: with an aggregate, an order
or a join, the failure of one row would be a failure of others, and a batch that is run again would
not have the same rows in the same tasks.

A key is not left to chance: a batch that is run again would have the same rows under other keys,
and both would stay. So the columns that a sink knows its rows by are made of the row alone: neither
by what Spark calls nondeterministic (uuid, rand) nor by the time at which the batch is written.

`mistakes_in` finds the same in the text of a query, with Spark's own parser and the place of each,
before any column is known; it needs a JVM, but no session.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ottla.pipelines.connectors.contract import HIDDEN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

VIEW: Final = "source"
_ALIAS: Final = "_ottla_source"

_KEEPING: Final = frozenset({"Filter", "Generate", "PipeOperator", "SubqueryAlias"})
"""Nodes that hand on whatever columns they are given."""
_UNRESOLVED: Final = frozenset(
    {"UnresolvedRelation", "UnresolvedWith", "UnresolvedSubqueryColumnAliases", "Project"}
)
_PLACE: Final = re.compile(r"\(line (\d+), pos (\d+)\)")
_AGGREGATES: Final = "it aggregates"
_LATER: Final = "a transform sees one row at a time"
_CHANCE: Final = (
    "it chooses rows by a function that gives another result each time (rand, uuid): a batch that "
    "is run again must have the same rows"
)
_NOW: Final = frozenset(
    {"CurDate", "CurrentDate", "CurrentTime", "CurrentTimestamp", "LocalTimestamp", "Now"}
)
"""Expressions that Spark counts as deterministic, since they are the same within one query."""
_NONDETERMINISTIC: Final = "org.apache.spark.sql.catalyst.expressions.Nondeterministic"
_REFUSED: Final[Mapping[str, str]] = {
    "Aggregate": _AGGREGATES,
    "UnresolvedHaving": "it aggregates (having)",
    "Distinct": "it has distinct",
    "Deduplicate": "it removes duplicates",
    "DeduplicateWithinWatermark": "it removes duplicates",
    "GlobalLimit": "it has a limit",
    "LocalLimit": "it has a limit",
    "Offset": "it has an offset",
    "Tail": "it has a limit",
    "Sort": "it has an order",
    "Window": "it has a window function",
    "WithWindowDefinition": "it has a window function",
    "WindowExpression": "it has a window function",
    "UnresolvedWindowExpression": "it has a window function",
    "Join": "it joins",
    "LateralJoin": "it joins",
    "AsOfJoin": "it joins",
    "NaturalJoin": "it joins",
    "UsingJoin": "it joins",
    "Union": "it has a union",
    "Except": "it has an except",
    "Intersect": "it has an intersect",
    "Sample": "it takes a sample",
    "Pivot": "it aggregates (pivot)",
    "Repartition": "it repartitions",
    "RepartitionByExpression": "it repartitions",
    "RebalancePartitions": "it repartitions",
    "ScalarSubquery": "it has a subquery in an expression",
    "ListQuery": "it has a subquery in an expression",
    "Exists": "it has a subquery in an expression",
    "OneRowRelation": "it reads nothing",
    "LocalRelation": "it reads rows of its own",
}
_PARTITIONS: Final = frozenset(
    {"MapInArrow", "MapInPandas", "PythonMapInArrow", "MapPartitions", "SerializeFromObject"}
)
"""Functions of iterators; their schema is their own."""


class NotRowWise(ValueError):
    """A transform that is more than one row at a time, loses `HIDDEN`, or makes a key by chance;
    the text says which."""


def transform_of(
    value: str | Callable[[DataFrame], DataFrame] | None, keys: Collection[str] = ()
) -> Callable[[DataFrame], DataFrame]:
    """The transform as a function that keeps `HIDDEN`; without one, rows stay as they are.

    keys   columns of the result that may not depend on chance
    """
    if value is None:
        return lambda rows: rows
    if isinstance(value, str):
        return _Sql(value, keys)
    return _Function(value, keys)


class _Sql:
    def __init__(self, text: str, keys: Collection[str]) -> None:
        self._text = text
        self._keys = keys

    def __call__(self, rows: DataFrame) -> DataFrame:
        rows.createOrReplaceTempView(VIEW)
        return _with_hidden(rows.sparkSession.sql(self._text), rows, self._keys)


class _Function:
    def __init__(self, function: Callable[[DataFrame], DataFrame], keys: Collection[str]) -> None:
        self._function = function
        self._keys = keys
        self._name = getattr(function, "__qualname__", "the function")

    def __call__(self, rows: DataFrame) -> DataFrame:
        from pyspark.sql import DataFrame

        found = self._function(rows.alias(_ALIAS))
        if not isinstance(found, DataFrame):
            kind = type(found).__name__
            raise NotRowWise(f"{self._name} returned {kind}; a transform returns a DataFrame")
        return _with_hidden(found, rows, self._keys)


def carry_code(function: Callable[..., Any]) -> None:
    """Let tasks have the module of a function though they cannot import it: it is beside the
    pipeline's file, which only the driver sees."""
    import sys

    from pyspark import cloudpickle

    module = sys.modules.get(function.__module__)
    if module is not None and module.__name__ != "__main__":
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]  # Spark's copy of it has no types


# -- in an analyzed plan


def _with_hidden(result: DataFrame, rows: DataFrame, keys: Collection[str]) -> DataFrame:
    from pyspark.sql import DataFrame

    spark = rows.sparkSession
    jvm: Any = spark.sparkContext._jvm
    plan = _inlined(jvm, result._jdf.queryExecution().analyzed())
    given = rows._jdf.queryExecution().analyzed()
    if plan.subqueriesAll().size() > given.subqueriesAll().size():
        raise NotRowWise(f"{_REFUSED['ScalarSubquery']}: {_LATER}")
    kept = _keep(jvm, plan)
    _check_keys(kept, keys)
    dataset = jvm.org.apache.spark.sql.classic.Dataset.ofRows(rows._jdf.sparkSession(), kept)
    whole = DataFrame(dataset, spark)
    names = [name for name in whole.columns if name != HIDDEN]
    if len(whole.columns) - len(names) != 1:
        raise NotRowWise(f"its result has the column {HIDDEN} more than once; leave it to us")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise NotRowWise(f"its result has the column {twice[0]} more than once; use `as`")
    return whole if whole.columns[-1] == HIDDEN else whole.select(*map(_quoted, names), HIDDEN)


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _inlined(jvm: Any, plan: Any) -> Any:
    """`with` as if each name stood for its query."""
    if plan.nodeName() != "WithCTE":
        return plan
    inline = "org.apache.spark.sql.catalyst.optimizer.InlineCTE"
    [made] = jvm.java.lang.Class.forName(inline).getConstructors()
    flags = [True] + [False] * (made.getParameterCount() - 1)  # how many depends on the version
    return jvm.org.apache.spark.sql.catalyst.optimizer.InlineCTE(*flags).apply(plan)


def _keep(jvm: Any, plan: Any) -> Any:
    """The plan with `HIDDEN` in every projection above the source."""
    name = plan.nodeName()
    if _is_source(plan, name):
        return plan
    if name == "Filter" and _is_chance(plan):
        raise NotRowWise(_CHANCE)
    if name in _KEEPING:
        return plan.withNewChildren(_seq(jvm, [_keep(jvm, each) for each in _all(plan.children())]))
    if name == "Project":
        [child] = [_keep(jvm, each) for each in _all(plan.children())]
        columns = list(_all(plan.projectList()))
        if not any(each.name() == HIDDEN for each in columns):
            columns.append(_hidden_of(child))
        project = jvm.org.apache.spark.sql.catalyst.plans.logical.Project
        return project(_seq(jvm, columns), child)
    if name in _PARTITIONS:
        if _names(plan).count(HIDDEN):
            return plan
        raise NotRowWise(
            f"its function ({name}) does not return the column {HIDDEN}, by which a row is known: "
            f"hand it on with each row, in the schema too"
        )
    raise NotRowWise(f"{_REFUSED.get(name, f'it has {name}')}: {_LATER}")


def _is_chance(plan: Any) -> bool:
    """Whether something between here and the source gives another result each time."""
    if not all(each.deterministic() for each in _all(plan.expressions())):
        return True
    return any(
        _is_chance(each)
        for each in _all(plan.children())
        if each.nodeName() not in _PARTITIONS and not _is_source(each, each.nodeName())
    )


def _check_keys(plan: Any, keys: Collection[str]) -> None:
    if not keys:
        return
    chances = _chances(plan)
    for column in _all(plan.output()):
        function = chances.get(column.exprId().id())
        if function is not None and column.name() in keys:
            raise NotRowWise(_by_chance(column.name(), function))


def _by_chance(key: str, function: str) -> str:
    return (
        f"it makes the key {key} by {function}, which gives another value each time: a batch that "
        "is run again would write its rows a second time, under other keys. Make the key from the "
        "row's own columns, or from the place where the row was read: "
        f"sha2({HIDDEN}.position, 256) as {key}"
    )


def _chances(plan: Any) -> dict[int, str]:
    """The columns between here and the source, by their ids, that a function makes which gives
    another result each time; and that function."""
    name = plan.nodeName()
    if _is_source(plan, name):
        return {}
    found: dict[int, str] = {}
    for each in _all(plan.children()):
        found |= _chances(each)
    if name == "Project":
        made = [(each, each) for each in _all(plan.projectList())]
    elif name == "Generate":
        made = [(each, plan.generator()) for each in _all(plan.generatorOutput())]
    else:
        made = []
    for column, expression in made:
        function = _chance_of(expression, found)
        if function is not None:
            found[column.exprId().id()] = function
    return found


def _chance_of(expression: Any, found: Mapping[int, str]) -> str | None:
    name = expression.nodeName()
    if name == "AttributeReference":
        return found.get(expression.exprId().id())
    for each in _all(expression.children()):
        function = _chance_of(each, found)
        if function is not None:
            return function
    if name in _NOW or not expression.deterministic():
        return f"{expression.prettyName()}()"
    return None


def _is_source(plan: Any, name: str) -> bool:
    if name == "SubqueryAlias" and plan.identifier().name() == _ALIAS:
        return True
    if name == "View" or not _all(plan.children()):
        if HIDDEN in _names(plan):
            return True
        raise NotRowWise(f"it reads something else than {VIEW}: {_LATER}")
    return False


def _hidden_of(plan: Any) -> Any:
    for each in _all(plan.output()):
        if each.name() == HIDDEN:
            return each
    raise AssertionError(f"{plan.nodeName()} has lost {HIDDEN}")


def _names(plan: Any) -> list[str]:
    return [each.name() for each in _all(plan.output())]


def _all(sequence: Any) -> list[Any]:
    """A Seq of Scala's as a list."""
    return [sequence.apply(number) for number in range(sequence.size())]


def _seq(jvm: Any, items: list[Any]) -> Any:
    return jvm.PythonUtils.toSeq(items)


# -- in the text of a query


class Wrong(NamedTuple):
    """A sentence about a place in a query; line and column count from 1."""

    sentence: str
    line: int
    column: int


def mistakes_in(sql: str, jvm: Any, keys: Collection[str] = ()) -> list[Wrong]:
    """Everything in a query that no transform may have; nothing if it is right.

    keys   as in `transform_of`: one whose own expression is left to chance is found here, others
           when the columns are known
    """
    from pyspark.errors import ParseException

    try:
        plan = jvm.org.apache.spark.sql.execution.SparkSqlParser().parsePlan(sql)
    except ParseException as error:
        return [_parser_words(error)]
    found: list[Wrong] = []
    relations: dict[str, Any] = {}
    names: set[str] = set()
    for node in _nodes(plan):
        name = node.nodeName()
        if name == "UnresolvedRelation":
            relations.setdefault(node.name().strip("`").lower(), node)
        elif name == "UnresolvedWith":
            names |= {each.alias().lower() for each in _all(node.innerChildren())}
        elif name not in _KEEPING | _UNRESOLVED | _REFUSED.keys():
            return [_wrong(f"{name} is no query", node)]
        elif name in _REFUSED:
            found.append(_wrong(_REFUSED[name], node))
        found.extend(_in_expressions(node, jvm))
        if name == "Project" and keys:
            found.extend(_keys_by_chance(node, keys, jvm))
    found += [
        _wrong(f"it reads {name}; there is only {VIEW}", node)
        for name, node in sorted(relations.items())
        if name not in {VIEW, *names}
    ]
    if VIEW not in relations and not found:
        found.append(Wrong(f"it does not read {VIEW}", 1, 1))
    return _once(found)


def _wrong(sentence: str, node: Any) -> Wrong:
    """At the place of a node or an expression, as the parser remembers it."""
    origin = node.origin()
    line, position = origin.line(), origin.startPosition()
    known = line.isDefined() and position.isDefined()
    place = (line.get(), position.get() + 1) if known else (1, 1)
    return Wrong(sentence, *place)


def _once(found: list[Wrong]) -> list[Wrong]:
    """Each sentence at its first place, in the order of the query. That it aggregates is said by
    the function that does, if there is one."""
    first: dict[str, Wrong] = {}
    for each in sorted(found, key=lambda wrong: wrong[1:]):
        first.setdefault(each.sentence, each)
    if any(sentence.startswith(f"{_AGGREGATES} (") for sentence in first):
        first.pop(_AGGREGATES, None)
    refused = {*_REFUSED.values()}
    return [
        each._replace(sentence=f"{each.sentence}: {_LATER}")
        if each.sentence in refused or each.sentence.startswith(_AGGREGATES)
        else each
        for each in first.values()
    ]


def _nodes(plan: Any) -> Iterator[Any]:
    """Every node of a parsed plan, with those of `with` and of subqueries."""
    yield plan
    for each in (*_all(plan.innerChildren()), *_all(plan.children())):
        yield from _nodes(each)


def _in_expressions(node: Any, jvm: Any) -> Iterator[Wrong]:
    for expression in _all(node.expressions()):
        yield from _in_expression(expression, jvm)


def _in_expression(expression: Any, jvm: Any) -> Iterator[Wrong]:
    name = expression.nodeName()
    if name in _REFUSED:
        yield _wrong(_REFUSED[name], expression)
        return
    if name == "UnresolvedFunction":
        parts = _all(expression.nameParts())
        if len(parts) == 1 and _is_aggregate(parts[0], jvm):
            yield _wrong(f"{_AGGREGATES} ({parts[0]})", expression)
    for each in _all(expression.children()):
        yield from _in_expression(each, jvm)


def _keys_by_chance(node: Any, keys: Collection[str], jvm: Any) -> Iterator[Wrong]:
    for each in _all(node.projectList()):
        if each.nodeName() == "Alias" and each.name() in keys:
            function = _chance_within(each, jvm)
            if function is not None:
                yield _wrong(_by_chance(each.name(), function), each)


def _chance_within(expression: Any, jvm: Any) -> str | None:
    name = expression.nodeName()
    if name in _NOW:
        return f"{expression.prettyName()}()"
    if name == "UnresolvedFunction":
        parts = _all(expression.nameParts())
        if len(parts) == 1 and _is_nondeterministic(parts[0], jvm):
            return f"{parts[0]}()"
    found = (_chance_within(each, jvm) for each in _all(expression.children()))
    return next((each for each in found if each is not None), None)


def _is_nondeterministic(function: str, jvm: Any) -> bool:
    info = _described(function, jvm)
    if info is None:
        return False
    named = info.getClassName()
    if named.rpartition(".")[2].removesuffix("ExpressionBuilder") in _NOW:
        return True
    load = jvm.java.lang.Class.forName
    return bool(load(_NONDETERMINISTIC).isAssignableFrom(load(named)))


def _is_aggregate(function: str, jvm: Any) -> bool:
    info = _described(function, jvm)
    return info is not None and info.getGroup() in ("agg_funcs", "window_funcs")


def _described(function: str, jvm: Any) -> Any:
    """What Spark knows of one of its functions; None for one that it does not have."""
    catalyst = jvm.org.apache.spark.sql.catalyst
    found = catalyst.analysis.FunctionRegistry.builtin().lookupFunction(
        catalyst.FunctionIdentifier(function)
    )
    return found.get() if found.isDefined() else None


def _parser_words(error: Any) -> Wrong:
    """Spark's sentence, without its picture of the query."""
    first = str(error).strip().splitlines()[0]
    place = _PLACE.search(first)
    sentence = first.partition("SQLSTATE")[0].rstrip(" .")
    return Wrong(sentence, int(place[1]), int(place[2]) + 1) if place else Wrong(sentence, 1, 1)
