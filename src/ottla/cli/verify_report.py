"""What `ottla verify` prints of runs and histories: what was done, and what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ottla.cli.output import Column, count, grouped, say, show_json, show_table
from ottla.verify.history import History, excerpt

if TYPE_CHECKING:
    from ottla.verify.checks import Verdict
    from ottla.verify.record import Total
    from ottla.verify.run import Outcome

_SHOWN_LINE = 600


def report(outcome: Outcome, as_json: bool, verdict: Verdict, complete: bool) -> bool:
    """Print what came of a run; whether all is right."""
    if as_json:
        show_json(
            {
                "seed": outcome.seed,
                "history": str(outcome.history),
                "complete": complete,
                "seconds": outcome.seconds,
                "acknowledged": outcome.acknowledged,
                "unknown": outcome.unknown,
                "refused": outcome.refused,
                "longest_pause": outcome.longest_pause,
                "faults": dict(outcome.faults),
                "fewest_in_flight": outcome.fewest_in_flight,
                "gave_up": outcome.gave_up,
                "events": verdict.events,
                **_anomalies(verdict),
            }
        )
    else:
        if outcome.faults:
            kinds = ", ".join(f"{name} {number}" for name, number in sorted(outcome.faults.items()))
            click.echo(f"{count(sum(outcome.faults.values()), 'fault')}: {kinds}")
        click.echo(
            f"{count(outcome.acknowledged, 'record')} acknowledged, {grouped(outcome.unknown)} "
            f"unknown, {grouped(outcome.refused)} refused in {outcome.seconds:.0f} s; the longest "
            f"pause was {outcome.longest_pause:.1f} s"
        )
        _show_transactions(verdict)
        _show_anomalies(verdict, outcome.history)
    if verdict.anomalies and not as_json:
        say(f"seed {outcome.seed}, history {outcome.history}")
    if outcome.left:
        say(f"these topics could not be deleted: {', '.join(outcome.left)}")
    return _conclude(verdict, complete)


def show_verdict(verdict: Verdict, complete: bool, history: History, as_json: bool) -> bool:
    """One history: `ottla verify check FILE`; whether all is right."""
    if as_json:
        show_json(_verdict_document(verdict, complete, history))
        return _conclude(verdict, complete)
    click.echo(
        f"{count(verdict.events, 'event')}, {count(verdict.acknowledged, 'record')} "
        f"acknowledged, {count(verdict.faults, 'fault')}"
    )
    _show_transactions(verdict)
    _show_anomalies(verdict, history.path)
    if verdict.anomalies:
        say(f"seed {history.header.get('seed')}, history {history.path}")
    return _conclude(verdict, complete)


def _conclude(verdict: Verdict, complete: bool) -> bool:
    """Whether all is right. Says why a history without anomalies shows nothing, if so."""
    if not complete:
        say(
            "the run did not come to its end: nobody has looked whether what was acknowledged is "
            "there"
        )
    elif not verdict.acknowledged:
        say("nothing was acknowledged, so nothing could be lost: this run shows nothing")
    return complete and verdict.acknowledged > 0 and not verdict.anomalies


def show_total(total: Total, as_json: bool) -> bool:
    """Many runs, added up: `ottla verify check DIR`; whether all is right."""
    right = total.acknowledged > 0 and not total.bad
    if not total.acknowledged:
        say("no run that came to its end has acknowledged anything: this shows nothing")
    if as_json:
        show_json(
            {
                "runs": total.runs,
                "incomplete": [str(path) for path in total.incomplete],
                "unreadable": total.unreadable,
                "code": sorted(total.codes),
                "faults": total.kinds.total(),
                "kinds": dict(sorted(total.kinds.items())),
                "overlapping": total.overlapping,
                "fewest_in_flight": total.fewest_in_flight,
                "events": total.events,
                "acknowledged": total.acknowledged,
                "seconds": total.seconds,
                "available": total.available,
                "calm": total.calm,
                "calm_available": total.calm_available,
                "transactions": {
                    "committed": total.committed,
                    "aborted": total.aborted,
                    "unknown": total.undecided,
                },
                "flaws": dict(sorted(total.flaws.items())),
                "anomalies": total.anomalies,
                "bad": [
                    _verdict_document(verdict, path not in total.incomplete, History(path))
                    for path, verdict in total.bad
                ],
            }
        )
        return right
    show_table(
        [Column("FAULT"), Column("TIMES", True)],
        [(name, number) for name, number in sorted(total.kinds.items())],
    )
    click.echo(
        f"{count(total.runs, 'run')}, {count(total.kinds.total(), 'fault')}, "
        f"{grouped(total.overlapping)} of them during another one; at least "
        f"{total.fewest_in_flight or 0} requests in flight at each"
    )
    click.echo(
        f"{count(total.acknowledged, 'record')} acknowledged in {grouped(total.seconds)} s, in "
        f"{grouped(total.available)} of which something was acknowledged; between faults in "
        f"{grouped(total.calm_available)} of {grouped(total.calm)} s"
    )
    _show_transactions(total)
    for path in total.incomplete:
        click.echo(f"not counted, as the run did not come to its end: {path}")
    for reason in total.unreadable:
        click.echo(f"not counted: {reason}")
    if len(total.codes) > 1:
        click.echo(f"the runs are of different programs: {', '.join(sorted(total.codes))}")
    for path, verdict in total.bad:
        click.echo(f"seed {History(path).header.get('seed')}, history {path}")
        _show_anomalies(verdict, path)
    if not total.bad:
        click.echo("no anomalies")
    return right


def _verdict_document(verdict: Verdict, complete: bool, history: History) -> dict[str, object]:
    return {
        "history": str(history.path),
        "seed": history.header.get("seed"),
        "complete": complete,
        "events": verdict.events,
        "acknowledged": verdict.acknowledged,
        "faults": verdict.faults,
        **_anomalies(verdict),
    }


def _show_transactions(counts: Verdict | Total) -> None:
    """What became of transactions, if there were any."""
    if counts.committed or counts.aborted or counts.undecided:
        click.echo(
            f"{count(counts.committed, 'transaction')} committed, {grouped(counts.aborted)} "
            f"aborted, {grouped(counts.undecided)} of unknown outcome"
        )
    if counts.flaws:
        names = ", ".join(f"{name} {number}" for name, number in sorted(counts.flaws.items()))
        click.echo(f"flaws of transaction version 1, which are no anomalies: {names}")


def _anomalies(verdict: Verdict) -> dict[str, object]:
    return {
        "transactions": {
            "committed": verdict.committed,
            "aborted": verdict.aborted,
            "unknown": verdict.undecided,
        },
        "anomalies": [
            {"check": each.check, "text": each.text, "events": list(each.events)}
            for each in verdict.anomalies
        ],
        "left_out": verdict.left_out,
        "flaws": dict(verdict.flaws),
    }


def _show_anomalies(verdict: Verdict, path: Path) -> None:
    """What is wrong, each with the events that show it."""
    if verdict.reported:
        click.echo(f"{count(verdict.reported, 'sign')} of a loss that was expected and reported")
    if not verdict.anomalies:
        click.echo("no anomalies")
        return
    number = len(verdict.anomalies) + verdict.left_out
    click.echo("1 anomaly:" if number == 1 else f"{grouped(number)} anomalies:")
    shown = {number for each in verdict.anomalies for number in each.events}
    events = {event.number: event for event in excerpt(History(path), shown)}
    for each in verdict.anomalies:
        click.echo(f"{each.check}: {each.text}")
        for number in each.events:
            click.echo(f"    {str(events[number])[:_SHOWN_LINE]}")
    if verdict.left_out:
        click.echo(f"{grouped(verdict.left_out)} more like these")
