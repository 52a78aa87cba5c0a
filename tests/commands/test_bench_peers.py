"""scripts/bench.py: turns, who is left out and why, the table, the plot, and a real run of ORT against onnxfuse."""

import json
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import bench
import bench_reductions
import numpy as np
import onnx
import pytest

from onnxfuse.bench_turns import MIN_BLOCKS, SLOW_BLOCKS, Worker, WorkerError, take_turns
from onnxfuse.check.comparison import compare_values
from onnxfuse.core_distance import CoreDistance
from onnxfuse.run.sessions import SessionError
from onnxfuse.zoo.manifest import FetchError, StoredModel, read_manifest
from tools.bench import known_peers as bench_peers
from tools.bench import page as bench_page
from tools.bench.chains import CHAINS
from tools.bench.known_peers import ALONE, BASE, COPY, FAST, OURS, PEERS, RELU, Peer
from tools.bench.peers.job import CannotRunError, build
from tools.bench.subjects import Subject, count_parameters, make_chain, make_model

FAKE = """
import json, os, sys, time
name, seconds, lives, log = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
print(json.dumps({"note": "ready"}), flush=True)
for line in sys.stdin:
    with open(log, "a") as file:
        file.write(name)
    lives -= 1
    if lives == 0:
        sys.exit("out of memory")
    print(json.dumps({"times": [seconds, seconds, 9 * seconds]}), flush=True)
"""


@pytest.fixture
def fake(tmp_path: Path) -> Any:
    """Makes workers that claim to take some time, live for some requests, and log who is asked."""
    (tmp_path / "fake.py").write_text(FAKE)
    made = []

    def make(name: str, seconds: float, lives: int = -1) -> Worker:
        log = tmp_path / "turns"
        command = [sys.executable, str(tmp_path / "fake.py"), name, str(seconds), str(lives), str(log)]
        made.append(Worker(command, tmp_path / f"{name}.log", {}, timeout=30))
        return made[-1]

    yield make
    for worker in made:
        worker.close()


def state(worker: Worker) -> str:
    return Path(f"/proc/{worker._process.pid}/stat").read_text().rpartition(") ")[2][0]


