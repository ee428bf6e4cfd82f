"""Measure a simulated cluster as it grows: what the loss of brokers costs, and how long it takes.

    python tests/simulation/scale.py --brokers 10,30,100 --partitions 10000
    python tests/simulation/scale.py --brokers 100 --shape one --events rack --profile

The brokers are the product's own (`world/broker.py`), in virtual time; times are those of a network
with a third of a millisecond each way and a store that commits within milliseconds, on brokers that
need no time to think. What thinking costs is measured beside it: CPU seconds of this machine, by
broker. A row is one event in a cluster that was at rest. docs/internals/scale.md explains them.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import json
import logging
import os
import pstats
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from world.broker import SimBroker
from world.cluster import Cluster

from ottla.cluster import layout
from ottla.controller.topics import GrowTopic, NewTopic
from ottla.model.topic import PartitionState

HERE = Path(__file__)
RACKS = 3
SETTINGS = {
    "min.insync.replicas": "2",
    "default.replication.factor": "3",
    "offsets.topic.replication.factor": "1",
}
TOPICS = 100
MOST_AT_ONCE = 5_000
COUNTED = {
    "store writes": lambda cluster: cluster.ensemble.writes,
    "conflicts": lambda cluster: cluster.ensemble.conflicts,
    "bytes written": lambda cluster: cluster.ensemble.bytes_written,
    "store requests": lambda cluster: cluster.ensemble.requests,
    "bytes read": lambda cluster: cluster.ensemble.bytes_read,
    "messages": lambda cluster: cluster.network.messages,
    "entries": lambda cluster: cluster.network.entries,
}


class Scale:
    """One cluster, and what is done to it."""

    def __init__(
        self, brokers: int, partitions: int, shape: str, rest: float, seed: int = 1
    ) -> None:
        self.rest = rest
        self.count = brokers
        self.partitions = partitions
        self.shape = shape
        self.cluster = Cluster(seed, brokers, SETTINGS, racks=RACKS, metered=True)
        self._decoded: dict[str, tuple[bytes, tuple[PartitionState, ...]]] = {}
        self.rows: list[dict[str, Any]] = []

    async def run(self, events: list[str]) -> None:
        await self.measure("start", self.cluster.start)
        await self.measure("create", self._create)
        await asyncio.sleep(5.0)
        if self.rest:
            await self.measure(f"{self.rest:g} s at rest", lambda: asyncio.sleep(self.rest))
        for event in events:
            await EVENTS[event](self)

    async def _create(self) -> None:
        cluster = self.cluster
        if self.shape == "spread":
            each = self.partitions // TOPICS
            await cluster.create([NewTopic(f"topic-{number}", each, 3) for number in range(TOPICS)])
        else:
            first = min(self.partitions, MOST_AT_ONCE)
            await cluster.create([NewTopic("topic", first, 3)])
            for count in range(first, self.partitions, MOST_AT_ONCE):
                more = [GrowTopic("topic", min(count + MOST_AT_ONCE, self.partitions))]
                await cluster.as_controller(
                    lambda controller, more=more: controller.create_partitions(more)
                )
        await cluster.eventually(self.led, 600.0, "every partition is led", 0.02)

    # --- what is seen -------------------------------------------------------------------------

    def states(self) -> list[tuple[str, tuple[PartitionState, ...]]]:
        """What the store holds; what has not changed is not decoded again."""
        found = []
        for path, node in self.cluster.ensemble.tree.nodes.items():
            if path.startswith("partitions/") and node.data:
                known = self._decoded.get(path)
                if known is None or known[0] is not node.data:
                    known = (node.data, layout.decode_partitions(path, node.data))
                    self._decoded[path] = known
                found.append((path, known[1]))
        return found

    def led(self) -> bool:
        """Whether every partition has a leader that knows of it."""
        brokers = self.cluster.brokers
        leading = {
            (broker.id, layout.partitions_key(each.topic_id, each.id.partition // layout.CHUNK),
             each.id.partition % layout.CHUNK, each.leader_epoch)
            for broker in brokers.values()
            if broker.running and broker.replicas is not None
            for each in broker.replicas.led()
        }  # fmt: skip
        count = 0
        for path, states in self.states():
            for slot, state in enumerate(states):
                if (state.leader, path, slot, state.leader_epoch) not in leading:
                    return False
                count += 1
        return count >= self.partitions

    def in_full(self) -> bool:
        return all(
            state.leader >= 0 and len(state.isr) == len(state.replicas)
            for _, states in self.states()
            for state in states
        )

    async def measure(
        self, event: str, work: Callable[[], Coroutine[Any, Any, Any]], **more: Any
    ) -> None:
        cluster = self.cluster
        before = {name: count(cluster) for name, count in COUNTED.items()}
        cpu = {broker.id: broker.seconds for broker in cluster.brokers.values()}
        begun, real = cluster.loop.time(), time.process_time()
        await work()
        controller = cluster.active_controller()
        spent = {broker.id: broker.seconds - cpu[broker.id] for broker in cluster.brokers.values()}
        own = spent.pop(controller.id, 0.0) if controller else 0.0
        row = {
            "shape": self.shape,
            "brokers": self.count,
            "event": event,
            "seconds": round(cluster.loop.time() - begun, 3),
            "controller CPU": round(own, 3),
            "broker CPU": round(sum(spent.values()) / max(1, len(spent)), 4),
            "most of a broker": round(max(spent.values(), default=0.0), 3),
            **{name: count(cluster) - before[name] for name, count in COUNTED.items()},
        }
        row["took"] = round(time.process_time() - real, 1)
        self.rows.append(row)
        print(json.dumps(row), flush=True)

    # --- what happens -------------------------------------------------------------------------

    async def lose(self, event: str, victims: list[SimBroker]) -> None:
        """Brokers die; then they come back, and catch up."""
        cluster = self.cluster

        async def led_again() -> None:
            for victim in victims:
                victim.kill()
            await asyncio.sleep(0.0)
            await cluster.eventually(self.led, 120.0, "every partition is led", 0.005)

        async def back() -> None:
            for victim in victims:
                victim.start()
            await cluster.eventually(self.whole, 300.0, "all are in sync", 0.05)

        await self.measure(event, led_again)
        await asyncio.sleep(2.0)
        await self.measure(f"{event}, back", back)
        await asyncio.sleep(2.0)

    def whole(self) -> bool:
        return all(each.ready for each in self.cluster.brokers.values()) and self.in_full()

    def _bystander(self) -> SimBroker:
        controller = self.cluster.active_controller()
        return next(each for each in self.cluster.brokers.values() if each is not controller)

    async def lose_broker(self) -> None:
        await self.lose("broker", [self._bystander()])

    async def lose_controller(self) -> None:
        controller = self.cluster.active_controller()
        assert controller is not None
        await self.lose("controller", [controller])

    async def lose_rack(self) -> None:
        controller = self.cluster.active_controller()
        assert controller is not None
        rack = (controller.id + 1) % RACKS
        victims = [each for each in self.cluster.brokers.values() if each.id % RACKS == rack]
        await self.lose("rack", victims)

    async def restart_all(self) -> None:
        """A rolling restart, of ten brokers at most: each costs the same."""
        some = list(self.cluster.brokers.values())[:10]

        async def roll() -> None:
            for broker in some:
                await broker.stop_soon()
                broker.start()
                await self.cluster.eventually(self.whole, 300.0, "all are in sync", 0.05)

        await self.measure(f"rolling restart of {len(some)}", roll)


EVENTS: dict[str, Callable[[Scale], Coroutine[Any, Any, None]]] = {
    "broker": Scale.lose_broker,
    "controller": Scale.lose_controller,
    "rack": Scale.lose_rack,
    "rolling": Scale.restart_all,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--brokers", default="10,30,100")
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--shape", choices=("spread", "one", "both"), default="both")
    parser.add_argument("--events", default="broker,controller,rack,rolling")
    parser.add_argument("--rest", type=float, default=10.0, help="seconds at rest, measured too")
    parser.add_argument("--seed", type=int, default=1, help="another one gives other chances")
    parser.add_argument("--profile", action="store_true", help="what the events cost, by function")
    parser.add_argument("--verbose", action="store_true", help="show what the brokers log")
    options = parser.parse_args()
    logging.basicConfig(
        level=logging.INFO if options.verbose else logging.CRITICAL + 1,
        format="%(name)s %(message)s",
    )
    gc.disable()  # a broker has a hundredth of these objects
    shapes = ("spread", "one") if options.shape == "both" else (options.shape,)
    for shape in shapes:
        for brokers in map(int, options.brokers.split(",")):
            scale = Scale(brokers, options.partitions, shape, options.rest, options.seed)
            profile = cProfile.Profile() if options.profile else None
            if profile is not None:
                profile.enable()
            scale.cluster.run(lambda _, scale=scale: scale.run(options.events.split(",")))
            if profile is not None:
                profile.disable()
                pstats.Stats(profile).sort_stats("tottime").print_stats(35)
            del scale
            gc.collect()
    return 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        os.execve(sys.executable, [sys.executable, str(HERE), *sys.argv[1:]], environment)
    sys.exit(main())
