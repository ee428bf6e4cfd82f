"""Spark's options, read: by typed getters, with one sentence for whatever is wrong.

Spark hands options over as a map of texts whose names have lost their capital letters. `Options`
gives them their spelling back from the table, so that an error says `startingOffsets` and not
`startingoffsets`.

A name that is not in the table is refused. Spark's connector takes no notice of it, and a query
with `maxOffsetPerTrigger` runs without a limit until somebody wonders; a slip of the pen should
cost a second.

The getters belong to nobody: reading and writing use the same ones, and so do Kafka's settings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ottla.pipelines.errors import OptionError
from ottla.pipelines.option_table import OPTIONS, Option, Status, Use

KAFKA = "kafka."
MAX_INT = 2**31 - 1
MAX_LONG = 2**63 - 1

_BY_NAME = {option.name.lower(): option for option in OPTIONS if "*" not in option.name}
_TRUTH = {"true": True, "false": False}
_UNITS = {
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
_DURATION = re.compile(r"(\d+)\s*([a-z]*)", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d{1,20}", re.ASCII)


class Options:
    """The options of one query, for one use.

    `kafka` holds what was given as `kafka.*`, without that prefix. `notices` has a sentence for
    each option that was given and has no effect.
    """

    def __init__(self, given: Mapping[str, str], use: Use) -> None:
        self.use = use
        self.kafka: dict[str, str] = {}
        self.notices: list[str] = []
        self._values: dict[str, str] = {}
        for name, value in given.items():
            plain = name.lower()
            if plain.startswith(KAFKA):
                self.kafka[plain.removeprefix(KAFKA)] = value
            else:
                self._values[plain] = value
        for plain in sorted(self._values):
            self._check(plain)

    def _check(self, plain: str) -> None:
        option = option_named(plain)
        if option is None:
            raise unknown(plain, (known.name for known in _BY_NAME.values()))
        name = plain if "*" in option.name else option.name
        status, reason = option.status_in(self.use)
        if status is Status.REFUSED:
            raise OptionError(name, f"{name} is refused, {reason}.")
        if status is Status.HARMLESS:
            self.notices.append(f"{name} has no effect, {reason}.")

    def given(self, name: str) -> bool:
        """Whether it was given for a use that it is for."""
        return name.lower() in self._values and self.use in _BY_NAME[name.lower()].uses

    def text(self, name: str) -> str | None:
        """The value without the blanks around it; None when not given or of no effect."""
        return self._values[name.lower()].strip() if self.given(name) else None

    def whole(self, name: str, *, least: int, most: int = MAX_LONG) -> int | None:
        """A whole number within limits."""
        value = self.text(name)
        return None if value is None else whole(name, value, least=least, most=most)

    def truth(self, name: str, default: bool = False) -> bool:
        """`true` or `false`."""
        value = self.text(name)
        return default if value is None else truth(name, value)

    def choice(self, name: str, choices: Iterable[str], default: str) -> str:
        """One of a few words, in lower case."""
        value = self.text(name)
        return default if value is None else choice(name, value, choices)

    def seconds(self, name: str, default: float) -> float:
        """A time with its unit, `15m`; a bare number is milliseconds."""
        value = self.text(name)
        return default if value is None else duration(name, value)


def option_named(plain: str) -> Option | None:
    """The row of the table for a name in lower case; None when there is none."""
    return _BY_NAME.get(plain) or _of_a_family(plain)


def _of_a_family(plain: str) -> Option | None:
    """The row of the table that stands for this name and others like it."""
    from fnmatch import fnmatchcase  # almost never needed, and planning starts in cold processes

    return next((row for row in OPTIONS if fnmatchcase(plain, row.name.lower())), None)


def whole(name: str, text: str, *, least: int, most: int = MAX_LONG) -> int:
    """Read a whole number from `least` to `most`."""
    value = int(text) if _WHOLE.fullmatch(text.strip()) else None
    if value is not None and least <= value <= most:
        return value
    upper = "" if most in (MAX_INT, MAX_LONG) else f" to {most}"
    lower = "above 0" if least == 1 and not upper else f"from {least}{upper}"
    if least < 0 and not upper:
        lower = f"not below {least}"
    raise OptionError(name, f"{name}={shown(text)} is not right: give a whole number {lower}.")


def truth(name: str, text: str) -> bool:
    """Read `true` or `false`, in any case."""
    value = _TRUTH.get(text.strip().lower())
    if value is None:
        raise OptionError(name, f"{name}={shown(text)} is not right: give true or false.")
    return value


def choice(name: str, text: str, choices: Iterable[str]) -> str:
    """Read one of `choices`, which are in lower case; the text may be in any."""
    allowed = list(choices)
    value = text.strip().lower()
    if value not in allowed:
        right = " or ".join([", ".join(allowed[:-1]), allowed[-1]] if allowed[1:] else allowed)
        raise OptionError(name, f"{name}={shown(text)} is not right: give {right}.")
    return value


def duration(name: str, text: str) -> float:
    """Read `15m`, `10s`, `500ms`; a bare number is milliseconds. The answer is in seconds."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None or (match[2] or "ms") not in _UNITS:
        raise OptionError(
            name,
            f"{name}={shown(text)} is not right: give a time such as 500ms, 30s, 15m, 2h or 1d.",
        )
    return int(match[1]) * _UNITS[match[2] or "ms"]


def shown(text: str) -> str:
    """A value as an error shows it: quoted when empty or with blanks, cut when long."""
    cut = text if len(text) <= 80 else f"{text[:77]}..."
    return cut if cut and cut == cut.strip() and " " not in cut else repr(cut)


def unknown(name: str, known: Iterable[str]) -> OptionError:
    """For a name that nothing knows: with the nearest one that something does."""
    import difflib  # only ever needed after a slip of the pen

    spelling = {candidate.lower(): candidate for candidate in known}
    near = difflib.get_close_matches(name.lower(), spelling, n=1, cutoff=0.6)
    right = f"did you mean {spelling[near[0]]}?" if near else "docs/spark.md lists what there is."
    return OptionError(name, f"There is no option {name}: {right}")
