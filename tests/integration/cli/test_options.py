from __future__ import annotations

import click

from ottla.cli.main import LazyGroup
from ottla.cli.options import complete_topics


def test_completing_a_topic_without_a_broker_gives_nothing() -> None:
    context = click.Context(LazyGroup("ottla"), info_name="ottla")
    context.params["bootstrap"] = "127.0.0.1:1"
    assert complete_topics(context, click.Argument(["topic"]), "a") == []
