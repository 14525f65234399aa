"""Defer signals such as Ctrl-C until a step is finished."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # the module behind signal; without enums it takes a tenth of the time
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

Handler = Callable[[int, FrameType | None], Any]

_SIGNALS = tuple(
    int(getattr(signal, name))
    for name in ("SIGINT", "SIGTERM", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGHUP")
    if hasattr(signal, name)
)


class hold_interrupts:  # noqa: N801 (used like a function, in a with statement)
    """Defer signals whose Python handlers could raise (Ctrl-C, alarms) to the end of the block.

    A second signal of the same kind is not deferred, so that a block that hangs can be interrupted. Python handles
    signals only in the main thread: in other threads, and inside another such block, this does nothing.

    Attributes
    ----------
    deferring
        Whether signals are deferred. Set it to False while an exception may occur at any time, then to True again.

    Examples
    --------
    >>> previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    >>> steps = []
    >>> try:
    ...     with hold_interrupts():
    ...         signal.raise_signal(signal.SIGINT)
    ...         steps.append("finished")
    ... except KeyboardInterrupt:
    ...     steps.append("interrupted")
    >>> _ = signal.signal(signal.SIGINT, previous)
    >>> steps
    ['finished', 'interrupted']
    """

    def __init__(self) -> None:
        self.deferring = True
        self._handlers: dict[int, Handler] = {}
        self._pending: list[int] = []

    def __enter__(self) -> Self:
        if threading.get_ident() != threading.main_thread().ident:
            return self
        try:
            for number in _SIGNALS:
                handler = _signal.getsignal(number)
                if callable(handler) and not isinstance(getattr(handler, "__self__", None), hold_interrupts):
                    self._handlers[number] = handler
                    _signal.signal(number, self._handle)
        except BaseException:
            self._restore()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self._restore()
        finally:
            self._restore()  # in case a signal interrupted the first attempt
        while self._pending:
            number = self._pending.pop(0)
            self._handlers[number](number, sys._getframe(1))

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.deferring and number not in self._pending:
            self._pending.append(number)
        else:
            self._handlers[number](number, frame)

    def _restore(self) -> None:
        for number, handler in self._handlers.items():
            _signal.signal(number, handler)
