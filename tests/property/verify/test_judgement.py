"""Whatever a correct cluster does is right, and a planted violation is found wherever it is.

A model of a cluster answers writers, readers and a group as a correct one would, in any order that
Hypothesis thinks of, with answers that are lost. Then one thing is changed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.verify.checks import judge
from ottla.verify.history import Event, Phase

PARTITIONS = 2
WRITERS = 4


@dataclass
class Model:
    """One log for each partition, and clients that ask it things."""

    chance: random.Random
    events: list[Event] = field(default_factory=list)
    logs: list[list[tuple[int, int, int]]] = field(
        default_factory=lambda: [[] for _ in range(PARTITIONS)]
    )
    """Writer, number and leader epoch of each record."""
    epochs: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    sent: list[int] = field(default_factory=lambda: [0] * WRITERS)
    underway: dict[int, tuple[int, int, int, int | None]] = field(default_factory=dict)
    positions: dict[tuple[str, int], int] = field(default_factory=dict)
    generation: int = 0
    committed: int = -1

    def add(self, client: str, action: str, phase: Phase, **data: Any) -> None:
        number = len(self.events) + 1
        self.events.append(Event(number, number, client, action, phase, data))

    def step(self) -> None:
        self.chance.choice(
            [self.send, self.send, self.append, self.answer, self.answer, self.read, self.mark,
             self.elect, self.commit]
        )()  # fmt: skip

    def send(self) -> None:
        writer = self.chance.randrange(WRITERS)
        if writer in self.underway:
            return
        partition, count = self.chance.randrange(PARTITIONS), self.chance.randint(1, 3)
        first, self.sent[writer] = self.sent[writer], self.sent[writer] + count
        self.underway[writer] = partition, first, count, None
        self.add(
            f"writer-{writer}", "send", "invoke", p=partition, writer=writer, first=first,
            count=count,
        )  # fmt: skip

    def append(self) -> None:
        for writer, (partition, first, count, offset) in self.underway.items():
            if offset is None and self.chance.random() < 0.5:
                log = self.logs[partition]
                self.underway[writer] = partition, first, count, len(log)
                epoch = self.epochs[partition]
                log += [(writer, number, epoch) for number in range(first, first + count)]

    def answer(self) -> None:
        if not self.underway:
            return
        writer = self.chance.choice(sorted(self.underway))
        _, _, _, offset = self.underway.pop(writer)
        client = f"writer-{writer}"
        if self.chance.random() < 0.2:
            self.add(client, "send", "unknown", error="no answer")
        elif offset is None:
            self.add(client, "send", "fail", error="NOT_ENOUGH_REPLICAS")
        else:
            self.add(client, "send", "ok", offset=offset)

    def read(self, client: str | None = None, partition: int | None = None) -> None:
        client = client or f"reader-{self.chance.randrange(2)}"
        if partition is None:
            partition = self.chance.randrange(PARTITIONS)
        position = self.positions.get((client, partition), 0)
        log = self.logs[partition]
        upto = min(len(log), position + self.chance.randint(1, 5))
        if upto == position:
            return
        self.positions[client, partition] = upto
        found = [(offset, *log[offset]) for offset in range(position, upto)]
        self.add(
            client, "read", "ok", p=partition, begun=len(self.events),
            runs=[[offset, writer, number, 1] for offset, writer, number, _ in found],
            epochs=[[offset, epoch] for offset, _, _, epoch in found],
            epoch=self.epochs[partition], mark=len(log),
        )  # fmt: skip

    def mark(self) -> None:
        partition = self.chance.randrange(PARTITIONS)
        self.add(
            "watcher", "mark", "ok", p=partition, epoch=self.epochs[partition],
            mark=len(self.logs[partition]),
        )  # fmt: skip

    def elect(self) -> None:
        partition = self.chance.randrange(PARTITIONS)
        self.epochs[partition] += 1
        epoch = self.epochs[partition]
        self.add("watcher-1", "view", "ok", broker=1, leaders=[[partition, epoch % 3, epoch]])

    def commit(self) -> None:
        group = {"group": "g"}
        if not self.generation or self.chance.random() < 0.3:
            self.generation += 1
            member = f"m{self.generation}"
            self.add(
                member, "assign", "ok", **group, member=member, generation=self.generation,
                partitions=[0],
            )  # fmt: skip
            self.add(member, "committed", "invoke", **group)
            self.add(member, "committed", "ok", **group, offsets=[[0, self.committed]])
        member = f"m{self.generation}"
        self.add(
            member, "commit", "invoke", **group, generation=self.generation,
            offsets=[[0, self.committed + 1]],
        )  # fmt: skip
        if self.chance.random() < 0.8:
            self.committed += 1
            self.add(member, "commit", "ok")
        else:
            self.add(member, "commit", "unknown")
            self.generation += 1
            self.add(
                f"m{self.generation}", "assign", "ok", **group, member=f"m{self.generation}",
                generation=self.generation, partitions=[0],
            )  # fmt: skip

    def finish(self) -> None:
        for partition, log in enumerate(self.logs):
            while self.positions.get(("final", partition), 0) < len(log):
                self.read("final", partition)
            self.add("final", "end", "ok", p=partition, end=len(log))


def run(seed: int, steps: int) -> Model:
    model = Model(random.Random(seed))
    for _ in range(steps):
        model.step()
    return model


def judged(events: list[Event]) -> set[str]:
    return {anomaly.check for anomaly in judge(events).anomalies}


@given(st.integers(0, 1 << 30), st.integers(0, 150))
def test_what_a_correct_cluster_does_is_right(seed: int, steps: int) -> None:
    model = run(seed, steps)
    model.finish()
    assert judged(model.events) == set()


def acknowledged(model: Model) -> list[tuple[int, int]]:
    """Partition and offset of what was acknowledged."""
    found, sending = [], {}
    for event in model.events:
        if event.action == "send" and event.phase == "invoke":
            sending[event.client] = event.data["p"]
        elif event.action == "send" and event.phase == "ok":
            found.append((sending[event.client], event.data["offset"]))
    return found


def lose(model: Model) -> set[str]:
    partition, offset = model.chance.choice(acknowledged(model))
    del model.logs[partition][offset:]
    for key, position in model.positions.items():
        if key[1] == partition:
            model.positions[key] = min(position, offset)
    return {"lost-write"}


def store_twice(model: Model) -> set[str]:
    partition, offset = model.chance.choice(acknowledged(model))
    log = model.logs[partition]
    log.append((*log[offset][:2], model.epochs[partition]))
    return {"duplicate"}


def skip(model: Model) -> set[str]:
    partition, offset = model.chance.choice(acknowledged(model))
    model.positions["final", partition] = offset + 1
    return {"poll-skip"}


def forget_commit(model: Model) -> set[str]:
    model.committed = -1
    while not any(event.action == "commit" and event.phase == "ok" for event in model.events):
        model.commit()
    model.committed = -1
    model.generation += 1
    member = f"m{model.generation}"
    model.add(member, "committed", "invoke", group="g")
    model.add(member, "committed", "ok", group="g", offsets=[[0, -1]])
    return {"committed-offset-went-back"}


@pytest.mark.parametrize("violate", [lose, store_twice, skip, forget_commit])
@settings(max_examples=50)
@given(seed=st.integers(0, 1 << 30), steps=st.integers(60, 150))
def test_a_violation_is_found(violate: Callable[[Model], set[str]], seed: int, steps: int) -> None:
    model = run(seed, steps)
    if not acknowledged(model):
        return
    model.underway.clear()
    expected = violate(model)
    model.finish()
    assert expected <= judged(model.events)
