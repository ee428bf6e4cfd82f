"""Runs: a workload on somebody's cluster, or on our own one that is being broken."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ottla.verify.checks import Verdict, judge
from ottla.verify.clients.connections import Address, Connections, NotSent
from ottla.verify.clients.writer import Progress
from ottla.verify.cluster import OFFSETS_TOPIC, ClusterUnderTest, NotHealthy
from ottla.verify.faults.fault import Fault
from ottla.verify.history import History, Recorder
from ottla.verify.nemesis import HEAL_SECONDS, GaveUp, Nemesis
from ottla.verify.record import code_digest
from ottla.verify.replica_files import read_replica
from ottla.verify.workload import NotPossible, Plan, Workload

LOOK_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Limits:
    """When a run is over, whichever comes first; without any, when it is stopped."""

    seconds: float | None = None
    faults: int | None = None
    patience: float = HEAL_SECONDS
    """Seconds that the cluster has to become whole again after a fault."""


@dataclass(slots=True)
class Outcome:
    """What a run was like, beside what is wrong with it."""

    seed: int
    history: Path
    seconds: float = 0.0
    faults: Mapping[str, int] = field(default_factory=dict)
    fewest_in_flight: int | None = None
    acknowledged: int = 0
    unknown: int = 0
    refused: int = 0
    longest_pause: float = 0.0
    gave_up: str | None = None
    left: Sequence[str] = ()
    """Topics of the run that could not be deleted in its end."""


Tell = Callable[[str], None]
Step = Callable[[float, Progress, int], None]
"""Told every now and then: seconds, what the writers have done, faults."""


@dataclass(frozen=True, slots=True)
class _Run:
    """What belongs to one run on our own cluster."""

    cluster: ClusterUnderTest
    workload: Workload
    plan: Plan
    recorder: Recorder
    stop: asyncio.Event
    tell: Tell
    step: Step


async def run_on_own_cluster(
    cluster: ClusterUnderTest,
    kinds: Sequence[type[Fault]],
    plan: Plan,
    path: Path,
    limits: Limits,
    stop: asyncio.Event,
    *,
    tell: Tell = lambda _text: None,
    step: Step = lambda _seconds, _progress, _faults: None,
) -> Outcome:
    """Break a cluster until a limit is reached, or `stop` is set; the history is at `path`."""
    header = {
        "seed": plan.seed, "topic": plan.topic, "partitions": plan.partitions,
        "replicas": plan.replicas, "min_insync": plan.min_insync,
        "store": cluster.store_kind, "faults": [kind.name for kind in kinds],
        "code": code_digest(),
    }  # fmt: skip
    with Recorder(path, header) as recorder:
        try:
            await cluster.start()
            workload = Workload(cluster.addresses, plan, recorder)
            try:
                run = _Run(cluster, workload, plan, recorder, stop, tell, step)
                return await _break(run, kinds, limits)
            finally:
                await workload.close()
        finally:
            await cluster.close()


async def _break(run: _Run, kinds: Sequence[type[Fault]], limits: Limits) -> Outcome:
    workload, plan, recorder = run.workload, run.plan, run.recorder
    outcome = Outcome(plan.seed, recorder.path)
    progress = workload.progress
    run.cluster.topics = (*workload.topics, OFFSETS_TOPIC)
    await workload.create_topics()
    await workload.start()
    nemesis = Nemesis(
        run.cluster, kinds, workload.topics, progress, recorder,
        seed=plan.seed, patience=limits.patience, on_fault=run.tell,
    )  # fmt: skip
    begun = time.monotonic()

    async def watch() -> None:
        while True:
            workload.check()
            run.step(time.monotonic() - begun, progress, nemesis.faults)
            await asyncio.sleep(LOOK_SECONDS)

    async def work() -> None:
        await nemesis.wait_whole()
        while not run.stop.is_set():
            if limits.seconds is not None and time.monotonic() - begun >= limits.seconds:
                break
            if limits.faults is not None and nemesis.faults >= limits.faults:
                break
            if kinds:
                await nemesis.round()
            else:
                await asyncio.sleep(LOOK_SECONDS)
        run.cluster.network.heal()
        await workload.finish()

    try:
        await _until_done(work(), watch())
        await _compare_replicas(run.cluster, workload, plan, recorder)
    except GaveUp as reason:
        outcome.gave_up = str(reason)
    return replace(
        outcome,
        seconds=time.monotonic() - begun,
        faults=dict(nemesis.counts),
        fewest_in_flight=nemesis.fewest_in_flight,
        acknowledged=progress.acknowledged,
        unknown=progress.unknown,
        refused=progress.refused,
        longest_pause=progress.longest_pause,
    )


async def _until_done(work: Coroutine[Any, Any, None], watch: Coroutine[Any, Any, None]) -> None:
    """Do some work, unless something that is watched meanwhile fails first."""
    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(watch)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _compare_replicas(
    cluster: ClusterUnderTest, workload: Workload, plan: Plan, recorder: Recorder
) -> None:
    """Say in the history what the files of every replica hold. Those of a compacted topic may
    differ: every broker cleans by itself."""
    ends = {
        (event.data.get("topic", plan.topic), event.data["p"]): event.data["end"]
        for event in _flushed(recorder)
        if event.action in ("end", "txn-final")
        and event.phase == "ok"
        and not event.data.get("keyed")
    }
    try:
        await cluster.wait_healthy(workload.topics, HEAL_SECONDS)
        replicas = {topic: await cluster.replicas(topic) for topic, _ in ends}
    except NotHealthy as error:
        recorder.record("final", "healed", "fail", text=str(error))
        return
    for number in cluster.brokers:
        cluster.kill(number)
    for number, broker in cluster.brokers.items():
        for (topic, partition), end in ends.items():
            if number not in replicas[topic][partition]:
                continue
            folder = broker.data_dir / f"{topic}-{partition}"
            content = await asyncio.to_thread(read_replica, folder, end)
            recorder.record(
                "final", "replica", "ok",
                broker=number, topic=topic, p=partition, end=content.end, digest=content.digest,
            )  # fmt: skip


def _flushed(recorder: Recorder) -> History:
    recorder.flush()
    return History(recorder.path)


async def run_on_cluster(
    bootstrap: Sequence[Address],
    plan: Plan,
    path: Path,
    limits: Limits,
    stop: asyncio.Event,
    *,
    keep: bool = False,
    step: Step = lambda _seconds, _progress, _faults: None,
) -> Outcome:
    """Run a workload on any cluster. Raises NotPossible before anything is changed."""
    brokers = await _find_brokers(bootstrap)
    replicas = min(plan.replicas, len(brokers))
    plan = replace(plan, replicas=replicas, min_insync=min(plan.min_insync, replicas))
    outcome = Outcome(plan.seed, path)
    header = {
        "seed": plan.seed, "topic": plan.topic, "partitions": plan.partitions,
        "replicas": plan.replicas, "min_insync": plan.min_insync, "brokers": len(brokers),
    }  # fmt: skip
    with Recorder(path, header) as recorder:
        workload = Workload(brokers, plan, recorder)
        begun = time.monotonic()
        try:
            await workload.refuse_old_topics()
            try:
                await workload.create_topics()
                await workload.start()
                while not stop.is_set():
                    seconds = time.monotonic() - begun
                    if limits.seconds is not None and seconds >= limits.seconds:
                        break
                    workload.check()
                    step(seconds, workload.progress, 0)
                    await asyncio.sleep(LOOK_SECONDS)
                await workload.finish()
            finally:
                await workload.end()  # or they would see that their topics are gone
                left = [] if keep else await workload.delete_topics()
        finally:
            await workload.close()
    progress = workload.progress
    return replace(
        outcome,
        seconds=time.monotonic() - begun,
        acknowledged=progress.acknowledged,
        unknown=progress.unknown,
        refused=progress.refused,
        longest_pause=progress.longest_pause,
        left=left,
    )


async def _find_brokers(bootstrap: Sequence[Address]) -> dict[int, Address]:
    asking = Connections(bootstrap, "", "verify")
    try:
        await asking.look()
    except NotSent as error:
        raise NotPossible(f"no broker answers: {error}") from None
    finally:
        asking.close()
    assert asking.metadata is not None
    return {each.node_id: (each.host, each.port) for each in asking.metadata.brokers}


def judge_history(path: Path) -> tuple[Verdict, bool]:
    """What the checks say of a history, and whether it came to its end."""
    history = History(path)
    return judge(history), history.complete
