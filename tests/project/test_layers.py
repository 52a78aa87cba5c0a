"""The rooms of the package look down only, as docs/architecture.md names them; rooms are small and files short."""

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import onnxfuse

ROOT = Path(onnxfuse.__file__).parent
CHECKOUT = Path(__file__).parents[2]
SOURCES = {".py", ".pyi", ".sh", ".c", ".cc", ".h", ".inc", ".cu", ".cuh"}

LAYERS = (
    ("errors", "cpu", "system", "wording", "run.library", "fused.kinds", "fused.choices", "fused.target"),
    ("model",),
    ("shapes", "program"),
    ("files",),
    ("report", "cuda"),
    ("run",),
    ("rewrite",),
    ("ort",),
    ("passes", "fused"),
    ("targets",),
    ("planning",),
    ("check",),
    (
        *("bench", "bench_memory", "bench_processes", "bench_turns", "bench_worker"),
        *("core_distance", "cpu_tuning", "profiling", "speed", "zoo"),
    ),
    ("optimization",),
    ("api",),
    ("doctor", "unfusing"),
    ("cli",),
    ("__main__",),
)
"""From the lowest; a module belongs to the longest name that its own begins with."""


def modules() -> dict[str, Path]:
    """The modules of the package by name, without the package's."""
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = list(path.relative_to(ROOT).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports(path: Path) -> Iterator[str]:
    """The modules of the package that a module imports when it runs, at its top or in its functions."""
    pending: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        pending.extend(ast.iter_child_nodes(node))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "onnxfuse":
            _, _, module = node.module.partition(".")
            for alias in node.names:
                full = f"{module}.{alias.name}".lstrip(".")
                yield full if full in MODULES else module


@cache
def all_imports() -> dict[str, set[str]]:
    """What each module imports."""
    return {module: set(imports(path)) for module, path in MODULES.items() if module}


def layer(module: str) -> int:
    """The number of a module's layer."""
    fitting = [
        (len(name), number)
        for number, names in enumerate(LAYERS)
        for name in names
        if module == name or module.startswith(f"{name}.")
    ]
    assert fitting, f"{module} is in no layer"
    return max(fitting)[1]


def test_imports_go_down() -> None:
    up = [
        f"{module} imports {imported}"
        for module, found in all_imports().items()
        for imported in found
        if imported and layer(imported) > layer(module)
    ]
    assert not up


def test_only_targets_are_asked_for_by_name() -> None:
    """What a planner, a rule or a pass has to know of a target is a fact of it (fused/target.py)."""

    def is_name(node: ast.expr) -> bool:
        if isinstance(node, ast.Attribute):
            return node.attr == "name" and isinstance(node.value, ast.Name) and node.value.id in ("CPU", "CUDA")
        return isinstance(node, ast.Constant) and node.value in ("cpu", "cuda")

    compared = [
        f"{module}, line {node.lineno}"
        for module, path in MODULES.items()
        if not module.startswith("targets") and module != "fused.target"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Compare) and any(map(is_name, (node.left, *node.comparators)))
    ]
    assert not compared


def test_there_are_no_circles() -> None:
    """Modules that import only such as have been taken away are taken away, until none is left."""
    left = {module: {one for one in found if one and one != module} for module, found in all_imports().items()}
    while ready := [module for module, found in left.items() if not found & left.keys()]:
        for module in ready:
            del left[module]
    assert not left


def sources() -> list[Path]:
    """What people write and a compiler, an interpreter or a shell reads."""
    rooms = [CHECKOUT / room for room in ("onnxfuse", "custom_ops", "scripts", "tools", "tests", "examples", "models")]
    found = [path for room in rooms for path in room.rglob("*") if path.suffix in SOURCES]
    assert len(found) > 1000
    return found


def test_rooms_are_small() -> None:
    """A folder with more than some twenty files has to be divided."""
    counts = Counter(path.parent.relative_to(CHECKOUT) for path in sources())
    assert [str(folder) for folder, count in counts.items() if count > 22] == []


def test_files_are_short() -> None:
    """A file of more than 500 lines has two subjects."""
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in sources()}
    assert [str(path.relative_to(CHECKOUT)) for path, length in lengths.items() if length > 500] == []


def test_scripts_are_commands() -> None:
    """What they are made of is in tools/."""
    assert all('__name__ == "__main__"' in path.read_text() for path in (CHECKOUT / "scripts").rglob("*.py"))
