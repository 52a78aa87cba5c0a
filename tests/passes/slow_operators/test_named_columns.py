"""Products of which few columns are read, and scores of relative positions: what is computed, and the same results."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest

import onnxfuse
from tests.passes.models import apply, assert_close, model, node, ops, random, reasons

GATHERED = [node("MatMul", "x w", "p"), node("GatherElements", "p c", "y", axis=-1)]


def distances(rows: int, length: int, step: int, first: int) -> np.ndarray:
    """The column for each row and key: the one behind is ``step`` further for each key, and back for each row."""
    return first + step * (np.arange(length) - np.arange(rows)[:, None])


def gathered(
    columns: np.ndarray, count: int, batch: Sequence[int] = (3,), size: int = 8, nodes: Sequence[onnx.NodeProto] = ()
) -> onnx.ModelProto:
    """A product of ``count`` columns, of which these are read."""
    weights = random(*batch, size, count, seed=1)
    rows = columns.shape[-2]
    known = {"w": weights, "c": np.broadcast_to(columns, (*batch, *columns.shape[-2:])).copy()}
    return model(nodes or GATHERED, {"x": [*batch, rows, size]}, constants=known)


def rewrite(proto: onnx.ModelProto, target: str = "cuda") -> tuple[list[str], str]:
    """The operators after the pass, and its reasons; results agree."""
    after, context = apply(proto, "slow-operators", target=target)
    shape = [dim.dim_value for dim in proto.graph.input[0].type.tensor_type.shape.dim]
    assert_close(proto, after, {"x": random(*shape)}, 64)
    return ops(after), reasons(context)


VIEW = ["Reshape", "Slice", "Reshape", "Slice"]
ONE = ["Gather", "MatMul", *VIEW]
BLOCKS = ["Gather", "Transpose", "Reshape", "MatMul", *VIEW, "Reshape"]


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("rows", "length", "count", "made"),
    [
        (5, 7, 32, ONE),
        (5, 7, 11, ONE),  # all that are named
        (2, 9, 10, ONE[:-1]),
        (9, 2, 32, ONE),
        (128, 128, 255, ONE),  # blocks would have more constants
        (128, 128, 512, BLOCKS),
        (192, 16, 240, BLOCKS),
        (192, 16, 208, ONE),
        (130, 16, 512, BLOCKS),  # two of 65
        (131, 16, 512, ONE),
    ],
)
@pytest.mark.parametrize("step", [1, -1])
def test_scores_of_relative_positions(
    target: str, rows: int, length: int, count: int, made: list[str], step: int
) -> None:
    room = count - (rows + length - 1)
    first = room // 2 + (rows - 1 if step > 0 else length - 1)
    assert rewrite(gathered(distances(rows, length, step, first), count), target) == (made, "")


def test_columns_that_count_from_the_end() -> None:
    assert rewrite(gathered(distances(5, 7, 1, 4) - 16, 16)) == (ONE, "")


@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_batches(batch: tuple[int, ...]) -> None:
    assert rewrite(gathered(distances(128, 128, -1, 300), 512, batch)) == (BLOCKS, "")


def test_a_matrix_for_all_batches() -> None:
    proto = gathered(distances(128, 128, 1, 200), 512, (2,))
    proto.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(random(8, 512), "w"))
    assert rewrite(proto) == (BLOCKS, "")


def test_random_shapes() -> None:
    generator = np.random.default_rng(0)
    for _ in range(30):
        rows, length = (int(size) for size in generator.integers(3, 200, 2))
        step, room = int(generator.choice([-1, 1])), int(generator.integers(0, 300))
        first = int(generator.integers(0, room + 1)) + (rows - 1 if step > 0 else length - 1)
        made, reason = rewrite(gathered(distances(rows, length, step, first), rows + length - 1 + room))
        assert made in (ONE, BLOCKS) and not reason


def buckets(rows: int, count: int) -> np.ndarray:
    """Distances that share a column the larger they are."""
    apart = np.arange(rows)[:, None] - np.arange(rows)
    return (count // 2 + np.sign(apart) * np.ceil(np.sqrt(np.abs(apart)))).astype(np.int64)


def test_columns_in_another_order_are_gathered_still() -> None:
    assert rewrite(gathered(buckets(100, 64), 64)) == (["Gather", "Gather", "MatMul", "GatherElements"], "")


def test_columns_that_differ_from_batch_to_batch() -> None:
    columns = np.stack([distances(5, 7, 1, 4), distances(5, 7, 1, 6)])
    after, reason = rewrite(gathered(columns, 32, (2,)))
    assert after == ["Gather", "Gather", "MatMul", "GatherElements"] and not reason


def computed(columns: np.ndarray) -> list[onnx.NodeProto]:
    """As exporters write it: the columns and the second factor are made of other constants."""
    return [
        node("Tile", "w once", "w2"),
        node("Mul", "c one", "c2"),
        node("MatMul", "x w2", "p"),
        node("GatherElements", "p c2", "y", axis=2),
    ]


def test_what_is_computed_of_constants() -> None:
    columns = distances(5, 7, -1, 10)
    proto = gathered(columns, 32, nodes=computed(columns))
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.array(value), name) for name, value in (("once", [1, 1, 1]), ("one", 1))
    )
    assert rewrite(proto) == (["Tile", *ONE], "")


def refused(case: str) -> tuple[onnx.ModelProto, str]:
    columns = distances(5, 7, 1, 10)
    match case:
        case "most columns":
            return gathered(np.random.default_rng(0).permuted(np.tile(np.arange(9), (5, 1)), axis=1), 9), "most columns"
        case "another reader":
            nodes = [*GATHERED[:1], node("GatherElements", "p c", "g", axis=-1), node("ReduceMax", "p", "m", axes=[-1])]
            return gathered(columns, 32, nodes=[*nodes, node("Add", "g m", "y")]), "used elsewhere"
        case "another axis":
            return gathered(
                np.zeros((5, 32), np.int64), 32, nodes=[GATHERED[0], node("GatherElements", "p c", "y", axis=1)]
            ), ""
        case "fewer rows":
            proto = gathered(columns, 32)
            proto.graph.initializer[1].CopyFrom(onnx.numpy_helper.from_array(np.stack([columns[:4]] * 3), "c"))
            return proto, ""
    raise AssertionError(case)


@pytest.mark.parametrize("case", ["most columns", "another reader", "another axis", "fewer rows"])
def test_refusals(case: str) -> None:
    proto, reason = refused(case)
    after, said = rewrite(proto)
    assert "Gather" not in after and "GatherElements" in after and (reason in said if reason else not said)


def test_columns_that_an_input_names() -> None:
    columns = distances(5, 7, 1, 4)
    proto = gathered(columns, 32)
    del proto.graph.initializer[1:]
    proto.graph.input.append(onnx.helper.make_tensor_value_info("c", onnx.TensorProto.INT64, [3, 5, 7]))
    after, _ = apply(proto, "slow-operators", target="cuda")
    assert ops(after) == ["MatMul", "GatherElements"]


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_the_sum_of_both_scores_of_deberta_is_one_node(target: str, dtype: type) -> None:
    """Those of queries with positions, and those of keys, transposed."""
    nodes = [
        node("MatMul", "q v", "a"), node("GatherElements", "a forth", "g", axis=-1), node("Div", "g s", "d"),
        node("MatMul", "k w", "b"), node("GatherElements", "b back", "h", axis=-1),
        node("Transpose", "h", "t", perm=[0, 2, 1]), node("Div", "t s", "e"), node("Add", "d e", "y"),
    ]  # fmt: skip
    constants = {
        "v": random(3, 8, 400).astype(dtype), "w": random(3, 8, 400, seed=1).astype(dtype), "s": np.array(2, dtype),
        "forth": np.stack([distances(128, 128, -1, 200)] * 3), "back": np.stack([distances(128, 128, 1, 200)] * 3),
    }  # fmt: skip
    proto = model(nodes, {"q": [3, 128, 8], "k": [3, 128, 8]}, constants=constants, dtype=dtype)
    result = onnxfuse.optimize(proto, target, embed=target == "cpu", check=True).model
    found = [one.op_type for one in result.graph.node if one.op_type != "Reshape"]
    computed = [one for one in found if one not in ("Gather", "Transpose", "Cast")]
    assert sorted(computed) == ["FusedElementwise", "MatMul", "MatMul"]
