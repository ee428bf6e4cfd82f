"""Ctrl-C, where librdkafka may be in the middle of calling us back.

Python raises KeyboardInterrupt wherever the main thread happens to be. Inside a callback of
librdkafka's binding it is not handed on: the call that served the callback fails with SystemError,
and the report that the callback was about is lost. Whoever spends his time in such calls lets the
signal be noted instead, and looks at `count` between them. `undisturbed` does that for one call.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_INT, _TERM = map(int, _SIGNALS)
# Without the enums that `signal` makes of what it returns, at ten times the price.
_plain: Any = sys.modules.get("_signal", signal)
_set_handler: Callable[[int, Any], Any] = _plain.signal
_get_handler: Callable[[int], Any] = _plain.getsignal


def undisturbed(call: Callable[[float], T], timeout: float) -> T:
    """Make a short call that serves callbacks; handlers of signals run when it is over."""
    if threading.get_ident() != threading.main_thread().ident:
        return call(timeout)
    if callable(_get_handler(_TERM)):  # by default it is no function
        return _without(_TERM, lambda rest: _without(_INT, call, rest), timeout)
    return _without(_INT, call, timeout)


def _without(number: int, call: Callable[[float], T], timeout: float) -> T:
    handler = _get_handler(number)
    if not callable(handler):
        return call(timeout)
    noted: list[FrameType | None] = []
    try:
        _set_handler(number, lambda _number, frame: noted.append(frame))
        return call(timeout)
    finally:
        _set_handler(number, handler)
        if noted:
            handler(number, noted[0])


class Interrupts:
    """Notes the signals that would raise KeyboardInterrupt, for as long as the block lasts.

    `raising` may be switched on around what must be interrupted by the exception, such as reading
    from a terminal. Outside of the main thread nothing is raised anyway, and nothing noted.
    """

    def __init__(self) -> None:
        self.count = 0
        self.raising = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            if signal.getsignal(number) is signal.default_int_handler:
                try:
                    self._before[number] = signal.signal(number, self._note)
                except ValueError:
                    break  # another thread than the main one
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Raise now what was noted; to be called where nothing is lost by it."""
        if self.count:
            raise KeyboardInterrupt

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1
        if self.raising:
            raise KeyboardInterrupt
