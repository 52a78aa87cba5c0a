"""What the native library says of the processor."""

import platform
import sys
from pathlib import Path

import pytest

from onnxfuse import cpu
from onnxfuse.errors import OnnxfuseError
from onnxfuse.run.library import custom_ops_library

X86_64 = platform.machine().lower() in ("x86_64", "amd64")


@pytest.mark.skipif(not (X86_64 and sys.platform == "linux"), reason="Linux says it of processors of x86-64")
def test_the_processor_is_that_of_the_system() -> None:
    first, _, _ = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")
    system = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())}
    flags = set(system["flags"].split())
    found = cpu.read(custom_ops_library())
    assert (found["vendor"], found["family"]) == (system["vendor_id"], system["cpu family"])
    assert found["name"].split() == system["model name"].split()
    wanted = {"avx2": {"avx2", "fma", "f16c"}, "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl"}}
    features = {name for name, needed in wanted.items() if needed <= flags}
    vnni = {"avx512": "avx512_vnni", "avx2": "avx_vnni"}
    features |= {"vnni" for beside, flag in vnni.items() if beside in features and flag in flags}
    assert set(found["features"].split()) == features
    assert cpu.has_avx2() is ("avx2" in found["features"])
    assert found["name"] in cpu.describe()


@pytest.mark.skipif(X86_64, reason="the library knows processors of x86-64")
def test_of_other_processors_nothing_is_said() -> None:
    assert cpu.read(custom_ops_library()) == {}
    assert not cpu.has_avx2() and not cpu.is_intel()


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever describes the machine is not stopped; whoever plans is told."""

    def missing() -> str:
        raise OnnxfuseError("there is none")

    monkeypatch.setattr(cpu, "custom_ops_library", missing)
    cpu._info.cache_clear()
    try:
        assert cpu.describe() == (platform.processor() or platform.machine())
        with pytest.raises(OnnxfuseError, match="there is none"):
            cpu.has_avx2()
    finally:
        cpu._info.cache_clear()
