"""Passes: what rewrites a model.  docs/passes.md shows how to write a rule and a pass of one's own."""

from onnxfuse.passes.registry import REGISTRY as REGISTRY
from onnxfuse.passes.registry import Registry as Registry
from onnxfuse.passes.registry import default_registry as default_registry
from onnxfuse.passes.registry import register_pass as register_pass
from onnxfuse.passes.registry import resolve as resolve
from onnxfuse.rewrite.base import Pass as Pass
from onnxfuse.rewrite.base import PassContext as PassContext
from onnxfuse.rewrite.matcher import Match as Match
from onnxfuse.rewrite.pattern import Ops as Ops
from onnxfuse.rewrite.pattern import Value as Value
from onnxfuse.rewrite.pattern import Variable as Variable
from onnxfuse.rewrite.rewriter import RulePass as RulePass
from onnxfuse.rewrite.rule import NOT_APPLICABLE as NOT_APPLICABLE
from onnxfuse.rewrite.rule import Builder as Builder
from onnxfuse.rewrite.rule import Refusal as Refusal
from onnxfuse.rewrite.rule import RewriteRule as RewriteRule
