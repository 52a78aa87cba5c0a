"""ONNX Runtime, with all its optimizations, from buffers bound in advance; with the onnxfuse library if asked."""

import onnxruntime as ort

from tools.bench.peers.job import Job, Prepared


def prepare(job: Job) -> Prepared:
    """A session whose threads spin while they wait, which is ONNX Runtime's own choice."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = job.threads
    options.log_severity_level = 3
    if job.settings.get("library"):
        import onnxfuse

        onnxfuse.register(options)
    session = ort.InferenceSession(job.settings.get("file", job.model), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, array in job.feeds().items():
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
    results = [ort.OrtValue.ortvalue_from_numpy(array) for array in job.buffers()]
    for name, result in zip(job.outputs, results, strict=True):
        binding.bind_ortvalue_output(name, result)
    # Options that every run shares, or ONNX Runtime makes some for each.  It asks them for this entry, and throws and
    # catches an exception where they have none; -1 is no graph.
    shared = ort.RunOptions()
    shared.add_run_config_entry("gpu_graph_id", "-1")
    # The method of the C++ session, as of every peer: around it Python looks whether a WebGPU graph is captured, which
    # takes more than half of the time of a small graph.
    run = session._sess.run_with_iobinding
    native = binding._iobinding
    return Prepared(lambda: run(native, shared), lambda: [value.numpy() for value in results], keep=binding)
