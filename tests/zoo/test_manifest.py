"""Manifests of models: what is one, and the one line that says why something is none."""

import json
from pathlib import Path

import pytest

import onnxfuse
from onnxfuse.cli.cli import main
from onnxfuse.zoo import manifest
from onnxfuse.zoo.manifest import Input


def manifest_with(entry: str = "", inputs: str = "", package: str = "", name: str = "m") -> str:
    """A manifest of one model, with lines that add to its entry, or that take the place of what is said else."""

    def table(lines: dict[str, str], more: str) -> str:
        given = {line.partition("=")[0].strip() for line in more.splitlines()}
        return "\n".join([*(f"{key} = {value}" for key, value in lines.items() if key not in given), more, ""])

    carrier = {"version": '"1.0"', "licence": '"MIT"', "file": '"f.whl"', "sha256": f'"{"0" * 64}"'}
    model = {"task": '"t"', "package": '"p"', "path": '"a"', "sha256": f'"{"0" * 64}"'}
    one = {"dtype": '"float32"', "shape": "[1]", "range": "[0, 1.5]"}
    header = f"[models.{json.dumps(name)}]"
    return f"[packages.p]\n{table(carrier, package)}{header}\n{table(model, entry)}" + (
        "" if "inputs" in entry else f"{header[:-1]}.inputs.x]\n{table(one, inputs)}"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (manifest_with(inputs="range = [0.0]"), "range of x is not of two numbers"),
        (manifest_with(inputs='range = ["a", "b"]'), "range of x is not of two numbers"),
        (manifest_with(inputs="range = [2, 1]"), "range of x"),
        (manifest_with(inputs="range = [0.0, nan]"), "range of x"),
        (manifest_with(inputs="range = 1"), "range of x is of the wrong type"),
        (manifest_with(inputs="shape = [1.5, [2]]"), "shape of x"),
        (manifest_with(inputs="shape = [-1]"), "shape of x"),
        (manifest_with(inputs="shape = [true]"), "shape of x"),
        (manifest_with(inputs="dtype = 5"), "dtype of x is of the wrong type"),
        (manifest_with(inputs='value = "a"'), "value of x is of the wrong type"),
        (manifest_with(inputs="extra = 1"), "x has the unknown field 'extra'"),
        (manifest_with("inputs.x = 5"), "x is no table"),
        (manifest_with("inputs = 5"), "inputs of m is of the wrong type"),
        (manifest_with("task = 5"), "task of m is of the wrong type"),
        (manifest_with("licence = 7"), "licence of m is of the wrong type"),
        (manifest_with("path = 3"), "path of m is of the wrong type"),
        (manifest_with("set = 1"), "set of m is of the wrong type"),
        (manifest_with('inputs."x{a}" = { shape = [1] }'), "neither a list nor a run of numbers"),
        (manifest_with('inputs."x{2..1}" = { shape = [1] }'), "goes down"),
        (manifest_with('inputs."x{0..5000}" = { shape = [1] }'), "stands for 4097 names"),
        (manifest_with("kept = 1"), "kept of m is of the wrong type"),
        (manifest_with("tolerance = true"), "tolerance of m is of the wrong type"),
        (manifest_with("sizes = 3"), "sizes of m is of the wrong type"),
        (manifest_with("sizes = []"), "sizes of m"),
        (manifest_with('sizes = [{ n = "a" }]'), "sizes of m"),
        (manifest_with("package = [1]"), "package of m is of the wrong type"),
        (manifest_with(package="licence = 7"), "licence of p is of the wrong type"),
        (manifest_with(package="file = 3"), "file of p is of the wrong type"),
        ("models = 5", "int"),
        ("[models]\nm = 5", "m is no table"),
        ("packages.p = 1\n[models]", "p is no table"),
        ('environments.e.requirements = "torch"\n[models]', "requirements of e is of the wrong type"),
        ("environments.e.requirements = [1]\n[models]", "a requirement of e"),
        ("x = " + "[" * 100_000, "recursion"),
        (manifest_with(name="../../../evil"), "'../../../evil' is no name for a model"),
        (manifest_with(name=".."), "no name for a model"),
        (manifest_with(name=""), "no name for a model"),
        ('environments."../e".requirements = []\n[models]', "'../e' is no name for an environment"),
    ],
)
def test_what_is_no_manifest_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    (tmp_path / "m.toml").write_text(text)
    assert main(["zoo", "list", "--manifest", str(tmp_path / "m.toml")]) == 2
    error = capsys.readouterr().err
    assert f"cannot read the manifest {tmp_path / 'm.toml'}: " in error and message in error


def test_the_manifests_of_these_tests_are_some() -> None:
    model = manifest.parse_manifest(manifest_with(), Path("m.toml"))["m"]
    assert model.inputs == {"x": Input((1,), (0, 1.5), dtype="float32")}
    sized = manifest_with('inputs.x = { shape = ["n"], value = 1 }\nsizes = [{ n = 0 }]')
    assert manifest.parse_manifest(sized, Path())


def test_it_lies_beside_the_package_or_inside() -> None:
    checkout = Path(__file__).parents[2]
    assert manifest.manifest_of(checkout / "onnxfuse") == checkout / "models" / "manifest.toml"
    assert Path(onnxfuse.__file__).parent / "models" / "manifest.toml" == manifest.MANIFEST


def test_a_name_may_stand_for_several_inputs() -> None:
    text = manifest_with('inputs."past.{0..1}.{key,value}" = { shape = [2] }')
    assert list(manifest.parse_manifest(text, Path())["m"].inputs) == [
        *("past.0.key", "past.0.value", "past.1.key", "past.1.value")
    ]
    assert list(manifest.parse_manifest(manifest_with('inputs."x:0" = { shape = [2] }'), Path())["m"].inputs) == ["x:0"]


def test_the_set_of_deployed_size_is_made_when_needed_and_says_how_large_it_is() -> None:
    full = manifest.of_set(manifest.read_manifest(), "full")
    assert len(full) >= 40
    recipes = {model.name for model in full if not model.kept}
    assert {model.name for model in full} - recipes == {"mobilenet_v2"}  # small enough to keep
    assert all(manifest.MANIFEST.parent.joinpath("recipes", f"{m.recipe.partition(':')[0]}.py").is_file() for m in full)
    for name in ("", "other"):
        with pytest.raises(manifest.FetchError, match=f"no set '{name}' of models; there are: full"):
            manifest.of_set(manifest.read_manifest(), name)
