"""Several sessions and threads at once, outputs in the memory of inputs, changing shapes, and no leak."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from onnxfuse.program import reference
from onnxfuse.program.program import Program
from tests.custom_ops.fused import (
    assert_same_bits,
    fused_node,
    make_model,
    new_session,
    run,
    run_code,
    run_fused,
    sample,
    session_options,
)
from tests.support.threads import run_in_threads

# Two shapes of values (so scratch memory between stages), a value kept for a second output, a broadcast operand.
PROGRAM = (
    "onnxfuse 1\ninput f32 broadcast\ninput f32 broadcast\nreciprocal f32 1\nmul f32 0 2\nrelu f32 3\nadd f32 4 0\n"
    "output 5\noutput 3\noutput 2\n"
)


def chain_of_nodes() -> onnx.ModelProto:
    """Fused nodes in a row: ORT gives each the memory of the values that die in it."""
    nodes = [
        helper.make_node("Neg", ["x0"], ["a0"]),
        helper.make_node("Neg", ["x1"], ["b0"]),
        *(fused_node(PROGRAM, [f"a{i}", f"b{i}"], [f"a{i + 1}", f"c{i}", f"b{i + 1}"]) for i in range(3)),
        helper.make_node("Neg", ["a3"], ["y0"]),
        helper.make_node("Neg", ["c2"], ["y1"]),
    ]
    for index, node in enumerate(nodes):
        node.name = f"node_{index}"
    inputs: dict[str, tuple[str, Sequence[int | str] | None]] = {
        "x0": ("f32", ["n", "c", "w"]),
        "x1": ("f32", ["c", 1]),
    }
    return make_model(nodes, inputs, {"y0": ("f32", None), "y1": ("f32", None)})


def inputs_of(seed: int, repeat: int) -> list[np.ndarray]:
    channels = 1 + (seed + repeat) % 4
    width = (1, 7, 64, 300, 2000)[(seed * 3 + repeat) % 5]
    x = sample("f32", 3 * channels * width, seed, special=False).reshape(3, channels, width)
    return [x, np.abs(sample("f32", channels, repeat, special=False)).reshape(channels, 1) + np.float32(0.5)]


def expected(arrays: list[np.ndarray]) -> list[np.ndarray]:
    a, b = (-x for x in arrays)
    program = Program.parse(PROGRAM)
    for _ in range(3):
        a, c, b = reference.run(program, [a, b])
    return [-a, -c]


def test_sessions_and_threads_at_once() -> None:
    """Three sessions, two of them with threads of their own, each run by three threads with changing shapes."""
    model = chain_of_nodes()
    sessions = [new_session(model, session_options(threads)) for threads in (1, 2, 2)]

    def work(index: int) -> None:
        for repeat in range(40):
            arrays = inputs_of(index, repeat)
            for actual, wanted in zip(run(sessions[index % 3], arrays), expected(arrays), strict=True):
                assert_same_bits(actual, wanted)

    run_in_threads(work, range(9))


def test_sessions_come_and_go_while_others_run() -> None:
    model = chain_of_nodes()
    lasting = new_session(model, session_options())

    def work(index: int) -> None:
        for repeat in range(15):
            session = lasting if index == 0 else new_session(model, session_options(1 + index % 2))
            arrays = inputs_of(index, repeat)
            for actual, wanted in zip(run(session, arrays), expected(arrays), strict=True):
                assert_same_bits(actual, wanted)

    run_in_threads(work, range(4))


def resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * 4096


def test_memory_does_not_grow() -> None:
    """Runs with a thousand shapes again and again, so that plans and scratch come and go.

    A leak grows in every round; what else this process does to its heap does not.
    """
    session = new_session(chain_of_nodes(), session_options())
    arrays = [np.ones((4, 3, 5000), np.float32), np.ones((3, 1), np.float32)]
    resident = []
    for _ in range(5):
        for width in range(4001, 5001):
            run(session, [arrays[0][:, :, :width], arrays[1]])
        resident.append(resident_bytes())
    growth = [after - before for before, after in pairwise(resident)]
    assert min(growth) < 256 << 10, growth


@pytest.mark.parametrize("count", [130, 1900])
def test_many_values_do_not_fill_a_small_stack(count: int) -> None:
    """In a process of its own, which ends where a thread's stack does."""
    code = f"""
import threading
from tests.custom_ops.library.test_stress import assert_many_values
threading.stack_size(512 << 10)
thread = threading.Thread(target=assert_many_values, args=({count},))
thread.start()
thread.join()
"""
    done = run_code(code)
    assert (done.returncode, done.stdout.strip()) == (0, "the same"), done.stderr


def assert_many_values(count: int) -> None:
    """Runs a program whose values are all alive at once, beside an operand that repeats, and so makes tiles large."""
    lines = ["onnxfuse 1", "input f64 broadcast", "input f64 broadcast", "sub f64 0 1"]
    lines += [f"sub f64 {value} 1" for value in range(2, count + 1)]
    lines += [f"max f64 {count + 1 + step} {count - step}" for step in range(count - 1)]
    program = "\n".join([*lines, f"output {2 * count}", ""])
    arrays = [sample("f64", 6 * 1024).reshape(6, 8, 128), sample("f64", 8, 1, special=False).reshape(8, 1)]
    expected = reference.run(Program.parse(program), arrays)[0]
    for threads in (1, 2):
        assert_same_bits(run_fused(program, arrays, threads)[0], expected)
    print("the same")
