"""The options of a consumer, and what librdkafka's consumer is told because of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypedDict

from ottla.client.decoding import OnError, check_on_error
from ottla.client.options import Option
from ottla.client.settings import (
    STATISTICS_DOC,
    StatisticsCallback,
    bootstrap_servers,
    check_options,
    librdkafka_config,
    statistics,
)

# librdkafka demands a group even of a consumer that joins none.
_NO_GROUP = "ottla-no-group"

_RESERVED = {
    "auto.offset.reset": "use reset=",
    "bootstrap.servers": "use bootstrap=",
    "enable.auto.commit": "use auto_commit=",
    "enable.auto.offset.store": "offsets are stored as records are processed; use auto_commit=",
    "enable.partition.eof": "use records(until_end=True)",
    "error_cb": "errors are raised by the method that waits",
    "group.id": "use group=",
    "isolation.level": "use read_uncommitted=",
    "logger": "librdkafka's lines go to the logger 'ottla.client'",
    "stats_cb": "use on_statistics=",
}


class ConsumerOptions(TypedDict, total=False):
    """What a consumer may be told besides brokers and deserializers, all of it optional."""

    group: Annotated[
        str,
        Option("None", "The group that `subscribe` joins and that offsets are committed for."),
    ]
    reset: Annotated[
        Literal["earliest", "latest", "error"],
        Option(
            '"latest"',
            "Where to go on when an offset is not in the log, or the group has none yet.",
        ),
    ]
    auto_commit: Annotated[
        bool,
        Option("True", "With a group: commit processed records every five seconds and on close."),
    ]
    on_error: Annotated[
        OnError,
        Option(
            '"raise"',
            'What becomes of a record that cannot be decoded. "raise" raises RecordDecodeError and '
            'stays at the record; "skip" logs it and goes on; a function is called with the record '
            "as it is stored and the error, and when it returns, and a future that it returns is "
            "settled, the consumer goes on; when either fails it stays. Damaged "
            'records are left behind only with "skip", and raise DamagedRecordsError otherwise.',
        ),
    ]
    read_uncommitted: Annotated[
        bool, Option("False", "Also give records of transactions that are open or aborted.")
    ]
    timeout: Annotated[float, Option("30.0", "Seconds that a question to a broker may take.")]
    on_statistics: Annotated[StatisticsCallback, Option("None", STATISTICS_DOC)]
    client_id: Annotated[str, Option('"ottla"', "The name that brokers see in their logs.")]
    config: Annotated[
        Mapping[str, Any], Option("{}", "librdkafka's own properties, over all of the above.")
    ]


def check_consumer_options(options: ConsumerOptions) -> None:
    """TypeError for what is no option of a consumer, ValueError for what one cannot be."""
    check_options("a consumer", options, ConsumerOptions)
    reset = options.get("reset", "latest")
    if reset not in ("earliest", "latest", "error"):
        raise ValueError(f'reset is "earliest", "latest" or "error", not {reset!r}')
    check_on_error(options.get("on_error", "raise"))


def consumer_config(
    bootstrap: str | Iterable[str] | None, options: ConsumerOptions
) -> dict[str, Any]:
    """librdkafka's settings for a consumer with these options."""
    group = options.get("group")
    own: dict[str, object] = {
        "auto.offset.reset": options.get("reset", "latest"),
        # As Java's client: damage on a disk or on the way is noticed, not handed out.
        "check.crcs": True,
        "bootstrap.servers": bootstrap_servers(bootstrap, "Consumer"),
        "client.id": options.get("client_id", "ottla"),
        "enable.auto.commit": group is not None and options.get("auto_commit", True),
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        # A queue that is full is looked at again after this long. librdkafka's own 1 s is
        # longer than it takes to empty the queue, and the reader would run dry.
        "fetch.queue.backoff.ms": 5,
        # How long a broker holds a fetch that finds nothing. A partition that is added
        # meanwhile waits for it, so librdkafka's 500 ms can delay the first record by that.
        "fetch.wait.max.ms": 100,
        "group.id": group or _NO_GROUP,
        "isolation.level": "read_uncommitted"
        if options.get("read_uncommitted")
        else "read_committed",
        **statistics(options.get("on_statistics")),
    }
    return librdkafka_config(own, options.get("config"), _RESERVED)
