"""Fixtures for the tests of CUDA."""

from tests.cuda.compilers import compiler

__all__ = ["compiler"]
