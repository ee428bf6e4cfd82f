"""What a pipeline's file may say outside of its source and sink, declared as their options are."""

from __future__ import annotations

import re
from typing import Any, Final

from ottla.pipelines.connectors.option import Kind, Option
from ottla.pipelines.connectors.spec.values import STOP, TRIGGER

_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,100}")
_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def check_name(value: Any) -> None:
    if not _NAME.fullmatch(value) or set(value) <= {"."}:
        raise ValueError("a pipeline's name has up to 100 of the characters a-z A-Z 0-9 . _ -")


def check_topic(value: Any) -> None:
    if not _TOPIC.fullmatch(value) or set(value) <= {"."}:
        raise ValueError("a topic's name has up to 249 of the characters a-z A-Z 0-9 . _ -")


def _check_attempts(value: Any) -> None:
    if value < 1:
        raise ValueError("there is at least 1 attempt")


def _check_letters(value: Any) -> None:
    if value < 0:
        raise ValueError("a number of letters is not below 0")


FILE: Final = (
    Option("name", Kind.TEXT, "what the pipeline, its group `ottla-<name>` and its folder are "
           "called", required=True, check=check_name),
    Option("bootstrap", Kind.TEXT, "the brokers, `host:port,…`; without it those of "
           "`--bootstrap` or `OTTLA_BOOTSTRAP`, or 127.0.0.1:9092"),
    Option("trigger", Kind.DURATION, "the time between the starts of two batches; `0s`: as soon as "
           "there is something to read", default=TRIGGER),
    Option("checkpoint", Kind.PATH, "the folder of the checkpoint, any path that Spark knows, or "
           "one relative to this file; without it, one in the pipeline's own folder"),
    Option("kafka", Kind.MAP, "settings of Kafka clients for every connection to `bootstrap`"),
    Option("spark", Kind.MAP, "Spark's properties, `spark.…`, for the session"),
)  # fmt: skip
"""At the top; `source`, `transform`, `sink`, `on_error` and `tests` are beside them."""

RETRY: Final = (
    Option("attempts", Kind.INTEGER, "how often a batch is tried that fails without saying why, "
           "before the rows to blame are looked for", default=STOP.attempts,
           check=_check_attempts),
    Option("backoff", Kind.TEXT, "the wait before the second attempt, and the longest: each is "
           "twice the one before. An outage is waited for in the same steps, without an end",
           default="1s..1m"),
)  # fmt: skip

ON_ERROR: Final = (
    Option("dead_letter", Kind.TEXT, "the topic of rows that fail; without it, the first of them "
           "stops the pipeline", check=check_topic),
)  # fmt: skip
"""Of `on_error`; `retry` and `stop_at` are beside it."""

STOP_AT: Final = (
    Option("letters", Kind.INTEGER, "dead letters that a run may have in any case",
           default=STOP.most_letters, check=_check_letters),
    Option("share", Kind.TEXT, "the share of its rows that it may have as well, if that is more",
           default="1%"),
)  # fmt: skip

TEST: Final = (
    Option("name", Kind.TEXT, "what the test shows, as a sentence", required=True),
    Option("schema", Kind.TEXT, "the columns of `given` in Spark's notation, `id long, at "
           "timestamp`; without it, inferred from the rows"),
    Option("fails", Kind.INTEGER, "how many rows are to become dead letters", default=0,
           check=_check_letters),
)  # fmt: skip
"""Of a case in `tests`; `given` and `expect`, lists of rows, are beside them."""
