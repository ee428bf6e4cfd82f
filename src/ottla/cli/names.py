"""A name that does not exist (of a topic, a group, a setting, a command): which one was meant.

There is one rule for all of them, `nearest`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ottla.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ottla.client.groups import Groups

_TIMEOUT = 2.0
# Three letters of ten may be wrong. Names that only begin alike are not meant.
_LIKENESS = 0.7


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate that is most like a name; None when none is. Capitals make no difference to
    people."""
    from difflib import get_close_matches  # only ever needed after a slip of the pen

    by_lower = {each.lower(): each for each in candidates}
    near = get_close_matches(name.lower(), by_lower, 1, _LIKENESS)
    return by_lower[near[0]] if near else None


def known_topics(bootstrap: str) -> list[str]:
    """The names of all topics; none when nobody tells."""
    from ottla.client.router import Router

    try:
        with Router(bootstrap, timeout=_TIMEOUT, client_id="ottla-cli") as router:
            return [topic.name or "" for topic in router.metadata(None).topics]
    except KafkaError:
        return []


def did_you_mean(topic: str, known: Iterable[str]) -> str | None:
    """The question after the topic that is most like this one, if any is. Topics that begin with
    underscores are nobody's, unless one was asked for."""
    near = nearest(
        topic, (each for each in known if not each.startswith("__") or topic.startswith("_"))
    )
    return None if near is None else f"did you mean {near!r}?"


def no_topic(topic: str, known: Iterable[str]) -> str:
    """There is no topic of that name: a sentence, with the one that was probably meant."""
    question = did_you_mean(topic, known)
    return f"there is no topic {topic!r}" + ("" if question is None else f"; {question}")


def no_group(groups: Groups, name: str, else_do: str) -> KafkaError:
    """There is no group of that name: the one that was probably meant, and what else to do."""
    near = nearest(name, (each.name for each in groups.list_groups()))
    hint = "" if near is None else f"did you mean {near!r}? Otherwise "
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {name!r}; {hint}{else_do}")


def with_suggestion(error: KafkaError, bootstrap: str, topics: Sequence[str]) -> KafkaError:
    """The same error; where it says that one of these topics is not there, with its name, or with
    the one that was probably meant. `topics` are as given on a command line, TOPIC or TOPIC:0,1."""
    failures = getattr(error, "failures", None)
    if not isinstance(failures, dict):
        return _suggest(error, bootstrap, topics)
    from ottla.client.errors import PartialFailureError

    return PartialFailureError(
        {
            name: _suggest(each, bootstrap, [name] if name in topics else [])
            for name, each in failures.items()
        }
    )


def _suggest(error: KafkaError, bootstrap: str, topics: Sequence[str]) -> KafkaError:
    if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or not topics:
        return error
    known = known_topics(bootstrap)
    for text in topics:
        name = text.partition(":")[0]
        if name in known:
            continue
        if did_you_mean(name, known) or (known and not error.message):
            return KafkaError(error.code, no_topic(name, known))
    return error
