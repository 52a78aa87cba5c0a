"""Files that earlier versions wrote: they run, and every command takes them as it does others.

``earlier/`` has two models and what was made of them for the CPU on the days that their names say: on the first there
were regions of elementwise nodes alone, on the last there were Programs that reduce.
"""

import re
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxfuse
from onnxfuse.check.float64_reference import Float64Model
from onnxfuse.check.parity import compare
from onnxfuse.fused.kinds import DOMAIN
from onnxfuse.planning.inspection import inspect
from tests.support import fusing

EARLIER = Path(__file__).parent / "earlier"
NAMES = sorted(path.stem for path in EARLIER.glob("*_*.textproto"))


@cache
def model(name: str) -> onnx.ModelProto:
    return onnx.load(EARLIER / f"{name}.textproto", format="textproto")


def original(name: str) -> onnx.ModelProto:
    return model(name.partition("_")[0])


def feeds(name: str) -> dict[str, np.ndarray]:
    (x,) = original(name).graph.input
    sizes = [dim.dim_value or 2 for dim in x.type.tensor_type.shape.dim]
    return {x.name: np.random.default_rng(1).standard_normal(sizes).astype(np.float32)}


def kinds(proto: onnx.ModelProto) -> Counter[str]:
    return Counter(re.sub(r"_\d+$", "", node.op_type) for node in fusing.fused_nodes(proto))


def with_kernels(found: Counter[str]) -> Counter[str]:
    """With what takes the place of kinds that there are no more."""
    return found - Counter(FusedNormalization=99) + Counter(FusedReduction=found["FusedNormalization"])


def test_they_have_every_kind_that_there_was() -> None:
    assert {kind for name in NAMES for kind in kinds(model(name))} == {
        *("FusedAttention", "FusedConv", "FusedElementwise"),
        *("FusedNormalization", "FusedReduction", "FusedSqueezeExcite"),
    }


@pytest.mark.parametrize("name", NAMES)
def test_they_run_and_are_what_they_were_made_of(name: str, tmp_path: Path) -> None:
    """Each fused node alone as well."""
    for proto, file in ((original(name), "original.onnx"), (model(name), "earlier.onnx")):
        onnx.save(proto, tmp_path / file)
    assert compare(tmp_path / "original.onnx", tmp_path / "earlier.onnx", regions=True).ok


@pytest.mark.parametrize("name", NAMES)
def test_what_they_compute_is_known_in_float64(name: str) -> None:
    """By it a result is judged that differs from that of the earlier file."""
    found, expected = (Float64Model(proto, Path(), 60.0) for proto in (model(name), original(name)))
    own, wanted = found.outputs(feeds(name)), expected.outputs(feeds(name))
    assert own is not None and wanted is not None, found.reason
    np.testing.assert_allclose(own["y"], wanted["y"], rtol=1e-9, atol=1e-12)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
def test_they_are_optimized_again(name: str, tmp_path: Path) -> None:
    onnx.save(model(name), tmp_path / "earlier.onnx")
    result = onnxfuse.optimize(tmp_path / "earlier.onnx", "cpu")
    assert result.report.parity is not None and result.report.parity.ok and not result.report.warnings
    before = kinds(model(name))
    assert kinds(result.model) >= with_kernels(before)
    left = before.total() - before["FusedNormalization"]
    assert f"{left} node" in result.report.summary() and "unfuse" in result.report.summary()
    found = inspect(tmp_path / "earlier.onnx", "cpu", lambda message: None)
    assert len(found.fused) == before.total()


@pytest.mark.parametrize("name", NAMES)
def test_without_their_fused_nodes_they_are_fused_as_the_original(name: str) -> None:
    plain = onnxfuse.unfuse(model(name))
    assert not [node for node in plain.graph.node if node.domain == DOMAIN]
    again, fresh = (onnxfuse.optimize(proto, "cpu", check=False).model for proto in (plain, original(name)))
    assert kinds(again) == kinds(fresh)
