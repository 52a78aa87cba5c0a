"""The rooms of the package look down only: docs/architecture.md names them."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import onnxfuse

ROOT = Path(onnxfuse.__file__).parent

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


def test_there_are_no_circles() -> None:
    """Modules that import only such as have been taken away are taken away, until none is left."""
    left = {module: {one for one in found if one and one != module} for module, found in all_imports().items()}
    while ready := [module for module, found in left.items() if not found & left.keys()]:
        for module in ready:
            del left[module]
    assert not left


def test_rooms_are_small() -> None:
    """A folder with more than some twenty files has to be divided."""
    folders: dict[Path, int] = {}
    for path in MODULES.values():
        folders[path.parent] = folders.get(path.parent, 0) + 1
    assert {folder.name for folder, count in folders.items() if count > 22} == set()


def test_scripts_are_commands() -> None:
    """What they are made of is in tools/, whose rooms are small too."""
    checkout = Path(__file__).parents[2]
    assert all('__name__ == "__main__"' in path.read_text() for path in (checkout / "scripts").rglob("*.py"))
    rooms = [folder for folder in (checkout / "tools").rglob("*") if folder.is_dir()]
    assert all(len(list(room.glob("*.py"))) <= 22 for room in rooms)
