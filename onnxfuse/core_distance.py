"""How far two of the processor's cores are from each other: the time in which one sees what the other has written.

Cores that share a cache see it within some 50 ns, others only after several times as long, and so all work that threads
share takes longer, the more the smaller its parts are.  Which of them a virtual machine has is its host's choice, which
changes within seconds and is told by nothing else: neither by the speed of arithmetic and memory nor by stolen time.
"""

import math
import mmap
import os
import signal
import subprocess
import sys
import time
from types import TracebackType

_TRIPS, _BURSTS = 100, 20
_LIMIT = 0.1
"""Seconds after which a burst is given up: the other core has other work."""
_NEAR = 1.3
"""Times the least distance.  An AMD EPYC of the fifth generation: 215 ns in one core complex, 645 in two, of which
Python adds some 140 and 280."""
FAR = 400.0
"""Nanoseconds from which on two cores share no cache."""
_ASKED, _ANSWERED, _READY = 0, 64, 128  # each on a line of its own
_OTHER = """
import ctypes, mmap, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it would not see that nobody asks any more
if os.getppid() != int(sys.argv[3]):
    sys.exit()
os.sched_setaffinity(0, {int(sys.argv[2])})
memory = memoryview(mmap.mmap(int(sys.argv[1]), 4096))
memory[128] = 1
last = 0
while True:
    last = last + 1 & 127
    while memory[0] != last:
        pass
    memory[64] = last
"""


class CoreDistance:
    """Measures the time that a byte takes from one core to another and back, with a process of its own on the other.

    Nothing is measured where the system cannot say on which core a process runs, or where there is one only.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._last = 0
        self.least: float | None = None
        """The least that was ever measured."""

    def __enter__(self) -> "CoreDistance":
        if not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2:
            return self
        self._cores = os.sched_getaffinity(0)
        self._here, there = sorted(self._cores)[:2]
        descriptor = os.memfd_create("onnxfuse-core-distance")
        try:
            os.ftruncate(descriptor, mmap.PAGESIZE)
            self._memory = memoryview(mmap.mmap(descriptor, mmap.PAGESIZE))
            command = [sys.executable, "-I", "-S", "-c", _OTHER, str(descriptor), str(there), str(os.getpid())]
            self._process = subprocess.Popen(command, pass_fds=(descriptor,), stderr=subprocess.DEVNULL)
        finally:
            os.close(descriptor)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def nanoseconds(self) -> float | None:
        """There and back, with what Python adds; None where it is not known.

        The least of some bursts, for other processes only ever add to it.  The other core is left alone afterwards.
        """
        if self._process is None:
            return None
        os.sched_setaffinity(0, {self._here})
        try:
            self._process.send_signal(signal.SIGCONT)
            end = time.perf_counter() + _LIMIT
            if not self._wait(_READY, 1, end):
                return None
            found = [self._burst(end) for _ in range(_BURSTS)]
        finally:
            self._process.send_signal(signal.SIGSTOP)
            os.sched_setaffinity(0, self._cores)
        times = [seconds / _TRIPS * 1e9 for seconds in found if seconds is not None]
        if not times:
            return None
        self.least = min(*times, self.least or math.inf)
        return min(times)

    def is_near(self, nanoseconds: float | None) -> bool:
        """Whether a distance is about the least that was ever measured; so is one that is not known."""
        return nanoseconds is None or self.least is None or not nanoseconds > _NEAR * self.least

    def _burst(self, end: float) -> float | None:
        """The seconds of some trips; None if they do not end in time."""
        memory, start = self._memory, time.perf_counter()
        for _ in range(_TRIPS):
            if self._last == memory[_ANSWERED]:  # a trip that was given up may still be under way
                self._last = (self._last + 1) % 128
                memory[_ASKED] = self._last
            if not self._wait(_ANSWERED, self._last, end):
                return None
        return time.perf_counter() - start

    def _wait(self, place: int, value: int, end: float) -> bool:
        """Wait until a byte has a value; False if it has not at the time ``end``."""
        memory = self._memory
        while True:
            for _ in range(1000):
                if memory[place] == value:
                    return True
            if time.perf_counter() > end:
                return False
