"""The process that ``bench --full`` starts to measure one model's peak memory: ``python -m
onnxfuse.bench_memory``.

Standard input holds a line of JSON (``path``, ``inputs`` as name to [dtype, shape], ``library``, ``threads``,
``target``) and then the bytes of the inputs.  Standard output is two lines of JSON, each [bytes of its own, bytes in
memory], null where they are not known: before the model is loaded, and after its runs, the second then the most that
was in memory.
"""

import json
import math
import sys
from pathlib import Path

import ml_dtypes
import numpy as np

from onnxfuse.bench import process_memory
from onnxfuse.check.parity import PROVIDERS
from onnxfuse.run.runtime import load_onnxruntime
from onnxfuse.run.sessions import Session

RUNS = 3


def main() -> None:
    """Load and run the model, and print how much memory there was before and after."""
    request = json.loads(sys.stdin.buffer.readline())
    feeds = {}
    for name, (type_name, shape) in request["inputs"].items():
        dtype = np.dtype(getattr(ml_dtypes, type_name, type_name))
        data = sys.stdin.buffer.read(math.prod(shape) * dtype.itemsize)
        feeds[name] = np.frombuffer(data, dtype).reshape(shape)
    load_onnxruntime()
    print(json.dumps([process_memory("RssAnon"), process_memory("VmRSS")]), flush=True)
    session = Session(
        Path(request["path"]),
        providers=PROVIDERS[request["target"]],
        library=request["library"],
        threads=request["threads"],
        spinning=False,
    )
    for _ in range(RUNS):
        session.run(feeds)
    # Unlike getrusage's, this peak starts anew when a process is executed.
    print(json.dumps([process_memory("RssAnon"), process_memory("VmHWM")]))


if __name__ == "__main__":
    main()
