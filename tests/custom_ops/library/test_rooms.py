"""The rooms of the native library look down only: docs/native.md names them."""

import re
from collections.abc import Iterator
from pathlib import Path

from onnxfuse.program.figures import TABLES

NATIVE = Path(__file__).parents[3] / "custom_ops"

LAYERS = (
    ("platform", "simd"),
    ("program",),
    ("kernels",),
    ("kernels/elementwise", "kernels/conv", "kernels/nhwc", "kernels/attention"),
    ("kernels/reduction",),
    ("plan",),
    ("runtime",),
    ("convolution", "nest"),
    ("ort",),
    ("nodes",),
    (
        *("nodes/elementwise", "nodes/conv", "nodes/nhwc_conv", "nodes/nhwc_pool", "nodes/nhwc_concat"),
        *("nodes/squeeze_excite", "nodes/attention", "nodes/reduction"),
        "cuda/driver",
    ),
    ("nodes/matmul", "cuda/launch"),
    ("cuda/attention", "cuda/conv", "cuda/elementwise", "cuda/nest"),
    ("operators",),
    ("executable",),
)
"""From the lowest; rooms of one layer know nothing of each other.  ``cuda/device`` is compiled by NVRTC."""

GENERATED = {"program/opcodes.inc", *(f"figures/{table.header}.h" for table in TABLES if table.header)}


def sources(folder: Path = NATIVE) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in {".cc", ".h", ".inc"})


def room(path: Path) -> str:
    return path.parent.relative_to(NATIVE).as_posix()


def includes(path: Path) -> Iterator[str]:
    yield from re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(encoding="utf-8"), re.MULTILINE)


LIBRARY = [path for path in sources() if not room(path).startswith("tests")]


def test_every_room_has_a_layer() -> None:
    assert sorted({room(path) for path in LIBRARY}) == sorted(name for names in LAYERS for name in names)


def test_includes_name_the_room() -> None:
    """Each is a path from custom_ops, so that none depends on which folder comes first."""
    unknown = [
        f"{path.relative_to(NATIVE)} includes {name}"
        for path in sources()
        for name in includes(path)
        if name not in GENERATED and not (NATIVE / name).is_file()
    ]
    assert not unknown


def test_includes_go_down() -> None:
    layer = {name: number for number, names in enumerate(LAYERS) for name in names}
    up = [
        f"{path.relative_to(NATIVE)} includes {name}"
        for path in LIBRARY
        for name in includes(path)
        if name not in GENERATED
        and (other := Path(name).parent.as_posix()) != room(path)
        and layer.get(other, len(LAYERS)) >= layer[room(path)]
    ]
    assert not up


def test_every_source_is_built() -> None:
    """A file that CMakeLists.txt does not name would be missed where the library is opened, or by nobody."""
    build = (NATIVE.parent / "CMakeLists.txt").read_text(encoding="utf-8")
    built = set()
    for folder, names in re.findall(r"add_(?:room\(|kernels\(\$\{\w+\} )([\w/]+) ([\w\s]+)\)", build):
        built |= {f"{folder}/{name}" for name in names.split()}
    included = {name for path in LIBRARY for name in includes(path)}
    parts = [path.relative_to(NATIVE) for path in LIBRARY if path.suffix != ".h"]
    assert built == {part.with_suffix("").as_posix() for part in parts if part.as_posix() not in included}
