"""`ottla topic elect`: partitions led by their preferred replicas, or by who is left of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ottla.cli.command import Command
from ottla.cli.options import bootstrap_option, complete_topics, connect, json_option
from ottla.cli.output import Column, broker_errors, count, show_json, show_table
from ottla.cli.patience import patience
from ottla.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ottla.client.accepted_loss import Offer
    from ottla.client.direct import DirectAdmin
    from ottla.model.ids import TopicPartition

_MOST = 50  # partitions that are listed for people


@click.command(name="elect", cls=Command)
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=complete_topics)
@click.option(
    "--accept-loss",
    is_flag=True,
    help="For partitions that wait for a replica which never returns: the one with most records of "
    "those that are there leads, and what it lacks is lost. Without --yes this is only shown.",
)
@click.option("--yes", "accept", is_flag=True, help="Accept the loss and do it.")
@bootstrap_option
@json_option
def elect_leaders(
    names: tuple[str, ...], accept_loss: bool, accept: bool, bootstrap: str, as_json: bool
) -> None:
    """Let the first replica of each partition lead, where it is in sync.

    Without a name, in all topics. A cluster does so by itself, every five minutes.

    \b
    JSON: {"elected": [{"topic", "partition"}], "failed": [{"topic", "partition", "error"}]}
    With --accept-loss also "executed" and
     "plan": [{"topic", "partition", "waits_for", "waits_for_all", "leader" (null: nobody answers),
               "last_epoch", "end_offset", "given_up"}]
    """
    if accept and not accept_loss:
        raise click.UsageError("--yes is for --accept-loss; other elections lose nothing")
    from ottla.client.direct import DirectAdmin

    with broker_errors(bootstrap, topics=names):
        connect(bootstrap)
    with (
        broker_errors(bootstrap, topics=names),
        DirectAdmin(bootstrap, client_id="ottla-cli") as admin,
        patience(),
    ):
        if accept_loss:
            _give_up(admin, names, accept, as_json)
        else:
            outcomes = admin.elect_leaders(_partitions(admin, names))
            if not as_json:
                _hint(admin, names, [tp for tp, error in outcomes.items() if error is not None])
            _show(outcomes, {}, as_json)


def _partitions(admin: DirectAdmin, names: tuple[str, ...]) -> list[TopicPartition] | None:
    from ottla.model.ids import TopicPartition

    if not names:
        return None
    return [
        TopicPartition(topic.name, part.partition)
        for topic in admin.describe_topics(names)
        for part in topic.partitions
    ]


def _hint(admin: DirectAdmin, names: Sequence[str], failed: Sequence[TopicPartition]) -> None:
    """What else there is for partitions that nobody leads, while their replicas do not return."""
    topics = admin.describe_topics(sorted({tp.topic for tp in failed})) if failed else ()
    found = {
        (each.name, part.partition): part.leader for each in topics for part in each.partitions
    }
    leaderless = sum(found.get(tp, 0) is None for tp in failed)
    if leaderless:
        line = " ".join(("ottla topic elect", *names, "--accept-loss"))
        click.echo(
            f"{count(leaderless, 'partition')} without a leader: a broker that has all records has "
            f"to return. If none ever does, `{line}` shows who could lead, and what is lost then",
            err=True,
        )


# --- a loss ---------------------------------------------------------------------------------------


def _give_up(admin: DirectAdmin, names: tuple[str, ...], accept: bool, as_json: bool) -> None:
    from ottla.client.accepted_loss import offers

    if names:
        admin.describe_topics(names)  # or the error that one of them is not there
    plan = offers(admin, names or None)
    able = [each.partition for each in plan if each.leader is not None]
    outcomes: Mapping[TopicPartition, KafkaError | None] = {}
    if accept and able:
        outcomes = admin.elect_leaders(able, unclean=True)
        outcomes = {tp: _meant(error, tp, plan) for tp, error in outcomes.items()}
    if not as_json:
        _show_plan(plan, accept)
    if as_json or (accept and plan):
        extra = {"executed": accept, "plan": [_document(each) for each in plan]}
        _show(outcomes, extra, as_json)


def _meant(
    error: KafkaError | None, tp: TopicPartition, plan: Sequence[Offer]
) -> KafkaError | None:
    """An election that is not needed, because the leader is there and only its log is not."""
    [offer] = [each for each in plan if each.partition == tp]
    if error is None or error.code is not ErrorCode.ELECTION_NOT_NEEDED or not offer.broken:
        return error
    brokers = ", ".join(map(str, offer.broken))
    return KafkaError(
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        f"broker {brokers} leads it and cannot serve its log: stop that broker, then elect again",
    )


def _show_plan(plan: Sequence[Offer], accept: bool) -> None:
    if not plan:
        click.echo("every partition has a leader: there is nothing to give up")
        return
    columns = (
        Column("PARTITION"),
        Column("WAITS FOR"),
        Column("LEADS THEN", numeric=True, is_name=True),
        Column("ENDS AT", numeric=True),
        Column("MAY BE LOST"),
    )
    rows = [
        (
            str(each.partition),
            waits_for(each.waits_for, each.waits_for_all),
            each.leader,
            each.end_offset,
            _loss(each),
        )
        for each in plan[:_MOST]
    ]
    title = f"{count(len(plan), 'partition')} without a leader"
    if not accept:
        title += "; nothing is changed without --yes"
    if len(plan) > _MOST:
        title += f"; the first {_MOST} of them:"
    show_table(columns, rows, title=title)


def _loss(offer: Offer) -> str:
    if offer.leader is None:
        return "no replica answers: nobody can lead it"
    others = ",".join(map(str, offer.given_up))
    if not others:
        return "what none of its replicas has any more"
    return f"what only {others} had, from offset {offer.end_offset} on or before"


def waits_for(brokers: Sequence[int], all_of_them: bool) -> str | None:
    """For people: whom a partition waits for."""
    if not brokers:
        return None
    if len(brokers) == 1:
        return f"broker {brokers[0]}"
    return f"{'all' if all_of_them else 'any'} of {','.join(map(str, brokers))}"


# --- outcomes -------------------------------------------------------------------------------------


def _show(
    outcomes: Mapping[TopicPartition, KafkaError | None], extra: dict[str, object], as_json: bool
) -> None:
    elected = [tp for tp, error in outcomes.items() if error is None]
    failed = {
        tp: error.message or error.code.text
        for tp, error in outcomes.items()
        if error is not None and error.code is not ErrorCode.ELECTION_NOT_NEEDED
    }
    if as_json:
        show_json(
            {
                **extra,
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


def _document(offer: Offer) -> dict[str, object]:
    return {
        **_named(offer.partition),
        "waits_for": list(offer.waits_for),
        "waits_for_all": offer.waits_for_all,
        "leader": offer.leader,
        "last_epoch": offer.last_epoch,
        "end_offset": offer.end_offset,
        "given_up": list(offer.given_up),
    }
