"""ClusterView: what a replicated partition has to know of the cluster and its clock."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ottla.replication.partition import Partition


class ClusterView(Protocol):
    """What a replicated partition has to know of the cluster and its clock."""

    @property
    def node_id(self) -> int: ...
    @property
    def max_lag_ms(self) -> float: ...
    @property
    def session_alive(self) -> bool:
        """Whether the store certainly still counts on this broker's session."""
        ...

    def now_ms(self) -> float:
        """A clock that never goes back."""
        ...

    def may_join(self, broker: int, broker_epoch: int) -> bool:
        """Whether a broker is live under this epoch, so that it can be in sync."""
        ...

    def propose_isr(
        self, partition: Partition, isr: tuple[int, ...], lost: Collection[int] = ()
    ) -> None:
        """Ask the store for another in-sync set, without eligibility for those who have `lost`
        records; it answers with a new state. While it is asked for one, it is not for another;
        what was only to be asked for is replaced."""
        ...
