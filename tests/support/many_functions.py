"""Models whose fused nodes need many functions, and models as tools make them that know no overloads."""

import numpy as np
import onnx
from onnx import numpy_helper, parser

LENGTH, WIDTH = 9, 24

_SCORES = (
    "t{i} = Mul(s{i}, c)",
    "t{i} = Div(s{i}, c)",
    "u{i} = Mul(s{i}, c) t{i} = Add(u{i}, m)",
    "u{i} = Div(s{i}, c) t{i} = Add(u{i}, m)",
    "u{i} = Add(s{i}, m) v{i} = Mul(u{i}, c) t{i} = Add(v{i}, m2)",
    "u{i} = Add(s{i}, m2) t{i} = Add(u{i}, m)",
    "t{i} = Add(s{i}, m2)",
    "t{i} = Sub(s{i}, m2)",
)
"""Forms of the scores of an attention, each of which is a function of its own."""


def regions(count: int) -> onnx.ModelProto:
    """So many regions, no two of the same operators, with a product that is not fused between them."""
    steps = []
    for index in range(count):
        name = f"x{index}"
        for place, bit in enumerate(f"{index:07b}"):
            steps.append(f"{name}_{place} = {('Abs', 'Sin')[int(bit)]}({name})")
            name = f"{name}_{place}"
        steps.append(f'x{index + 1} = Einsum<equation = "ij,jk->ik">({name}, w)')
    text = f"g (float[n, 16] x0) => (float[n, 16] x{count}) {{ {' '.join(steps)} }}"
    return named(text, w=np.eye(16, dtype=np.float32))


def attentions() -> onnx.ModelProto:
    """Several attentions, no two of the same nodes.  Gathers split the heads of each, as Swin's do: ONNX Runtime makes
    Splits of them, which before 1.22 had one name if the Gathers had none."""
    steps = []
    for i, scores in enumerate(_SCORES):
        steps.append(
            f"p{i} = MatMul(x{i}, w) r{i} = Reshape(p{i}, apart) o{i} = Transpose<perm = [2, 0, 3, 1, 4]>(r{i})"
            f" q{i} = Gather<axis = 0>(o{i}, zero) k{i} = Gather<axis = 0>(o{i}, one)"
            f" h{i} = Gather<axis = 0>(o{i}, two) l{i} = Transpose<perm = [0, 1, 3, 2]>(k{i}) s{i} = MatMul(q{i}, l{i})"
            f" {scores.format(i=i)} a{i} = Softmax<axis = -1>(t{i}) b{i} = MatMul(a{i}, h{i})"
            f" d{i} = Transpose<perm = [0, 2, 1, 3]>(b{i}) e{i} = Reshape(d{i}, joined) x{i + 1} = Tanh(e{i})"
        )
    shape = f"float[2, {LENGTH}, {WIDTH}]"
    text = f"g ({shape} x0) => ({shape} x{len(_SCORES)}) {{ {' '.join(steps)} }}"
    random = np.random.default_rng(3)
    return named(
        text,
        w=random.normal(0, 0.3, (WIDTH, 3 * WIDTH)).astype(np.float32),
        apart=np.array([2, LENGTH, 3, 4, WIDTH // 4]),
        joined=np.array([2, LENGTH, WIDTH]),
        c=np.float32(0.75),
        m=random.normal(0, 1, (1, 4, LENGTH, LENGTH)).astype(np.float32),
        m2=random.normal(0, 1, (1, 1, LENGTH, LENGTH)).astype(np.float32),
        **{name: np.array(value) for value, name in enumerate(("zero", "one", "two"))},
    )


def feeds(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Values for the one input of a model of this file."""
    (given,) = model.graph.input
    shape = [dim.dim_value or 3 for dim in given.type.tensor_type.shape.dim]
    return {given.name: np.random.default_rng(4).normal(0, 2, shape).astype(np.float32)}


def without_overloads(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model as a tool writes it anew that does not know of overloads."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    for named in (*result.functions, *result.graph.node):
        named.overload = ""
    return result


def as_before(model: onnx.ModelProto, last: int) -> onnx.ModelProto:
    """The fused model as versions of onnxfuse wrote it that had ``last`` names for FusedElementwise.

    Functions beyond them share the last name, and each reads an attribute that only its own nodes have.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    names = [f"FusedElementwise_{last}"] * len(result.functions)
    names[: last - 1] = [function.name for function in result.functions[: last - 1]]
    own = {}
    for function, name in zip(result.functions, names, strict=True):
        for node in function.node:
            node.name = ""
        attribute = f"is_{function.overload}" if name == names[-1] else ""
        own[function.name] = name, attribute
        function.name = name
        if attribute:
            one = onnx.helper.make_node("Constant", [], ["one"], value=numpy_helper.from_array(np.float32(1), "one"))
            cast = onnx.helper.make_node("Cast", ["one"], ["overload"])
            cast.attribute.add(name="to", type=onnx.AttributeProto.INT, ref_attr_name=attribute)
            body = [one, cast, *function.node]
            del function.node[:]
            function.node.extend(body)
            function.attribute.append(attribute)
    for node in result.graph.node:
        if node.domain == "onnxfuse":
            node.op_type, attribute = own[node.op_type]
            if attribute:
                node.attribute.append(onnx.helper.make_attribute(attribute, 1))
    return result


def named(text: str, **constants: np.ndarray) -> onnx.ModelProto:
    """A model whose nodes have names, as those of exporters have."""
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]>\n{text}')
    for index, node in enumerate(model.graph.node):
        node.name = f"node_{index}"
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()
    )
    return model
