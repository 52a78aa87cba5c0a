"""What a compiled kernel takes from the GPU, as ptxas logs it."""

import re
from dataclasses import dataclass

_KERNEL = re.compile(r"Compiling entry function '([^']+)' for 'sm_")
_MEMORY = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True)
class Resources:
    """Of one kernel: registers of a thread, bytes that a thread spills to memory and reads back, bytes of its stack
    frame, bytes of shared memory of a block."""

    registers: int
    spill_stores: int = 0
    spill_loads: int = 0
    stack: int = 0
    shared: int = 0

    @property
    def spills(self) -> int:
        """Bytes a thread writes to and reads from memory because registers ran out."""
        return self.spill_stores + self.spill_loads


def read_log(log: str) -> dict[str, Resources]:
    """The kernels of what ``ptxas -v`` printed, by name.  A kernel without a register count is left out."""
    found: dict[str, Resources] = {}
    name, memory = "", (0, 0, 0)
    for line in log.splitlines():
        if match := _KERNEL.search(line):
            name, memory = match[1], (0, 0, 0)
        elif match := _MEMORY.search(line):
            memory = int(match[1]), int(match[2]), int(match[3])
        elif name and (match := _REGISTERS.search(line)):
            shared = _SHARED.search(line)
            stack, stores, loads = memory
            found[name] = Resources(int(match[1]), stores, loads, stack, int(shared[1]) if shared else 0)
            name = ""
    return found
