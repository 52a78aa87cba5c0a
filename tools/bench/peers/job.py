"""What a worker is asked to prepare, and what it has prepared: shared by every peer, and needs NumPy alone."""

import math
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Job:
    """One model for one peer.

    ``model`` is the file as its user has it; in ``static`` every shape is a number.  ``inputs`` is an .npz file,
    ``outputs`` tells the type and shape of each output.  ``recipe`` (``module:function`` under ``recipes``) or
    ``chain`` or ``reducing`` (a subject of tools/gpu/reduction_chains.py) says what the model was made from, where a
    peer starts from there.  ``cache`` is a folder of the peer's own that outlives the process.  ``trials`` is how many
    candidates a tuner may try for each kernel.
    """

    name: str
    model: str
    static: str
    inputs: str
    outputs: dict[str, tuple[str, tuple[int, ...]]]
    threads: int
    cache: str
    recipe: str = ""
    recipes: str = ""
    chain: str = ""
    reducing: str = ""
    trials: int = 0
    settings: dict[str, Any] = field(default_factory=dict)

    def feeds(self) -> dict[str, np.ndarray]:
        """The inputs by name, in the order of the model."""
        with np.load(self.inputs) as arrays:
            return {name: _copy(arrays[name]) for name in arrays.files}

    def buffers(self) -> list[np.ndarray]:
        """Memory for the outputs."""
        return [zeros(shape, dtype) for dtype, shape in self.outputs.values()]


def zeros(shape: tuple[int, ...], dtype: np.dtype | str) -> np.ndarray:
    """An array that begins on a page, as every program has its own tensors begin on a line of the cache at least.

    NumPy's own arrays do not, and loads and stores of whole lines would each touch two.
    """
    page = 4096
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.zeros(size + page, np.uint8)
    first = -memory.ctypes.data % page
    return memory[first : first + size].view(dtype).reshape(shape)


def _copy(array: np.ndarray) -> np.ndarray:
    copy = zeros(array.shape, array.dtype)
    copy[...] = array
    return copy


@dataclass
class Prepared:
    """A model that is ready: ``run`` runs it ``repeats`` times, ``outputs`` gives what the last run computed, in
    the model's order, ``note`` is what should be known of it, ``keep`` what must live as long as it."""

    run: Callable[[], object]
    outputs: Callable[[], list[np.ndarray]]
    note: str = ""
    keep: object = None
    repeats: int = 1


class CannotRunError(Exception):
    """The peer cannot take the model; the message is one line."""


def build(target: Path, command: Callable[[Path], list[str]]) -> None:
    """Make a file with a command, unless it is there already; one that fails leaves nothing behind."""
    if target.is_file():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f"unfinished-{target.name}")
    done = subprocess.run(command(unfinished), capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        said = done.stderr.replace(f"{target.parent}/", "")  # the table is no place for this machine's folders
        lines = [line.strip() for line in said.splitlines() if line.strip()] or [f"status {done.returncode}"]
        raise CannotRunError(next((line for line in lines if "error" in line.lower()), lines[-1]))
    unfinished.replace(target)
