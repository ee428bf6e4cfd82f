"""What a declaration becomes: a small class with a constructor, equality and a short repr."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.protocol.primitives import ZERO_UUID
from ottla.protocol.schema import (
    Field,
    Versions,
    array,
    batches,
    int16,
    int32,
    message,
    nested,
    parse_versions,
    schema_of,
    string,
    struct,
    uuid,
)


@struct
class Part:
    """Two numbers."""

    left: int = int32()
    right: int = int32(default=-1)


@message(api_key=900, kind="request", versions="0-3", flexible="2+")
class Whole:
    """Something of everything."""

    name: str = string()
    note: str | None = string(versions="1+", nullable="1+", default=None)
    part: Part | None = nested(Part, versions="2+", tag=0, default=None)
    parts: list[Part] = array(Part, versions="1+", factory=list)
    numbers: list[int] = array(int32)
    records: memoryview | None = batches(nullable="0+")


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [("3", 3, 3), ("0-12", 0, 12), ("9+", 9, 0x7FFF), ("none", 0, -1)],
)
def test_version_ranges_are_read_as_kafka_writes_them(text: str, low: int, high: int) -> None:
    assert parse_versions(text) == Versions(low, high)


def test_no_version_is_in_none() -> None:
    assert not any(parse_versions("none").includes(version) for version in range(-1, 20))


def test_the_constructor_takes_keywords_and_fills_in_defaults() -> None:
    whole = Whole(name="x", numbers=[1], records=None)

    assert (whole.name, whole.note, whole.part, whole.parts) == ("x", None, None, [])
    assert Part(left=1).right == -1


def test_a_field_without_default_must_be_given() -> None:
    with pytest.raises(TypeError, match="numbers"):
        Whole(name="x", records=None)


def test_an_unknown_field_is_refused_by_the_first_instance_and_by_later_ones() -> None:
    @struct
    class Fresh:
        """Never built before."""

        left: int = int32()

    for _ in range(2):
        with pytest.raises(TypeError, match="wrong"):
            Fresh(left=1, wrong=2)


def test_default_lists_are_not_shared() -> None:
    first, second = (Whole(name="x", numbers=[], records=None) for _ in range(2))
    first.parts.append(Part(left=1))

    assert second.parts == []


def test_instances_have_slots_and_no_dictionary() -> None:
    part = Part(left=1)

    assert not hasattr(part, "__dict__")
    with pytest.raises(AttributeError):
        part.middle = 1


def test_equality_is_by_type_and_values() -> None:
    @struct
    class Other:
        """Looks like Part."""

        left: int = int32()
        right: int = int32(default=-1)

    assert Part(left=1) == Part(left=1, right=-1)
    assert Part(left=1) != Part(left=2)
    assert Part(left=1) != Other(left=1)


def test_messages_are_not_hashable_as_they_change() -> None:
    with pytest.raises(TypeError):
        hash(Part(left=1))


def test_the_representation_shows_values_but_not_records() -> None:
    whole = Whole(name="x", numbers=[], records=memoryview(b"secret"))

    assert "name='x'" in repr(whole)
    assert "records=<6 bytes>" in repr(whole)
    assert "secret" not in repr(whole)


def test_the_docstring_survives() -> None:
    assert Part.__doc__ == "Two numbers."
    assert Part.__module__ == __name__


def test_a_field_that_some_version_lacks_needs_a_default() -> None:
    with pytest.raises(TypeError, match=r"Broken\.late"):

        @message(versions="0-2", flexible="none")
        class Broken:
            """Version 0 has no `late`."""

            late: int = int16(versions="1+")


def test_the_same_holds_inside_structures() -> None:
    @struct
    class Inner:
        """Lacks `late` in version 1."""

        late: int = int16(versions="2+")

    @message(versions="0-2", flexible="none")
    class Fine:
        """Carries Inner only where `late` exists."""

        inner: list[Inner] = array(Inner, versions="2+", factory=list)

    assert schema_of(Fine).fields[0].element is Inner
    with pytest.raises(TypeError, match=r"Inner\.late"):

        @message(versions="0-2", flexible="none")
        class Broken:
            """Carries Inner in version 1 too."""

            inner: list[Inner] = array(Inner, versions="1+", factory=list)


def test_an_undeclared_class_has_no_schema() -> None:
    with pytest.raises(TypeError, match="not declared"):
        schema_of(int)


# --- the real declarations ----------------------------------------------------------------------

PYTHON_TYPES = {
    "bool": "bool",
    "int8": "int",
    "int16": "int",
    "uint16": "int",
    "int32": "int",
    "int64": "int",
    "float64": "float",
    "uuid": "bytes",
    "string": "str",
    "bytes": "bytes",
}


def expected_annotation(field: Field) -> set[str]:
    if field.type == "records":
        return {"memoryview | None", "Sized | None"}
    if field.type == "struct":
        assert isinstance(field.element, type)
        plain = field.element.__name__
    elif field.type == "array":
        element = field.element
        assert element is not None
        plain = f"list[{element.__name__ if isinstance(element, type) else PYTHON_TYPES[element]}]"
    else:
        plain = PYTHON_TYPES[field.type]
    empty = field.nullable == (0, -1)
    return {plain} if empty and field.default is not None else {f"{plain} | None"}


def declared(cls: type) -> set[type]:
    """A message and all structures in it."""
    found = {cls}
    for field in schema_of(cls).fields:
        if isinstance(field.element, type):
            found |= declared(field.element)
    return found


def test_every_annotation_says_what_the_wire_type_decodes_to(
    every_version: list[tuple[type[Any], int]],
) -> None:
    classes: set[type] = set()
    for cls, _ in every_version:
        classes |= declared(cls)

    assert len(classes) > 150
    for cls in classes:
        annotations = cls.__annotations__
        fields = schema_of(cls).fields
        assert list(annotations) == [field.name for field in fields], cls
        for field in fields:
            assert annotations[field.name] in expected_annotation(field), (cls, field)


def test_every_class_is_documented(every_version: list[tuple[type[Any], int]]) -> None:
    for cls, _ in every_version:
        assert all(inner.__doc__ for inner in declared(cls))


def test_every_id_that_may_be_missing_defaults_to_zero(
    every_version: list[tuple[type[Any], int]],
) -> None:
    defaults: list[Any] = []
    for cls, _ in every_version:
        for inner in declared(cls):
            fields = schema_of(inner).fields
            defaults += [f.default for f in fields if f.type == "uuid" and not f.required]

    assert set(defaults) == {ZERO_UUID}
    assert uuid().required
