"""OpenVINO on the CPU: the hint for latency, in float32, for the very shapes of the inputs."""

import openvino as ov
from openvino._pyopenvino import InferRequest

from tools.bench.peers.job import Job, Prepared


def prepare(job: Job) -> Prepared:
    """An infer request that reads and writes buffers set in advance.

    Without the hint for the precision, a CPU with bfloat16 instructions would compute in bfloat16.
    """
    feeds = job.feeds()
    model = ov.Core().read_model(job.model)
    model.reshape({name: list(array.shape) for name, array in feeds.items()})
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": job.threads,
        "INFERENCE_PRECISION_HINT": "f32",
    }
    request = ov.Core().compile_model(model, "CPU", settings).create_infer_request()
    for name, array in feeds.items():
        request.set_tensor(name, ov.Tensor(array, shared_memory=True))
    results = job.buffers()
    for index, array in enumerate(results):
        request.set_output_tensor(index, ov.Tensor(array, shared_memory=True))
    # The method of the C++ request, as of every peer: around it Python converts inputs, of which there are none, and
    # outputs.  A tensor of shared memory does not keep the array whose memory it is.
    return Prepared(lambda: InferRequest.infer(request, {}, True, True), lambda: results, keep=feeds)
