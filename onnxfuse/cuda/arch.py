"""CUDA architectures: their names, which ones to compile for, and how many threads each can hold.

An architecture is named as nvcc names it, ``sm_90`` for compute capability 9.0.
"""

import ctypes
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from onnxfuse.errors import OnnxfuseError
from onnxfuse.program.figures import WARP
from onnxfuse.system import CUDA_DRIVER

REGISTERS = 65536
"""32-bit registers of one multiprocessor, on every architecture here."""
REGISTER_UNIT = 256
"""Registers are given to a warp in multiples of this."""
WARP_UNIT = 4
"""The warps that a multiprocessor's registers suffice for are a multiple of this, one for each of its schedulers."""

RESERVED_SHARED = 1 << 10
"""Bytes of shared memory that the system takes in each block, from compute capability 8.0 on."""
_FIRST_RESERVING = 80

_NAME = re.compile(r"sm_([1-9][0-9]{1,2})")
_OLDEST = 75


@dataclass(frozen=True)
class Architecture:
    """One architecture: the most threads, blocks and bytes of shared memory that one of its multiprocessors holds."""

    name: str
    threads: int
    blocks: int
    shared: int

    @property
    def number(self) -> int:
        """Ten times the compute capability."""
        return number(self.name)

    def occupancy(self, registers: int, block: int, shared: int = 0) -> float:
        """The share of a multiprocessor's threads that run at once, 0 to 1.

        ``registers`` is for one thread, ``block`` is threads in a block, ``shared`` its bytes of shared memory.  The
        rule is that of NVIDIA's occupancy calculator.
        """
        warps = -(-block // WARP)
        registers_of_warp = -(-max(registers, 1) * WARP // REGISTER_UNIT) * REGISTER_UNIT
        warps_by_registers = REGISTERS // registers_of_warp // WARP_UNIT * WARP_UNIT
        most_warps = self.threads // WARP
        blocks = min(self.blocks, most_warps // warps, warps_by_registers // warps)
        if shared:
            reserved = RESERVED_SHARED if self.number >= _FIRST_RESERVING else 0
            blocks = min(blocks, self.shared // (shared + reserved))
        return blocks * warps / most_warps


# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
_KNOWN = {
    architecture.name: architecture
    for architecture in (
        Architecture("sm_75", 1024, 16, 64 << 10),
        Architecture("sm_80", 2048, 32, 164 << 10),
        Architecture("sm_86", 1536, 16, 100 << 10),
        Architecture("sm_87", 1536, 16, 164 << 10),
        Architecture("sm_89", 1536, 24, 100 << 10),
        Architecture("sm_90", 2048, 32, 228 << 10),
        Architecture("sm_100", 2048, 32, 228 << 10),
        Architecture("sm_103", 2048, 32, 228 << 10),
        Architecture("sm_120", 1536, 24, 100 << 10),
        Architecture("sm_121", 1536, 24, 100 << 10),
    )
}

COMMON = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
"""What a model is compiled for where there is no GPU and nothing was asked for: Turing to Blackwell."""


def number(name: str) -> int:
    """Ten times the compute capability of an architecture: 90 for ``sm_90``."""
    return int(name.removeprefix("sm_"))


def architecture(name: str) -> Architecture:
    """What is known of ``name``; of one that is not in the table, what is known of the one before it."""
    older = [known for known in _KNOWN.values() if known.number <= number(name)]
    found = max(older, key=lambda known: known.number)
    return Architecture(name, found.threads, found.blocks, found.shared)


def parse_architectures(names: str | Iterable[str]) -> tuple[str, ...]:
    """The architectures of a list such as ``sm_80,sm_90``, each once and the oldest first.

    Raises OnnxfuseError for an empty list, and for what is no architecture or one before sm_75.
    """
    given = names.split(",") if isinstance(names, str) else list(names)
    for name in given:
        if not _NAME.fullmatch(name) or number(name) < _OLDEST:
            raise OnnxfuseError(f"unknown architecture {name!r}: give a list such as sm_80,sm_90, of sm_75 and later")
    if not given:
        raise OnnxfuseError("no architecture given: give a list such as sm_80,sm_90")
    return tuple(sorted(set(given), key=number))


def default_architectures() -> tuple[str, ...]:
    """The architectures of the GPUs of this machine, or where there is none the common ones."""
    return devices() or COMMON


_SUCCESS = 0
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76  # CUdevice_attribute


@cache
def devices() -> tuple[str, ...]:
    """The architectures of the GPUs that the CUDA driver shows, each once; empty without a driver or a GPU."""
    try:
        driver = ctypes.CDLL(CUDA_DRIVER)
    except OSError:
        return ()
    count = ctypes.c_int()
    if driver.cuInit(0) != _SUCCESS or driver.cuDeviceGetCount(ctypes.byref(count)) != _SUCCESS:
        return ()
    found = set()
    for device in range(count.value):
        values = []
        for attribute in (_CAPABILITY_MAJOR, _CAPABILITY_MINOR):
            value = ctypes.c_int()
            if driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device) == _SUCCESS:
                values.append(value.value)
        if len(values) == 2 and 10 * values[0] + values[1] >= _OLDEST:
            found.add(f"sm_{values[0]}{values[1]}")
    return tuple(sorted(found, key=number))
