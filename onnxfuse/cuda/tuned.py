"""What the tuner found, kept in the cache: the sizes of a kernel on an architecture."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from enum import Enum
from hashlib import sha256

from onnxfuse.cuda.compile.cache import Cache
from onnxfuse.cuda.elementwise.renderer import Tuning
from onnxfuse.cuda.kernel import Access
from onnxfuse.cuda.prelude import prelude
from onnxfuse.cuda.recipe import VECTORS
from onnxfuse.program import Program
from onnxfuse.program.figures import MAX_BLOCK, WARP


class Choice(Enum):
    """Where the vector and block of a kernel come from."""

    HEURISTIC = "heuristic"
    REGISTERS = "heuristic, less for want of registers"
    TUNED = "tuned"


class TunedKernels:
    """The tuner's choices for a list of architectures, of which the first that has one counts."""

    def __init__(self, architectures: Sequence[str], cache: Cache | None = None) -> None:
        self._architectures = tuple(architectures)
        self._cache = Cache() if cache is None else cache

    def find(self, program: Program, access: Access, options: tuple[str, ...]) -> Tuning | None:
        """The sizes for a kernel, or None if it was not tuned."""
        for architecture in self._architectures:
            entry = self._cache.load(_key(architecture, program, access, options))
            try:
                if entry is not None:
                    return _valid(json.loads(entry))
            except (ValueError, TypeError, KeyError):
                continue
        return None

    def keep(
        self, architecture: str, program: Program, access: Access, options: tuple[str, ...], tuning: Tuning
    ) -> None:
        """Remember the best sizes on one architecture."""
        self._cache.store(_key(architecture, program, access, options), json.dumps(asdict(tuning)).encode())


def _valid(entry: dict[str, int]) -> Tuning:
    """Raises ValueError, TypeError or KeyError for what is no entry."""
    vector, block = int(entry["vector"]), int(entry["block"])
    if vector not in VECTORS or not WARP <= block <= MAX_BLOCK or block % WARP:
        raise ValueError(entry)
    return Tuning(vector, block)


def _key(architecture: str, program: Program, access: Access, options: tuple[str, ...]) -> str:
    return sha256(
        "\n".join(["tuned 1", architecture, prelude(), str(program), str(access), *options]).encode()
    ).hexdigest()
