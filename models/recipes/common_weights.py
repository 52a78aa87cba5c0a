"""Random weights of the size that trained networks have, the same on every machine."""

import math
import zlib

import numpy as np


def draw(name: str, shape: tuple[int, ...], fan_in: int = 0) -> np.ndarray:
    """Values for the parameter ``name``, which alone seeds them, in float32.

    With a ``fan_in``: normal with variance 1.6 / fan_in, so that activations neither grow nor vanish through
    layers with and without ReLU.  Without: the parameter of a normalization or an offset, by its name.
    """
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    values = generator.standard_normal(shape)
    if fan_in:
        values *= math.sqrt(1.6 / fan_in)
    elif name.endswith(("var", "scale", "weight", "gamma")):
        values = np.clip(1.0 + 0.15 * values, 0.3, 2.0)
    else:
        values *= 0.1
    return values.astype(np.float32)
