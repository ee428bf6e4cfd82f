"""What signatures name can be imported, and what can be imported is documented."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

import ottla
from ottla.client import reference

CLIENTS = [ottla.Producer, ottla.Consumer, ottla.Admin]
# The type variables of keys and values, and names of Python's own.
ELSEWHERE = {
    *("K", "V", "None", "Any", "Self", "Literal", "Callable", "Future", "Iterable", "Iterator"),
    *("Mapping", "Sequence", "Exception", "BaseException", "TracebackType", "True", "False"),
}


@pytest.mark.parametrize("kind", CLIENTS, ids=lambda kind: kind.__name__)
def test_every_name_in_a_public_signature_is_exported(kind: type) -> None:
    for name, function in inspect.getmembers(kind, inspect.isfunction):
        if name.startswith("_"):
            continue
        signature = inspect.signature(function)
        words = [str(each.annotation) for each in signature.parameters.values()]
        words.append(str(signature.return_annotation))
        for found in re.findall(r"(?<![\"'\w])[A-Z]\w+", " ".join(words)):
            assert found in ottla.__all__ or found in ELSEWHERE, f"{name}: {found}"


@pytest.mark.parametrize("kind", [*CLIENTS, ottla.AsyncProducer, ottla.AsyncConsumer])
def test_every_public_method_says_what_it_does(kind: Any) -> None:
    for name, member in inspect.getmembers_static(kind):
        if not name.startswith("_") and (
            inspect.isfunction(member) or isinstance(member, property)
        ):
            assert inspect.getdoc(member), name


def test_every_exported_name_is_on_the_page() -> None:
    page = reference.render()
    for name in ottla.__all__:
        if not name.startswith("_") and not name.endswith("Options"):
            assert re.search(rf"^(#+ |- `){name}\b", page, re.MULTILINE), name


def test_everything_that_is_exported_is_there() -> None:
    for name in ottla.__all__:
        assert getattr(ottla, name) is not None
