"""A line on standard error when something takes long, so that nobody waits in front of nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import click

AFTER = 2.0
"""Seconds that a person waits without wondering."""

FOR_CONTROLLER = (
    "still waiting for the cluster's controller; `ottla cluster status` tells whether there is one"
)


@contextmanager
def patience(line: str = FOR_CONTROLLER) -> Iterator[None]:
    """Print `line` when the block takes longer than that."""
    timer = threading.Timer(AFTER, lambda: click.echo(line, err=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
