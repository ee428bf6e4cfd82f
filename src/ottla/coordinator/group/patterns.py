"""Regular expressions over topic names: the one door to RE2.

A subscription by pattern (KIP-848) is written by a client and matched by the broker against every
topic of the cluster, so the matching must not depend on the client's good will. RE2 takes time
linear in the name for any pattern, and its syntax is the one Kafka promises. Still, ten
thousand names take tens of milliseconds: `resolve` is made to be run in a thread. It holds the
interpreter only between matches, so the event loop does not notice it.

A name matches when the whole of it does, as in Kafka: `orders` does not match `orders-eu`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

# For the program and its automaton. What does not fit is refused when it is compiled: it would be
# a pattern of tens of thousands of states, each a step for each letter of each name.
_MEMORY = 1 << 20


class InvalidPattern(ValueError):
    """Not a regular expression in RE2's syntax; the message says what is wrong with it."""


def check(pattern: str) -> None:
    """Raise InvalidPattern unless `resolve` will understand `pattern`."""
    _compile(pattern)


def matcher(pattern: str) -> Callable[[str], bool]:
    """Whether a name matches, for those who ask again and again: compiled once. Nothing matches
    what is not a pattern."""
    try:
        fullmatch = _compile(pattern).fullmatch
    except InvalidPattern:
        return lambda _: False
    return lambda name: bool(fullmatch(name.encode()))


def resolve(patterns: Iterable[str], names: Iterable[str]) -> dict[str, frozenset[str]]:
    """The names that match, for each pattern; a pattern that is not one matches nothing.

    Such a one can only come from a journal that another implementation has written.
    """
    spelled = [(name, name.encode()) for name in names]
    matches = {}
    for pattern in patterns:
        try:
            fullmatch = _compile(pattern).fullmatch
        except InvalidPattern:
            matches[pattern] = frozenset[str]()
        else:
            matches[pattern] = frozenset(name for name, text in spelled if fullmatch(text))
    return matches


def _compile(pattern: str) -> Any:
    # Here and not above: most brokers never see a pattern, and all of them want to start at once.
    import re2

    options = re2.Options()
    options.log_errors = False  # to our standard error, of all places
    options.never_capture = True
    options.max_mem = _MEMORY
    try:
        return re2.compile(pattern.encode(), options)
    except re2.error as error:
        (reason,) = error.args
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise InvalidPattern(text) from None
    except UnicodeEncodeError:
        raise InvalidPattern("not valid UTF-8") from None
