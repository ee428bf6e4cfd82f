"""`ottla pipeline`: run pipelines of a few lines, see how they do, stop, move and reset them.

A pipeline is a process of its own, which `run` starts in this terminal; the other verbs find it by
its folder (`--state-dir`).
"""

from __future__ import annotations

import os
import signal
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.command import Noun
from ottla.cli.live import age
from ottla.cli.options import json_option
from ottla.cli.output import Column, show_json, show_table
from ottla.cli.pipeline_check import preview, redrive, schema, test_, validate
from ottla.cli.pipeline_offsets import offsets
from ottla.cli.pipeline_places import (
    complete_pipelines,
    home_of,
    open_groups_of,
    pipeline_errors,
    state_option,
)
from ottla.cli.pipeline_run import run
from ottla.cli.progress import WaitingLine

if TYPE_CHECKING:
    from ottla.pipelines.driver.home import Home

_LOOK = 0.1  # seconds


@click.group(cls=Noun)
def pipeline() -> None:
    """Run pipelines between topics, files and databases, on Spark."""


for _command in (validate, schema, preview, test_, run, offsets, redrive):
    pipeline.add_command(_command)


# -- looking


@pipeline.command(name="list")
@state_option
@json_option
def list_(state_dir: str | None, as_json: bool) -> None:
    """List the pipelines that have run here.

    JSON: [{"pipeline", "state", "process", "source", "sink", "bootstrap", "group", "file",
    "folder"}]
    """
    with pipeline_errors():
        from ottla.pipelines.driver.home import homes, state_folder

        found = [_entry(home) for home in homes(state_folder(state_dir))]
    if as_json:
        show_json(found)
        return
    names = ("pipeline", "state", "source", "sink", "bootstrap", "group", "file")
    show_table(
        [Column(name.upper()) for name in names], [[row[name] for name in names] for row in found]
    )


def _entry(home: Home) -> dict[str, Any]:
    known, now = home.remembered(), _now(home)
    return {
        "pipeline": home.name,
        "state": now["state"],
        "process": now["process"],
        **{name: known.get(name) for name in ("source", "sink", "bootstrap", "group", "file")},
        "folder": str(home.folder),
    }


def _now(home: Home) -> dict[str, Any]:
    """What the driver said last, put right where its process is gone."""
    from ottla.pipelines.driver.lock import holder

    told = {"pipeline": home.name, "state": "stopped"} | home.status()
    runs_at = holder(home.lock_file)
    over = told["state"] in ("stopped", "failed")
    if runs_at is None and not over:
        # Another machine's lock cannot be seen from here; its word is all there is.
        if told.get("host") in (None, socket.gethostname()):
            told |= {"state": "killed", "rows_per_second": 0.0, "waiting": None}
    elif runs_at is None:
        told["rows_per_second"] = 0.0
    told["process"] = runs_at
    return told


@pipeline.command()
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=complete_pipelines)
@state_option
@json_option
def status(names: tuple[str, ...], state_dir: str | None, as_json: bool) -> None:
    """Show what pipelines do: rows a second, lag, batch time, dead letters, the last error.

    Without a name all that have run here. A name may be a pipeline's file. A pipeline is starting,
    running, waiting (for something that is away), stopping, stopped, failed, or was killed.

    \b
    JSON: [{"pipeline", "state", "process", "host", "master", "bootstrap", "started", "updated",
            "run", "batch", "rows", "written", "letters", "rows_per_second", "batch_seconds",
            "lag", "lag_seconds", "waiting", "error", "error_at", "metrics"}]
    """
    with pipeline_errors():
        from ottla.pipelines.driver.home import homes, state_folder

        chosen = (
            [home_of(name, state_dir) for name in names]
            if names
            else list(homes(state_folder(state_dir)))
        )
        found = [_now(home) for home in chosen]
    if as_json:
        show_json(found)
        return
    show_table(
        [
            Column("PIPELINE"),
            Column("STATE"),
            Column("PROCESS", True, is_name=True),
            Column("BATCH", True, is_name=True),
            Column("TOOK", True),
            Column("ROWS/S", True),
            Column("ROWS", True),
            Column("LAG", True),
            Column("BEHIND", True),
            Column("LETTERS", True),
            Column("LAST ERROR"),
        ],
        [
            (
                each["pipeline"],
                each["state"],
                each["process"],
                each.get("batch"),
                age(each.get("batch_seconds")),
                round(each.get("rows_per_second") or 0),
                each.get("rows"),
                each.get("lag"),
                age(each.get("lag_seconds")),
                each.get("letters"),
                each.get("waiting") or each.get("error"),
            )
            for each in found
        ],
    )


# -- ending


@pipeline.command()
@click.argument("name", shell_complete=complete_pipelines)
@click.option("--now", "at_once", is_flag=True, help="Do not wait for the batch: it is repeated.")
@click.option("--timeout", type=click.FloatRange(0), metavar="SECONDS",
              help="Wait no longer than this.  [default: until its batch is finished]")  # fmt: skip
@state_option
@json_option
def stop(
    name: str, at_once: bool, timeout: float | None, state_dir: str | None, as_json: bool
) -> None:
    """Stop a pipeline; it finishes its batch first.

    JSON: {"pipeline", "process", "state"}
    """
    from ottla.pipelines.driver.lock import holder

    with pipeline_errors():
        home = home_of(name, state_dir)
        process = holder(home.lock_file)
        if process is None:
            where = home.status().get("host")
            elsewhere = where not in (None, socket.gethostname())
            raise click.ClickException(
                f"pipeline {home.name} does not run on this machine"
                + (f"; it was started on {where}" if elsewhere else "")
            )
        for _ in range(2 if at_once else 1):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)
            time.sleep(_LOOK if at_once else 0)
        deadline = None if timeout is None else time.monotonic() + timeout
        waiting = WaitingLine(lambda: f"{home.name} finishes its batch")
        try:
            while holder(home.lock_file) == process:
                if deadline is not None and time.monotonic() >= deadline:
                    raise click.ClickException(
                        f"pipeline {home.name} (process {process}) is still in its batch; it ends "
                        "after it, or at once with --now"
                    )
                waiting.waiting()
                time.sleep(_LOOK)
        finally:
            waiting.over()
    state = home.status().get("state", "stopped")
    if as_json:
        show_json({"pipeline": home.name, "process": process, "state": state})
        return
    click.echo(f"{home.name} {state}")


# -- beginning anew


@pipeline.command()
@click.argument("name", shell_complete=complete_pipelines)
@click.option("--yes", "accept", is_flag=True, help="Do it.")
@state_option
@json_option
def reset(name: str, accept: bool, state_dir: str | None, as_json: bool) -> None:
    """Forget a stopped pipeline's progress: the next run begins as the first did.

    Its checkpoint, staged rows and group go; what it has written stays. Without --yes it is only
    said what would go.

    JSON: {"pipeline", "reset", "gone": [text]}
    """
    with pipeline_errors():
        from ottla.pipelines.driver.moving import forget, remembered, stopped

        home = home_of(name, state_dir)
        known = remembered(home)
        with stopped(home), open_groups_of(home) as groups:
            gone = (
                forget(home, groups)
                if accept
                else [f"checkpoint {known['checkpoint']}", f"group {known['group']}"]
            )
    if as_json:
        show_json({"pipeline": home.name, "reset": accept, "gone": gone})
        return
    for each in gone:
        click.echo(f"removed {each}" if accept else f"would remove {each}")
    if not accept:
        click.echo("--yes does it")
