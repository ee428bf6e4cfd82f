"""FrameReader: a byte stream, however it is chopped, becomes the frames that went in."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.net.flow import ReceiveMemory
from ottla.net.frame import FrameError, FrameReader

LIMIT = 1 << 22


def framed(*payloads: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(payload)) + payload for payload in payloads)


def reader(scratch: int = 4096, limit: int = LIMIT, memory: ReceiveMemory | None = None):
    memory = memory or ReceiveMemory(1 << 24)
    return FrameReader(memoryview(bytearray(scratch)), limit, memory), memory


def turn(frames: FrameReader, data: bytes) -> tuple[list[bytes], int]:
    """One turn of a connection: receive what fits, take the frames, settle."""
    target = frames.target()
    count = min(len(data), len(target))
    target[:count] = data[:count]
    frames.received(count)
    taken = []
    while (frame := frames.next_frame()) is not None:
        taken.append(bytes(frame))
    assert frames.settle()
    return taken, count


def feed(frames: FrameReader, data: bytes) -> list[bytes]:
    taken = []
    while data:
        got, count = turn(frames, data)
        assert count > 0
        taken += got
        data = data[count:]
    return taken


def test_whole_frames_are_taken_without_memory_of_their_own():
    frames, memory = reader()
    assert feed(frames, framed(b"one", b"", b"three")) == [b"one", b"", b"three"]
    assert frames.held == 0
    assert memory.lent == 0


def test_a_frame_larger_than_the_scratch_buffer_is_put_together_and_given_back():
    frames, memory = reader(scratch=1024)
    big = bytes(range(256)) * 5000
    assert feed(frames, framed(big, b"next")) == [big, b"next"]
    assert memory.lent == 0


@given(
    payloads=st.lists(st.binary(max_size=5000), max_size=12),
    cuts=st.lists(st.integers(1, 700), min_size=1, max_size=30),
)
def test_any_chopping_gives_the_same_frames(payloads, cuts):
    frames, memory = reader(scratch=600)
    stream = framed(*payloads)
    taken: list[bytes] = []
    position = 0
    index = 0
    while position < len(stream):
        size = cuts[index % len(cuts)]
        index += 1
        got, count = turn(frames, stream[position : position + size])
        taken += got
        position += count
    assert taken == payloads
    assert frames.buffered == 0
    assert memory.lent == 0


def test_a_length_prefix_alone_buys_a_page():
    frames, memory = reader(limit=1 << 30)
    feed(frames, struct.pack(">i", 1 << 29) + b"x")
    assert 0 < memory.lent <= 4096


@given(sizes=st.lists(st.integers(1, 300_000), min_size=1, max_size=20))
def test_memory_grows_with_what_has_arrived(sizes):
    frames, memory = reader(limit=1 << 30, memory=ReceiveMemory(1 << 30))
    stream = struct.pack(">i", 1 << 29) + bytes(sum(sizes))
    arrived = 0
    for size in sizes:
        feed(frames, stream[arrived : arrived + size])
        arrived += size
        assert frames.buffered == arrived
        assert memory.lent <= max(4096, 8 * arrived + (1 << 16))
        assert memory.lent <= max((4 << 20) + (1 << 16), 2 * arrived + (1 << 16))


@pytest.mark.parametrize("length", [-1, -(2**31), LIMIT + 1, 2**31 - 1])
def test_impossible_lengths_are_refused(length):
    frames, _ = reader()
    frames.target()[:4] = struct.pack(">i", length)
    frames.received(4)
    with pytest.raises(FrameError, match=str(length)):
        frames.next_frame()


def test_without_memory_the_reader_keeps_its_bytes_and_asks_again():
    memory = ReceiveMemory(2 << 20)
    hog = memory.acquire(2 << 20)
    assert hog is not None
    frames, _ = reader(scratch=4096, memory=memory)
    payload = bytes(3 << 20)
    stream = framed(payload)
    frames.target()[:4096] = stream[:4096]
    frames.received(4096)
    assert frames.next_frame() is None
    assert not frames.settle()  # the bytes are kept in an overdrawn buffer that is full
    assert frames.buffered == 4096
    memory.release(hog)
    assert frames.settle()
    assert feed(frames, stream[4096:]) == [payload]


def test_frames_left_by_back_pressure_survive_the_end_of_the_turn():
    frames, _ = reader()
    stream = framed(b"first", b"second")
    frames.target()[: len(stream)] = stream
    frames.received(len(stream))
    assert bytes(frames.next_frame() or b"") == b"first"
    assert frames.settle()
    assert bytes(frames.next_frame() or b"") == b"second"


def test_a_turn_that_is_one_frame_leaves_nothing_behind():
    frames, memory = reader()
    stream = framed(b"alone")
    frames.target()[: len(stream)] = stream
    assert bytes(frames.only_frame(len(stream)) or b"") == b"alone"
    assert (frames.buffered, frames.held, memory.lent) == (0, 0, 0)


@pytest.mark.parametrize(
    "stream", [b"\0\0", framed(b"one", b"two"), framed(b"cut")[:-1], framed(b"x" * 17)]
)
def test_any_other_turn_is_left_to_the_long_way(stream: bytes):
    frames, _ = reader(limit=16)
    frames.target()[: len(stream)] = stream
    assert frames.only_frame(len(stream)) is None


def test_a_frame_behind_bytes_that_are_held_is_not_the_only_one():
    frames, _ = reader()
    assert turn(frames, framed(b"cut")[:-1]) == ([], 6)
    assert frames.wanted == 7
    stream = framed(b"alone")
    frames.target()[:1] = b"t"
    assert frames.only_frame(len(stream)) is None


def test_frames_that_are_held_move_to_the_front_of_their_buffer():
    frames, _ = reader()
    stream = framed(b"a" * 100, b"b" * 100, b"c" * 100)
    frames.target()[:310] = stream[:310]
    frames.received(310)
    assert bytes(frames.next_frame() or b"") == b"a" * 100
    assert frames.settle()
    assert bytes(frames.next_frame() or b"") == b"b" * 100
    assert frames.settle()
    assert frames.buffered == 102
    assert feed(frames, stream[310:]) == [b"c" * 100]
