"""Marker: how a coordinator has decided about a producer's transaction."""

from __future__ import annotations

from typing import NamedTuple

from ottla.records.control import ControlType, end_marker


class Marker(NamedTuple):
    """How a coordinator has decided about a producer's transaction."""

    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int
    raises_epoch: bool
    """Under transaction version 2 the epoch is later than that of the records."""

    def batch(self, now_ms: int) -> memoryview:
        """The control batch that says so."""
        return memoryview(
            bytearray(
                end_marker(
                    ControlType.COMMIT if self.committed else ControlType.ABORT,
                    producer_id=self.producer_id,
                    producer_epoch=self.producer_epoch,
                    coordinator_epoch=self.coordinator_epoch,
                    timestamp=now_ms,
                )
            )
        )
