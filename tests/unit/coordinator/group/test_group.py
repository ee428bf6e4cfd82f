"""The client behind a member of a group, from its connection."""

from __future__ import annotations

import sys

import pytest

from ottla.coordinator.group.group import Client, client_at


@pytest.mark.parametrize(
    ("peer", "host"), [("10.0.0.1:5000", "/10.0.0.1"), ("[::1]:5000", "/::1"), (":5", "/")]
)
def test_a_client_is_known_by_its_address_without_the_port(peer: str, host: str) -> None:
    assert client_at("me", peer) == Client("me", host)


def test_the_ids_of_clients_are_not_kept() -> None:
    client_id = "x" * 30_000
    before = sys.getrefcount(client_id)
    client_at(client_id, "10.0.0.1:5000")
    assert sys.getrefcount(client_id) == before
