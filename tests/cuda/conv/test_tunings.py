"""The tuning file, which may come from anywhere, and the choices that follow from it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onnxfuse.cuda.conv import tunings as module
from onnxfuse.cuda.conv.case import ConvCase
from onnxfuse.cuda.conv.choice import RuleChooser
from onnxfuse.cuda.conv.fitting import ConvFitter, tilings_of
from onnxfuse.cuda.conv.spec import Convolution
from onnxfuse.cuda.conv.tunings import (
    OURS,
    THEIRS,
    Times,
    TuningEntry,
    Tunings,
    add_to_file,
    all_tunings,
    key_of,
    own_file,
    own_tunings,
    read_tunings,
)
from onnxfuse.cuda.tuned import Choice
from onnxfuse.errors import OnnxfuseError
from onnxfuse.fused.choices import ConvPolicy, policy_named
from onnxfuse.program import Program

RELU = Program.parse("onnxfuse 1\ninput f32 broadcast\nrelu f32 0\noutput 1\n")
TANH = Program.parse("onnxfuse 1\ninput f32 broadcast\ntanh f32 0\noutput 1\n")
DEPTHWISE = Convolution(False, "f32", 8, 8, 8, (3, 3), (1, 1), (1, 1), (1, 1, 1, 1), "NOTSET", (0, 0))
DENSE = replace(DEPTHWISE, group=1)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def case(conv: Convolution = DENSE, epilogue: Program = RELU, x_shape: tuple[Any, ...] = ("n", 8, 56, 56)) -> ConvCase:
    return ConvCase(conv, x_shape, epilogue, ())


def entry(what: ConvCase, winner: str = OURS, ours: float | None = 1e-5, architecture: str = "sm_90") -> TuningEntry:
    times = (Times((1, 8, 56, 56), 2e-5, ours),)
    tilings = tilings_of(what)[-1]
    return TuningEntry(key_of(what, architecture, False), "made-up GPU", "1.31.1", winner, tilings, times)


def test_the_file_is_read_as_it_was_written_and_later_files_win(tmp_path: Path) -> None:
    first, second = entry(case()), entry(case(DEPTHWISE, TANH), THEIRS, None)
    add_to_file(tmp_path / "new" / "a.json", Tunings([first]))
    add_to_file(tmp_path / "new" / "a.json", Tunings([second]))
    assert list(read_tunings(tmp_path / "new" / "a.json")) == [first, second]
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.json"]
    add_to_file(tmp_path / "b.json", Tunings([replace(first, winner=THEIRS)]))
    add_to_file(own_file(), Tunings([replace(first, gpu="of this machine")]))
    a, b = tmp_path / "new" / "a.json", tmp_path / "b.json"
    assert [found.winner for found in all_tunings([a, b], False)] == [THEIRS, THEIRS]
    assert [found.winner for found in all_tunings([b, a], False)] == [OURS, THEIRS]
    assert [found.gpu for found in all_tunings([], False)] == ["of this machine"]


def test_a_damaged_file_of_this_machine_counts_as_empty() -> None:
    own_file().parent.mkdir(parents=True)
    own_file().write_text("{")
    assert len(own_tunings()) == 0


def test_the_last_file_need_not_exist_when_tuning(tmp_path: Path) -> None:
    assert len(all_tunings([tmp_path / "none.json"], True)) == 0
    for files, new in (([tmp_path / "none.json"], False), ([tmp_path / "none.json", tmp_path / "other.json"], True)):
        with pytest.raises(OnnxfuseError, match="cannot be read"):
            all_tunings(files, new)


def _changed(path: str, value: object) -> bytes:
    """A valid file with one field changed, or taken away (None with a path that ends in ``-``)."""
    data = json.loads(str(Tunings([entry(case())])))
    place: Any = data
    *steps, last = [int(step) if step.isdigit() else step for step in path.rstrip("-").split("/")]
    for step in steps:
        place = place[step]
    if path.endswith("-"):
        del place[last]
    else:
        place[last] = value
    return json.dumps(data).encode()


E = "entries/0/"
BAD: list[tuple[bytes, str]] = [
    (b"", "not JSON"),
    (b"\xff\xfe", "not JSON"),
    (b"[" * 100_000, "not JSON"),
    (b"[]", "does not say"),
    (_changed("format", "onnxfuse convolution tuning 2"), "does not say"),
    (_changed("entries", {}), "does not say"),
    (_changed("entries/0", 1), "entry 1: not an object"),
    (_changed(E + "gpu-", None), "not an object with the fields"),
    (_changed(E + "more", 1), "not an object with the fields"),
    (_changed(E + "gpu", "a\nb"), "gpu is no line"),
    (_changed(E + "gpu", "x" * 2000), "gpu is no line"),
    (_changed(E + "architecture", "90"), "unknown architecture"),
    (_changed(E + "architecture", 90), "architecture is no line"),
    (_changed(E + "input", [1, 8]), "is no shape"),
    (_changed(E + "input", [1, 8, -1, 4]), "is no shape"),
    (_changed(E + "input", [1, 8, True, 4]), "is no shape"),
    (_changed(E + "input", [1] * 6), "input is no list"),
    (_changed(E + "programs", "g" * 64), "sha256"),
    (_changed(E + "math", "fuzzy"), "math is none of"),
    (_changed(E + "winner", "nobody"), "winner is none of"),
    (_changed(E + "winner", ["onnxfuse"]), "winner is none of"),
    (_changed(E + "tilings", []), "no tilings"),
    (_changed(E + "tilings", [1]), "not an object"),
    (_changed(E + "tilings/0/family", "winograd"), "family is none of"),
    (_changed(E + "tilings/0/tile", [1, 1]), "a tile that is none"),
    (_changed(E + "tilings/0/tile", [0, 1, 1]), "a tile that is none"),
    (_changed(E + "tilings/0/thread", [1, 1e3]), "a tile that is none"),
    (_changed(E + "tilings/0/vector", 3), "a vector or a split"),
    (_changed(E + "tilings/0/split", 1000), "a vector or a split"),
    (_changed(E + "tilings/0/tensor_cores", 1), "tensor_cores"),
    (_changed(E + "times", [1] * 100), "times is no list"),
    (_changed(E + "times/0/onnxruntime", 0), "a time that is none"),
    (_changed(E + "times/0/onnxruntime", float("nan")), "a time that is none"),
    (_changed(E + "times/0/onnxruntime", None), "a time that is none"),
    (_changed(E + "times/0/onnxfuse", 10**400), "a time that is none"),
    (_changed(E + "times/0/input", ["n"]), "no shape"),
]


@pytest.mark.parametrize(("content", "message"), BAD)
def test_what_is_no_tuning_file_is_refused_in_one_line(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_bytes(content)
    with pytest.raises(OnnxfuseError, match="bad") as caught:
        read_tunings(tmp_path / "bad.json")
    assert message in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 500


def test_a_large_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 1 << 20)
    (tmp_path / "large.json").write_bytes(b" " * ((1 << 20) + 1))
    with pytest.raises(OnnxfuseError, match="larger than 1 MB"):
        read_tunings(tmp_path / "large.json")


def test_entries_are_known_by_all_that_matters() -> None:
    known = Tunings([entry(case())])
    assert known.find(case(), "sm_90", False) is not None
    for other in (
        case(replace(DENSE, strides=(2, 2))),
        case(epilogue=TANH),
        case(x_shape=(1, 8, 56, 56)),
        case(x_shape=("n", 8, "h", "w")),
        replace(case(), prologue=RELU),
        replace(case(), tf32=True),
    ):
        assert known.find(other, "sm_90", False) is None
    assert known.find(case(x_shape=("batch", 8, 56, 56)), "sm_90", False) is not None
    assert known.find(case(), "sm_80", False) is None
    assert known.find(case(), "sm_90", True) is None


def test_tilings_that_this_version_does_not_have_are_not_taken() -> None:
    """A file may hold any; only what the candidates have is rendered."""
    good = entry(case())
    odd = tuple(replace(tiling, tile=(4096, 4096, 4096)) for tiling in good.tilings)
    tunings = Tunings([replace(good, tilings=odd)])
    assert tunings.find(case(), "sm_90", False) is None
    assert ConvFitter(None, (), ("sm_90",), False, tunings).fit(case()).choice is Choice.HEURISTIC
    fit = ConvFitter(None, (), ("sm_80", "sm_90"), False, Tunings([good])).fit(case())
    assert fit.choice is Choice.TUNED
    assert [kernel.tile for kernel in fit.source.kernels[:-1]] == [tiling.tile for tiling in good.tilings]


def test_by_the_rule_depthwise_float_convolutions_of_images_are_fused() -> None:
    chooser = RuleChooser()
    assert chooser.choose(case(DEPTHWISE)).fused and not chooser.choose(case()).fused
    for other in (
        replace(DEPTHWISE, dtype="bf16"),
        replace(DEPTHWISE, out_channels=16),
        replace(DEPTHWISE, transposed=True),
        Convolution(False, "f32", 8, 8, 8, (3,), (1,), (1,), (1, 1), "NOTSET", (0,)),
    ):
        assert not chooser.might(other).fused
    half = replace(DEPTHWISE, dtype="f16")
    assert chooser.might(half).fused


def test_what_was_measured_counts_more_than_the_rule() -> None:
    slower = entry(case(DEPTHWISE), THEIRS, 3e-5)
    tunings = Tunings([entry(case()), slower])
    chooser = RuleChooser(tunings=tunings, architectures=("sm_90",))
    assert chooser.might(DENSE).fused
    choice = chooser.choose(case())
    assert choice.fused and choice.reason == "measured on made-up GPU: ONNX Runtime takes 2.00 times as long"
    assert not chooser.choose(case(epilogue=TANH)).fused  # measured with another tail only
    assert chooser.choose(case(DEPTHWISE)).reason == "measured on made-up GPU: ONNX Runtime takes 0.67 times as long"
    assert not chooser.choose(case(DEPTHWISE)).fused
    elsewhere = RuleChooser(tunings=tunings, architectures=("sm_120",))
    assert not elsewhere.choose(case()).fused and elsewhere.choose(case(DEPTHWISE)).fused


def test_on_several_architectures_it_has_to_be_faster_on_all_that_were_measured() -> None:
    tunings = Tunings([entry(case()), entry(case(), THEIRS, 4e-5, "sm_80")])
    assert RuleChooser(tunings=tunings, architectures=("sm_90", "sm_100")).choose(case()).fused
    choice = RuleChooser(tunings=tunings, architectures=("sm_80", "sm_90")).choose(case())
    assert not choice.fused and "0.50 times" in choice.reason


def test_what_no_kernel_computes_well_is_never_fused() -> None:
    large = replace(DEPTHWISE, kernel=(9, 9), pads=(4, 4, 4, 4))
    for policy in (ConvPolicy.AUTO, ConvPolicy.ALL):
        choice = RuleChooser(policy).choose(case(large))
        assert not choice.fused and "takes anything" in choice.reason

    unmeasured = replace(entry(case(), THEIRS, None), tilings=())
    choice = RuleChooser(tunings=Tunings([unmeasured]), architectures=("sm_90",)).choose(case())
    assert not choice.fused and "no kernel of onnxfuse" in choice.reason


def test_policies_have_names() -> None:
    assert policy_named("all") is ConvPolicy.ALL
    with pytest.raises(OnnxfuseError, match="'some'; there are auto, all, none"):
        policy_named("some")
