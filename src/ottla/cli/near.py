"""Names that were probably meant: what to say about one that does not exist."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ottla.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ottla.client.groups import Groups


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate that is most like a name; None when none is."""
    from difflib import get_close_matches  # only ever needed after a slip of the pen

    return next(iter(get_close_matches(name, list(candidates), 1)), None)


def no_group(groups: Groups, name: str, else_do: str) -> KafkaError:
    """There is no group of that name: the one that was probably meant, and what else to do."""
    near = nearest(name, (each.name for each in groups.list_groups()))
    hint = "" if near is None else f"did you mean {near!r}? Otherwise "
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {name!r}; {hint}{else_do}")
