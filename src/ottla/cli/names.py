"""A topic that is not there: which one may have been meant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from ottla.errors import ErrorCode, KafkaError

_TIMEOUT = 2.0
# Two letters of ten may be wrong. Names that only begin alike are not meant.
_LIKENESS = 0.75


def known_topics(bootstrap: str) -> list[str]:
    """The names of all topics; none when nobody tells."""
    from ottla.client.router import Router

    try:
        with Router(bootstrap, timeout=_TIMEOUT, client_id="ottla-cli") as router:
            return [topic.name or "" for topic in router.metadata(None).topics]
    except KafkaError:
        return []


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """The question after the name that is most like this one, if any is.

    Capitals make no difference to people. Topics that begin with underscores are nobody's, unless
    one was asked for."""
    by_lower = {
        each.lower(): each for each in known if not each.startswith("__") or name.startswith("_")
    }
    near = get_close_matches(name.lower(), by_lower, 1, _LIKENESS)
    return f"did you mean {by_lower[near[0]]!r}?" if near else None


def with_suggestion(error: KafkaError, bootstrap: str, topics: Sequence[str]) -> KafkaError:
    """The same error; where it says that one of these topics is not there, with the name that was
    probably meant. `topics` are as given on a command line, TOPIC or TOPIC:0,1."""
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
        if question := did_you_mean(name, known):
            return KafkaError(error.code, f"there is no topic {name!r}; {question}")
    return error
