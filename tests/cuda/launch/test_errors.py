"""Recipes and machine code that nobody should trust, drivers that fail, and what happens without kernels."""

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from tests.cuda.contract import SOURCE, Kernel, node_model, recipe, shared_object
from tests.cuda.stand_in import AVAILABLE, INVALID_IMAGE, LAUNCH_FAILED, REASON, StandIn, cubin
from tests.custom_ops.fused import NODE_NAME, library, run
from tests.support.edits import edited

pytestmark = pytest.mark.skipif(not AVAILABLE, reason=REASON)

KERNELS = (Kernel("k", "ll:l", vector=4, block=256), Kernel("any", "gg:w", index=64))
GOOD = recipe(KERNELS)
NODE = f"onnxfuse::FusedElementwise node '{NODE_NAME}': "
A, B = np.arange(12, dtype=np.float32), np.full(12, 3, np.float32)

BAD_RECIPES = {
    "empty": "",
    "another version": GOOD.replace("onnxfuse-cuda 2", "onnxfuse-cuda 3"),
    "no end of line": GOOD[:-1],
    "carriage returns": GOOD.replace("\n", "\r\n"),
    "no source": GOOD.replace(f"source {SOURCE}\n", ""),
    "short digest": GOOD.replace(SOURCE, SOURCE[1:]),
    "upper-case digest": GOOD.replace(SOURCE, SOURCE.upper()),
    "no kernel": GOOD[: GOOD.index("kernel")],
    "no general kernel": GOOD[: GOOD.index("kernel any")],
    "general kernel of 32 bits": GOOD.replace("index 64", "index 32"),
    "general kernel with vectors": GOOD.replace("any vector 1", "any vector 2"),
    "general kernel that takes not all": GOOD.replace("gg:w", "gl:w"),
    "name with a space": GOOD.replace("kernel k", "kernel k k"),
    "name with a sign": GOOD.replace("kernel k", "kernel k-k"),
    "name that begins with a digit": GOOD.replace("kernel k", "kernel 1k"),
    "long name": GOOD.replace("kernel k", "kernel " + "k" * 129),
    "vector of 0": GOOD.replace("vector 4", "vector 0"),
    "vector of 3": GOOD.replace("vector 4", "vector 3"),
    "vector of 32": GOOD.replace("vector 4", "vector 32"),
    "a kernel line of version 1": GOOD.replace(" block", " unroll 1 block", 1),
    "block of 0": GOOD.replace("block 256", "block 0"),
    "block of 100": GOOD.replace("block 256", "block 100"),
    "block of 2048": GOOD.replace("block 256", "block 2048"),
    "block without end": GOOD.replace("block 256", "block 99999999999999999999"),
    "index of 16": GOOD.replace("index 32", "index 16"),
    "too few letters": GOOD.replace("ll:l", "l:l"),
    "too many letters": GOOD.replace("ll:l", "lll:l"),
    "no colon": GOOD.replace("ll:l", "llll"),
    "two colons": GOOD.replace("ll:l", "l::l"),
    "unknown letter": GOOD.replace("ll:l", "lx:l"),
    "input written sparsely": GOOD.replace("ll:l", "lw:l"),
    "scalar output": GOOD.replace("ll:l", "ll:s"),
    "sparse output in vectors": GOOD.replace("ll:l", "ll:w"),
    "transposed without a tile": GOOD.replace("ll:l", "tg:l"),
    "a tile without what is transposed": GOOD.replace("ll:l", "ll:l tile 32"),
    "tile of 16": GOOD.replace("ll:l", "tg:l tile 16"),
    "tile of no size": GOOD.replace("ll:l", "tg:l tile"),
    "two sizes of a tile": GOOD.replace("ll:l", "tg:l tile 32 32"),
    "another word for a tile": GOOD.replace("ll:l", "tg:l tiles 32"),
    "transposed beside linear": GOOD.replace("ll:l", "tl:l tile 32"),
    "transposed and sparse": GOOD.replace("ll:l", "tg:w tile 32").replace("vector 4", "vector 1"),
    "transposed with indices of 64 bits": GOOD.replace("index 32 access ll:l", "index 64 access tg:l tile 32"),
    "transposed output": GOOD.replace("ll:l", "gg:t tile 32"),
    "zero byte": GOOD.replace("kernel k", "kernel k\0"),
    "too many kernels": GOOD.replace("kernel any", KERNELS[0].line * 15 + "kernel any"),
    "too long": GOOD + "kernel " * 10000,
}


def model(**code: bytes) -> onnx.ModelProto:
    return node_model(KERNELS, [["n"], ["n"]], **code)


