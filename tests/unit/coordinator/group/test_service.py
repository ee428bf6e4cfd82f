"""The door to the group coordinator: which shard a group belongs to, and what is checked before."""

from __future__ import annotations

import pytest

from ottla.coordinator.group.service import group_hash


@pytest.mark.parametrize(
    ("group_id", "expected"),
    [
        # abs(String.hashCode()), by a Java virtual machine
        ("", 0),
        ("a", 97),
        ("my-group", 1_906_497_762),
        ("console-consumer-12345", 158_455_506),
        ("grüße", 98_768_023),
        ("🦦 otters", 960_129_585),
        ("polygenelubricants", 0),  # the least int: its abs is not an int
    ],
)
def test_a_group_is_hashed_as_java_does(group_id: str, expected: int) -> None:
    assert group_hash(group_id) == expected
