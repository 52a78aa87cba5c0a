"""Models that run without ONNX Runtime: the same bits as in a session, and one line for what cannot run."""

import copy
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfuse
from onnxfuse.run.sessions import Session
from tests.support.fusing import fuse_everything, same_bits

FLOAT = TensorProto.FLOAT


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int, list[int | str]]],
    outputs: dict[str, int],
    initializers: dict[str, np.ndarray] | None = None,
) -> onnx.ModelProto:
    given = [helper.make_tensor_value_info(name, *kind) for name, kind in inputs.items()]
    wanted = [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()]
    tensors = [numpy_helper.from_array(array, name) for name, array in (initializers or {}).items()]
    graph = helper.make_graph(nodes, "g", given, wanted, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def chain(kind: int = FLOAT, shape: tuple[int | str, ...] = ("n", 64)) -> onnx.ModelProto:
    """y = relu(x * s) + x for a scale of 64 channels, one fused node."""
    nodes = [
        helper.make_node("Mul", ["x", "s"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Add", ["b", "x"], ["y"]),
    ]
    scale = np.linspace(-1, 1, 64).astype(helper.tensor_dtype_to_np_dtype(kind))
    return fuse_everything(model_of(nodes, {"x": (kind, list(shape))}, {"y": kind}, {"s": scale}))


def two_nodes() -> onnx.ModelProto:
    """A normalization of rows and a mean of columns among elementwise nodes; and an output in the middle."""
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["square"]),
        helper.make_node("LayerNormalization", ["square", "scale"], ["normal"], axis=-1),
        helper.make_node("Sigmoid", ["normal"], ["gate"]),
        helper.make_node("ReduceMean", ["gate"], ["mean"], axes=[0]),
        helper.make_node("Sub", ["gate", "mean"], ["centred"]),
        helper.make_node("Add", ["centred", "square"], ["y"]),
    ]
    scale = np.linspace(0.5, 2, 64, dtype=np.float32)
    model = model_of(nodes, {"x": (FLOAT, ["n", 64])}, {"y": FLOAT, "square": FLOAT}, {"scale": scale})
    return onnxfuse.optimize(model, "cpu", check=False).model


def in_session(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = Session(model.SerializeToString(), library=True, threads=1)
    return [np.asarray(value) for value in session.run(dict(feeds))]


def values(shape: tuple[int, ...], dtype: object = np.float32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 3, shape).astype(np.dtype(dtype))  # type: ignore[call-overload]


@pytest.mark.parametrize("threads", [1, 2, 7])
@pytest.mark.parametrize("kind", [FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_same_bits_as_in_a_session(kind: int, threads: int) -> None:
    """For shapes that change from run to run, from none to more elements than one thread takes alone."""
    model = chain(kind)
    executable = onnxfuse.Executable(model, threads=threads)
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    for rows in (1, 0, 3, 5000, 5000, 3):
        feeds = {"x": values((rows, 64), dtype, seed=rows)}
        (actual,), (expected,) = executable.run(None, feeds), in_session(model, feeds)
        assert same_bits(actual, expected)


def test_results_are_new_arrays() -> None:
    executable = onnxfuse.Executable(chain())
    runs = [executable.run(["y"], {"x": np.full((2, 64), value, np.float32)})[0] for value in (1, 2, 3, 4)]
    assert [float(run[0, -1]) for run in runs] == [2, 4, 6, 8]
    for run in runs:
        run[...] = 0  # nothing else has this memory
    assert executable.run(None, {"x": np.ones((2, 64), np.float32)})[0][1, -1] == 2


def test_several_nodes_and_outputs() -> None:
    model = two_nodes()
    assert len(model.graph.node) > 1
    executable = onnxfuse.Executable(model, threads=2)
    assert executable.input_names == ["x"]
    assert executable.output_names == ["y", "square"]
    for rows in (3, 700, 3):
        feeds = {"x": values((rows, 64), seed=rows)}
        for actual, expected in zip(executable.run(None, feeds), in_session(model, feeds), strict=True):
            assert same_bits(actual, expected)
    square, y, again = executable.run(["square", "y", "square"], feeds)
    assert same_bits(square, again)
    assert same_bits(square, feeds["x"] * feeds["x"])
    assert same_bits(y, executable.run(["y"], feeds)[0])


def test_convolutions_whose_layout_changes() -> None:
    """Nodes of every kind run, such as convolutions with the channels last, whose memory ONNX Runtime would give."""
    rng = np.random.default_rng(1)
    weights = {"w": rng.normal(0, 0.2, (32, 16, 1, 1)), "v": rng.normal(0, 0.2, (32, 1, 3, 3))}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"]),
        helper.make_node("HardSwish", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "v"], ["c"], group=32, pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    arrays = {name: array.astype(np.float32) for name, array in weights.items()}
    model = model_of(nodes, {"x": (FLOAT, [1, 16, 40, 40])}, {"y": FLOAT}, arrays)
    optimized = onnxfuse.optimize(model, "cpu", conv="all", check=False).model
    if any(node.domain != "onnxfuse" for node in optimized.graph.node):
        pytest.fail(f"not all fused: {[node.op_type for node in optimized.graph.node]}")
    feeds = {"x": values((1, 16, 40, 40))}
    (actual,) = onnxfuse.Executable(optimized, threads=2).run(None, feeds)
    (expected,) = in_session(optimized, feeds)
    assert same_bits(actual, expected)


def test_integers_booleans_and_broadcasts() -> None:
    nodes = [
        helper.make_node("Less", ["i", "j"], ["less"]),
        helper.make_node("Where", ["less", "i", "j"], ["w"]),
        helper.make_node("Div", ["w", "j"], ["y"]),
        helper.make_node("Cast", ["y"], ["z"], to=TensorProto.UINT8),
    ]
    kinds = {"i": (TensorProto.INT32, ["a", 1, "c"]), "j": (TensorProto.INT32, ["b", 1])}
    outputs = {"less": TensorProto.BOOL, "z": TensorProto.UINT8}
    model = fuse_everything(model_of(nodes, kinds, outputs))
    executable = onnxfuse.Executable(model)
    rng = np.random.default_rng(2)
    feeds = {"i": rng.integers(-9, 9, (2, 1, 5), np.int32), "j": rng.integers(1, 9, (3, 1), np.int32)}
    for actual, expected in zip(executable.run(None, feeds), in_session(model, feeds), strict=True):
        assert same_bits(actual, expected)
    feeds["j"][1] = 0
    with pytest.raises(onnxfuse.OnnxfuseError, match="an integer is divided by zero"):
        executable.run(None, feeds)
    feeds["j"][1] = 2  # it goes on after an error
    assert executable.run(None, feeds)[0].shape == (2, 3, 5)


def test_results_live_as_long_as_they_are_used() -> None:
    """Their memory is the library's, and is used again only when no array has it."""
    executable = onnxfuse.Executable(chain(TensorProto.BFLOAT16))
    kept, expected = [], []
    for rows in (5, 300, 5, 5, 2000, 1):
        x = values((rows, 64), ml_dtypes.bfloat16, seed=rows)
        result = executable.run(None, {"x": x})[0]
        expected.append(result.copy())
        kept.append(result[::2].T)
    del executable, result
    for view, wanted in zip(kept, expected, strict=True):
        assert same_bits(view, wanted[::2].T)


def test_shapes_that_alternate() -> None:
    model = two_nodes()
    executable = onnxfuse.Executable(model, threads=2)
    feeds = {rows: {"x": values((rows, 64), seed=rows)} for rows in (1, 900, 40)}
    expected = {rows: in_session(model, feed) for rows, feed in feeds.items()}
    for rows in (1, 900, 1, 1, 40, 900, 900, 40, 1):
        for actual, wanted in zip(executable.run(None, feeds[rows]), expected[rows], strict=True):
            assert same_bits(actual, wanted)


def test_an_output_that_is_named_twice() -> None:
    model = chain()
    model.graph.output.append(model.graph.output[0])
    executable = onnxfuse.Executable(model)
    assert executable.output_names == ["y", "y"]
    one, other = executable.run(None, {"x": np.ones((2, 64), np.float32)})
    assert one[0, -1] == other[0, -1] == 2


def test_a_copy_outlives_what_it_is_of() -> None:
    executable = onnxfuse.Executable(chain())
    other = copy.copy(executable)
    del executable
    assert other.run(None, {"x": np.ones((2, 64), np.float32)})[0][0, -1] == 2


def test_bound_arrays_are_read_and_written_in_place() -> None:
    executable = onnxfuse.Executable(chain(), threads=2)
    x, y = values((300, 64)), np.empty((300, 64), np.float32)
    binding = executable.bind({"x": x}, {"y": y})
    for seed in (1, 2):
        x[...] = values((300, 64), seed=seed)
        binding.run()
        assert binding.outputs()["y"] is y
        assert same_bits(y, executable.run(None, {"x": x.copy()})[0])
    own = executable.bind({"x": x})
    own.run()
    assert same_bits(own.outputs()["y"], y)


def test_an_input_may_be_overwritten_by_the_output_of_the_only_node() -> None:
    executable = onnxfuse.Executable(chain(), threads=2)
    x = values((300, 64))
    (expected,) = executable.run(None, {"x": x.copy()})
    executable.bind({"x": x}, {"y": x}).run()
    assert same_bits(x, expected)


def test_inputs_that_are_not_contiguous_or_read_only() -> None:
    executable = onnxfuse.Executable(chain())
    x = values((64, 10)).T
    read_only = np.ascontiguousarray(x)
    read_only.flags.writeable = False
    (expected,) = executable.run(None, {"x": np.array(x, order="C")})
    for array in (x, read_only, read_only, x.tolist()):
        array = np.asarray(array, np.float32)
        assert same_bits(executable.run(None, {"x": array})[0], expected)
    with pytest.raises(onnxfuse.OnnxfuseError, match="not contiguous"):
        executable.bind({"x": x})


def test_a_default_value_of_an_input() -> None:
    model = chain()
    model.graph.input.append(helper.make_tensor_value_info("s", FLOAT, [64]))
    executable = onnxfuse.Executable(model)
    x = np.ones((2, 64), np.float32)
    assert executable.run(None, {"x": x})[0][0, -1] == 2
    assert executable.run(None, {"x": x, "s": np.full(64, 5, np.float32)})[0][0, -1] == 6
    assert executable.run(None, {"x": x})[0][0, -1] == 2


X = np.ones((2, 64), np.float32)
BAD_CALLS: list[tuple[Callable[[onnxfuse.Executable], object], str]] = [
    (lambda e: e.run(None, {}), "there is no value for input 'x'"),
    (lambda e: e.run(None, {"x": X, "z": X}), "the model has no input 'z'; it has 'x'"),
    (lambda e: e.run(["z"], {"x": X}), "the model has no output 'z'; it has 'y'"),
    (lambda e: e.run(None, {"x": X.astype(np.float64)}), "'x' has the type float64, not float32"),
    (lambda e: e.run(None, {"x": X[:, :32]}), r"'x' has the shape \[2, 32\], and the model takes \['n', 64\]"),
    (lambda e: e.run(None, {"x": X[0]}), r"'x' has the shape \[64\], and the model takes \['n', 64\]"),
    (lambda e: e.run(None, {"x": "text"}), "'x' has the type <U4, not float32"),
    (lambda e: e.run("y", {"x": X}), "the names of outputs are a list, not 'y'"),
    (lambda e: e.run(None, [X]), "inputs are given by name, not as list"),  # type: ignore[arg-type]
    (lambda e: e.bind({"x": [1.0]}), "'x' is list, not a NumPy array"),  # type: ignore[dict-item]
    (lambda e: e.bind({"x": X}, {"z": X}), "the model has no output 'z'"),
    (lambda e: e.bind({"x": X}, {"y": np.empty((2, 64))}), "'y' has the type float64"),
    (lambda e: e.bind({"x": X}, {"y": np.broadcast_to(np.float32(0), (2, 64))}), "not contiguous"),
    (lambda e: e.bind({"x": X}, {"y": np.frombuffer(bytes(512), np.float32).reshape(2, 64)}), "is read-only"),
    (
        lambda e: e.bind({"x": X}, {"y": np.empty((3, 64), np.float32)}).run(),
        r"'y' has the shape \[2,64\], and the array for it \[3,64\]",
    ),
    (lambda e: e.bind({"x": X}).outputs(), "nothing has run yet"),
]


@pytest.mark.parametrize(("call", "message"), BAD_CALLS, ids=[message[:40] for _, message in BAD_CALLS])
def test_bad_calls(call: Callable[[onnxfuse.Executable], object], message: str) -> None:
    executable = onnxfuse.Executable(chain())
    with pytest.raises(onnxfuse.OnnxfuseError, match=message) as caught:
        call(executable)
    assert "\n" not in str(caught.value)
    assert executable.run(None, {"x": X})[0].shape == (2, 64)


def test_the_first_run_after_a_bad_one() -> None:
    """An input that was refused is not read again."""
    executable = onnxfuse.Executable(chain())
    executable.run(None, {"x": X})
    with pytest.raises(onnxfuse.OnnxfuseError):
        executable.run(None, {"x": X[:, :8]})
    assert executable.run(None, {"x": X + 1})[0][0, -1] == 4


def test_arrays_of_several_nodes_lie_apart() -> None:
    executable = onnxfuse.Executable(two_nodes())
    x, y = values((3, 64)), np.empty((3, 64), np.float32)
    for outputs in ({"y": x}, {"y": y, "square": y}):
        with pytest.raises(onnxfuse.OnnxfuseError, match="lies where another one does"):
            executable.bind({"x": x}, outputs)


def bad_model(change: Callable[[onnx.ModelProto], object]) -> onnx.ModelProto:
    model = chain()
    change(model)
    return model


def not_fused(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("Relu", ["y"], ["z"], name="the_relu"))


def unknown_operator(model: onnx.ModelProto) -> None:
    model.graph.node[0].op_type = "FusedNothing"


def damaged_program(model: onnx.ModelProto) -> None:
    next(a for a in model.graph.node[0].attribute if a.name == "program").s = b"onnxfuse 1\nadd f32 7 8\noutput 9\n"


def no_program(model: onnx.ModelProto) -> None:
    del model.graph.node[0].attribute[:]


def output_is_an_input(model: onnx.ModelProto) -> None:
    model.graph.output.append(helper.make_tensor_value_info("x", FLOAT, ["n", 64]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (not_fused, "the_relu.* is not one of onnxfuse's nodes: run the model in onnxfuse.InferenceSession"),
        (unknown_operator, "the library has no operator FusedNothing for the CPU"),
        (damaged_program, "the program attribute is not valid"),
        (no_program, "it has no text as attribute program"),
        (output_is_an_input, "output 'x' is not computed by a node"),
    ],
)
def test_bad_models(change: Callable[[onnx.ModelProto], object], message: str) -> None:
    with pytest.raises(onnxfuse.OnnxfuseError, match=message):
        onnxfuse.Executable(bad_model(change))


def test_constants_of_many_dimensions() -> None:
    model = chain()
    for tensor in model.graph.initializer:
        tensor.dims[:] = [1] * 30 + [64]
    with pytest.raises(onnxfuse.OnnxfuseError, match="has more than 16 dimensions"):
        onnxfuse.Executable(model)


@pytest.mark.parametrize("threads", [0, -1, 5000, 2.0, "2"])
def test_bad_numbers_of_threads(threads: Any) -> None:
    with pytest.raises(onnxfuse.OnnxfuseError, match="threads: from 1 to 1024"):
        onnxfuse.Executable(chain(), threads=threads)


def test_files_that_are_no_models(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    for model in (path, str(path), b"", b"no model"):
        with pytest.raises(onnxfuse.OnnxfuseError):
            onnxfuse.Executable(model)
    onnx.save(chain(), path)
    assert onnxfuse.Executable(path).run(None, {"x": X})[0][0, -1] == 2


def test_many_threads_run_one_executable() -> None:
    executable = onnxfuse.Executable(two_nodes(), threads=3)
    feeds = [{"x": values((200 + 100 * (seed % 3), 64), seed=seed)} for seed in range(6)]
    expected = [executable.run(["y"], one)[0] for one in feeds]

    def run_some(worker: int) -> bool:
        numbers = [(worker + i) % len(feeds) for i in range(60)]
        return all(same_bits(executable.run(["y"], feeds[n])[0], expected[n]) for n in numbers)

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(run_some, range(6)))


def test_a_binding_serves_one_thread_at_a_time() -> None:
    """Another thread is told so; nothing is wrong or crashes."""
    executable = onnxfuse.Executable(two_nodes(), threads=2)
    x = values((4000, 64))
    binding = executable.bind({"x": x})
    refused: list[str] = []

    def run_some() -> None:
        for _ in range(100):
            try:
                binding.run()
            except onnxfuse.OnnxfuseError as error:
                refused.append(str(error))

    threads = [threading.Thread(target=run_some) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(refused) <= {"it is running in another thread"}
    assert len(refused) < 300
    assert same_bits(binding.outputs()["y"], executable.run(["y"], {"x": x})[0])


def test_each_thread_learns_its_own_error() -> None:
    nodes = [helper.make_node("Div", ["i", "j"], ["y"])]
    kinds = {name: (TensorProto.INT32, ["n"]) for name in "ij"}
    executable = onnxfuse.Executable(fuse_everything(model_of(nodes, kinds, {"y": TensorProto.INT32})))
    i, ones, zeros = (np.full(3, value, np.int32) for value in (4, 1, 0))
    binding = executable.bind({"i": i, "j": zeros})
    told: set[str] = set()

    def run_some(worker: int) -> None:
        for _ in range(300):
            try:
                binding.run()
            except onnxfuse.OnnxfuseError as error:
                told.add(str(error).rpartition(": ")[2])
            if worker % 2:
                assert executable.run(None, {"i": i, "j": ones})[0][0] == 4

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run_some, range(4)))
    assert told <= {"an integer is divided by zero", "it is running in another thread"}


def test_what_is_gone_while_others_run_on() -> None:
    """Bindings outlive the names of their executables, and executables those of their models."""
    x = values((5000, 64))
    bindings = [onnxfuse.Executable(chain(), threads=2).bind({"x": x}) for _ in range(20)]
    del bindings[::2]
    for binding in bindings:
        binding.run()
        assert same_bits(binding.outputs()["y"], bindings[0].outputs()["y"])


def test_a_child_of_a_fork_runs() -> None:
    """Threads of the parent are not there."""
    executable = onnxfuse.Executable(chain(), threads=2)
    x = values((5000, 64))
    (expected,) = executable.run(None, {"x": x})
    child = os.fork()
    if child == 0:
        same = same_bits(executable.run(None, {"x": x})[0], expected)
        same = same and same_bits(onnxfuse.Executable(chain(), threads=2).run(None, {"x": x})[0], expected)
        os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert same_bits(executable.run(None, {"x": x})[0], expected)


def test_children_of_forks_while_others_make_executables() -> None:
    code = """
import os, threading, time
import onnxfuse, sys
model = sys.stdin.buffer.read()
onnxfuse.Executable(model, threads=2)  # all that is imported is
def make():
    while True:
        onnxfuse.Executable(model, threads=4)
threading.Thread(target=make, daemon=True).start()
for _ in range(15):
    time.sleep(0.01)
    child = os.fork()
    if child == 0:
        onnxfuse.Executable(model, threads=4)
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""
    ended = subprocess.run([sys.executable, "-c", code], input=chain().SerializeToString(), timeout=120)
    assert ended.returncode == 0


@pytest.mark.parametrize("call", ["binding.run()", "executable.run(None, {'x': x})"])
def test_the_end_of_the_interpreter_while_a_thread_runs(call: str) -> None:
    code = f"""
import sys, threading, time
import numpy, onnxfuse
executable = onnxfuse.Executable(sys.stdin.buffer.read(), threads=2)
x = numpy.ones((20000, 64), numpy.float32)
binding = executable.bind({{"x": x}})
def run():
    while True:
        {call}
threading.Thread(target=run, daemon=True).start()
time.sleep(0.1)
"""
    ended = subprocess.run([sys.executable, "-c", code], input=chain().SerializeToString(), timeout=120)
    assert ended.returncode == 0


def test_onnxruntime_is_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(chain(), path)
    code = (
        "import sys, numpy, onnxfuse\n"
        f"executable = onnxfuse.Executable({str(path)!r})\n"
        "assert executable.run(None, {'x': numpy.ones((2, 64), numpy.float32)})[0][0, -1] == 2\n"
        "assert not any(name.startswith('onnxruntime') for name in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_ml_dtypes_are_taken() -> None:
    x = np.ones((1, 64), ml_dtypes.bfloat16)
    (y,) = onnxfuse.Executable(chain(TensorProto.BFLOAT16)).run(None, {"x": x})
    assert y.dtype == ml_dtypes.bfloat16
    assert float(y[0, -1]) == 2
