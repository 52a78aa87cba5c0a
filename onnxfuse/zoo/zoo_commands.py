"""``onnxfuse zoo list``, ``fetch`` and ``add``."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from onnxfuse.check.made_up_inputs import generate
from onnxfuse.errors import OnnxfuseError
from onnxfuse.files.model_io import read_proto
from onnxfuse.model.replacing import Replacement
from onnxfuse.report.tables import add_row, simple_table
from onnxfuse.run.inputs import InputSet, input_specs
from onnxfuse.run.sessions import Session, SessionError
from onnxfuse.wording import is_utf8
from onnxfuse.zoo.fetching import Progress, fetch, fetch_all, file_sha256
from onnxfuse.zoo.manifest import (
    FetchError,
    StoredModel,
    environment_names,
    is_name,
    package_names,
    parse_manifest,
    read_manifest,
    select,
)

if TYPE_CHECKING:
    from rich.console import RenderableType


def render_list(models: list[StoredModel]) -> "RenderableType":
    """One row for each model."""
    table = simple_table("model", "task", "source", "licence", "inputs")
    for model in models:
        inputs = ", ".join(
            f"{name} {entry.dtype}[{', '.join(map(str, entry.shape))}]" for name, entry in model.inputs.items()
        )
        add_row(table, model.name, model.task, model.source, model.licence, inputs)
    return table


def list_json(models: list[StoredModel]) -> list[dict[str, object]]:
    """What ``render_list`` shows, for programs."""
    return [
        {
            "name": model.name,
            "task": model.task,
            "source": model.source,
            "licence": model.licence,
            "inputs": {
                name: {"dtype": entry.dtype, "shape": list(entry.shape)} for name, entry in model.inputs.items()
            },
            "sizes": list(model.sizes),
        }
        for model in models
    ]


def fetch_models(
    manifest: dict[str, StoredModel], patterns: list[str], out: Path | None, progress: Progress
) -> list[Path]:
    """Fetch the models that match, go on after one that cannot be had, and return the paths in order.

    ``out`` is where the only model is copied, or made with its external data.  Raises FetchError at the end if a
    model could not be had, when the others are in the cache, and OnnxfuseError if ``out`` cannot be written.
    """
    chosen = select(manifest, patterns)
    if out is not None:
        if len(chosen) != 1:
            raise FetchError(f"--out takes one model, and {len(chosen)} match")
        return [_fetch_to(manifest, chosen[0], out, progress)]
    kept = [model for model in chosen if model.kept]
    if not kept:
        raise FetchError(f"{chosen[0].name} is large and not kept: say where to make it with --out")
    result = fetch_all(kept, manifest, progress)
    if result.errors:
        name, reason = next(iter(result.errors.items()))
        raise FetchError(f"{len(result.errors)} of {len(kept)} models could not be had; {name}: {reason}")
    return list(result.paths.values())


def _fetch_to(manifest: dict[str, StoredModel], model: StoredModel, out: Path, progress: Progress) -> Path:
    if not model.kept:
        if out.name != f"{model.name}.onnx":
            raise FetchError(f"{model.name} names its external data: make it as {model.name}.onnx")
        return fetch(model.name, manifest, folder=out.parent, progress=progress)
    with Replacement(out) as file:
        path = fetch(model.name, manifest, progress=progress)
        if not (out.exists() and out.samefile(path)):
            file.write(path.read_bytes())
    return out


# --- add ---


@dataclass(frozen=True)
class NewEntry:
    """What the user says of a model to add: a package with the path inside it, or a recipe, with the environment that
    it needs, if any."""

    name: str
    task: str
    licence: str
    package: str = ""
    path: str = ""
    recipe: str = ""
    environment: str = ""


def add(entry: NewEntry, model: Path, manifest: Path, progress: Progress) -> str:
    """Describe the file ``model`` in a new entry of the manifest, and return the entry.

    The model is run on made-up inputs, whose ranges the entry states: they are to be replaced by realistic ones. Raises
    OnnxfuseError, and leaves the manifest as it was, if the name is taken or is none, the package or the environment is
    not in the manifest, a recipe is not written as one or has no licence, the model does not run, it has inputs that
    are not tensors of numbers, or the manifest cannot be written.
    """
    _check_entry(entry, manifest)
    progress("running the model")
    proto = read_proto(model)
    for spec in input_specs(proto):
        if spec.kind != "tensor" or spec.elem_type in (onnx.TensorProto.STRING, onnx.TensorProto.UNDEFINED):
            raise OnnxfuseError(f"the manifest describes tensors of numbers alone, and {spec.name!r} is none")
    try:
        session = Session(model)
    except SessionError as error:
        raise OnnxfuseError(f"ONNX Runtime cannot load {model}: {error}") from error
    runs = [inputs for inputs, _ in generate(input_specs(proto), session.run, {}, model=proto)]
    text = _entry_text(entry, model, proto, runs)
    with Replacement(manifest) as file:
        whole = manifest.read_bytes() + f"\n{text}".encode()
        parse_manifest(whole.decode(), manifest)
        file.write(whole)
    return text


def _check_entry(entry: NewEntry, manifest: Path) -> None:
    if entry.name in read_manifest(manifest):
        raise OnnxfuseError(f"the manifest already has a model {entry.name!r}")
    if not is_name(entry.name):
        raise OnnxfuseError(f"{entry.name!r} is no name for a model: take letters, digits and any of . _ + -")
    if bool(entry.package) == bool(entry.recipe) or bool(entry.package) != bool(entry.path):
        raise OnnxfuseError("give either --package and --path, or --recipe")
    if entry.package and entry.package not in package_names(manifest):
        raise OnnxfuseError(f"the manifest has no package {entry.package!r}: describe it under [packages] first")
    if entry.recipe and not re.fullmatch(r"[^\W\d]\w*:[^\W\d]\w*", entry.recipe):
        raise OnnxfuseError(f"--recipe {entry.recipe!r}: write it as MODULE:FUNCTION")
    if entry.environment and not entry.recipe:
        raise OnnxfuseError("--environment is for a --recipe")
    if entry.environment and entry.environment not in (known := environment_names(manifest)):
        described = ", ".join(sorted(known)) or "none"
        raise OnnxfuseError(f"the manifest has no environment {entry.environment!r}; its environments are: {described}")
    if entry.recipe and not entry.licence:
        raise OnnxfuseError("a recipe needs a --licence")
    if not all(map(is_utf8, (entry.task, entry.licence, entry.path))):
        raise OnnxfuseError("an argument is not UTF-8, and a manifest is")


def _entry_text(entry: NewEntry, model: Path, proto: onnx.ModelProto, runs: list[InputSet]) -> str:
    lines = [f"[models.{_key(entry.name)}]", f"task = {_quoted(entry.task)}"]
    if entry.package:
        lines += [f"package = {_quoted(entry.package)}", f"path = {_quoted(entry.path)}"]
        lines.append(f"sha256 = {_quoted(file_sha256(model))}")
    else:
        lines.append(f"recipe = {_quoted(entry.recipe)}")
    if entry.environment:
        lines.append(f"environment = {_quoted(entry.environment)}")
    if entry.licence:
        lines.append(f"licence = {_quoted(entry.licence)}")
    specs = input_specs(proto)
    shapes: dict[str, list[int | str]] = {}
    sizes: list[dict[str, int]] = [{} for _ in runs]
    for spec in specs:
        found = [run.shapes()[spec.name] for run in runs]
        shape: list[int | str] = []
        for axis, size in enumerate(found[0]):
            declared = spec.shape[axis] if spec.shape is not None else None
            if isinstance(declared, int):
                shape.append(size)
                continue
            dim = declared or f"{spec.name}_{axis}"
            shape.append(dim)
            for run, values in zip(sizes, found, strict=True):
                run[dim] = values[axis]
        shapes[spec.name] = shape
    distinct = [dict(items) for items in dict.fromkeys(tuple(run.items()) for run in sizes)]
    if distinct[0]:
        lines.append(f"sizes = [{', '.join(_table(run) for run in distinct)}]")
    if not specs:
        lines.append("inputs = {}")
    for spec in specs:
        value = runs[0].feeds[spec.name]
        shape_text = ", ".join(_quoted(dim) if isinstance(dim, str) else str(dim) for dim in shapes[spec.name])
        span = "range = [-1.0, 1.0]"
        if spec.dtype.kind in "iub":
            low, high = int(value.min(initial=0)), int(value.max(initial=0))
            span = f"range = [{low}, {high}]" if low < high else f"value = {low}"
        lines.append(f'inputs.{_key(spec.name)} = {{ dtype = "{spec.dtype}", shape = [{shape_text}], {span} }}')
    return "\n".join(lines) + "\n"


def _table(sizes: dict[str, int]) -> str:
    return "{ " + ", ".join(f"{_key(name)} = {size}" for name, size in sizes.items()) + " }"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quoted(name)


def _quoted(text: str) -> str:
    """A TOML string: JSON's escapes are TOML's, but for the delete character."""
    import json

    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
