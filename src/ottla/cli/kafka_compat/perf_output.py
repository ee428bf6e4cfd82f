"""What the performance tools share: settings from three places, numbers as Java prints them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from ottla.cli.kafka_compat.client_properties import librdkafka_properties
from ottla.cli.kafka_compat.options import Failure, Options, UsageError, read_properties

# SimpleDateFormat's letters that have one meaning in every length we may meet.
_DATE_LETTERS = {
    "yyyy": "%Y",
    "yy": "%y",
    "MM": "%m",
    "dd": "%d",
    "HH": "%H",
    "hh": "%I",
    "mm": "%M",
    "ss": "%S",
    "a": "%p",
}


def quiet_client_log() -> None:
    """Keep librdkafka's own lines off stderr; what matters of them is raised."""
    import logging

    logging.getLogger("ottla.client").setLevel(logging.CRITICAL + 1)  # nor its FATAL lines


def number(options: Options, name: str) -> int:
    """The number of an option that was given or has a default."""
    value = options.integer(name)
    if value is None:
        raise UsageError(f'Missing required argument "[{name}]"')
    return value


def warn_of_old(old: str, new: str) -> None:
    """What Kafka says about an option that has another name now."""
    print(
        f"Option {old} has been deprecated and will be removed in a future version. Use {new} "
        f"instead."
    )


def client_config(files: Iterable[str | None], pairs: Iterable[str]) -> dict[str, str]:
    """Java's properties of files and of the command line, the latter over the former."""
    found: dict[str, str] = {}
    for path in files:
        if path is not None:
            found |= read_properties(path)
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals or "=" in value:
            raise UsageError(f"Invalid property: {pair}")
        found[name] = value
    return found


def for_librdkafka(properties: Mapping[str, str]) -> dict[str, Any]:
    """The same in librdkafka's words."""
    config: dict[str, Any] = dict(librdkafka_properties(properties))
    if config.get("auto.offset.reset") == "none":
        config["auto.offset.reset"] = "error"
    config.pop("bootstrap.servers", None)
    return config


def date_text(moment: float, pattern: str) -> str:
    """Seconds since the epoch as local time, in the letters of Java's SimpleDateFormat."""
    local = datetime.fromtimestamp(moment)
    text, position = "", 0
    while position < len(pattern):
        letter = pattern[position]
        end = position
        while end < len(pattern) and pattern[end] == letter:
            end += 1
        run = pattern[position:end]
        position = end
        if run == "SSS":
            text += f"{local.microsecond // 1000:03d}"
        elif run in _DATE_LETTERS:
            text += local.strftime(_DATE_LETTERS[run])
        elif letter == "'":
            closing = pattern.find("'", position)
            if closing < 0:
                raise Failure(f"--date-format {pattern}: a quote is not closed")
            text += pattern[position:closing]
            position = closing + 1
        elif letter.isalpha():
            raise Failure(
                f"--date-format {pattern}: {run} is not understood; use yyyy-MM-dd HH:mm:ss:SSS"
            )
        else:
            text += run
    return text


def metric_lines(statistics: Mapping[str, Any], client: str) -> Iterator[str]:
    """librdkafka's statistics in the form in which Java's tools print metrics."""
    rows = sorted(_flat("librdkafka", statistics))
    labels = [f"{name}:{{client-id={client}}}" for name, _ in rows]
    width = max(map(len, labels), default=0)
    yield f"\n{'Metric Name':<{width}} Value"
    for label, (_, value) in zip(labels, rows, strict=True):
        shown = f"{value:.3f}" if isinstance(value, float | int) else str(value)
        yield f"{label:<{width}} : {shown}"


def _flat(name: str, values: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{name}:{key}", value)
        elif not isinstance(value, list):
            yield f"{name}:{key}", value
