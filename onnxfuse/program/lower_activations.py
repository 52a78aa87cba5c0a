"""What activations mean as a Program."""

import numpy as np

from onnxfuse.program.node_lowering import Lowerings, NodeLowering, UnsupportedError, logical_not, require_float

LOWERINGS = Lowerings()


@LOWERINGS.of("LeakyRelu")
def _leaky_relu(n: NodeLowering) -> int:
    require_float(n)
    return n.emit("leaky_relu", n.arg(0), n.parameter("alpha", 0.01))


@LOWERINGS.of("Elu")
def _elu(n: NodeLowering) -> int:
    return n.emit("elu", n.arg(0), n.parameter("alpha", 1.0))


@LOWERINGS.of("Softplus")
def _softplus(n: NodeLowering) -> int:
    x = n.arg(0)
    if n.dtype() != "f64":
        return n.emit("softplus", x)
    # ONNX Runtime has no kernel for doubles and runs the operator's function, which is infinite where exp is.
    return n.emit("log", n.emit("add", n.emit("exp", x), n.const(1)))


@LOWERINGS.of("Celu")
def _celu(n: NodeLowering) -> int:
    alpha = _positive_alpha(n, 1.0)
    x = n.arg(0)
    if n.attr("alpha", 1.0) == 1.0:
        return _positive_zero(n, n.emit("elu", x, alpha))
    negative = n.emit("elu", n.emit("div", x, alpha), alpha)
    return _positive_zero(n, n.emit("where", n.emit("less", n.const(0), x), x, negative))


@LOWERINGS.of("Selu")
def _selu(n: NodeLowering) -> int:
    alpha = _positive_alpha(n, 1.67326319217681884765625)
    gamma = n.parameter("gamma", 1.05070102214813232421875)
    return n.emit("mul", gamma, _positive_zero(n, n.emit("elu", n.arg(0), alpha)))


def _positive_alpha(n: NodeLowering, default: float) -> int:
    """The attribute alpha of Celu or Selu, as any model has it: of others ONNX Runtime's formulas give other values."""
    if not 0 < n.attr("alpha", default) < np.inf:
        raise UnsupportedError(f"{n.node.op} with an alpha that is not positive and finite")
    return n.parameter("alpha", default)


def _positive_zero(n: NodeLowering, value: int) -> int:
    """-0 becomes 0: ONNX Runtime adds max(0, x) and min(0, …) in Celu and Selu."""
    return n.emit("add", value, n.const(0))


@LOWERINGS.of("HardSigmoid")
def _hard_sigmoid(n: NodeLowering) -> int:
    return n.emit("hard_sigmoid", n.arg(0), n.parameter("alpha", 0.2), n.parameter("beta", 0.5))


@LOWERINGS.of("Swish")
def _swish(n: NodeLowering) -> int:
    x = scaled = n.arg(0)
    if n.attr("alpha", 1.0) != 1.0:
        scaled = n.emit("mul", x, n.parameter("alpha", 1.0))
    return n.emit("mul", x, n.emit("sigmoid", scaled))


@LOWERINGS.of("ThresholdedRelu")
def _thresholded_relu(n: NodeLowering) -> int:
    x = n.arg(0)
    above = n.emit("less", n.parameter("alpha", 1.0), x)
    return n.emit("where", logical_not(n, above), n.const(0), x)


@LOWERINGS.of("Shrink")
def _shrink(n: NodeLowering) -> int:
    require_float(n)
    x, lambd, bias = n.arg(0), n.attr("lambd", 0.5), n.parameter("bias", 0.0)
    above = n.emit("where", n.emit("less", n.const(lambd), x), n.emit("sub", x, bias), n.const(0))
    below = n.emit("less", x, n.const(-lambd))
    return n.emit("where", logical_not(n, below), above, n.emit("add", x, bias))


@LOWERINGS.of("Gelu")
def _gelu(n: NodeLowering) -> int:
    approximate = n.node.attrs.get("approximate", "none")
    if approximate not in ("none", "tanh"):
        raise UnsupportedError(f"Gelu with approximate={approximate!r}")
    return n.emit("gelu" if approximate == "none" else "gelu_tanh", n.arg(0))
