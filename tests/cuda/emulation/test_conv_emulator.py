"""The emulation of what convolutions use: it must see what a wrong kernel does with shared memory, copies and warps."""

import struct
from functools import cache

import numpy as np
import pytest

from onnxfuse.cuda.kernel import Access, Kernel, Source
from onnxfuse.cuda.prelude import conv_prelude
from tests.cuda.emulation.emulator import Emulation, ViolationError, aligned

# Kernels of (const f32* in0, f32* out0) for one block of 64 threads, where i is the number of the thread.
SHARED = "__shared__ SharedArray<f32, 64> tile;\n__shared__ SharedArray<u16, 128> copied;\n"
RACES_FOR = {
    what: f"shared memory: a thread {what} what another one uses, without a barrier between"
    for what in ("reads", "writes")
}
WRONG = {
    "writes_behind_shared_memory": ("tile.put(i + 1, 1.0f);", "thread 63: shared memory: 1 elements from 64 of 64"),
    "reads_unaligned_vectors": (
        "if (i == 8) tile.get_pack<4>(6);",
        "thread 8: shared memory: 4 elements from 6 of 64, aligned to 4",
    ),
    "reads_before_it_is_written": ("if (i < 32) tile.put(i, 1.0f);\nelse tile.get(63 - i);", RACES_FOR["reads"]),
    "writes_before_it_is_read": ("if (i < 32) tile.get(i);\nelse tile.put(63 - i, 2.0f);", RACES_FOR["writes"]),
    "orders_two_warps_by_their_own_barriers": (
        "if (i < 32) tile.put(i, 1.0f);\n__syncwarp();\nif (i >= 32) tile.get(63 - i);",
        RACES_FOR["reads"],
    ),
    "orders_lanes_by_nothing": ("tile.put(i, 1.0f);\ntile.get(i ^ 1);", RACES_FOR["writes"]),
    "copies_over_what_is_read": (
        "if (i < 32) copied.get(2 * i);\nelse copy_async<1>(copied.at<2>(2 * (63 - i)), in0, i, true);",
        RACES_FOR["writes"],
    ),
    "copies_behind_the_end": (
        "copy_async<1>(copied.at<2>(2 * i), in0, i + 1, true);",
        "thread 63: in0: element 64 of 64 read",
    ),
    "multiplies_with_half_a_warp": (
        "u32 a[4] = {}, b[2] = {};\nf32 c[4] = {};\nif (i % 32 < 16) multiply_tf32(a, b, c);",
        "at different barriers",
    ),
}
RIGHT = """
  tile.put(i, 1.0f);
  __syncwarp();
  store(out0, i, tile.get(i ^ 1));
  __syncthreads();
  tile.put(63 - i, 1.0f);
"""
COPIES = """
  copied.put(2 * i, 0);
  copied.put(2 * i + 1, 0);
  copy_async<1>(copied.at<2>(2 * i), in0, i, i < 48);
  commit_copies();
  copy_async<1>(copied.at<2>(2 * i), in0, 0, true);
  commit_copies();
  wait_for_copies<WAITED>();
  __syncthreads();
  const int other = 63 - i;
  store(out0, i, from_bits<f32>(copied.get(2 * other) | static_cast<u32>(copied.get(2 * other + 1)) << 16));
  __syncthreads();
  wait_for_copies<0>();
"""


def source(name: str, body: str) -> Source:
    text = (
        f'namespace onnxfuse {{\nextern "C" __global__ void {name}(const f32* in0, f32* out0) {{\n'
        f"  const int i = threadIdx.x;\n{SHARED}{body}\n}}\n}}\n"
    )
    return Source(conv_prelude(), text, (Kernel(name, 1, 64, 32, Access("l", "l")),))


@cache
def emulation() -> Emulation:
    copies = [source(f"waits_for_{2 - left}", COPIES.replace("WAITED", str(left))) for left in range(3)]
    return Emulation([*copies, source("in_order", RIGHT), *(source(name, body) for name, (body, _) in WRONG.items())])


def launch(name: str, x: np.ndarray) -> np.ndarray:
    given, result = aligned("f32", 64, 0), aligned("f32", 64, 0)
    given[...] = x
    operands = [("in0", given.ctypes.data, given.nbytes), ("out0", result.ctypes.data, result.nbytes)]
    emulation().launch(name, [struct.pack("<Q", address) for _, address, _ in operands], 1, 64, operands)
    return result


@pytest.mark.parametrize("name", WRONG)
def test_wrong_kernels_are_reported(name: str) -> None:
    with pytest.raises(ViolationError, match=WRONG[name][1]):
        launch(name, np.ones(64, np.float32))


def test_barriers_put_accesses_in_order() -> None:
    np.testing.assert_array_equal(launch("in_order", np.zeros(64)), np.ones(64))


def test_copies_are_there_once_they_are_waited_for() -> None:
    x = np.arange(1, 65, dtype=np.float32)
    first = np.where(np.arange(64) < 48, x, 0)[::-1]  # zeros for what is not inside
    np.testing.assert_array_equal(launch("waits_for_0", x), np.zeros(64))
    np.testing.assert_array_equal(launch("waits_for_1", x), first)
    np.testing.assert_array_equal(launch("waits_for_2", x), np.ones(64))