def with_recipe(text: str) -> onnx.ModelProto:
    changed = model()
    (attribute,) = [a for a in changed.graph.node[0].attribute if a.name == "cuda_recipe"]
    attribute.s = text.encode()
    return changed


def check(session: ort.InferenceSession) -> None:
    np.testing.assert_array_equal(run(session, [A, B])[0], A + B)


@pytest.mark.parametrize("text", BAD_RECIPES.values(), ids=BAD_RECIPES.keys())
def test_bad_recipes_are_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"the cuda_recipe attribute is not valid: line [0-9]+: ") as caught:
        StandIn(tmp_path).session(with_recipe(text))
    assert NODE in str(caught.value)


def test_more_parameters_than_a_launch_can_pass(tmp_path: Path) -> None:
    letters = "g" * 60
    kernels = (Kernel("any", f"{letters}:w", ("0",), index=64),)
    with pytest.raises(Exception, match="line 3: the parameters are more than 4096 bytes"):
        StandIn(tmp_path).session(node_model(kernels, [[1]] * 60, cuda_ptx=b""))


def test_mutated_recipes_never_crash(tmp_path: Path) -> None:
    choose = random.Random(0)
    stand_in = StandIn(tmp_path)
    for _ in range(200):
        text = edited(GOOD, choose, "0123456789 \nsliocgtw:")
        try:
            session = stand_in.session(with_recipe(text), severity=4)
        except Exception as error:
            assert NODE in str(error)
        else:
            check(session)


def test_machine_code_that_is_not_whole(tmp_path: Path) -> None:
    """The driver would read beyond it."""
    whole = cubin(shared_object(KERNELS), 90)
    stand_in = StandIn(tmp_path)
    sections = int.from_bytes(whole[40:48], "little")
    pieces = {length: whole[:length] for length in (0, 1, 63, 64, 100, sections, sections + 64, len(whole) - 1)}
    broken = {
        "not ELF": b"MZ" + whole[2:],
        "32 bits": whole[:4] + b"\1" + whole[5:],
        "of the host": shared_object(KERNELS).read_bytes(),
        "no sections": whole[:60] + bytes(2) + whole[62:],
        "more sections": whole[:60] + b"\xff\xff" + whole[62:],
        "sections elsewhere": whole[:40] + b"\xf0" + b"\xff" * 7 + whole[48:],
        "a section beyond the end": whole[: sections + 64 + 32] + b"\xff" * 8 + whole[sections + 64 + 40 :],
        "program headers beyond the end": whole[:32] + b"\xff" * 8 + whole[40:],
    }
    for name, image in {**pieces, **broken}.items():
        with pytest.raises(Exception, match="the attribute cuda_sm_90 is not valid: it ") as caught:
            stand_in.session(model(cuda_sm_90=image))
        assert NODE in str(caught.value), name
    assert not stand_in.calls("cuModuleLoadDataEx")


@pytest.mark.parametrize(
    "image", [b"", b"rubbish", b".version 8.0\n.target sm_75\n\0", b".version 8.0 \xe4 .target sm_75"]
)
def test_ptx_that_is_none(image: bytes, tmp_path: Path) -> None:
    stand_in = StandIn(tmp_path)
    with pytest.raises(Exception, match=f"{NODE}the attribute cuda_ptx is not valid: it is not PTX"):
        stand_in.session(model(cuda_ptx=image))
    assert not stand_in.calls("cuModuleLoadDataEx")


def test_code_without_the_kernels_of_the_recipe(tmp_path: Path) -> None:
    text = GOOD.replace("kernel k ", "kernel another ")
    with pytest.raises(Exception, match=f"{NODE}the attribute cuda_sm_90 holds no kernel 'another' of the recipe"):
        StandIn(tmp_path).session(with_recipe(text))


def test_code_with_other_parameters_than_the_recipe(tmp_path: Path) -> None:
    text = GOOD.replace("ll:l", "lo:l")
    with pytest.raises(Exception, match=f"{NODE}the kernel 'k' of the attribute cuda_sm_90 has other parameters"):
        StandIn(tmp_path).session(with_recipe(text))
    text = GOOD.replace("index 32", "index 64", 1)
    with pytest.raises(Exception, match="has other parameters than its recipe, from number 3 on"):
        StandIn(tmp_path / "second").session(with_recipe(text))


def test_a_block_that_the_kernel_has_no_registers_for(tmp_path: Path) -> None:
    stand_in = StandIn(tmp_path)
    stand_in.limit_threads(128)
    with pytest.raises(Exception, match=f"{NODE}the kernel 'k' .* blocks of at most 128 threads, not of 256"):
        stand_in.session(model())


