"""Runs a fused model once on ones, without the package onnxfuse.

python main.py libonnxfuse_ops.so fused.onnx D0 D1 ...
"""

import sys

import numpy
import onnxruntime

library, model, *sizes = sys.argv[1:]
options = onnxruntime.SessionOptions()
options.add_session_config_entry("onnxfuse.model", model)
options.register_custom_ops_library(library)
session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
x = numpy.ones([int(size) for size in sizes], numpy.float32)
(y,) = session.run(None, {session.get_inputs()[0].name: x})[:1]
for value in y.ravel()[:4]:
    print(f"{value:g}")
