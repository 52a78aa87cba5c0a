"""The scripts that collect the zoo's CUDA sources, over two of its models: the corpus and the page that they write."""

import re
from pathlib import Path
from types import ModuleType

import pytest
import zoo_convolutions
import zoo_kernels

from onnxfuse.cuda.arch import COMMON
from onnxfuse.errors import OnnxfuseError
from onnxfuse.zoo.manifest import StoredModel
from tests.cuda.compilers import MadeUpCompiler
from tools import zoo_sources

MODELS = ("float16", "if_loop")
"""One with fused convolutions, and one without."""
SCRIPTS = pytest.mark.parametrize("script", [zoo_kernels, zoo_convolutions], ids=lambda script: script.__name__)


@pytest.fixture
def two_models(monkeypatch: pytest.MonkeyPatch, manifest: dict[str, StoredModel]) -> None:
    monkeypatch.setattr(zoo_sources, "read_manifest", lambda: {name: manifest[name] for name in MODELS})
    monkeypatch.setattr("sys.argv", ["the script"])


@SCRIPTS
def test_it_writes_the_corpus_and_the_page(
    script: ModuleType,
    two_models: None,
    compiler: MadeUpCompiler,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("CORPUS", "PAGE"):
        monkeypatch.setattr(script, name, tmp_path / name)
    monkeypatch.setattr(zoo_sources, "find_compiler", lambda: compiler)
    assert script.main() == 0
    page = (tmp_path / "PAGE").read_text(encoding="utf-8")
    corpus = script.read(tmp_path / "CORPUS")
    kernels = corpus.kernels if script is zoo_kernels else corpus
    assert f"with {len(kernels)} distinct sources" in page
    for name in COMMON:
        assert f"\n| {name} | {len(kernels)} | {sum(len(own.source.kernels) for own in kernels)} | 40 |" in page
    own = [[name for models in kernels.values() for name in models].count(name) for name in MODELS]
    listed = re.findall(r"^\| (\w+) \| \d+ \| (\d+) \|$", page, re.MULTILINE)
    assert listed == [(name, str(count)) for name, count in zip(MODELS, own, strict=True) if count]
    assert own[0] > 0 and (own[1] > 0) == (script is zoo_kernels)


@SCRIPTS
def test_without_a_compiler_it_says_so_and_writes_nothing(
    script: ModuleType,
    two_models: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def none() -> None:
        raise OnnxfuseError("no CUDA compiler")

    monkeypatch.setattr(script, "CORPUS", tmp_path / "corpus")
    monkeypatch.setattr(zoo_sources, "find_compiler", none)
    assert script.main() == 2
    assert capsys.readouterr().err == f"{script.__name__}.py: error: no CUDA compiler\n"
    assert list(tmp_path.iterdir()) == []
