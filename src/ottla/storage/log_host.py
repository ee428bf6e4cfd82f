"""LogHost: what a log asks of the data folders that hold it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ottla.storage.log import Log


class LogHost(Protocol):
    """All data folders of a broker, as one log sees them."""

    def folder_failed(self, log: Log, error: OSError, doing: str) -> None:
        """A file operation failed: take the log's data folder offline."""
        ...

    def flush_wanted(self, log: Log) -> None:
        """A segment was rolled: flush when there is time."""
        ...

    def discard(self, files: Sequence[str], delay_ms: int) -> None:
        """Remove these (already renamed) files later, off the event loop."""
        ...

    def retention_changed(self, log: Log) -> None:
        """Settings that retention goes by have changed: look at the log soon."""
        ...
