"""Tests wait for what they want to see, not for time to pass.

A sleep is right as a step of a loop that looks again and again (what `eventually` does), and as a
pause that is part of what is tested: a slow client. A sleep whose length decides what the next line
finds is neither: it is too short on a busy machine, and lost time on every other.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]


def sleeps(node: ast.AST) -> bool:
    """Whether it is a statement that does nothing but let time pass."""
    if not isinstance(node, ast.Expr):
        return False
    call = node.value.value if isinstance(node.value, ast.Await) else node.value
    if not isinstance(call, ast.Call):
        return False
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    is_zero = bool(call.args) and isinstance(call.args[0], ast.Constant) and not call.args[0].value
    return name == "sleep" and not is_zero


def blocks(node: ast.AST, in_loop: bool = False) -> Iterator[tuple[list[ast.stmt], bool]]:
    """Every list of statements, and whether it is repeated until a condition holds."""
    in_loop = isinstance(node, ast.While) or (
        in_loop and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    for name in ("body", "orelse", "finalbody"):
        statements = getattr(node, name, None)
        if isinstance(statements, list):
            yield statements, in_loop
    for child in ast.iter_child_nodes(node):
        yield from blocks(child, in_loop)


def found_in(folder: Path, *, before_an_assert: bool) -> list[str]:
    found = []
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text()
        if "sleep(" not in text:
            continue
        for statements, in_loop in blocks(ast.parse(text)):
            for index, statement in enumerate(statements):
                last = index + 1 == len(statements)
                if not sleeps(statement) or in_loop:
                    continue
                if not before_an_assert or (
                    not last and isinstance(statements[index + 1], ast.Assert)
                ):
                    found.append(f"{path.relative_to(TESTS.parent)}:{statement.lineno}")
    return found


def test_unit_tests_do_not_sleep() -> None:
    found = found_in(TESTS / "unit", before_an_assert=False)
    assert not found, "use a clock of the test's own, or an event:\n" + "\n".join(found)


def test_no_test_sleeps_and_looks() -> None:
    found = found_in(TESTS, before_an_assert=True)
    assert not found, "wait for the condition (`eventually`):\n" + "\n".join(found)


def test_nobody_changes_the_time_of_all_threads() -> None:
    """`time.sleep` that a test has replaced is called by every other thread of its worker, too."""
    patch = re.compile(r"""setattr\(\s*("[\w.]+\.time\.\w+"|(\w+\.)?time,)""")
    found = [
        f"{path.relative_to(TESTS.parent)}: {match[0]}"
        for path in sorted(TESTS.rglob("*.py"))
        for match in patch.finditer(path.read_text())
    ]
    assert not found, "use own_time (tests/unit/conftest.py):\n" + "\n".join(found)
