"""The planner: which nodes are computed together, and what takes their place."""

from onnxfuse.planner.channels_last import ChannelsLast
from onnxfuse.planner.fuse_attention import FuseAttention
from onnxfuse.planner.fuse_conv import FuseConv
from onnxfuse.planner.fuse_elementwise import FuseElementwise
from onnxfuse.planner.fuse_normalization import FuseNormalization
from onnxfuse.planner.fuse_squeeze_excite import FuseSqueezeExcite
from onnxfuse.planner.split_conv_bias import SplitConvBias

__all__ = [
    "ChannelsLast",
    "FuseAttention",
    "FuseConv",
    "FuseElementwise",
    "FuseNormalization",
    "FuseSqueezeExcite",
    "SplitConvBias",
]
