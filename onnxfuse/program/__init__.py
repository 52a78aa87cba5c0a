"""Programs: what a fused region computes, as typed instructions over scalars."""

from onnxfuse.program.builder import ProgramBuilder
from onnxfuse.program.program import Const, Index, Input, Instruction, Program, ProgramError, Reduction

__all__ = ["Const", "Index", "Input", "Instruction", "Program", "ProgramBuilder", "ProgramError", "Reduction"]
