"""Group commit: who waits for which flush, and what happens when one fails."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable

import pytest

from ottla.errors import ErrorCode, KafkaError
from ottla.storage.flush import FlushJob, GroupCommit
from ottla.testing.clock import ManualClock
from ottla.testing.files import MemoryFileSystem


class HeldWorkers:
    """Runs nothing until it is told to: every flush begins and ends when the test says."""

    def __init__(self) -> None:
        self.held: list[tuple[Callable[[], None], asyncio.Future[None]]] = []

    def run_in_thread(self, function: Callable[..., None], *args: object) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.held.append((lambda: function(*args), future))
        return future

    async def release(self) -> None:
        """Let the oldest flush happen, and everything that follows from it."""
        call, future = self.held.pop(0)
        try:
            call()
        except OSError as error:
            future.set_exception(error)
        else:
            future.set_result(None)
        await settle()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


class FakeLog:
    """A log of which only the end moves."""

    def __init__(self, fs: MemoryFileSystem, name: str) -> None:
        self.recovery_point = 0
        self.end = 0
        self.failure: str | None = None
        self.has_unsynced_truncation = False
        self.file = fs.open(f"/{name}", create=True)
        self.flushed_at: list[int] = []

    def begin_flush(self) -> FlushJob | None:
        if self.recovery_point >= self.end:
            return None
        return FlushJob(self.end, (self.file,))

    def finish_flush(self, job: FlushJob, now_ms: int) -> None:
        self.recovery_point = max(self.recovery_point, min(job.end_offset, self.end))
        self.flushed_at.append(now_ms)

    def storage_failed(self, error: OSError, doing: str) -> KafkaError:
        self.failure = f"{doing}: {error.strerror}"
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self.failure)


class Bench:
    def __init__(self) -> None:
        self.fs = MemoryFileSystem()
        self.workers = HeldWorkers()
        self.clock = ManualClock()
        self.commit = GroupCommit(self.fs, self.workers, self.clock)
        self.log = FakeLog(self.fs, "a")

    def append(self, log: FakeLog | None = None) -> asyncio.Future[None]:
        log = log or self.log
        log.end += 1
        return self.commit.wait_flushed(log, log.end)


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_everybody_who_waits_shares_one_flush(bench: Bench) -> None:
    waiting = [bench.append() for _ in range(100)]
    await settle()
    assert len(bench.workers.held) == 1
    await bench.workers.release()
    assert all(future.done() for future in waiting)
    assert bench.commit.flushes == 1
    assert bench.log.flushed_at == [bench.clock.now_ms()]


async def test_who_comes_during_a_flush_gets_the_next_one(bench: Bench) -> None:
    first = bench.append()
    await settle()
    late = [bench.append() for _ in range(10)]
    await bench.workers.release()
    assert first.done()
    assert not any(future.done() for future in late)
    assert len(bench.workers.held) == 1
    await bench.workers.release()
    assert all(future.done() for future in late)
    assert bench.commit.flushes == 2


async def test_what_is_flushed_already_is_not_waited_for(bench: Bench) -> None:
    bench.append()
    await settle()
    await bench.workers.release()
    assert bench.commit.wait_flushed(bench.log, 1).done()
    await settle()
    assert not bench.workers.held


@pytest.mark.parametrize("urgent", [True, False])
async def test_who_waits_for_a_flush_that_dies_is_told(bench: Bench, urgent: bool) -> None:
    others = [FakeLog(bench.fs, name) for name in "bc"]

    def fail(job: FlushJob, now_ms: int) -> None:
        raise RuntimeError("a bug")

    bench.log.finish_flush = fail
    bench.log.end = 1
    waiting = [bench.commit.wait_flushed(bench.log, 1, urgent=urgent)]
    for log in others if not urgent else ():
        log.end = 1
        waiting.append(bench.commit.wait_flushed(log, 1, urgent=urgent))
    await settle()
    late = bench.commit.wait_flushed(bench.log, 2)
    await bench.workers.release()
    await settle()
    for future in (*waiting, late):
        assert isinstance(future.exception(), RuntimeError)
    others[0].end = 2
    again = bench.commit.wait_flushed(others[0], 2, urgent=urgent)
    await settle()
    await bench.workers.release()
    assert again.done(), "other logs are flushed all the same"


async def test_logs_do_not_wait_for_one_another(bench: Bench) -> None:
    other = FakeLog(bench.fs, "b")
    slow, quick = bench.append(), bench.append(other)
    await settle()
    assert len(bench.workers.held) == 2
    bench.workers.held.reverse()
    await bench.workers.release()
    assert (slow.done(), quick.done()) == (False, True)
    await bench.workers.release()
    assert slow.done()


async def test_who_can_wait_is_served_in_the_background(bench: Bench) -> None:
    logs = [FakeLog(bench.fs, f"n{number}") for number in range(5)]
    waiting = []
    for log in logs:
        log.end = 1
        waiting.append(bench.commit.wait_flushed(log, 1, urgent=False))
    await settle()
    assert len(bench.workers.held) == 1
    urgent = bench.append(logs[3])
    await settle()
    assert len(bench.workers.held) == 2
    bench.workers.held.reverse()
    await bench.workers.release()
    assert urgent.done()
    assert [future.done() for future in waiting] == [False, False, False, True, False]
    while bench.workers.held:
        await bench.workers.release()
    assert all(future.done() for future in waiting)
    await bench.commit.wait_idle()


async def test_background_flushes_go_one_by_one_and_before_nobody(bench: Bench) -> None:
    logs = [FakeLog(bench.fs, f"n{number}") for number in range(5)]
    for log in logs:
        log.end = 1
        bench.commit.request(log)
    await settle()
    assert len(bench.workers.held) == 1
    urgent = bench.append(logs[3])
    await settle()
    assert len(bench.workers.held) == 2
    bench.workers.held.reverse()
    await bench.workers.release()
    assert urgent.done()
    while bench.workers.held:
        await bench.workers.release()
    assert [log.recovery_point for log in logs] == [1, 1, 1, 2, 1]
    await bench.commit.wait_idle()


async def test_a_request_during_a_flush_leads_to_another(bench: Bench) -> None:
    bench.append()
    await settle()
    bench.log.end += 1
    bench.commit.request(bench.log)
    await bench.workers.release()
    await bench.workers.release()
    assert bench.log.recovery_point == 2


async def test_a_failed_flush_takes_the_log_offline_and_is_not_repeated(bench: Bench) -> None:
    bench.fs.fail("/a", errno.EIO, operations=["sync"], times=1)
    waiting = [bench.append(), bench.append()]
    await settle()
    late = bench.append()
    await bench.workers.release()
    for future in (*waiting, late):
        error = future.exception()
        assert isinstance(error, KafkaError)
        assert error.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert bench.log.failure is not None
    assert not bench.workers.held
    after = bench.append()
    assert isinstance(after.exception(), KafkaError)
    bench.commit.request(bench.log)
    await settle()
    assert not bench.workers.held


async def test_a_failure_that_nobody_waits_for_is_not_logged_by_asyncio(bench: Bench) -> None:
    unraised: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unraised.append(context))
    bench.fs.fail("/a", errno.EIO, operations=["sync"])
    bench.append()
    await settle()
    await bench.workers.release()
    await settle()
    assert unraised == []


async def test_waiting_for_truncated_records_ends(bench: Bench) -> None:
    bench.append()
    doomed = bench.append()
    await settle()
    bench.log.end = 1
    await bench.workers.release()
    error = doomed.exception()
    assert isinstance(error, KafkaError)
    assert error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_waiter_that_gave_up_disturbs_nobody(bench: Bench) -> None:
    gone, staying = bench.append(), bench.append()
    await settle()
    gone.cancel()
    await bench.workers.release()
    assert staying.done()


def test_a_job_syncs_contents_before_names() -> None:
    fs = MemoryFileSystem()
    fs.makedirs("/d")
    files = tuple(fs.open(f"/d/{name}", create=True) for name in ("x", "y"))
    fs.write_atomic("/d/small", b"1")
    before = fs.operations
    FlushJob(1, files, ("/d/small", "/d/gone"), ("/d", "/nowhere")).run(fs)
    assert [(each.kind, each.path) for each in fs.journal[before:]] == [
        ("sync", "/d/x"),
        ("sync", "/d/y"),
        ("sync", "/d/small"),
        ("sync_dir", "/d"),
    ]
