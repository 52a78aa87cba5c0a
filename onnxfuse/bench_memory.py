"""The process that ``bench --full`` starts to measure one model's peak memory: ``python -m
onnxfuse.bench_memory``.

Standard input holds a line of JSON (``path``, ``inputs`` as name to [dtype, shape], ``library``, ``threads``,
``target``) and then the bytes of the inputs.  Standard output is the peak in bytes, or null where there is no
/proc.
"""

import json
import math
import sys
from pathlib import Path

import ml_dtypes
import numpy as np

from onnxfuse.parity import PROVIDERS
from onnxfuse.runtime import load_onnxruntime
from onnxfuse.sessions import Session

RUNS = 3


def main() -> None:
    """Load and run the model, and print how much resident memory that added at most."""
    request = json.loads(sys.stdin.buffer.readline())
    feeds = {}
    for name, (type_name, shape) in request["inputs"].items():
        dtype = np.dtype(getattr(ml_dtypes, type_name, type_name))
        data = sys.stdin.buffer.read(math.prod(shape) * dtype.itemsize)
        feeds[name] = np.frombuffer(data, dtype).reshape(shape)
    load_onnxruntime()
    before = _status("VmRSS")
    session = Session(
        Path(request["path"]),
        providers=PROVIDERS[request["target"]],
        library=request["library"],
        threads=request["threads"],
        spinning=False,
    )
    for _ in range(RUNS):
        session.run(feeds)
    peak = _status("VmHWM")  # unlike getrusage's, it starts anew when a process is executed
    print(json.dumps(None if before is None or peak is None else peak - before))


def _status(field: str) -> int | None:
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":")), None)


if __name__ == "__main__":
    main()
