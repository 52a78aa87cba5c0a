"""Models of regions that reduce, written down in ONNX's text form."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import numpy_helper, parser


@dataclass(frozen=True)
class Chain:
    """A model, and shapes for its inputs."""

    model: onnx.ModelProto
    shapes: Mapping[str, tuple[int, ...]]

    def feeds(self, seed: int = 0) -> dict[str, np.ndarray]:
        """Random inputs."""
        random = np.random.default_rng(seed)
        types = {value.name: value.type.tensor_type.elem_type for value in self.model.graph.input}
        return {
            name: random.standard_normal(shape).astype(onnx.helper.tensor_dtype_to_np_dtype(types[name]))
            for name, shape in self.shapes.items()
        }


def model(text: str, opset: int = 21, **constants: np.ndarray) -> onnx.ModelProto:
    """The model of a graph's text, with initializers by name."""
    proto = parser.parse_model(f'<ir_version: 9, opset_import: ["" : {opset}]> {text}')
    proto.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()
    )
    onnx.checker.check_model(proto)
    return proto


def _vector(size: int, seed: int, *more: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.5, 1.5, (size, *more)).astype(np.float32)


_LAST, _SCALE = np.array([-1]), np.float32(0.3)

CHAINS: dict[str, Chain] = {
    "l2_normalize": Chain(
        model(
            "g (float[b, s, 48] x) => (float[b, s, 48] y) {"
            " q = Mul(x, x) t = ReduceSum(q, axes) n = Sqrt(t) y = Div(x, n) }",
            axes=_LAST,
        ),
        {"x": (2, 3, 48)},
    ),
    "masked_softmax": Chain(
        model(
            "g (float[b, 12, s, t] x, float[b, 1, s, t] m) => (float[b, 12, s, t] y) {"
            " a = Mul(x, scale) c = Add(a, m) y = Softmax<axis = -1>(c) }",
            scale=_SCALE,
        ),
        {"x": (2, 12, 5, 7), "m": (2, 1, 5, 7)},
    ),
    "layer_norm_gelu": Chain(
        model(
            "g (float[b, s, 48] x, float[b, s, 48] r) => (float[b, s, 48] y) {"
            " a = Add(x, r) n = LayerNormalization<axis = -1>(a, w, c) y = Gelu(n) }",
            w=_vector(48, 1),
            c=_vector(48, 2),
        ),
        {"x": (2, 3, 48), "r": (2, 3, 48)},
    ),
    "group_norm_silu": Chain(
        model(
            "g (float[b, 64, h, w] x) => (float[b, 64, h, w] y) {"
            " n = GroupNormalization<num_groups = 8>(x, s, c) g = Sigmoid(n) y = Mul(n, g) }",
            s=_vector(64, 1),
            c=_vector(64, 2),
        ),
        {"x": (2, 64, 4, 6)},
    ),
    "written_out_group_norm": Chain(
        model(
            "g (float[b, 64, 4, 6] x) => (float[b, 64, 4, 6] y) {"
            " r = Reshape(x, apart) n = InstanceNormalization(r, one, zero) j = Reshape(n, joined)"
            " k = Mul(j, s) l = Add(k, c) g = Sigmoid(l) y = Mul(l, g) }",
            apart=np.array([0, 8, -1]),
            joined=np.array([-1, 64, 4, 6]),
            one=np.ones(8, np.float32),
            zero=np.zeros(8, np.float32),
            s=_vector(64, 1, 1, 1),
            c=_vector(64, 2, 1, 1),
        ),
        {"x": (2, 64, 4, 6)},
    ),
    "instance_norm_relu": Chain(
        model(
            "g (float[b, 16, h, w] x) => (float[b, 16, h, w] y) { n = InstanceNormalization(x, s, c) y = Relu(n) }",
            s=_vector(16, 1),
            c=_vector(16, 2),
        ),
        {"x": (2, 16, 4, 6)},
    ),
    "mean_over_channels": Chain(
        model(
            "g (float[b, 16, h, w] x) => (float[b, h, w] y) {"
            " g = Sigmoid(x) z = Mul(x, g) y = ReduceMean<keepdims = 0>(z, axes) }",
            axes=np.array([1]),
        ),
        {"x": (2, 16, 4, 6)},
    ),
    "standard_deviation": Chain(
        model(
            "g (float[b, s, 96] x) => (float[b, s] y) { m = ReduceMean(x, axes) d = Sub(x, m) q = Mul(d, d)"
            " v = ReduceMean<keepdims = 0>(q, axes) y = Sqrt(v) }",
            axes=_LAST,
        ),
        {"x": (2, 5, 96)},
    ),
    "scaled_log_softmax": Chain(
        model("g (float[b, 500] x) => (float[b, 500] y) { a = Mul(x, scale) y = LogSoftmax(a) }", scale=_SCALE),
        {"x": (6, 500)},
    ),
    "written_out_layer_norm": Chain(
        model(
            "g (float[b, s, 96] x) => (float[b, s, 96] y) {"
            " m = ReduceMean(x, axes) d = Sub(x, m) q = Pow(d, two) v = ReduceMean(q, axes) e = Add(v, epsilon)"
            " f = Sqrt(e) n = Div(d, f) o = Mul(n, w) y = Add(o, c) }",
            axes=_LAST,
            two=np.float32(2),
            epsilon=np.float32(1e-5),
            w=_vector(96, 1),
            c=_vector(96, 2),
        ),
        {"x": (2, 5, 96)},
    ),
    "log_sum_exp_of_rows": Chain(
        model(
            "g (float[b, 40] x) => (float[b] y) { a = Abs(x) y = ReduceLogSumExp<keepdims = 0>(a, axes) }",
            axes=_LAST,
        ),
        {"x": (5, 40)},
    ),
    "mean_and_its_distances": Chain(
        model(
            "g (float[b, 9, 16] x) => (float[b, 1, 16] m, float[b, 9, 16] d) {"
            " m = ReduceMean(x, axes) e = Sub(x, m) d = Abs(e) }",
            axes=np.array([1]),
        ),
        {"x": (3, 9, 16)},
    ),
    "argmax_of_squares": Chain(
        model("g (float[b, s, 48] x) => (int64[b, s] y) { a = Mul(x, x) y = ArgMax<axis = -1, keepdims = 0>(a) }"),
        {"x": (2, 3, 48)},
    ),
    "last_argmin_of_equal_ones": Chain(
        model(
            "g (float[b, s, 48] x) => (int64[b, 1, 48] y) {"
            " a = Round(x) y = ArgMin<axis = 1, select_last_index = 1>(a) }"
        ),
        {"x": (2, 30, 48)},
    ),
    "hardmax": Chain(
        model("g (float[b, s, 48] x) => (float[b, s, 48] y) { a = Round(x) h = Hardmax<axis = -1>(a) y = Mul(h, x) }"),
        {"x": (2, 3, 48)},
    ),
    "mean_variance_normalization": Chain(
        model(
            "g (float[b, 3, h, w] x) => (float[b, 3, h, w] y) {"
            " a = MeanVarianceNormalization<axes = [0, 2, 3]>(x) y = Relu(a) }"
        ),
        {"x": (2, 3, 5, 7)},
    ),
    "global_lp_pool": Chain(
        model(
            "g (float[b, 3, h, w] x) => (float[b, 3, 1, 1] y) { a = Sub(x, scale) y = GlobalLpPool<p = 1>(a) }",
            scale=_SCALE,
        ),
        {"x": (2, 3, 5, 7)},
    ),
    "dynamic_quantize": Chain(
        model(
            "g (float[b, 48] x) => (uint8[b, 48] y, float s, uint8 z) {"
            " a = Sub(x, scale) y, s, z = DynamicQuantizeLinear(a) }",
            scale=_SCALE,
        ),
        {"x": (3, 48)},
    ),
}
"""Each becomes one node."""
