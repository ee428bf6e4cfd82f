"""ReceiveMemory: bounded, fair, and unmoved by those who only hold."""

from __future__ import annotations

from ottla.net.flow import POOL_SWEEPS, PROGRESS_BYTES, ReceiveMemory

MB = 1 << 20


class Client:
    def __init__(self, memory: ReceiveMemory, held: int = 0) -> None:
        self.memory = memory
        self.buffer = memory.acquire(held) if held else None
        self.received_bytes = held
        self.wanted = held
        self.evicted = False
        self.told = 0

    @property
    def held(self) -> int:
        return len(self.buffer) if self.buffer is not None else 0

    def memory_available(self) -> None:
        self.told += 1

    def evict(self) -> None:
        self.evicted = True
        assert self.buffer is not None
        self.memory.release(self.buffer)
        self.buffer = None


def test_no_more_is_lent_than_the_limit():
    memory = ReceiveMemory(4 * MB)
    assert memory.acquire(3 * MB) is not None
    assert memory.acquire(2 * MB) is None
    assert memory.lent == 3 * MB


def test_a_frame_larger_than_the_limit_passes_when_nothing_else_is_lent():
    memory = ReceiveMemory(MB)
    assert memory.acquire(5 * MB) is not None


def test_buffers_are_used_again():
    memory = ReceiveMemory(8 * MB)
    first = memory.acquire(MB)
    assert first is not None
    memory.release(first)
    assert memory.acquire(MB) is first


def test_the_first_who_waits_is_told_when_memory_comes_back():
    memory = ReceiveMemory(2 * MB)
    holder = Client(memory, 2 * MB)
    waiting = [Client(memory), Client(memory)]
    for client in waiting:
        memory.wait(client)
    assert holder.buffer is not None
    memory.release(holder.buffer)
    assert [client.told for client in waiting] == [1, 0]


def test_who_waits_behind_one_that_wants_too_much_is_told_within_a_second():
    memory = ReceiveMemory(8 * MB)
    slow, other = Client(memory, 5 * MB), Client(memory, MB)
    greedy, modest = Client(memory), Client(memory)
    memory.wait(greedy)
    memory.wait(modest)
    assert other.buffer is not None
    memory.release(other.buffer)  # 3 MB are free now, and nobody else will give anything back
    assert (greedy.told, modest.told) == (1, 0)
    memory.wait(greedy)  # it was not enough
    slow.received_bytes += PROGRESS_BYTES
    memory.relieve([slow])
    assert (greedy.told, modest.told) == (2, 1)
    assert not slow.evicted


def test_nobody_is_evicted_while_nobody_waits():
    memory = ReceiveMemory(2 * MB)
    holder = Client(memory, 2 * MB)
    for _ in range(3):
        memory.relieve([holder])
    assert not holder.evicted


def test_the_largest_that_stands_still_goes_first_and_who_makes_progress_stays():
    memory = ReceiveMemory(16 * MB)
    still = Client(memory, 6 * MB)
    small = Client(memory, MB)
    moving = Client(memory, 9 * MB)
    memory.wait(Client(memory))
    memory.relieve([still, small, moving])  # the first look only takes note
    assert not still.evicted
    moving.received_bytes += PROGRESS_BYTES
    memory.relieve([still, small, moving])
    assert still.evicted
    assert not small.evicted
    assert not moving.evicted


def test_when_all_holders_wait_for_one_another_the_one_that_wants_most_goes():
    memory = ReceiveMemory(4 * MB)
    one, two = Client(memory, 2 * MB), Client(memory, MB)
    two.wanted = 50 * MB
    memory.wait(one)
    memory.wait(two)
    memory.relieve([one, two])
    assert two.evicted
    assert not one.evicted


def test_what_nobody_uses_goes_back_to_the_system():
    memory = ReceiveMemory(8 * MB)
    first = memory.acquire(MB)
    assert first is not None
    memory.release(first)
    for _ in range(POOL_SWEEPS - 1):
        memory.relieve([])
    assert memory.acquire(MB) is first
    memory.release(first)
    for _ in range(POOL_SWEEPS):
        memory.relieve([])
    assert memory.acquire(MB) is not first
