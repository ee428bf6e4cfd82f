"""How a compiled loop (see `compiled`) is called.

A loop takes one argument, the address of its frame: a row of 64-bit numbers with what each
parameter is, in their order. A number is itself, an array its address and its length.

Nothing in machine code checks anything, so the frame checks what is put into it: type, shape and
order in memory of each array, and whether it may be written. A loop runs without the interpreter's
lock.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from operator import index
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

import numpy as np


@dataclass(frozen=True, slots=True)
class Array:
    """A parameter: an array of `kind`, perhaps written to."""

    slots: ClassVar[int] = 2

    kind: str
    written: bool = False


@dataclass(frozen=True, slots=True)
class Long:
    """A parameter: a number of 64 bits."""

    slots: ClassVar[int] = 1


BYTES: Final = Array("uint8")
LONGS: Final = Array("int64")
WRITTEN_BYTES: Final = Array("uint8", written=True)
WRITTEN_LONGS: Final = Array("int64", written=True)
LONG: Final = Long()

Parameters: TypeAlias = tuple[Array | Long, ...]


class Pinned:
    """An array that is looked at once; to find out its address takes longer than a call."""

    __slots__ = ("address", "array", "fits", "size")

    def __init__(self, array: Any) -> None:
        self.array = array
        self.address: int = array.ctypes.data
        self.size = len(array)
        self.fits: _Slot | None = None


class _Slot(NamedTuple):
    number: int
    at: int
    kind: Any
    written: bool

    def check(self, array: Any) -> None:
        if (
            array.dtype != self.kind
            or array.ndim != 1
            or not array.flags.c_contiguous
            or (self.written and not array.flags.writeable)
        ):
            wanted = f"{'a writable' if self.written else 'an'} array of {self.kind} in one row"
            raise TypeError(f"argument {self.number} has to be {wanted}, and is {array!r}")


class Frame:
    """The arguments of a loop that is called many times, put in one by one; for one thread."""

    __slots__ = ("_held", "_loop", "_missing", "_values")

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._values = (ctypes.c_int64 * loop.size)()
        self._held: list[Any] = [None] * len(loop.slots)
        self._missing = set(range(len(loop.slots)))

    def put(self, first: int, *given: Any) -> None:
        """The arguments from number `first` on."""
        for number, value in enumerate(given, first):
            self._put(number, value)

    def _put(self, number: int, value: Any) -> None:
        slot = self._loop.slots[number]
        if slot.kind is None:
            self._values[slot.at] = index(value)
        else:
            pinned = value if type(value) is Pinned else Pinned(value)
            if pinned.fits is not slot:
                slot.check(pinned.array)
                pinned.fits = slot
            self._values[slot.at] = pinned.address
            self._values[slot.at + 1] = pinned.size
            self._held[number] = pinned
        self._missing.discard(number)

    def __call__(self) -> int:
        if self._missing:
            raise TypeError(f"argument {min(self._missing)} is missing")
        return self._loop.function(self._values)


class Loop:
    """A compiled loop, called with arrays and numbers. `owner` has the memory that it is in."""

    __slots__ = ("_owner", "function", "size", "slots")

    def __init__(self, address: int, parameters: Parameters, owner: object) -> None:
        self._owner = owner
        pointer = ctypes.POINTER(ctypes.c_int64)
        self.function: Callable[[Any], int] = ctypes.CFUNCTYPE(ctypes.c_int64, pointer)(address)
        self.size = 0
        slots = []
        for number, each in enumerate(parameters):
            if isinstance(each, Array):
                kind = np.dtype(each.kind)
                slots.append(_Slot(number, self.size, kind, each.written))
            else:
                slots.append(_Slot(number, self.size, None, False))
            self.size += each.slots
        self.slots = tuple(slots)

    def frame(self) -> Frame:
        return Frame(self)

    def __call__(self, *given: Any) -> int:
        if len(given) != len(self.slots):
            raise TypeError(f"{len(given)} arguments are given, {len(self.slots)} are needed")
        frame = Frame(self)
        frame.put(0, *given)
        return frame()
