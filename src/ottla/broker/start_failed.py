"""StartFailed: what every step of a start raises when the broker cannot start."""

from __future__ import annotations


class StartFailed(Exception):
    """The broker cannot start; the message says why and what to do."""
