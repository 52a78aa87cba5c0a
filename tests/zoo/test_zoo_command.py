"""The command zoo: what it lists, fetches, and adds to the manifest."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxfuse.cli.cli import main
from onnxfuse.zoo import fetching, model_inputs
from onnxfuse.zoo.fetching import fetch
from onnxfuse.zoo.manifest import Environment, read_manifest
from tests.zoo.test_zoo import LIGHT


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
