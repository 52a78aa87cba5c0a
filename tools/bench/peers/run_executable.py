"""onnxfuse without ONNX Runtime: an Executable with buffers bound in advance."""

import onnxfuse
from tools.bench.peers.job import Job, Prepared


def prepare(job: Job) -> Prepared:
    """A binding of the model's arrays."""
    executable = onnxfuse.Executable(job.settings["file"], threads=job.threads)
    results = job.buffers()
    binding = executable.bind(job.feeds(), dict(zip(job.outputs, results, strict=True)))
    return Prepared(binding.run, lambda: results)
