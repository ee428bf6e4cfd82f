"""Changes that are no faults, under load."""

from __future__ import annotations

from ottla.protocol.messages.elections import ElectLeadersRequest
from ottla.verify.clients.connections import Connections, NoAnswer, NotSent
from ottla.verify.faults.fault import Fault


class PreferredElection(Fault):
    """`election`."""

    name = "election"
    about = "Every partition is given back to its preferred leader."
    seconds = (0.0, 0.5)

    async def start(self) -> str:
        self._answered = False
        asking = Connections(self.cluster.bootstrap, "", "verify-election")
        try:
            await asking.ask_any(
                ElectLeadersRequest(election_type=0, topic_partitions=None, timeout_ms=5_000)
            )
        except (NotSent, NoAnswer) as error:
            return f"no answer: {error}"
        finally:
            asking.close()
        self._answered = True
        return "all partitions"

    async def heal(self) -> None:
        """There is nothing to heal."""

    def happened(self) -> bool:
        return self._answered