def test_a_failed_launch_names_the_node(tmp_path: Path) -> None:
    stand_in = StandIn(tmp_path)
    session = stand_in.session(model())
    stand_in.fail("cuLaunchKernel", LAUNCH_FAILED)
    with pytest.raises(Exception, match="FAIL") as caught:
        run(session, [A, B])
    reason = "cuLaunchKernel of k on 1 blocks of 256 threads: CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure"
    assert NODE + reason in str(caught.value)
    check(session)


@pytest.mark.parametrize(
    "function",
    ["cuDeviceGetAttribute", "cuCtxGetDevice", "cuModuleLoadDataEx", "cuModuleGetFunction", "cuFuncGetAttribute"],
)
def test_a_driver_that_fails_while_loading(function: str, tmp_path: Path) -> None:
    stand_in = StandIn(tmp_path)
    stand_in.fail(function, 2)
    with pytest.raises(Exception, match=f"{NODE}{function}: CUDA error 2"):
        stand_in.session(model())
    check(stand_in.session(model()))


def test_a_graph_cannot_be_captured_before_modules_are_loaded(tmp_path: Path) -> None:
    stand_in = StandIn(tmp_path)
    session = stand_in.session(model(), device=None)
    stand_in.use_stream(0)
    stand_in.capture(True)
    with pytest.raises(Exception, match=f"{NODE}cuModuleLoadDataEx: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"):
        run(session, [A, B])
    stand_in.capture(False)
    check(session)


def test_float16_tensors_that_onnxruntime_widened(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The kernels are for float16, so the CPU computes."""
    kernels = (Kernel("any", "g:w", ("0",), index=64),)
    widened = node_model(kernels, [["n"]])
    widened.graph.node[0].attribute[0].s = b"onnxfuse 1\ninput f16 broadcast\nneg f16 0\noutput 1\n"
    stand_in = StandIn(tmp_path)
    session = stand_in.session(widened)
    np.testing.assert_array_equal(run(session, [A])[0], -A)
    assert not stand_in.launches()
    assert "ONNX Runtime has widened its float16 tensors" in capfd.readouterr().err


def test_a_type_that_the_program_does_not_have(tmp_path: Path) -> None:
    wrong = model()
    for value in wrong.graph.input:
        value.type.tensor_type.elem_type = onnx.TensorProto.INT32
    session = StandIn(tmp_path).session(wrong)
    with pytest.raises(Exception, match=f"{NODE}input 0 has ONNX element type 6"):
        run(session, [A.astype(np.int32), B.astype(np.int32)])


@pytest.mark.parametrize(
    ("driver", "reason"),
    [
        ("/nowhere/libcuda.so.1", "the CUDA driver cannot be opened: /nowhere/libcuda.so.1"),
        ("libm.so.6", "the CUDA driver libm.so.6 has no function cu"),
        (None, "cuInit: CUDA_ERROR_NO_DEVICE"),
    ],
)
def test_the_provider_without_a_driver(driver: str | None, reason: str, tmp_path: Path) -> None:
    stand_in = StandIn(tmp_path, [])
    if driver is not None:
        stand_in.driver_path = Path(driver)
    with pytest.raises(Exception, match=NODE) as caught:
        stand_in.session(model())
    assert NODE + reason in str(caught.value)


def test_the_cpu_provider_opens_no_driver(tmp_path: Path) -> None:
    """Nor does it read the attributes for CUDA."""
    path = tmp_path / "model.onnx"
    spoilt = with_recipe("rubbish")
    spoilt.graph.node[0].attribute.append(helper.make_attribute("cuda_ptx", b"rubbish"))
    onnx.save(spoilt, path)
    script = (
        "import sys, numpy as np, onnxruntime as ort\n"
        "from tests.custom_ops.fused import session_options\n"
        "session = ort.InferenceSession(sys.argv[1], session_options(), providers=['CPUExecutionProvider'])\n"
        "x = np.ones(3, np.float32)\n"
        "assert session.run(None, {'x0': x, 'x1': x})[0][0] == 2\n"
        "assert 'stand_in_cuda' not in open('/proc/self/maps').read()\n"
    )
    stand_in = StandIn(tmp_path / "driver")
    environment = {
        "PYTHONPATH": str(Path(__file__).parents[3]),  # has no library
        "ONNXFUSE_TEST_LIBRARY": library(),
        "ONNXFUSE_LIBCUDA": str(stand_in.driver_path),
    }
    environment = {**os.environ, **environment}
    subprocess.run([sys.executable, "-c", script, str(path)], env=environment, check=True)


def test_code_that_the_driver_cannot_read(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    stand_in = StandIn(tmp_path)
    stand_in.fail("cuModuleLoadDataEx", INVALID_IMAGE)
    check(stand_in.session(model()))
    assert "cuda_sm_90: CUDA_ERROR_INVALID_IMAGE" in capfd.readouterr().err
