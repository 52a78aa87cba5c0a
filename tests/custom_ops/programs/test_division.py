"""Quotients and what is left of a division: integers are divided as floats, and some numbers by no division at all; the
results must be those of the type."""

import numpy as np
import pytest

from tests.custom_ops.fused import NUMPY_TYPES, run_fused

INTEGERS = ("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64")


def program_of(dtype: str) -> str:
    """Quotient and both rests of two inputs."""
    lines = [*[f"input {dtype} broadcast"] * 2, *(f"{op} {dtype} 0 1" for op in ("div", "mod", "fmod"))]
    return "\n".join(["onnxfuse 1", *lines, "output 2", "output 3", "output 4"]) + "\n"


def pairs(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Every pair of 8-bit integers; of others those near powers of two and multiples of each other, and random ones."""
    numpy = NUMPY_TYPES[dtype]
    info = np.iinfo(numpy)
    if info.bits == 8:
        every = np.arange(info.min, info.max + 1)
        a, b = np.meshgrid(every, every)
        return a.astype(numpy).ravel(), b.astype(numpy).ravel()
    random = np.random.default_rng(info.bits)
    near = [sign * 2**k + d for k in range(info.bits) for d in (-1, 0, 1) for sign in (-1, 1)]
    edges = np.array([x for x in {*near, info.min, info.max, 3, 7, 10} if info.min <= x <= info.max], numpy)
    a, b = (grid.ravel() for grid in np.meshgrid(edges, edges))
    wide = random.integers(info.min, info.max, 20_000, dtype=numpy, endpoint=True)
    shifts = random.integers(0, info.bits - 1, 20_000).astype(numpy)
    narrow = wide[::-1] >> shifts
    # Multiples of the divisor and the numbers beside them are where a quotient that is rounded would be wrong.
    with np.errstate(all="ignore"):
        multiple = np.where(narrow == 0, wide, wide - wide % np.where(narrow == 0, 1, narrow)).astype(numpy)
        beside = multiple + random.integers(-1 if info.min else 0, 2, 20_000).astype(numpy)
    return np.concatenate([a, wide, beside]), np.concatenate([b, narrow, narrow])


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers(dtype: str) -> None:
    """Toward zero, and what is left with the sign of the dividend or the divisor, and no trap."""
    a, b = pairs(dtype)
    b = np.where(b == 0, 1, b).astype(a.dtype)
    quotient, modulus, rest = run_fused(program_of(dtype), [a, b])
    with np.errstate(all="ignore"):  # the least integer over -1 wraps around
        left = np.fmod(a, b)
        wanted = ((a - left) // b).astype(a.dtype)
        floored = np.mod(a, b)
    np.testing.assert_array_equal(quotient, wanted)
    np.testing.assert_array_equal(modulus, floored)
    np.testing.assert_array_equal(rest, left)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("scalar", [False, True])
def test_rests_of_floats(dtype: str, scalar: bool) -> None:
    """Those of C's fmod, bit for bit: of near and far sizes, of multiples, zeros, infinities, NaN and denormals."""
    numpy = NUMPY_TYPES[dtype]
    random = np.random.default_rng(7)
    info = np.finfo(numpy)
    count = 200_000
    b = np.ldexp(random.uniform(1, 2, count), random.integers(-30, 30, count)).astype(numpy)
    near = b * random.uniform(-1e6, 1e6, count).astype(numpy)
    multiples = b * random.integers(-(2**12), 2**12, count).astype(numpy)
    far = np.ldexp(random.uniform(-2, 2, count), random.integers(info.minexp, info.maxexp, count)).astype(numpy)
    special = [0, -0.0, np.inf, -np.inf, np.nan, info.tiny, -info.smallest_subnormal, info.max, 1, -1, 0.5]
    x, y = (grid.ravel() for grid in np.meshgrid(*[np.array(special, numpy)] * 2))
    dividends = np.concatenate([near, multiples, np.nextafter(multiples, numpy.type(0)), far, b, x])
    divisors = np.concatenate([b, b, b, b, far, y])
    program = f"onnxfuse 1\ninput {dtype} broadcast\ninput {dtype} broadcast\nfmod {dtype} 0 1\noutput 2\n"
    for divisor in (0.3, -7.0, 1e-30) if scalar else (None,):
        other = divisors if divisor is None else np.array(divisor, numpy)
        (actual,) = run_fused(program, [dividends, other])
        with np.errstate(all="ignore"):
            wanted = np.fmod(dividends, other)
        np.testing.assert_array_equal(actual, wanted)
        known = ~np.isnan(wanted)
        np.testing.assert_array_equal(np.signbit(actual[known]), np.signbit(wanted[known]))


def by_constant(x: np.ndarray, divisor: float) -> np.ndarray:
    """x over a number that the program has, which need not be divided by."""
    dtype = "f32" if x.dtype == np.float32 else "f64"
    bits = x.dtype.type(divisor).view(f"u{x.itemsize}")
    lines = [f"input {dtype} broadcast", f"const {dtype} {bits:0{2 * x.itemsize}x}", f"div {dtype} 0 1", "output 2"]
    return run_fused("\n".join(["onnxfuse 1", *lines]) + "\n", [x])[0]


def quotients(x: np.ndarray, divisor: float) -> np.ndarray:
    with np.errstate(all="ignore"):
        return x / x.dtype.type(divisor)


@pytest.mark.parametrize("divisor", [3.0, -6.0, 10.0, 0.7, 1e-9, float(2**20 - 1), 2**-20 * float(2**19 + 1)])
def test_constant_divisors_of_every_significand(divisor: float) -> None:
    """Bit for bit, whatever the last bits of the dividend."""
    significands = np.arange(2**23, 2**24, dtype=np.float32)
    np.testing.assert_array_equal(by_constant(significands, divisor), quotients(significands, divisor))


DIVISORS = [6.0, -3.0, 0.1, 3e9, -1e-10, np.sqrt(2), np.pi, 1e30, 1e-40, 0.0, -0.0, np.inf, np.nan]
POWERS = [1.0, -2.0, 0.125, 2.0**127, 2.0**126, 2.0**-126, 2.0**-127, 2.0**-149]


@pytest.mark.parametrize("numpy", [np.float32, np.float64])
@pytest.mark.parametrize("divisor", DIVISORS + POWERS)
def test_constant_divisors_of_every_exponent(divisor: float, numpy: type) -> None:
    """The signs of zeros, infinities, NaN and denormals too, alone or among other numbers of a block."""
    random = np.random.default_rng(11)
    unsigned = {np.float32: np.uint32, np.float64: np.uint64}[numpy]
    anything = random.integers(0, np.iinfo(unsigned).max, 100_000, dtype=unsigned, endpoint=True).view(numpy)
    info = np.finfo(numpy)
    special = np.array([0, -0.0, np.inf, -np.inf, np.nan, info.tiny, -info.smallest_subnormal, 2.0**-41], numpy)
    near = random.normal(0, 4, 100_000).astype(numpy)
    few = near.copy()
    few[::1009] = random.choice(special, few[::1009].size)
    zeros = np.where(near < 0, -numpy(0), near)
    for x in (anything, near, few, zeros, special, near[:37], few[:5]):
        actual, wanted = by_constant(x, divisor), quotients(x, divisor)
        np.testing.assert_array_equal(actual, wanted)
        known = ~np.isnan(wanted)
        np.testing.assert_array_equal(np.signbit(actual[known]), np.signbit(wanted[known]))
