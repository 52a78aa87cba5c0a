"""Models with subgraphs: If, Loop and Scan, and the recurrent layers that hold a loop inside."""

from pathlib import Path

import onnx
from common_builder import Builder
from common_weights import draw
from onnx import TensorProto, helper, numpy_helper


def if_loop(path: Path) -> None:
    """Newton's square root in a Loop, then one of two activations by an If."""
    text = """
    <ir_version: 8, opset_import: ["": 16], producer_name: "onnxfuse-zoo">
    if_loop (float[batch, width] x, int64 steps, bool gated) => (float[batch, width] y, float[steps, batch, width] path)
    <float half = {0.5}, float one = {1.0}, float tiny = {0.001}, bool go = {1}>
    {
        size = Abs(x)
        target = Add(size, tiny)
        start = Add(target, one)
        root, path = Loop(steps, go, start) <body = newton (int64 step, bool on, float[batch, width] old)
            => (bool on_, float[batch, width] new, float[batch, width] seen) {
            on_ = Identity(on)
            quotient = Div(target, old)
            sum = Add(old, quotient)
            new = Mul(sum, half)
            seen = Identity(new)
        }>
        y = If(gated) <
            then_branch = gate () => (float[batch, width] a) {
                squashed = Sigmoid(root)
                moved = Sub(squashed, half)
                turned = Tanh(x)
                a = Mul(moved, turned)
            },
            else_branch = plain () => (float[batch, width] b) {
                signs = Sign(x)
                scaled = Mul(root, signs)
                b = Add(scaled, one)
            }
        >
    }
    """
    onnx.save(onnx.parser.parse_model(text), path)
    onnx.checker.check_model(str(path))


def scan_cell(path: Path) -> None:
    """A recurrent cell written out in a Scan: an exponential average, gated."""
    text = """
    <ir_version: 8, opset_import: ["": 15], producer_name: "onnxfuse-zoo">
    scan_cell (float[time, 64] frames, float[64] state) => (float[64] last, float[time, 64] hidden)
    <float one = {1.0}>
    {
        last, hidden = Scan <num_scan_inputs = 1, body = cell (float[64] old, float[64] frame)
            => (float[64] new, float[64] out) {
            gate = Sigmoid(frame)
            rest = Sub(one, gate)
            kept = Mul(rest, old)
            squashed = Tanh(frame)
            taken = Mul(gate, squashed)
            new = Add(kept, taken)
            activated = Elu(new)
            out = Mul(activated, gate)
        }> (state, frames)
    }
    """
    onnx.save(onnx.parser.parse_model(text), path)
    onnx.checker.check_model(str(path))


def lstm_voice(path: Path) -> None:
    """Voice activity: features of a power spectrum, an LSTM whose state goes in and out, a probability."""
    bins, width = 64, 48
    b = Builder()
    x = b.input("power", ["time", "batch", bins])
    h, c = b.input("h", [1, "batch", width]), b.input("c", [1, "batch", width])
    x = b.op("Log", b.op("Add", b.op("Abs", x), b.scalar(1e-5)))
    x = b.op("Div", b.op("Sub", x, b.array("bin_mean", draw("bin_mean", (bins,)))), b.weight("bin_var", (bins,)))
    x = b.op("Relu", b.linear(x, "first", (bins, width)))
    weights = (
        b.weight("lstm.weight", (1, 4 * width, width), width),
        b.weight("lstm.recur", (1, 4 * width, width), width),
    )
    y = b.op("LSTM", x, *weights, b.weight("lstm.bias", (1, 8 * width)), "", h, c, outputs=3, hidden_size=width)
    hidden = b.op("Squeeze", y, b.ints(1))
    p = b.op("Sigmoid", b.linear(b.op("Mul", hidden, b.op("Softplus", hidden)), "last", (width, 1)))
    b.output(p, "probability", ["time", "batch", 1])
    b.output(f"{y}:1", "h_out", [1, "batch", width])
    b.output(f"{y}:2", "c_out", [1, "batch", width])
    b.save(path, 16)


def greedy_decoder(path: Path) -> None:
    """Greedy decoding: a Loop that runs a small decoder until the end token or the limit, with a penalty by If."""
    words, width = 64, 32
    body_text = """
    step (int64 i, bool on, int64[batch] token, float[batch, 32] state)
        => (bool on_, int64[batch] token_, float[batch, 32] state_, int64[batch] chosen)
    {
        word = Gather(table, token)
        sum = Add(word, state)
        squashed = Tanh(sum)
        mixed = MatMul(squashed, mix)
        gate = Sigmoid(mixed)
        complement = Sub(one, gate)
        kept = Mul(complement, state)
        fresh = Mul(gate, squashed)
        state_ = Add(kept, fresh)
        raw = MatMul(state_, tied)
        cold = Div(raw, heat)
        capped = Clip(cold, low, high)
        token_ = ArgMax<axis = 1, keepdims = 0>(capped)
        chosen = Identity(token_)
        ended = Equal(token_, stop)
        unended = Not(ended)
        wide = Cast<to = 6>(unended)
        some = ReduceMax<keepdims = 0>(wide)
        on_ = Cast<to = 9>(some)
    }
    """
    table = draw("table", (words, width), width)
    constants = {
        "table": table,
        "tied": table.T.copy(),
        "mix": draw("mix", (width, width), width),
    }
    scalars = {"one": 1.0, "heat": 0.7, "low": -20.0, "high": 20.0}
    weights = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    weights += [helper.make_tensor(name, TensorProto.FLOAT, [], [value]) for name, value in scalars.items()]
    weights += [helper.make_tensor("stop", TensorProto.INT64, [], [0]), helper.make_tensor("go", 9, [], [True])]
    body = onnx.parser.parse_graph(body_text)
    make = helper.make_tensor_value_info
    loop = helper.make_node(
        "Loop", ["limit", "go", "first", "state"], ["last", "final", "tokens"], name="decode", body=body
    )
    graph = helper.make_graph(
        [loop],
        "greedy_decoder",
        [make("limit", 7, []), make("first", 7, ["batch"]), make("state", 1, ["batch", width])],
        [make("last", 7, ["batch"]), make("final", 1, ["batch", width]), make("tokens", 7, ["steps", "batch"])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)
    onnx.save(model, path)
    onnx.checker.check_model(str(path))
