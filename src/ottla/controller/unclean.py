"""Elections that may lose records: each is counted, and told in the log.

A leader that is neither in sync nor eligible may lack records that were acknowledged. It is elected
where a topic allows that (`unclean.leader.election.enable`), where all who could have more have
reported (`election.recover`), and where an operator has given up the others.
Kafka counts the same as UncleanLeaderElectionsPerSec.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ottla.model.ids import TopicPartition
from ottla.runtime.logs import first_few

logger = logging.getLogger(__name__)


class UncleanElections:
    """Those that one broker has committed since its start."""

    def __init__(self) -> None:
        self.total = 0

    def note(self, what: str, leaders: Mapping[TopicPartition, int]) -> None:
        """These partitions have such leaders from now on."""
        if not leaders:
            return
        self.total += len(leaders)
        logger.error(
            "%s: acknowledged records may be lost in %d partition(s): %s",
            what,
            len(leaders),
            first_few(f"{each} is led by broker {leaders[each]}" for each in leaders),
        )
