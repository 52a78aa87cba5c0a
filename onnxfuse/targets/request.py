"""What the user asks for: the options of ``optimize``, which ``inspect`` takes too, checked once and in one object."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxfuse.errors import OnnxfuseError
from onnxfuse.fused.choices import ConvPolicy, policy_named
from onnxfuse.fused.target import CPU, CUDA, TARGETS, Target
from onnxfuse.passes import Pass, resolve
from onnxfuse.run.given_shapes import Shapes, checked_shapes
from onnxfuse.run.runtime import why_no_cuda

if TYPE_CHECKING:
    from onnxfuse.cuda.options import CudaOptions

AUTO = "auto"
"""The target that is cuda where models can run on a GPU, and cpu elsewhere."""
TARGET_NAMES = (AUTO, *TARGETS)


@dataclass(frozen=True)
class Request:
    """The options that decide what becomes of a model; ``api.optimize`` says what each means.

    ``steps`` are the passes to run, of which ``passes`` are the names that were given.  ``shapes`` are as they were
    given, to be fitted to a model; ``cuda`` are the options for the target cuda alone.
    """

    target: str
    passes: tuple[str, ...] | None = None
    steps: tuple[Pass, ...] = ()
    shapes: Shapes = field(default_factory=dict)
    static: bool = False
    fast_math: bool = False
    tune: bool = False
    conv: ConvPolicy = ConvPolicy.AUTO
    cuda: "CudaOptions | None" = None
    tf32: bool = False

    @property
    def on(self) -> Target:
        """The facts of the target."""
        return TARGETS[self.target]

    def again(self, wanted: Callable[[str], bool] = lambda name: True, **options: Any) -> "Request":
        """The same with other ``options``, and of its passes those that are ``wanted`` by name.

        Passes are made anew: one may keep something of the model that it has seen.
        """
        steps = tuple(resolve([step.name for step in self.steps if wanted(step.name)]))
        return replace(self, steps=steps, **options)

    def planned(self) -> "Request":
        """The same for a plan alone, for which a compiler is asked only where there is one."""
        return self if self.cuda is None else replace(self, cuda=replace(self.cuda, embed=False))


def request(
    target: str = AUTO,
    passes: str | Iterable[str] | None = None,
    *,
    shapes: Mapping[str, Iterable[int] | int] | None = None,
    static: bool = False,
    fast_math: bool = False,
    arch: str | Iterable[str] | None = None,
    embed: bool = True,
    keep_source: str | Path | None = None,
    tune: bool = False,
    conv: str = "auto",
    tuning: str | Path | Iterable[str | Path] = (),
    tf32: bool = False,
    prefer_nhwc: bool = False,
) -> Request:
    """The request for these options.  Raises OnnxfuseError for what cannot be, or is not for the target."""
    target = resolve_target(target)
    policy = policy_named(conv)
    tunings = tuning if isinstance(tuning, Iterable) and not isinstance(tuning, (str, bytes)) else [tuning]
    files = [path_of("a tuning file", name) for name in tunings]
    cuda = None
    if target == CUDA.name:
        cuda = _cuda_options(arch, embed, keep_source, tune, policy, files, prefer_nhwc)
    elif arch is not None or not embed or keep_source is not None or files or tf32 or prefer_nhwc:
        raise OnnxfuseError(
            "architectures, embedding, sources, tuning files, TF32 and prefer_nhwc are for the target cuda"
        )
    elif tune and policy is not ConvPolicy.AUTO:
        raise OnnxfuseError(f"on the CPU the choice of convolutions is tuned, and {conv!r} was asked for")
    sizes = checked_shapes({} if shapes is None else shapes)
    names = None if passes is None else tuple(names_of("passes", passes))
    return Request(target, names, tuple(resolve(names)), sizes, static, fast_math, tune, policy, cuda, tf32)


def why_not_here(target: str) -> str:
    """Why models cannot run on a target of this machine; empty if they can."""
    return why_no_cuda() if target == CUDA.name else ""


def resolve_target(target: str) -> str:
    """The target to optimize for: ``"cpu"`` or ``"cuda"``.  Raises OnnxfuseError for one that is unknown."""
    if target not in TARGET_NAMES:
        raise OnnxfuseError(f"unknown target {target!r}; the targets are {', '.join(TARGET_NAMES)}")
    if target == AUTO:
        return CPU.name if why_not_here(CUDA.name) else CUDA.name
    return target


def runnable_target(target: str) -> str:
    """The same, to run models on.  Raises OnnxfuseError also for a target that is not here."""
    found = resolve_target(target)
    if reason := why_not_here(found):
        raise OnnxfuseError(f"nothing can run on the target {found}: {reason}")
    return found


def _cuda_options(
    arch: str | Iterable[str] | None,
    embed: bool,
    keep_source: str | Path | None,
    tune: bool,
    policy: ConvPolicy,
    tunings: list[Path],
    prefer_nhwc: bool,
) -> "CudaOptions":
    from onnxfuse.cuda.arch import default_architectures, devices, parse_architectures
    from onnxfuse.cuda.conv.tunings import all_tunings
    from onnxfuse.cuda.options import CudaOptions

    architectures = default_architectures() if arch is None else parse_architectures(names_of("architectures", arch))
    if tune and not devices():
        raise OnnxfuseError("tuning needs a GPU, and there is no CUDA GPU here")
    if tune and not set(devices()) & set(architectures):
        raise OnnxfuseError(f"tuning is for the GPU here, {devices()[0]}, which is not among the architectures")
    sources = None if keep_source is None else path_of("the directory for the source", keep_source)
    if sources is not None and sources.exists() and not sources.is_dir():
        raise OnnxfuseError(f"the sources cannot be kept in {sources}: it is no directory")
    return CudaOptions(
        architectures,
        embed,
        sources,
        tune,
        policy,
        all_tunings(tunings, may_be_new=tune),
        tunings[-1] if tunings else None,
        prefer_nhwc,
    )


def names_of(what: str, given: str | Iterable[str]) -> list[str]:
    """The names of a list, or of a text with commas between.  Raises OnnxfuseError for anything else."""
    if isinstance(given, str):
        return [name.strip() for name in given.split(",")]
    names = list(given) if isinstance(given, Iterable) else [given]
    for name in names:
        if not isinstance(name, str):
            raise OnnxfuseError(f"{what} are names, in a list or with commas between, not {type(name).__name__}")
    return names


def path_of(what: str, given: str | Path) -> Path:
    """A path as it may be given.  Raises OnnxfuseError for what is none."""
    try:
        path = Path(given)
    except TypeError as error:
        raise OnnxfuseError(f"{what} is given by its path, not as {type(given).__name__}") from error
    if "\0" in str(path):
        raise OnnxfuseError(f"{str(path)!r} is no path of {what}")
    return path
