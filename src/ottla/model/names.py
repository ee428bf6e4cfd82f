"""What a topic may be called.

Kafka's rules and Kafka's words: clients show these messages to people, and tests of clients
compare them.
"""

from __future__ import annotations

import re

from ottla.errors import ErrorCode, KafkaError

MAX_TOPIC_NAME = 249
CLUSTER_METADATA_TOPIC = "__cluster_metadata"
"""Kafka's own metadata log. Never a topic of ours, but a name that no client may take."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)


def topic_name_problem(name: str) -> str | None:
    """What is wrong with a topic name, or None."""
    if not name:
        return "the empty string is not allowed"
    if name == ".":
        return "'.' is not allowed"
    if name == "..":
        return "'..' is not allowed"
    # Java counts UTF-16 units; it matters only for which of two complaints a bad name gets.
    if len(name.encode("utf-16-le", "surrogatepass")) > 2 * MAX_TOPIC_NAME:
        return f"the length of '{name}' is longer than the max allowed length {MAX_TOPIC_NAME}"
    if not _LEGAL.fullmatch(name):
        return (
            f"'{name}' contains one or more characters other than "
            "ASCII alphanumerics, '.', '_' and '-'"
        )
    return None


def check_topic_name(name: str) -> None:
    """INVALID_TOPIC_EXCEPTION unless `name` may be the name of a topic."""
    problem = topic_name_problem(name)
    if problem:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {problem}")


def may_collide(name: str) -> bool:
    """Whether `name` has a character that metric names cannot tell from another."""
    return "." in name or "_" in name


def collision_key(name: str) -> str:
    """Equal for two topics whose metrics would have the same name."""
    return name.replace(".", "_")
