"""How fused nodes are known in a model.

With the standard library alone: the build of the native library reads it.
"""

DOMAIN = "onnxfuse"
"""The domain of the fused nodes."""
OPSET_VERSION = 1
"""The version of that domain which models import."""
PREFERS_NHWC = "onnxfuse.prefer_nhwc"
"""Metadata of a model that is written for sessions whose CUDA provider has the option ``prefer_nhwc``."""
