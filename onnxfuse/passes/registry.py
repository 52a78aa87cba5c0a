"""Which passes there are, in which order they run, and how others add theirs."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from onnxfuse.errors import OnnxfuseError
from onnxfuse.rewrite.base import Pass, PassContext
from onnxfuse.rewrite.rewriter import RulePass
from onnxfuse.rewrite.rule import RewriteRule
from onnxfuse.wording import did_you_mean

if TYPE_CHECKING:
    from onnxfuse.model.graph import Model

ENTRY_POINT_GROUP = "onnxfuse.passes"


class FunctionPass:
    """A pass made of a function of the model and the context."""

    def __init__(self, function: Callable[[Model, PassContext], None], name: str, description: str) -> None:
        self.name = name
        self.description = description
        self._function = function

    def run(self, model: Model, context: PassContext) -> None:
        """Calls the function."""
        self._function(model, context)


@dataclass(frozen=True)
class _Entry:
    name: str
    make: Callable[[], Pass]
    before: tuple[str, ...]
    after: tuple[str, ...]
    source: Any


class Registry:
    """Passes by name.  ``entry_point_source`` yields the entry points to take in when needed."""

    def __init__(self, entry_point_source: Callable[[], Iterable[EntryPoint]]) -> None:
        self._entries: dict[str, _Entry] = {}
        self._entry_point_source = entry_point_source
        self._loaded_entry_points = False

    def add(
        self,
        item: Any,
        *,
        name: str | None = None,
        description: str = "",
        before: str | Sequence[str] = (),
        after: str | Sequence[str] = (),
    ) -> None:
        """Registers a pass class or object, a function, a RewriteRule class or object, or a sequence of
        rules.  ``before`` and ``after`` name one pass or several.

        Raises OnnxfuseError for a name that is taken or missing, and for anything that is no pass.
        """
        found, make = _factory(item, name, description)
        if found in self._entries:
            if self._entries[found].source is item:
                return
            raise OnnxfuseError(f"a pass named {found!r} is registered already")
        self._entries[found] = _Entry(found, make, _names("before", before), _names("after", after), item)

    def add_factory(self, name: str, make: Callable[[], Pass]) -> None:
        """Registers a pass that is imported and made only when it is to run."""
        self._entries[name] = _Entry(name, make, (), (), make)

    def remove(self, name: str) -> None:
        """Takes a pass out again.  Raises OnnxfuseError for an unknown name."""
        self._known(name)
        del self._entries[name]

    def names(self) -> list[str]:
        """The names of all passes, those of entry points too, in the order in which they run by default."""
        self._load_entry_points()
        return [entry.name for entry in self._ordered()]

    def resolve(self, names: Sequence[str] | None = None) -> list[Pass]:
        """The passes to run: those named, in the order given, or all of them in their registered order.

        Raises OnnxfuseError for an unknown name, for an entry point that cannot be loaded, and where before=
        and after= contradict each other.
        """
        if names is None:
            self._load_entry_points()
            return [entry.make() for entry in self._ordered()]
        names = [_MERGED.get(name, name) for name in names if _MERGED.get(name) not in names]
        if not all(name in self._entries for name in names):
            self._load_entry_points()
        return [self._known(name).make() for name in names]

    def _known(self, name: str) -> _Entry:
        if name not in self._entries:
            near = did_you_mean(name, self.names()) or ";"
            raise OnnxfuseError(f"unknown pass {name!r}{near} the passes are {', '.join(self.names())}")
        return self._entries[name]

    def _load_entry_points(self) -> None:
        if self._loaded_entry_points:
            return
        for point in self._entry_point_source():
            try:
                item = point.load()
            except Exception as error:
                message = " ".join(str(error).split())
                raise OnnxfuseError(
                    f"the pass of entry point {point.name!r} ({point.value}) cannot be loaded: {message}"
                ) from error
            if isinstance(item, ModuleType) or any(entry.source is item for entry in self._entries.values()):
                continue  # importing it has registered what it holds
            self.add(item, name=point.name)
        self._loaded_entry_points = True

    def _ordered(self) -> list[_Entry]:
        """All entries: built-in ones in their order, the others before those that fuse unless they say
        otherwise.
        """
        builtin = [entry for entry in self._entries.values() if entry.name in _BUILTIN]
        added = [entry for entry in self._entries.values() if entry.name not in _BUILTIN]
        last = [entry for entry in builtin if entry.name in _FUSING]
        ranked = [*(entry for entry in builtin if entry not in last), *added, *last]
        rank = {entry.name: index for index, entry in enumerate(ranked)}
        followers: dict[str, set[str]] = {entry.name: set() for entry in ranked}
        for entry in ranked:
            for other in (*entry.before, *entry.after):
                if other not in rank:
                    raise OnnxfuseError(
                        f"pass {entry.name!r} is ordered relative to {other!r}, which is not registered"
                    )
            after = entry.after
            before = entry.before
            if entry in added and not (before or after):
                # Where it says nothing it still must not be drawn forward by a pass that has to come early.
                after = tuple(item.name for item in builtin if item not in last)
            for other in before:
                followers[entry.name].add(other)
            for other in after:
                followers[other].add(entry.name)
        for first, second in itertools.pairwise(builtin):
            followers[first.name].add(second.name)
        waiting = {name: sum(name in after for after in followers.values()) for name in followers}
        ready = [(rank[name], name) for name, count in waiting.items() if count == 0]
        heapq.heapify(ready)
        ordered = []
        while ready:
            _, name = heapq.heappop(ready)
            ordered.append(self._entries[name])
            for follower in followers[name]:
                waiting[follower] -= 1
                if waiting[follower] == 0:
                    heapq.heappush(ready, (rank[follower], follower))
        if len(ordered) < len(ranked):
            stuck = ", ".join(sorted(name for name, count in waiting.items() if count))
            raise OnnxfuseError(f"the before= and after= of these passes contradict each other: {stuck}")
        return ordered


def _factory(item: Any, name: str | None, description: str) -> tuple[str, Callable[[], Pass]]:
    """The name of what is to be registered, and a function that makes a pass of it."""
    if isinstance(item, (list, tuple)):
        if not name:
            raise OnnxfuseError("a group of rewrite rules needs a name")
        rules = list(item)
        for rule in rules:
            if not _is_rule(rule):
                raise OnnxfuseError(f"{rule!r} is no rewrite rule")
        return _require(name, item), lambda: RulePass([_instance(rule) for rule in rules], name, description)
    if _is_rule(item):
        return _require(name or item.name, item), lambda: RulePass([_instance(item)], name, description)
    if hasattr(item, "run") and callable(item.run):
        return _require(name or str(getattr(item, "name", "")), item), lambda: _named(
            _instance(item), name, description
        )
    if callable(item):
        found = _require(name or getattr(item, "__name__", "").replace("_", "-"), item)
        doc = (getattr(item, "__doc__", None) or "").strip().split("\n")[0]
        return found, lambda: FunctionPass(item, found, description or doc)
    raise OnnxfuseError(f"{item!r} is no pass: it is neither a function, a RewriteRule, nor has it a method run")


def _is_rule(item: Any) -> bool:
    return isinstance(item, RewriteRule) or (isinstance(item, type) and issubclass(item, RewriteRule))


def _names(what: str, given: str | Sequence[str]) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else tuple(given)
    for name in names:
        if not isinstance(name, str):
            raise OnnxfuseError(f"{what}= names passes, which {name!r} does not")
    return tuple(_MERGED.get(name, name) for name in names)


def _instance(item: Any) -> Any:
    return item() if isinstance(item, type) else item


def _require(name: str, item: Any) -> str:
    if not name:
        raise OnnxfuseError(f"{item!r} has no name to register it under")
    if not isinstance(name, str):
        raise OnnxfuseError(f"the name of a pass is a text, not {name!r}")
    return name


def _named(made: Any, name: str | None, description: str) -> Pass:
    if name:
        made.name = name
    if description or not getattr(made, "description", ""):
        doc = (type(made).__doc__ or "").strip().split("\n")[0]
        made.description = description or doc
    result: Pass = made
    return result


class _BuiltinPass:
    """A pass of the package, imported when it is first asked for more than its name or has something to work on.

    ``place`` is that of its class, as an entry point gives it.  A model without a node of each of the groups of
    ``operators``, of whatever domain, has nothing for it.
    """

    def __init__(self, name: str, place: str, *operators: Set[str]) -> None:
        self.name = name
        self._place = place
        self._operators = operators

    @cached_property
    def _made(self) -> Pass:
        module, _, name = self._place.partition(":")
        made: Pass = getattr(import_module(module), name)()
        return made

    @property
    def description(self) -> str:
        """That of its class."""
        return self._made.description

    def run(self, model: Model, context: PassContext) -> None:
        """Runs it, if there is anything for it."""
        if self._operators:
            present = {node.op for graph in model.graphs() for node in graph.nodes}
            if any(present.isdisjoint(group) for group in self._operators):
                return
        self._made.run(model, context)


_BUILTIN_PASSES: dict[str, tuple[Any, ...]] = {
    "inline-functions": ("onnxfuse.passes.inline_functions:InlineFunctions",),
    "widen-float16": ("onnxfuse.passes.widen_float16:WidenFloat16",),
    "fold-constants": ("onnxfuse.passes.fold_constants:FoldConstants",),
    "fold-shapes": ("onnxfuse.passes.fold_shapes:FoldShapes",),
    "cancel-transposes": ("onnxfuse.passes.cancel_transposes:CancelTransposes",),
    "slow-operators": ("onnxfuse.passes.slow_operators:SlowOperators",),
    "merge-duplicates": ("onnxfuse.passes.merge_duplicates:MergeDuplicates",),
    "fuse-squeeze-excite": (
        "onnxfuse.fused.squeeze_excite.fuse_squeeze_excite:FuseSqueezeExcite",
        {"Conv"},
        {"GlobalAveragePool", "ReduceMean"},
    ),
    "conv-layout": ("onnxfuse.passes.conv_layout:ConvLayoutPass", {"Conv"}),
    "fold-affine": ("onnxfuse.passes.fold_affine:FoldAffine",),
    "fuse-attention": ("onnxfuse.fused.attention.fuse_attention:FuseAttention", {"Softmax", "Attention"}),
    "fuse-row-products": ("onnxfuse.fused.matmul.row_products:FuseRowProducts",),
    "merge-products": ("onnxfuse.fused.products.merge_products:MergeProducts",),
    "gather-rows": ("onnxfuse.passes.gather_rows:GatherRows",),
    "split-conv-bias": ("onnxfuse.fused.conv.split_conv_bias:SplitConvBias",),
    "split-product-bias": ("onnxfuse.fused.products.biases:SplitProductBias",),
    "turn-products": ("onnxfuse.fused.products.turned:TurnProducts",),
    "fuse-conv": ("onnxfuse.fused.conv.fuse_conv:FuseConv",),
    "channels-last": ("onnxfuse.fused.nhwc.channels_last:ChannelsLast",),
    "fuse-reductions": ("onnxfuse.fused.reduction.fuse_reductions:FuseReductions",),
    "fuse-matmul": ("onnxfuse.fused.matmul.fuse_matmul:FuseMatMul", {"MatMul", "Gemm"}),
    "fuse-elementwise": ("onnxfuse.fused.elementwise.fuse_elementwise:FuseElementwise",),
    "join-product-bias": ("onnxfuse.fused.products.biases:JoinProductBias",),
}
"""The passes of the package in the order in which they run, and for each the arguments of a ``_BuiltinPass``."""
_BUILTIN = tuple(_BUILTIN_PASSES)
_MERGED = {"fuse-normalization": "fuse-reductions"}
"""Passes that there were, by which others do what they did."""
_FUSING = _BUILTIN[_BUILTIN.index("fuse-attention") :]
"""The passes before which others run by default."""


def default_registry(
    entry_point_source: Callable[[], Iterable[EntryPoint]] = lambda: entry_points(group=ENTRY_POINT_GROUP),
) -> Registry:
    """A registry that holds the built-in passes, and takes in those of installed packages when asked for
    them.
    """
    registry = Registry(entry_point_source)
    for name, arguments in _BUILTIN_PASSES.items():
        registry.add_factory(name, partial(_BuiltinPass, name, *arguments))
    return registry


REGISTRY = default_registry()
"""The registry that ``optimize`` and the command line use."""


Item = TypeVar("Item")


@overload
def register_pass(
    item: None = None,
    *,
    name: str | None = None,
    description: str = "",
    before: Sequence[str] = (),
    after: Sequence[str] = (),
) -> Callable[[Item], Item]: ...


@overload
def register_pass(
    item: Item,
    *,
    name: str | None = None,
    description: str = "",
    before: Sequence[str] = (),
    after: Sequence[str] = (),
) -> Item: ...


def register_pass(
    item: Any = None,
    *,
    name: str | None = None,
    description: str = "",
    before: Sequence[str] = (),
    after: Sequence[str] = (),
) -> Any:
    """Adds a pass to those that ``optimize`` runs; returns ``item``, so it serves as a decorator, bare or
    called.

    ``item``: a class or object with ``name``, ``description`` and ``run(model, context)``; a function
    ``(model, context)``; a RewriteRule class or object; or, with ``name=``, a list of rules that form one
    pass. ``before`` and ``after`` name other passes; without them a pass runs between fold-affine and
    fuse-attention. Raises OnnxfuseError for a name that is taken or missing.
    """
    if item is None:
        return lambda decorated: register_pass(
            decorated, name=name, description=description, before=before, after=after
        )
    REGISTRY.add(item, name=name, description=description, before=before, after=after)
    return item


def resolve(names: Sequence[str] | None = None) -> list[Pass]:
    """The passes to run: those named, in the order given, or all in their registered order.  See
    Registry.resolve.
    """
    return REGISTRY.resolve(names)
