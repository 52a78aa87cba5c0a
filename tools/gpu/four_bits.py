"""Weights of matrix products rounded to 4 bits in blocks, for MatMulNBits of ONNX Runtime."""

from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

DOMAIN = "com.microsoft"
BLOCK = 32


def four_bit_model(path: Path, out: Path) -> Path:
    """Write the model at ``path`` with every constant float32 matrix that a MatMul multiplies by in 4 bits, with a
    scale and a zero point for each block of 32, to ``out``, which is returned."""
    model = onnx.load(path)
    graph = model.graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    made: dict[str, list[str]] = {}
    for node in graph.node:
        tensor = stored.get(node.input[1]) if node.op_type == "MatMul" and not node.domain else None
        if (
            tensor is None
            or tensor.data_type != onnx.TensorProto.FLOAT
            or len(tensor.dims) != 2
            or tensor.dims[0] % BLOCK
        ):
            continue
        if tensor.name not in made:
            parts = four_bits(numpy_helper.to_array(tensor))
            made[tensor.name] = [f"{tensor.name}_{what}" for what in ("bits", "scales", "zeros")]
            graph.initializer.extend(map(numpy_helper.from_array, parts, made[tensor.name]))
        rows, columns = tensor.dims
        quantized = helper.make_node(
            "MatMulNBits",
            [node.input[0], *made[tensor.name]],
            list(node.output),
            name=node.name,
            domain=DOMAIN,
            **{"K": rows, "N": columns, "bits": 4, "block_size": BLOCK},
        )
        node.CopyFrom(quantized)
    read = {name for node in graph.node for name in node.input}
    kept = [tensor for tensor in graph.initializer if tensor.name in read]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    if all(opset.domain != DOMAIN for opset in model.opset_import):
        model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    onnx.save(model, out)
    return out


def four_bits(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A [K, N] matrix as MatMulNBits has it: whole numbers of 0 to 15, two a byte, [N, blocks, bytes], scales
    [N · blocks], and zero points, two a byte, [N, bytes of a row]."""
    blocks = matrix.T.reshape(matrix.shape[1], -1, BLOCK)
    low, high = np.minimum(blocks.min(axis=2), 0), np.maximum(blocks.max(axis=2), 0)
    scales = np.where(high > low, (high - low) / 15, 1).astype(np.float32)
    zeros = np.rint(-low / scales).clip(0, 15).astype(np.uint8)
    numbers = np.rint(blocks / scales[..., None] + zeros[..., None]).clip(0, 15).astype(np.uint8)
    padded = np.pad(zeros, ((0, 0), (0, zeros.shape[1] % 2)))
    return _packed(numbers), scales.reshape(-1), _packed(padded)


def _packed(numbers: np.ndarray) -> np.ndarray:
    return numbers[..., 0::2] | (numbers[..., 1::2] << 4)