def test_turns_go_there_and_back_and_idle_workers_are_stopped(fake: Any, tmp_path: Path) -> None:
    workers = {name: fake(name, seconds) for name, seconds in (("A", 0.001), ("B", 0.002), ("C", 0.004))}
    found = take_turns(workers, 0, 0.001)
    times = found.times
    assert found.failed == {} and found.distance is None
    assert (tmp_path / "turns").read_text() == "ABCCBA" * MIN_BLOCKS
    assert [times[name].shape for name in "ABC"] == [(MIN_BLOCKS, 2)] * 3
    assert [float(times[name].max()) for name in "ABC"] == [0.001, 0.002, 0.004]  # the disturbed run does not count
    deadline = time.monotonic() + 10
    while any(state(worker) != "T" for worker in workers.values()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [state(worker) for worker in workers.values()] == ["T"] * 3


def test_one_that_dies_is_left_out_and_the_others_go_on(fake: Any) -> None:
    found = take_turns({"A": fake("A", 0.001), "B": fake("B", 0.002, lives=4)}, 0, 0.001)
    assert list(found.times) == ["A"]
    assert len(found.times["A"]) == MIN_BLOCKS
    assert found.failed == {"B": "ended early (status 1): out of memory"}


def test_a_slow_one_is_timed_in_a_few_blocks(fake: Any) -> None:
    times = take_turns({"A": fake("A", 0.001), "B": fake("B", 0.5)}, 0, 0.001).times
    assert (len(times["A"]), len(times["B"])) == (MIN_BLOCKS, SLOW_BLOCKS)


def test_one_that_does_not_answer_is_given_up_and_ended(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    started = time.monotonic()
    with pytest.raises(WorkerError, match=r"no answer after 0\.2 s"):
        Worker(command, tmp_path / "log", {}, timeout=0.2)
    assert time.monotonic() - started < 30


# --- the script ---


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two chains at one size, and peers that need nothing: some of them of no use."""

    def environment(wanted: Any, progress: Any) -> str:
        raise FetchError(f"pip cannot install {' '.join(wanted.requirements)}: no network")

    peers = [
        *(PEERS[name] for name in ("ort", OURS, RELU, COPY)),
        Peer("absent", "Absent", "absent", "none", requirements=("absent",)),
        Peer("broken", "Broken", "broken", "none"),
        Peer("wrong", "Wrong | one", "copy", "none"),
    ]
    by_name = {peer.name: peer for peer in peers}
    monkeypatch.setattr(bench_peers, "environment_python", environment)
    for module in (bench, bench_page):
        monkeypatch.setattr(module, "PEERS", by_name)
    monkeypatch.setattr(bench, "CHAINS", CHAINS[:2])
    monkeypatch.setattr(bench, "SIZES", {"16 KB": (1, 64, 8, 8)})
    monkeypatch.setattr(bench, "TURN", 0.002)


def run(monkeypatch: pytest.MonkeyPatch, out: Path, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["bench.py", "--out", str(out), "--seconds", "0", *arguments])
    return bench.main()


@pytest.mark.usefixtures("small")
def test_a_real_run_times_checks_and_says_who_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, tmp_path / "out", "--only", "chains") == 0
    content = json.loads((tmp_path / "out" / "peers.json").read_text())
    assert len(content["subjects"]) == 2
    for record in content["subjects"]:
        timed = {name for name, result in record["peers"].items() if "ms" in result}
        assert timed == {"ort", OURS, RELU, COPY}
        ort = record["peers"]["ort"]
        assert ort["ms"] > 0
        assert ort["ratio"][1] <= ort["ratio"][0] <= ort["ratio"][2]
        assert record["peers"][OURS]["ratio"] == [1.0, 1.0, 1.0]
        assert "broken" in record["peers"]["broken"]["reason"]
        assert record["peers"]["wrong"]["reason"].startswith("wrong: output ")
    text = (tmp_path / "out" / "peers.md").read_text()
    assert "- Absent, everywhere: pip cannot install absent: no network" in text
    assert f"- Wrong / one, {CHAINS[0].name}, 16 KB: wrong: output" in text
    assert text.startswith(capsys.readouterr().out.strip())
    assert not (tmp_path / "out" / "peers.partial.json").exists()
    assert_self_contained((tmp_path / "out" / "peers.svg").read_text(), content)


def assert_self_contained(image: str, content: dict[str, Any]) -> None:
    root = ElementTree.fromstring(image)
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert tags == {"svg", "title", "style", "rect", "text", "g", "line"}
    assert "http" not in image.replace('xmlns="http://www.w3.org/2000/svg"', "")
    words = [element.text for element in root.iter() if element.tag.endswith("}text")]
    assert all(record["name"] in words for record in content["subjects"])
    assert int(root.attrib["width"]) <= 830  # as wide as a page of text


def test_what_onnx_runtime_does_not_run_is_left_out_and_the_others_go_on() -> None:
    def make(folder: Path) -> Subject:
        raise SessionError("no implementation for bfloat16")

    record = bench.run_task(bench.Task("big", "models", make), [], {}, bench.parse_arguments([]), CoreDistance())
    assert record["peers"] == {BASE: {"reason": "no implementation for bfloat16"}}
    about = {"title": "ORT", "setting": "", "versions": "", "missing": ""}
    place = {"machine": "m", "system": "s", "date": "d", "commit": "c", "arguments": {"trials": [0, 0], "tuned": False}}
    content = {**place, "peers": dict.fromkeys((BASE, OURS), about), "subjects": [record]}
    assert "- ORT, big: no implementation for bfloat16" in bench_page.markdown(content)


@pytest.mark.usefixtures("small")
def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, asked = bench.run_task, []

    def interrupted(task: bench.Task, *rest: Any) -> dict[str, Any]:
        asked.append(task.name)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return real(task, *rest)

    monkeypatch.setattr(bench, "run_task", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(monkeypatch, tmp_path, "--only", "chains", "--peers", "copy")
    assert run(monkeypatch, tmp_path, "--only", "chains", "--peers", "copy") == 0
    first, second = (f"{chain.name}, 16 KB" for chain in CHAINS[:2])
    assert asked == [first, second, second]
    content = json.loads((tmp_path / "peers.json").read_text())
    assert [record["name"] for record in content["subjects"]] == [first, second]
    assert set(content["subjects"][0]["peers"]) == {"ort", OURS, COPY}


@pytest.mark.usefixtures("small")
def test_chains_that_reduce_beside_peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One chain, of which nothing is constant and one that has constants: ONNX Runtime, onnxfuse, and it alone."""
    page = tmp_path / "page.md"
    monkeypatch.setattr(bench_reductions, "CHAINS", bench_reductions.CHAINS[:3:2])
    monkeypatch.setattr(bench_reductions, "PEERS_MEGABYTES", (0.1,))
    monkeypatch.setattr(bench_reductions, "PEERS_PAGE", page)
    monkeypatch.setattr(bench_reductions, "PARTIAL", tmp_path)
    monkeypatch.setitem(bench.PEERS, ALONE, PEERS[ALONE])
    assert bench_reductions.main(["--peers", f"{ALONE},copy,wrong", "--seconds", "0"]) == 0
    text = page.read_text()
    assert "| chain | onnxfuse | ORT | onnxfuse.Executable | fastest |" in text
    rows = [line for line in text.splitlines() if line.startswith(("| L2 normalize, 0.1 MB", "| GELU of LayerNorm"))]
    assert len(rows) == 2 and not any(" - " in row for row in rows)
    assert "Wrong / one, L2 normalize, 0.1 MB" in text


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("--peers", "nothing"), "no peer 'nothing'"), (("--models", "nothing"), "no model 'nothing'")],
)
def test_bad_usage_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    assert run(monkeypatch, tmp_path, *arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


# --- the subjects ---


def test_a_chain_and_a_model_come_with_static_shapes_and_what_ort_gives(
    tmp_path: Path, manifest: dict[str, StoredModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnx

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("chain", "model"):
        (tmp_path / name).mkdir()
    chain = make_chain(CHAINS[0], "16 KB", tmp_path / "chain")
    model = make_model(manifest["opset18"], tmp_path / "model")
    assert chain.printed is None and model.printed is not None
    for subject in (chain, model):
        graph = onnx.load(subject.static).graph
        for value in (*graph.input, *graph.output):
            assert all(dim.HasField("dim_value") for dim in value.type.tensor_type.shape.dim)
        expected = list(subject.expected.values())
        assert subject.difference(expected) == ""
        assert subject.difference([*expected, expected[0]]) == f"{len(expected) + 1} outputs instead of {len(expected)}"
        assert subject.difference([array + np.float32(0.1) for array in expected]) != ""
        # bfloat16 in place of float32 would be seen
        assert subject.difference([array * np.float32(1 + 2**-8) for array in expected]) != ""
        # what ONNX Runtime's own optimizations move, as what is quantized, others may move twice as far
        (name, first), *others = subject.expected.items()
        subject.moved = {name: compare_values(name, first, first + np.float32(0.06))}
        rest = [array for _, array in others]
        outlier = first.copy()
        outlier.flat[0] += 1
        assert subject.difference([first + np.float32(0.1), *rest]) == ""
        for wrong in (first + np.float32(0.13), outlier, np.full_like(first, np.nan)):
            assert subject.difference([wrong, *rest]) != ""
    x = np.load(chain.inputs)["x"]
    np.testing.assert_allclose(chain.expected[next(iter(chain.expected))], np.maximum(x * 0.7, 0) + 0.3, rtol=1e-5)


def test_models_that_are_timed_by_default_are_of_deployed_size_and_others_are_named() -> None:
    def chosen(*given: str) -> list[str]:
        return [task.name for task in bench.tasks(bench.parse_arguments(["--only", "models", *given]))]

    full = {model.name for model in read_manifest().values() if model.set == "full"}
    assert set(chosen()) == full and {"bert_base", "resnet50", "llama_160m_cached"} <= full
    assert chosen("--models", "vit") == ["vit"]
    with pytest.raises(FetchError, match=r"no set 'fill' of models; there are: full"):
        chosen("--set", "fill")


def test_weights_are_counted(manifest: dict[str, StoredModel], tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (float[2, 3] x) => (float[2, 4] y)
        <float[3, 4] w, float[4] b, int64[2] shape = {2, 4}> { m = MatMul(x, w) a = Add(m, b) y = Reshape(a, shape) }"""
    )
    assert count_parameters(model) == 0  # without values they are inputs
    for name, dims in (("w", (3, 4)), ("b", (4,))):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(dims, np.float32), name))
    assert count_parameters(model) == 16


# --- the table ---


def record(name: str, **peers: tuple[float, float, float] | str) -> dict[str, Any]:
    results: dict[str, Any] = {OURS: {"ms": 2.0, "ratio": [1.0, 1.0, 1.0]}}
    for peer, ratio in peers.items():
        results[peer] = {"reason": ratio} if isinstance(ratio, str) else {"ms": 2 * ratio[0], "ratio": list(ratio)}
    return {"name": name, "group": "models", "size": "1x3", "parameters": 1_500_000, "peers": results}


def test_the_table_says_where_a_peer_is_ahead() -> None:
    records = [
        record("slow<er>", ort=(1.5, 1.4, 1.6), openvino=(2.0, 1.9, 2.1), tvm="no such operator"),
        record("ahead", ort=(1.2, 1.1, 1.3), openvino=(0.5, 0.4, 0.6), tvm=(30.0, 29.0, 31.0)),
        record("close", ort=(0.95, 0.9, 0.99), openvino=(0.94, 0.8, 1.1)),
        record("tie", ort=(1.1, 1.0, 1.2), openvino=(0.99, 0.9, 1.1), tvm="no such operator"),
    ]
    peer = {"title": "TVM", "setting": "tuned", "versions": "tvm 1", "missing": ""}
    content = {
        "subjects": records,
        "peers": {"tvm": peer},
        "machine": "M",
        "system": "S",
        "date": "D",
        "commit": "c0ffee",
    }
    content["arguments"] = {"trials": [16, 0], "tuned": False}
    text = bench_page.markdown(content)
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in text.splitlines() if line.startswith("| ")}
    assert rows["model"] == "| model | parameters | inputs | onnxfuse | ORT | OpenVINO | TVM | fastest |"
    times = "1.50 (1.40 to 1.60), 3 ms | 2.00 (1.90 to 2.10), 4 ms"
    assert rows["slow<er>"] == f"| slow<er> | 1.5 M | 1x3 | 2 ms | {times} | - | onnxfuse |"
    assert text.endswith("Machine: M, S, D, commit c0ffee.") and "as onnxfuse optimize leaves them by default" in text
    assert "| **0.50 (0.40 to 0.60), 1 ms** | 30 (29 to 31), 60 ms | **OpenVINO, 2.00 times** |" in rows["ahead"]
    assert rows["tie"].endswith("| OpenVINO or onnxfuse |")
    assert rows["close"].endswith(
        "| **0.95 (0.90 to 0.99), 1.9 ms** | 0.94 (0.80 to 1.10), 1.88 ms | - | **ORT, 1.05 times** |"
    )
    assert rows["geometric mean"] == "| geometric mean |  |  |  | 1.17 | 0.98 | 30.00 of 1 |  |"
    assert "- TVM, slow<er>, tie: no such operator" in text
    assert "slow&lt;er&gt;" in bench_page.svg(content)


def test_the_table_has_what_optimize_printed_and_says_how_near_it_is() -> None:
    def printed(ratio: float, distance: float, own: float = 215.0) -> dict[str, Any]:
        said = {"ratio": ratio, "low": ratio - 0.02, "high": ratio + 0.02, "distance": distance}
        return {**record(f"at {ratio}", ort=(1.2, 1.1, 1.25)), "printed": said, "distance": own}

    untold = record("unchanged", ort=(1.0, 0.9, 1.1))
    records = [printed(1.21, 220), printed(1.13, 220), printed(1.5, 220), printed(1.6, 640), untold]
    place = {"machine": "m", "system": "s", "date": "d", "commit": "c", "arguments": {"trials": [0, 0], "tuned": False}}
    text = bench_page.markdown({**place, "peers": {}, "subjects": records})
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert "| onnxfuse | ORT | printed by optimize | fastest |" in rows[0]
    assert "| 1.21 (1.19 to 1.23) | onnxfuse |" in rows[2] and "| 1.60 (1.58 to 1.62), far |" in rows[5]
    assert "| - | " in rows[6] and all(row.count("|") == rows[0].count("|") for row in rows)
    assert "in the 3 of 4 models" in text and "6.2 % from each other in the middle, 25.0 at most" in text
    assert "above 5: at 1.5 25.0 %, more than chance, at 1.13 6.2 %\n" in text
    none = bench_page.markdown({**place, "peers": {}, "subjects": [untold]})
    assert "printed" not in none


def test_another_setting_of_onnxfuse_is_not_one_that_is_ahead() -> None:
    fast = (0.8, 0.7, 0.9)
    assert bench_page.fastest(record("x", **{FAST: fast}, tvm=(1.2, 1.1, 1.3))) == "onnxfuse --fast-math"
    assert bench_page.fastest(record("x", **{FAST: fast}, tvm=(0.9, 0.8, 0.95))) == "onnxfuse --fast-math"
    assert bench_page.fastest(record("x", **{FAST: fast}, tvm=(0.5, 0.4, 0.6))) == "**TVM, 2.00 times**"
    assert bench_page.fastest(record("x", **{FAST: (0.99, 0.9, 1.1)})) == "onnxfuse --fast-math or onnxfuse"
    assert bench_page._cell(record("x", **{FAST: fast}), FAST) == "0.80 (0.70 to 0.90), 1.6 ms"


def test_what_a_tool_says_names_no_folder(tmp_path: Path) -> None:
    complaint = f"print('{tmp_path}/model.mlir:3:7: error: no such operation', file=__import__('sys').stderr); exit(1)"
    with pytest.raises(CannotRunError, match=r"^model\.mlir:3:7: error: no such operation$"):
        build(tmp_path / "compiled", lambda unfinished: [sys.executable, "-c", complaint])
    assert not list(tmp_path.iterdir())
