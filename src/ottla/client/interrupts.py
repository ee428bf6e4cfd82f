"""Ctrl-C, where librdkafka may be in the middle of calling us back.

Python raises KeyboardInterrupt wherever the main thread happens to be. Inside a callback of
librdkafka's binding it is not handed on: the call that served the callback fails with SystemError,
and the report that the callback was about is lost. Whoever spends his time in such calls lets the
signal be noted instead, and looks at `count` between them.
"""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


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
