from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import Result

from ottla.cli.names import did_you_mean, nearest, with_suggestion
from ottla.client.errors import PartialFailureError
from ottla.errors import ErrorCode, KafkaError

Run = Callable[..., Result]

MISSING = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "none; do something")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("order", "orders"),
        ("Orders", "orders"),
        ("oders", "orders"),
        ("page_views", "Page-Views"),
        ("zebra", None),
        ("orders-2026-10", None),
        ("consumer_offsets", None),
        ("_consumer_offsets", "__consumer_offsets"),
    ],
)
def test_the_name_that_was_meant(name: str, meant: str | None) -> None:
    known = ["orders", "Page-Views", "__consumer_offsets"]
    assert did_you_mean(name, known) == (meant and f"did you mean {meant!r}?")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("Retention.MS", "retention.ms"),
        ("retenton.ms", "retention.ms"),
        ("CREAT", "create"),
        ("billing", "Billing"),
        ("retention", "retention.ms"),
        ("cleanup.policy", None),
        ("", None),
    ],
)
def test_one_rule_for_all_names(name: str, meant: str | None) -> None:
    assert nearest(name, ["retention.ms", "create", "Billing"]) == meant


def test_a_missing_topic_gets_a_suggestion_and_others_keep_their_words(
    topics_there: list[str],
) -> None:
    topics_there += ["orders", "clicks"]

    def said(error: KafkaError, *topics: str) -> str | None:
        return with_suggestion(error, "h:1", topics).message

    meant = "there is no topic 'order'; did you mean 'orders'?"
    assert said(MISSING, "clicks", "order") == meant
    assert said(MISSING, "order:0,1") == meant
    assert said(MISSING, "zebra") == MISSING.message
    without_words = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert said(without_words, "zebra") == "there is no topic 'zebra'"
    assert said(MISSING, "orders") == MISSING.message  # it is the partition that is missing
    assert said(MISSING) == MISSING.message
    assert said(KafkaError(ErrorCode.INVALID_CONFIG, "bad"), "order") == "bad"


def test_each_of_several_failures_is_about_its_own_topic(topics_there: list[str]) -> None:
    topics_there += ["orders"]
    found = with_suggestion(
        PartialFailureError({"order": MISSING, "zebra": MISSING, "a-group": MISSING}),
        "h:1",
        ["order", "zebra"],
    )
    assert isinstance(found, PartialFailureError)
    assert [each.message for each in found.failures.values()] == [
        "there is no topic 'order'; did you mean 'orders'?",
        MISSING.message,
        MISSING.message,
    ]


@pytest.mark.usefixtures("over_the_scene")
@pytest.mark.parametrize(
    "command",
    [
        "offsets order",
        "offsets order:0",
        "perf produce order",
        "perf consume order",
        "perf latency order",
        "group reset g --create --topic order --to earliest",
        "group delete g --topic order",
    ],
)
def test_commands_that_name_topics_suggest_one(
    ottla: Run, topics_there: list[str], command: str
) -> None:
    topics_there += ["orders"]
    result = ottla(*command.split())
    assert (result.exit_code, result.output) == (
        1,
        "Error: there is no topic 'order'; did you mean 'orders'?\n",
    )
