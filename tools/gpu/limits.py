"""Limits of time for what cannot see a deadline itself: a model, and the whole suite."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_AGAIN = 5.0
"""Seconds after which OutOfTime is raised again: one that comes in a callback of C is lost."""


class OutOfTime(BaseException):
    """The time is up.  No Exception, so that nothing on the way takes it for a failure and goes on."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise OutOfTime in the body after so many seconds, or when the call of C ends that runs then.

    It is for the main thread, and not for one limit within another: there is one alarm.
    """

    def end(*_: object) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3), _AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def otherwise(seconds: float, act: Callable[[], None]) -> Iterator[None]:
    """Call ``act``, in a thread of its own, unless the body ends within so many seconds."""
    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
