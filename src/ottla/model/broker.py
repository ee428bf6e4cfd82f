"""Brokers and the addresses they are reached at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ottla.model.features import Ranges
from ottla.model.ids import TopicId


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One named listener as clients are told of it."""

    listener: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"

    @property
    def address(self) -> str:
        """HOST:PORT as it is typed: an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.listener}://{self.address}"


@dataclass(frozen=True, slots=True)
class Broker:
    """A registered broker: its id, the epoch of this registration, and where it listens."""

    id: int
    epoch: int
    endpoints: Mapping[str, Endpoint]  # by listener name
    rack: str | None = None
    host: str = ""  # the machine it runs on, where several brokers may share one
    features: Ranges = field(default_factory=dict)  # that it supports; none of an older version


class LostPartition(NamedTuple):
    """A partition that a broker lacks records of."""

    topic_id: TopicId
    partition: int


@dataclass(frozen=True, slots=True)
class BrokerState:
    """What the cluster remembers of a broker, whether it is there or not.

    A broker writes it together with its registration, fenced; the controller's commit makes it
    live. So whoever demands, in a commit, that it has not changed knows that the broker is still
    the one that was admitted.
    """

    epoch: int  # of its newest registration
    directories: tuple[str, ...] = ()  # the ids of its data folders
    boot_id: str = ""  # of its machine
    incarnation: str = ""  # tells one run of its process from another
    clean: bool = False  # whether it was stopped cleanly before this registration
    lost: bool = False  # it may have lost records: nothing is to count on what it had
    lost_partitions: frozenset[LostPartition] = frozenset()  # nor, in these, if all else is whole
    emptied: bool = False  # it lacks a data folder that it had: all of some partitions
    failed: bool = False  # a disk has failed since it registered
    fenced: bool = True
    stopping: bool = False  # it has asked to be relieved of its leaderships
    host: str = ""  # the machine it runs on, or ran on
    since_ms: int = 0  # when it became what it is: fenced, live or stopping; 0 if nobody noted it
    seen_dead: bool = False  # it was fenced as dead; if it has registered since, it was not
