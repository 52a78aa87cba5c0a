"""Run by scripts/wheels.sh: processor time of models by the library of a wheel over that by the installed package's."""

import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnxruntime

import onnxfuse
from onnxfuse.files.model_io import read_outline
from onnxfuse.run.inputs import InputSet
from onnxfuse.speed import benchmark_inputs

SECONDS = 1.5
ROUNDS = 8
"""In which sessions are created anew, the wheel's first in every other one: the memory that they get matters."""


@contextmanager
def library_of(wheel: Path) -> Iterator[Path]:
    """Its native library, in a folder of its own."""
    with TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("onnxfuse_ops.so"))
        yield Path(archive.extract(name, folder))


def session_of(model: Path, library: Path) -> onnxruntime.InferenceSession:
    """With one thread, which is the one that is timed."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("onnxfuse.model", str(model))
    options.register_custom_ops_library(str(library))
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def ratio(model: Path, libraries: tuple[Path, Path], inputs: InputSet) -> float:
    """The lower quartile of the processor time of a run by the first over that by the second, in turns."""
    sessions = [session_of(model, library) for library in libraries]
    times: list[list[float]] = [[], []]
    end = time.monotonic() + SECONDS
    while time.monotonic() < end or len(times[0]) < 6:
        for session, found in zip(sessions, times, strict=True):
            started = time.thread_time()
            session.run(None, inputs.feeds)
            found.append(time.thread_time() - started)
    first, second = (float(np.percentile(found[2:], 25)) for found in times)
    return first / second


def main(wheel: Path, models: list[Path]) -> None:
    """A line for each model, which is optimized: the median of the rounds, the least and the most."""
    installed = Path(onnxfuse.custom_ops_library())
    with library_of(wheel) as library:
        for model in models:
            inputs = benchmark_inputs(model, read_outline(model), {}, "cpu")
            found = []
            for _ in range(ROUNDS // 2):
                found.append(ratio(model, (library, installed), inputs))
                found.append(1 / ratio(model, (installed, library), inputs))
            print(f"{model.name}: {np.median(found):.3f} ({min(found):.3f} to {max(found):.3f})", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
