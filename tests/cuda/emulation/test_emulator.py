"""The emulation itself: it must see what a wrong kernel does, and run barriers and warp functions as a device does."""

import struct
from functools import cache

import numpy as np
import pytest

from onnxfuse.cuda.arguments import pack_divider
from onnxfuse.cuda.kernel import Access, Kernel, Source
from onnxfuse.cuda.prelude import prelude
from tests.cuda.emulation.emulator import Emulation, ViolationError, aligned

# Kernels of (const f32* in0, f32* out0, u32 count) for 64 elements, where i is the number of the thread; what they do
# wrong, and what is said of it.
WRONG = {
    "reads_past_the_end": ("store(out0, i, load(in0, i + 1));", "thread 63: in0: element 64 of 64 read"),
    "reads_before_the_start": ("store(out0, i, load(in0, i - 1));", r"thread 0: in0: element \d+ of 64 read"),
    "writes_past_the_end": ("store(out0, i + 1, load(in0, i));", "thread 63: out0: element 64 of 64 written"),
    "writes_twice": ("store(out0, i / 2, load(in0, i));", "thread 1: out0: element 0 of 64 written twice"),
    "leaves_out_elements": ("if (i != 5) store(out0, i, load(in0, i));", "out0: element 20 of 256 bytes never written"),
    "reads_unaligned_vectors": (
        "if (i % 4 == 0) store_pack(out0, i, load_pack<4>(in0, i == 8 ? i + 1 : i));",
        "in0: elements 9 to 12 of 64 accessed with alignment 16",
    ),
    "writes_an_input": ("store(const_cast<f32*>(in0), i, 0.0f);", "a pointer that is no operand is written"),
}

WRONG_BARRIERS = {
    "different_barriers": ("if (i < 32) __syncwarp(); else if (i > 40) __syncwarp();", "at different barriers"),
    "half_of_a_warp": ("if (i % 2) __syncwarp(0xffffffffu);", "at different barriers"),
    "outside_of_the_mask": ("__syncwarp(0x0000ffffu);", "not in the mask"),
    "absent_lane": ("if (i < 16) __shfl_sync(0xffffu, 1, 20);", "not in its mask"),
}

BARRIERS = {
    "reverses_blocks": """
      __shared__ f32 tile[64];
      tile[threadIdx.x] = load(in0, i);
      __syncthreads();
      const f32 other = tile[63 - threadIdx.x];
      __syncthreads();
      tile[threadIdx.x] = other;
      __syncthreads();
      store(out0, i, other + tile[0]);
    """,
    "returns_early": """
      store(out0, i, 1.0f);
      if (threadIdx.x >= 32) return;
      __syncthreads();
    """,
    "shuffles": """
      const u32 all = 0xffffffffu;
      const f32 x = load(in0, i);
      f32 sum = x;
      for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(all, sum, step);
      const f32 left = __shfl_up_sync(all, x, 1);
      const f32 right = __shfl_down_sync(all, x, 1, 8);
      const f32 first = __shfl_sync(all, x, 0, 8);
      const u32 odd = __ballot_sync(all, threadIdx.x % 2);
      store(out0, i, sum + 1000 * left + 1e6f * right + (odd == 0xaaaaaaaau ? 0.5f : 0.0f) - first);
    """,
}


def source(name: str, body: str, parameters: str = "const f32* in0, f32* out0, u32 count") -> Source:
    text = (
        f'namespace onnxfuse {{\nextern "C" __global__ void {name}({parameters}) {{\n'
        f"  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;\n{body}\n}}\n}}\n"
    )
    return Source(prelude(), text, (Kernel(name, 1, 64, 32, Access("l", "l")),))


DIVIDE = source(
    "divide",
    "const u32 x = load(in0, i);\nstore(out0, i, divider.quotient(x) + (divider.remainder(x) << 31));",
    "const u32* in0, u32* out0, Divider<u32> divider",
)


@cache
def without_barriers() -> Emulation:
    return Emulation([DIVIDE, *(source(name, body) for name, (body, _) in WRONG.items())])


@cache
def with_barriers() -> Emulation:
    wrong = {name: body for name, (body, _) in WRONG_BARRIERS.items()}
    return Emulation(source(name, body) for name, body in {**BARRIERS, **wrong}.items())


def launch(emulation: Emulation, name: str, x: np.ndarray, last: bytes = b"", dtype: str = "f32") -> np.ndarray:
    """Run the kernel in blocks of 64 threads, one an element, on memory that is aligned to 16 bytes."""
    given, result = aligned(dtype, x.size, 0), aligned(dtype, x.size, 0)
    given[...] = x
    arguments = [struct.pack("<Q", memory.ctypes.data) for memory in (given, result)]
    operands = [(n, m.ctypes.data, m.nbytes) for n, m in (("in0", given), ("out0", result))]
    emulation.launch(name, [*arguments, last or struct.pack("<I", x.size)], x.size // 64, 64, operands)
    return result


@pytest.mark.parametrize("name", WRONG)
def test_wrong_accesses_are_reported(name: str) -> None:
    with pytest.raises(ViolationError, match=WRONG[name][1]):
        launch(without_barriers(), name, np.arange(64, dtype=np.float32))


def test_an_unknown_kernel_is_reported() -> None:
    with pytest.raises(ViolationError, match="no kernel unknown"):
        launch(without_barriers(), "unknown", np.zeros(64, np.float32))


def test_blocks_share_memory_at_barriers() -> None:
    x = np.arange(256, dtype=np.float32)
    rows = x.reshape(4, 64)[:, ::-1]
    result = launch(with_barriers(), "reverses_blocks", x)
    np.testing.assert_array_equal(result.reshape(4, 64), rows + rows[:, :1])


def test_threads_that_returned_are_not_waited_for() -> None:
    assert launch(with_barriers(), "returns_early", np.zeros(64, np.float32)).sum() == 64


def test_warps_exchange_values() -> None:
    x = np.arange(64, dtype=np.float32)
    left = np.concatenate([[0], x[:31], [32], x[32:63]])
    right = np.where(x % 8 == 7, x, x + 1)
    expected = np.repeat(x.reshape(2, 32).sum(1), 32) + 1000 * left + 1e6 * right + 0.5 - x // 8 * 8
    np.testing.assert_allclose(launch(with_barriers(), "shuffles", x), expected, rtol=1e-6)


@pytest.mark.parametrize("name", WRONG_BARRIERS)
def test_wrong_barriers_are_reported(name: str) -> None:
    with pytest.raises(ViolationError, match=WRONG_BARRIERS[name][1]):
        launch(with_barriers(), name, np.zeros(64, np.float32))


def test_division_by_multiplication_is_exact() -> None:
    random = np.random.default_rng(0)
    limit = (1 << 31) - 1
    divisors = [1, 2, 3, 5, 7, 10, 641, 65535, 65536, 65537, limit // 2, limit // 2 + 1, limit - 1, limit]
    divisors += [int(d) for d in np.exp2(random.uniform(0, 31, 40))]
    for divisor in divisors:
        near = np.arange(1, 65) * divisor
        x = np.concatenate([near - 1, near, near + 1, random.integers(0, limit, 64)]) % (limit + 1)
        result = launch(without_barriers(), "divide", x, pack_divider(divisor, 32), "u32")
        np.testing.assert_array_equal(result, (x // divisor + (x % divisor << 31)) & 0xFFFFFFFF)
