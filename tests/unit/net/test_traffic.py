"""Who is alone and who is in a crowd; when the loop stays awake; when answers leave together."""

from __future__ import annotations

from collections.abc import Callable

from ottla.net.traffic import (
    COUNT_SECONDS,
    CROWD,
    CROWD_SECONDS,
    SPIN_SECONDS,
    TOGETHER,
    Traffic,
)

SHORT = CROWD_SECONDS / 10


class Client:
    """Counts how often it is told to send."""

    def __init__(self) -> None:
        self.sent = 0

    def send_gathered(self) -> None:
        self.sent += 1


class Loop:
    """A loop and a clock; each moves on when told to."""

    def __init__(self) -> None:
        self.time = 100.0
        self.soon: list[Callable[[], None]] = []
        self.traffic = Traffic(self.soon.append, lambda: self.time)

    def serve(self, clients: list[Client], pause: float) -> list[bool]:
        """Everybody is answered once; whether each was in a crowd."""
        crowded = []
        for client in clients:
            self.time += pause
            crowded.append(self.traffic.in_crowd(client))
            self.traffic.answered(client)
        return crowded

    def turn(self) -> None:
        """What was to be called soon is called."""
        calls = self.soon[:]
        self.soon.clear()
        for call in calls:
            call()


def many() -> list[Client]:
    return [Client() for _ in range(2 * CROWD)]


def test_many_clients_at_the_same_time_are_a_crowd():
    loop, clients = Loop(), many()
    for _ in range(20):
        crowded = loop.serve(clients, SHORT)
    assert all(crowded)
    loop.time += 2 * CROWD_SECONDS
    assert not loop.traffic.in_crowd(clients[0]), "nobody was answered just now"


def test_a_few_clients_are_none():
    loop, clients = Loop(), many()[: CROWD - 1]
    for _ in range(40):
        assert not any(loop.serve(clients, SHORT))


def test_neither_are_many_that_take_their_time():
    loop, clients = Loop(), many()
    for _ in range(20):
        assert not any(loop.serve(clients, 1.5 * CROWD_SECONDS))


def test_one_that_asks_again_and_again_is_alone():
    loop, clients = Loop(), many()
    for _ in range(20):
        loop.serve(clients, SHORT)
    assert loop.serve([clients[-1]] * 3, SHORT) == [False] * 3


def test_when_the_crowd_has_gone_those_who_stay_are_alone():
    loop, clients = Loop(), many()
    for _ in range(20):
        loop.serve(clients, SHORT)
    for client in clients[2:]:
        loop.traffic.forget(client)
    for _ in range(2 * round(COUNT_SECONDS / SHORT)):
        crowded = loop.serve(clients[:2], SHORT)
    assert crowded == [False, False]


def test_the_loop_stays_awake_for_one_that_asks_again_at_once_and_no_longer():
    loop, client = Loop(), Client()
    loop.serve([client], SHORT)
    assert not loop.soon, "one request is no habit"
    loop.serve([client], SHORT)
    for _ in range(3):
        loop.turn()
        assert len(loop.soon) == 1, "it looks again"
    loop.time += SPIN_SECONDS
    loop.turn()
    assert not loop.soon, "and sleeps when nothing has come"


def test_the_loop_looks_once_a_turn_however_often_it_is_asked_to():
    loop, client = Loop(), Client()
    loop.serve([client] * 10, SHORT)
    assert len(loop.soon) == 1


def test_nobody_is_looked_for_who_takes_their_time_or_is_not_alone():
    loop, client, other = Loop(), Client(), Client()
    loop.serve([client] * 5, 2 * SPIN_SECONDS)
    loop.serve([other, client] * 5, SHORT)
    assert not loop.soon


def test_a_client_that_has_gone_is_not_taken_for_one_that_asks_again():
    loop, client = Loop(), Client()
    loop.serve([client], SHORT)
    loop.traffic.forget(client)
    loop.serve([client], SHORT)
    assert not loop.soon


def test_answers_leave_when_the_turn_ends():
    loop, clients = Loop(), many()
    for client in clients:
        loop.traffic.gather(client)
    assert not any(client.sent for client in clients)
    loop.turn()
    assert all(client.sent == 1 for client in clients)


def test_answers_leave_earlier_when_there_are_many():
    loop = Loop()
    clients = [Client() for _ in range(TOGETHER + 1)]
    for client in clients:
        loop.traffic.gather(client)
    assert [client.sent for client in clients] == [1] * TOGETHER + [0]
    loop.turn()
    assert all(client.sent == 1 for client in clients)
