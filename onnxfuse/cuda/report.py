"""What the report says of CUDA kernels: their sizes, what the compiler says of them, and times if they were taken."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True)
class KernelUse:
    """The main kernel of a node on one architecture; ``occupancy`` is the share of threads that run at once, 0 to 1.

    ``others_spill`` are the most bytes that a thread spills of the source's other kernels, which run for shapes or
    addresses that the main one does not take.
    """

    registers: int
    spill_bytes: int
    occupancy: float
    others_spill: int = 0

    def describe_spills(self) -> str:
        """What spills, in a few words."""
        main = f"{self.spill_bytes} B spilled"
        return f"{main} ({self.others_spill} B by kernels of other shapes)" if self.others_spill else main


@dataclass(frozen=True)
class KernelTimes:
    """Measured on the GPU of this machine, for the shapes given: microseconds, and bytes moved over those of a copy.

    The rest is what the driver says of the loaded kernel: registers of a thread, bytes of its local memory (spills and
    stack), bytes of shared memory of a block, and the occupancy that ``pycuda.tools`` works out from these, 0 to 1.
    """

    microseconds: float
    share_of_copy: float
    elements: int
    registers: int
    local_bytes: int
    shared_bytes: int
    occupancy: float

    def describe(self) -> str:
        """One line."""
        return (
            f"{self.microseconds:.1f} µs, {100 * self.share_of_copy:.0f} % of a copy; {self.registers} registers, "
            f"{self.local_bytes} B local, {self.shared_bytes} B shared, {100 * self.occupancy:.0f} % by the driver"
        )


@dataclass(frozen=True)
class KernelReport:
    """The kernels of one fused node.

    ``family`` is "elementwise" or, if each block turns a ``tile`` of operands, "transpose", or "parts" if ranges of
    blocks compute so many (``tile``) parts of it, each by letters of its own, of which sizes are the first's; of a
    Program that reduces "rows" or "columns", of which ``tile`` says how many threads share one and how many groups each
    keeps, or of a convolution how its main kernel works, which computes a ``tile`` in each block; of attention the same
    after the word "attention", with the rows and keys of a tile and the size of heads.  ``moves`` has the bytes that
    the main kernel reads and writes, over those of its inputs and outputs: 1 where nothing is read twice.
    ``source`` is the sha256 of the CUDA source, ``access`` the letters of its main kernel, which takes groups of
    ``vector`` elements, in blocks of ``block`` threads; ``choice`` says who chose these.
    ``uses`` is by architecture, ``code_bytes`` the size of all that the node carries.
    """

    source: str
    access: str
    vector: int
    block: int
    choice: str
    kernels: int
    code_bytes: int = 0
    uses: Mapping[str, KernelUse] = field(default_factory=dict)
    times: KernelTimes | None = None
    family: str = "elementwise"
    tile: str = ""
    moves: float = 1.0

    def to_json(self) -> dict[str, object]:
        """The fields as JSON takes them."""
        return asdict(self)


@dataclass
class CudaReport:
    """What holds for all kernels of a model.

    ``compiler`` is empty if nothing was compiled; ``embedded`` says whether the model carries machine code.
    """

    compiler: str = ""
    architectures: tuple[str, ...] = ()
    embedded: bool = True
    compiled: int = 0
    from_cache: int = 0
    kernels: dict[str, KernelReport] = field(default_factory=dict)
    """By the name of the fused node."""

    def describe(self) -> str:
        """Two or three sentences: what was compiled for which GPUs, the worst of what the compiler says, who chose."""
        if not self.kernels:
            return ""
        sources, nodes = len({kernel.source for kernel in self.kernels.values()}), len(self.kernels)
        text = f"{sources} CUDA source{'s' * (sources != 1)} for {nodes} node{'s' * (nodes != 1)}"
        if self.compiler:
            text += f", for {', '.join(self.architectures)} by {self.compiler}"
        text += "." if self.embedded else "; the model carries no machine code."
        uses = [use for kernel in self.kernels.values() for use in kernel.uses.values()]
        if uses:
            spills, others = max(use.spill_bytes for use in uses), max(use.others_spill for use in uses)
            elsewhere = f" but up to {others} bytes by kernels of other shapes" if others > spills else ""
            text += (
                f" Up to {max(use.registers for use in uses)} registers, "
                f"{f'spills up to {spills} bytes' if spills else 'no spills'}{elsewhere}, "
                f"occupancy {100 * min(use.occupancy for use in uses):.0f} % at least."
            )
        chosen: dict[str, int] = {}
        for kernel in self.kernels.values():
            chosen[kernel.choice] = chosen.get(kernel.choice, 0) + 1
        return f"{text} Sizes: " + ", ".join(f"{count} {choice}" for choice, count in chosen.items()) + "."

    def to_json(self) -> dict[str, object]:
        """The fields as JSON takes them, but for the kernels, which are with their fused nodes."""
        return {
            "compiler": self.compiler,
            "architectures": list(self.architectures),
            "embedded": self.embedded,
            "compiled": self.compiled,
            "from_cache": self.from_cache,
            "summary": self.describe(),
        }
