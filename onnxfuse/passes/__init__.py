"""Passes: what rewrites a model.  docs/passes.md shows how to write a rule and a pass of one's own."""

from onnxfuse.passes.base import Pass as Pass
from onnxfuse.passes.base import PassContext as PassContext
from onnxfuse.passes.matcher import Match as Match
from onnxfuse.passes.registry import REGISTRY as REGISTRY
from onnxfuse.passes.registry import Registry as Registry
from onnxfuse.passes.registry import default_registry as default_registry
from onnxfuse.passes.registry import register_pass as register_pass
from onnxfuse.passes.registry import resolve as resolve
from onnxfuse.passes.rewriter import RulePass as RulePass
from onnxfuse.passes.rule import NOT_APPLICABLE as NOT_APPLICABLE
from onnxfuse.passes.rule import Builder as Builder
from onnxfuse.passes.rule import Refusal as Refusal
from onnxfuse.passes.rule import RewriteRule as RewriteRule
