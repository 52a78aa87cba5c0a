"""Programs: what a fused region computes, as typed instructions over scalars."""

from onnxfuse.program.program import Const, Input, Instruction, Program, ProgramBuilder, ProgramError

__all__ = ["Const", "Input", "Instruction", "Program", "ProgramBuilder", "ProgramError"]
