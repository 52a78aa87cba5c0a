"""The models of models/manifest.toml: what they are, their files, and inputs to run them on.

A model that is not in the cache comes out of a package that ``pip download`` gets from wherever pip is
configured to look. pip takes the package only if its sha256 is the manifest's; that of the model file is
checked each time. The cache is ``$XDG_CACHE_HOME/onnxfuse/models``, or ``~/.cache/onnxfuse/models``.
"""

import hashlib
import importlib.util
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

MANIFEST = Path(__file__).resolve().parent.parent / "models" / "manifest.toml"


class FetchError(Exception):
    """A model cannot be had; the message is one line for the user."""


@dataclass(frozen=True)
class Package:
    """A PyPI package that carries models; ``file`` is None for one that is installed beside onnxfuse."""

    name: str
    version: str
    licence: str
    file: str | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class Input:
    """The shape of an input, and its elements: uniform over ``range``, or all ``value``."""

    shape: tuple[int, ...]
    range: tuple[float, float] | None = None
    value: float | None = None


@dataclass(frozen=True)
class StoredModel:
    """One model of the manifest; ``path`` is inside the package, ``sha256`` the .onnx file's."""

    name: str
    task: str
    package: Package
    path: str
    sha256: str
    licence: str
    inputs: dict[str, Input]


def read_manifest(path: Path = MANIFEST) -> dict[str, StoredModel]:
    """Every model by name, in the order of the file.  Raises FetchError for a file that is no manifest."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        packages = {name: Package(name, **fields) for name, fields in content["packages"].items()}
        return {name: _model(name, fields, packages) for name, fields in content["models"].items()}
    except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise FetchError(f"cannot read the manifest {path}: {error}") from error


def _model(name: str, fields: dict[str, Any], packages: dict[str, Package]) -> StoredModel:
    package = packages[fields.pop("package")]
    licence = fields.pop("licence", package.licence)
    inputs = {key: _input(**entry) for key, entry in fields.pop("inputs").items()}
    return StoredModel(name=name, package=package, licence=licence, inputs=inputs, **fields)


def _input(shape: list[int], range: tuple[float, float] | None = None, value: float | None = None) -> Input:
    return Input(tuple(shape), range, value)


def fetch(name: str, manifest: dict[str, StoredModel] | None = None) -> Path:
    """The path of a model's file, which is downloaded if it is neither installed nor in the cache.

    Raises FetchError if the model is unknown, cannot be downloaded, or is not what the manifest describes.
    """
    models = read_manifest() if manifest is None else manifest
    if name not in models:
        raise FetchError(f"no model {name!r}; the models are: {', '.join(models)}")
    model = models[name]
    if model.package.file is None:
        return _installed(model)
    path = _cache() / f"{name}.onnx"
    if not path.is_file() or _sha256(path) != model.sha256:
        _download(model.package, [other for other in models.values() if other.package == model.package])
    return path


def make_inputs(model: StoredModel, path: Path, seed: int = 0) -> dict[str, "np.ndarray"]:
    """An array for every input: its shape from the manifest, its type from the model's file at ``path``."""
    import numpy as np
    import onnx

    generator = np.random.default_rng(seed)
    graph = onnx.load(path, load_external_data=False).graph
    types = {value.name: value.type.tensor_type.elem_type for value in graph.input}
    arrays = {}
    for name, entry in model.inputs.items():
        dtype = onnx.helper.tensor_dtype_to_np_dtype(types[name])
        if entry.range is None:
            arrays[name] = np.full(entry.shape, entry.value, dtype)
        elif dtype.kind in "iu":
            low, high = entry.range
            arrays[name] = generator.integers(int(low), int(high), entry.shape, endpoint=True).astype(dtype)
        else:
            arrays[name] = generator.uniform(*entry.range, entry.shape).astype(dtype)
    return arrays


def _installed(model: StoredModel) -> Path:
    package, _, inside = model.path.partition("/")
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise FetchError(f"{model.name} is a file of the package {package}, which is not installed")
    path = Path(spec.origin).parent / inside
    if not path.is_file() or _sha256(path) != model.sha256:
        raise FetchError(f"the installed {package} does not have {inside} as {package} {model.package.version} has it")
    return path


def _cache() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():  # unset, or to be ignored by the rules of XDG
        base = Path.home() / ".cache"
    return base / "onnxfuse" / "models"


def _download(package: Package, models: list[StoredModel]) -> None:
    """Put all models of a package into the cache."""
    cache = _cache()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".download-", dir=cache) as folder:
            archive = _pip_download(package, Path(folder))
            for model in models:
                file = Path(folder) / model.sha256
                file.write_bytes(_read_member(archive, model.path))
                if _sha256(file) != model.sha256:
                    raise FetchError(f"{model.path} in {package.file} is not what the manifest describes")
                file.replace(cache / f"{model.name}.onnx")  # other processes see no file, or the whole file
    except OSError as error:
        raise FetchError(f"cannot store models in {cache}: {error.strerror or error}") from error


def _pip_download(package: Package, folder: Path) -> Path:
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n", encoding="ascii")
    # The package is never run here, so what Python it is for does not matter.
    options = ["--quiet", "--no-deps", "--ignore-requires-python", "--require-hashes", "--dest", str(folder)]
    command = [sys.executable, "-m", "pip", "download", *options, "--requirement", str(requirements)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    archive = folder / str(package.file)
    if done.returncode != 0 or not archive.is_file():
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR:")] or lines or ["no reason given"]
        reason = errors[-1].removeprefix("ERROR: ")
        raise FetchError(f"pip cannot download {package.name} {package.version}: {reason}")
    if _sha256(archive) != package.sha256:
        raise FetchError(f"{package.file} is not what the manifest describes")
    return archive


def _read_member(archive: Path, path: str) -> bytes:
    try:
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as wheel:
                return wheel.read(path)
        with tarfile.open(archive) as source, source.extractfile(path) or io.BytesIO() as file:
            return file.read()
    except (KeyError, zipfile.BadZipFile, tarfile.TarError) as error:
        raise FetchError(f"{archive.name} has no {path}") from error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
