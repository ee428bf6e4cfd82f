"""For how long brokers that are gone are still listed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ottla.cluster.departed import LISTED_SECONDS, DepartedBrokers
from ottla.cluster.registry import ImageChange
from ottla.model.broker import Broker, BrokerState
from ottla.model.image import ClusterImage
from ottla.testing.clock import ManualClock

ONE, TWO = Broker(1, 10, {}), Broker(2, 11, {})
LIVE = BrokerState(10, fenced=False)
BOTH = ClusterImage(
    revision=1, brokers={1: ONE, 2: TWO}, broker_states={1: LIVE, 2: replace(LIVE, epoch=11)}
)
WITHOUT_TWO = replace(BOTH, brokers={1: ONE})


class Images:
    """The part of a registry that tells of new images."""

    def __init__(self) -> None:
        self._listener: Callable[[ImageChange], None] | None = None

    def subscribe(self, listener: Callable[[ImageChange], None]) -> Callable[[], None]:
        self._listener = listener
        return lambda: None

    def change(self, old: ClusterImage, new: ClusterImage, *brokers: int) -> None:
        assert self._listener is not None
        self._listener(ImageChange(old, new, frozenset(), frozenset(brokers)))


def departed() -> tuple[Any, Images, ManualClock]:
    images: Any = Images()
    clock = ManualClock()
    return DepartedBrokers(images, clock), images, clock


def test_who_was_lost_is_listed_for_some_seconds() -> None:
    brokers, images, clock = departed()
    images.change(BOTH, WITHOUT_TWO, 2)
    assert brokers.recent() == [TWO]
    clock.advance(int(1000 * LISTED_SECONDS) - 1)
    assert brokers.recent() == [TWO]
    clock.advance(1)
    assert brokers.recent() == []


def test_a_change_of_another_broker_lengthens_nothing() -> None:
    brokers, images, clock = departed()
    images.change(BOTH, WITHOUT_TWO, 2)
    clock.advance(int(1000 * LISTED_SECONDS) - 1)
    images.change(WITHOUT_TWO, WITHOUT_TWO, 1, 2)
    clock.advance(1)
    assert brokers.recent() == []


def test_who_comes_back_is_not_departed() -> None:
    brokers, images, _clock = departed()
    images.change(BOTH, WITHOUT_TWO, 2)
    images.change(WITHOUT_TWO, BOTH, 2)
    assert brokers.recent() == []


def test_who_stops_is_left_out_at_once() -> None:
    brokers, images, _clock = departed()
    states = {1: LIVE, 2: BrokerState(11, fenced=False, stopping=True)}
    images.change(replace(BOTH, broker_states=states), WITHOUT_TWO, 2)
    assert brokers.recent() == []


def test_who_has_stopped_is_left_out_by_a_broker_that_is_late_too() -> None:
    """It learns at once that the other was stopping, and that it has stopped."""
    brokers, images, _clock = departed()
    states = {1: LIVE, 2: BrokerState(11, fenced=True, stopping=True)}
    images.change(BOTH, replace(WITHOUT_TWO, broker_states=states), 2)
    assert brokers.recent() == []
