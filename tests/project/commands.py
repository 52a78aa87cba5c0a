"""The commands in the documents, and how each that is none of onnxfuse's own runs in the tests."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "examples" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
)
LANGUAGES = {"sh", "python", "c", "json", "toml", "text"}
"""Of the blocks in the pages."""
_PROGRAMS = {
    *("onnxfuse", "pip", "python", "mkdocs", "cmake", "optimum-cli", "olive", "git", "export", "source"),
    *("cc", "c++", "npm", "node", "dotnet", "cargo", "java", "tritonserver", "docker"),
}
"""What begins a command within a line of text, if a word follows."""


@dataclass(frozen=True)
class How:
    """How a command is run: as ``run``, the same with more options; by a ``test`` of its own; or with ``stand_ins`` for
    what it calls (test_shell_scripts.py).  One that ``needs`` what the tests have not does not run as it stands:
    ``run`` is what there is in its place, such as its help.
    """

    run: str = ""
    test: str = ""
    stand_ins: bool = False
    needs: str = ""


_EXAMPLES = "examples/test_examples.py::test_"
_MINUTES = "a compiler, PyPI, and minutes"
_PEERS = "--only models --models tabular --peers copy --seconds 0 --patience 0"
_BENCH = f".venv/bin/python scripts/bench.py --out results {_PEERS}"
_BENCH_CPU = "scripts/bench_cpu.py --quick --only models --models camera --seconds 0"
_BENCH_REDUCTIONS = "scripts/bench_reductions.py --only 'L2 normalize' --quick"
_KIND_GAINS = "scripts/kind_gains.py camera --seconds 0"
_GPU = "python scripts/gpu_suite.py --out build/gpu --dry-run --only transposes"
_CONFIGURE = "cmake -S . -B build/race -DONNXFUSE_BUILD_TESTS=ON -DONNXFUSE_SANITIZE=thread"
_DRIVERS = "custom_ops/library/test_cpp.py::test_drivers_that_only_the_fuzzer_runs"
_INSTANCES = "python scripts/conv_instances.py --jobs 2 --page --quick"

C = (
    "cc -std=c99 -D_GNU_SOURCE -Ilib -I$ORT/include main.c -L$ORT/lib -lonnxruntime -Wl,-rpath,$ORT/lib"
    " -o lib/main && lib/main fused.onnx 1 8"
)
CPP = (
    "c++ -std=c++17 -Ilib -I$ORT/include main.cc -L$ORT/lib -lonnxruntime -Wl,-rpath,$ORT/lib"
    " -o lib/main && lib/main fused.onnx 1 8"
)
PYTHON = "python main.py $PWD/lib/libonnxfuse_ops.so fused.onnx 1 8"
"""What tests/examples runs as it stands."""

TABLE = {
    # installing: what pip would do, without a network
    "pip install '.[cpu]'": How("pip install --dry-run --no-index --no-deps --no-build-isolation '.[cpu]'"),
    "pip install '.[cuda]'": How("pip install --dry-run --no-index --no-deps --no-build-isolation '.[cuda]'"),
    "pip install '.[cpu,nvrtc]'": How("pip install --dry-run --no-index --no-deps --no-build-isolation '.[cpu,nvrtc]'"),
    "pip install '.[docs]'": How("pip install --dry-run --no-index --no-deps --no-build-isolation '.[docs]'"),
    "pip install '.[cuda]' pytest": How(
        "pip install --dry-run --no-index --no-deps --no-build-isolation '.[cuda]' pytest"
    ),
    "pip install --no-build-isolation --no-deps .": How("pip install --dry-run --no-build-isolation --no-deps ."),
    "pip install onnxruntime": How("pip install --dry-run --no-index onnxruntime"),
    "pip install cuda-bindings nvidia-cuda-nvrtc": How(
        "pip install --dry-run --no-index --no-deps cuda-bindings nvidia-cuda-nvrtc"
    ),
    "pip install dist/onnxfuse-*.whl onnxruntime": How(
        needs="a wheel: scripts/wheels.sh test does it with one, in fresh environments"
    ),
    "scripts/quickstart.sh": How(stand_ins=True, needs=_MINUTES),
    "scripts/test.sh": How(stand_ins=True, needs="minutes: it runs these tests"),
    "scripts/test.sh --quick": How(stand_ins=True, needs="minutes: it runs these tests"),
    "scripts/test.sh --newest": How(stand_ins=True, needs="minutes: it runs these tests"),
    "source .venv/bin/activate": How("source .venv/bin/activate"),
    "mkdocs build --strict": How(test="project/test_site.py::test_the_site_is_built_with_every_link_in_place"),
    # other platforms and wheels
    "scripts/aarch64.sh tools": How(stand_ins=True, needs="packages of Debian, and minutes"),
    "scripts/aarch64.sh setup": How(stand_ins=True, needs="packages of Debian, and minutes"),
    "scripts/aarch64.sh fuzz": How(stand_ins=True, needs="what scripts/aarch64.sh setup builds, and minutes"),
    "scripts/aarch64.sh pytest": How(stand_ins=True, needs="what scripts/aarch64.sh setup builds, and minutes"),
    "scripts/wheels.sh build": How(stand_ins=True, needs=_MINUTES),
    "scripts/wheels.sh test": How(stand_ins=True, needs="a wheel, several Pythons, and PyPI"),
    "scripts/wheels.sh test linux-aarch64": How(stand_ins=True, needs="a wheel, packages of Debian, and PyPI"),
    "scripts/wheels.sh test windows-x86_64": How(stand_ins=True, needs="a wheel, Wine, and PyPI"),
    "scripts/wheels.sh speed": How(stand_ins=True, needs="a wheel, and a quiet machine"),
    "scripts/wheels.sh speed MODEL": How(stand_ins=True, needs="a wheel, and a quiet machine"),
    # measuring
    "scripts/bench.py": How(_BENCH),
    "scripts/bench.py --patience S": How(_BENCH),
    ".venv/bin/python scripts/bench.py --out results": How(_BENCH),
    ".venv/bin/python scripts/bench.py --prepare": How(
        f".venv/bin/python scripts/bench.py --prepare --out build/prepared {_PEERS}"
    ),
    "scripts/bench_cpu.py": How(_BENCH_CPU),
    "scripts/bench_cpu.py --quick": How(_BENCH_CPU),
    "scripts/bench_reductions.py --quick": How(_BENCH_REDUCTIONS),
    "scripts/kind_gains.py MODEL --seconds 0": How(_KIND_GAINS),
    "scripts/bench.py --models tabular --seconds 0": How(_BENCH),
    "scripts/bench_reductions.py": How(_BENCH_REDUCTIONS),
    "scripts/kind_gains.py": How(_KIND_GAINS),
    "scripts/parity.py": How("scripts/parity.py --models tabular --seconds 0 --out build/parity"),
    "scripts/gpu_suite.py": How(_GPU),
    "scripts/gpu_suite.py --out DIR": How(_GPU),
    "python scripts/gpu_suite.py --out DIR": How(_GPU),
    # what writes pages and tables
    "scripts/operator_table.py": How("scripts/operator_table.py"),
    "scripts/conformance.py": How(
        "scripts/conformance.py --help",
        test="commands/test_conformance.py::test_every_case_of_an_operator_has_the_same_result",
        needs="minutes, which that test takes for the same cases",
    ),
    "scripts/reduction_errors.py": How("scripts/reduction_errors.py ReduceSum"),
    "scripts/other_tools.py": How("scripts/other_tools.py --check"),
    "scripts/portability.py": How("scripts/portability.py --models camera --ort --seconds 20"),
    "scripts/cuda_launches.py": How("scripts/cuda_launches.py tabular"),
    "scripts/zoo_plans.py": How("scripts/zoo_plans.py tabular"),
    "scripts/zoo_kernels.py": How("scripts/zoo_kernels.py tabular"),
    "scripts/zoo_convolutions.py": How("scripts/zoo_convolutions.py float16"),
    "scripts/conv_instances.py --page": How(_INSTANCES),
    "python scripts/conv_instances.py --jobs 2 --page": How(_INSTANCES),
    # looking for faults
    "scripts/fuzz.py": How("scripts/fuzz.py graphs --count 5 --out build/fuzz"),
    "python scripts/fuzz.py native --seconds 600": How(
        "python scripts/fuzz.py native --help",
        needs="a build with sanitizers, and minutes",
    ),
    "export ONNXFUSE_ORT_OLDEST=$PWD/.venv-oldest/bin/python": How(
        "export ONNXFUSE_ORT_OLDEST=$PWD/.venv-oldest/bin/python"
    ),
    ".venv/bin/pytest --exhaustive tests/custom_ops/library/test_instruction_sets.py": How(
        ".venv/bin/python -m pytest --exhaustive tests/custom_ops/library/test_instruction_sets.py --collect-only",
        needs="minutes",
    ),
    _CONFIGURE: How(f"{_CONFIGURE} && cmake --build build/race --target help | grep fuzz_program"),
    "cmake --build build/race --target fuzz_program": How(test=_DRIVERS, needs="minutes of compiling"),
    "ONNXFUSE_CACHE_BYTES=1 ONNXFUSE_FUZZ_THREADS=2 build/race/fuzz_program 1000000 2": How(
        test=_DRIVERS, needs="what is built before"
    ),
    # examples
    C: How(test=f"{_EXAMPLES}c"),
    CPP: How(test=f"{_EXAMPLES}cpp", needs="ONNX Runtime's headers"),
    PYTHON: How(test=f"{_EXAMPLES}python_without_onnxfuse"),
    "python server.py fused.onnx 8000": How(test=f"{_EXAMPLES}http"),
    "npm install onnxruntime-node && node main.js fused.onnx 1 8": How(
        test=f"{_EXAMPLES}nodejs", needs="Node.js, and a network"
    ),
    "python examples/http/server.py fused.onnx 8000": How(test=f"{_EXAMPLES}http"),
    "optimum-cli export onnx --model MODEL DIR && onnxfuse optimize DIR/model.onnx DIR/model.fused.onnx": How(
        needs="optimum and PyTorch from PyPI, and a network"
    ),
    "olive run --config workflow.json && onnxfuse optimize quantized/model.onnx quantized/model.fused.onnx": How(
        needs="olive-ai and PyTorch from PyPI"
    ),
    "tritonserver --model-repository=triton": How(
        test=f"{_EXAMPLES}the_configuration_for_triton", needs="the server, which is not on PyPI"
    ),
    "dotnet run -- lib/libonnxfuse_ops.so fused.onnx 1 8": How(
        test=f"{_EXAMPLES}projects_with_packages", needs=".NET with ONNX Runtime's package"
    ),
    "cargo run -- lib/libonnxfuse_ops.so fused.onnx 1 8": How(
        test=f"{_EXAMPLES}projects_with_packages", needs="Rust with the crate ort"
    ),
    "java -cp onnxruntime.jar Main.java lib/libonnxfuse_ops.so fused.onnx 1 8": How(
        test=f"{_EXAMPLES}java", needs="Java with onnxruntime.jar"
    ),
}
"""Every command that is none of onnxfuse's own."""


def blocks(page: Path) -> list[tuple[str, str, str]]:
    """The blocks of a page: why one is not run, its language, its text."""
    text = page.read_text(encoding="utf-8")
    found = re.findall(r"(?:<!-- not run: ([^\n]+) -->\n)?^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert len(found) * 2 == text.count("```"), page
    return found


def commands(page: Path) -> Iterator[str]:
    """Those in the blocks of a page, a line each, and those within its text, without what is said behind them."""
    for _, language, block in blocks(page):
        if language == "sh":
            for line in block.replace("\\\n", " ").splitlines():
                if command := " ".join(f" {line}".partition(" #")[0].split()):
                    yield command
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for span in re.findall(r"(?<!`)`([^`]+)`", text):
        words = span.replace("\\|", "|").split()
        script = re.fullmatch(r"scripts/\w+\.(py|sh)", words[0])
        if script or (words[0] in _PROGRAMS and len(words) > 1):
            yield " ".join(words)
