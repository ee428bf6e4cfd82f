"""`ottla topic elect`: give partitions back to their preferred leaders, or to whoever is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ottla.cli.command import Command
from ottla.cli.options import bootstrap_option, complete_topics, connect, json_option
from ottla.cli.output import broker_errors, count, show_json
from ottla.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.model.ids import TopicPartition


@click.command(name="elect", cls=Command)
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=complete_topics)
@click.option(
    "--unclean",
    is_flag=True,
    help="Only partitions without a leader: any replica that is there leads, and records that it "
    "lacks are lost.",
)
@bootstrap_option
@json_option
def elect_leaders(names: tuple[str, ...], unclean: bool, bootstrap: str, as_json: bool) -> None:
    """Let the first replica of each partition lead, where it is in sync.

    Without a name, in all topics. A cluster does so by itself, every five minutes.

    JSON: {"elected": [{"topic", "partition"}], "failed": [{"topic", "partition", "error"}]}
    """
    connect(bootstrap)
    from ottla.client.direct import DirectAdmin
    from ottla.model.ids import TopicPartition

    with (
        broker_errors(bootstrap, topics=names),
        DirectAdmin(bootstrap, client_id="ottla-cli") as admin,
    ):
        wanted = None
        if names:
            wanted = [
                TopicPartition(topic.name, part.partition)
                for topic in admin.describe_topics(names)
                for part in topic.partitions
            ]
        outcomes = admin.elect_leaders(wanted, unclean=unclean)
    elected = [tp for tp, error in outcomes.items() if error is None]
    failed = {
        tp: error.message or error.code.text
        for tp, error in outcomes.items()
        if error is not None and error.code is not ErrorCode.ELECTION_NOT_NEEDED
    }
    if as_json:
        show_json(
            {
                "elected": [_named(tp) for tp in elected],
                "failed": [{**_named(tp), "error": text} for tp, text in failed.items()],
            }
        )
    else:
        click.echo(f"elected leaders of {count(len(elected), 'partition')}")
        for tp, text in failed.items():
            click.echo(f"{tp}: {text}", err=True)
    if failed:
        raise click.exceptions.Exit(1)


def _named(tp: TopicPartition) -> dict[str, object]:
    return {"topic": tp.topic, "partition": tp.partition}
