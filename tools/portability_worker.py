"""Runs models in the ONNX Runtime of the Python that this is started with, which may be any that onnxfuse supports.

Usage: ``python portability_worker.py FOLDER``, where FOLDER has the onnxfuse package.  Reads a Job as JSON from each
line of standard input, and answers it with a line: why it could not be done, or nothing.
"""

import json
import pickle
import sys
from pathlib import Path
from typing import TypedDict


class Job(TypedDict):
    """A model to run, with or without ONNX Runtime's optimizations; ``feeds`` and ``outputs`` are pickled values."""

    model: str
    library: bool
    optimized: bool
    feeds: str
    outputs: str


def main() -> int:
    """Do the jobs."""
    sys.path.append(sys.argv[1])  # behind the packages of this Python
    from onnxfuse.errors import OnnxfuseError
    from onnxfuse.run.sessions import Session, SessionError

    for line in sys.stdin:
        job: Job = json.loads(line)
        reason = ""
        try:
            session = Session(Path(job["model"]), library=job["library"], optimized=job["optimized"])
            values = session.run(pickle.loads(Path(job["feeds"]).read_bytes()))
            Path(job["outputs"]).write_bytes(pickle.dumps(values))
        except (SessionError, OnnxfuseError) as error:
            reason = str(error)
        print(json.dumps(reason), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
