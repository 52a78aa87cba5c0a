"""The cache on disk: what it keeps, what it forgets, and what may go wrong around it."""

import multiprocessing
import os
from pathlib import Path

import pytest

from onnxfuse.cuda.compile.cache import Cache, default_folder
from onnxfuse.cuda.conv.tunings import Tunings, add_to_file, own_file, own_tunings
from onnxfuse.errors import OnnxfuseError


def test_an_entry_is_kept_and_replaced(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "new" / "folder")
    assert cache.load("key") is None
    cache.store("key", b"first")
    cache.store("key", b"second\n\0")
    assert Cache(tmp_path / "new" / "folder").load("key") == b"second\n\0"
    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == ["key.entry"]


@pytest.mark.parametrize("damage", [b"", b"short", None])
def test_a_damaged_entry_is_absent(tmp_path: Path, damage: bytes | None) -> None:
    cache = Cache(tmp_path)
    cache.store("key", b"machine code")
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"!" if damage is None else damage)
    assert cache.load("key") is None
    cache.store("key", b"again")
    assert cache.load("key") == b"again"


def test_the_entries_used_longest_ago_go_first(tmp_path: Path) -> None:
    cache = Cache(tmp_path, limit=350)
    for age, key in enumerate(("new", "middle", "old", "oldest")):
        cache.store(key, bytes(100))
        os.utime(tmp_path / f"{key}.entry", (1000 - age, 1000 - age))
    cache.load("oldest")  # which makes it the newest
    cache.prune()
    assert {path.stem for path in tmp_path.iterdir()} == {"new", "oldest"}


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = Cache(tmp_path / "file" / "cache")
    cache.store("key", b"entry")
    cache.prune()
    assert cache.load("key") is None


def test_the_folder_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "onnxfuse" / "cuda"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_folder() == tmp_path / ".cache" / "onnxfuse" / "cuda"


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    cache = Cache()
    cache.store("key", b"entry")
    cache.prune()
    assert cache.load("key") is None
    assert len(own_tunings()) == 0
    with pytest.raises(OnnxfuseError, match="cannot be written"):
        add_to_file(own_file(), Tunings())


def _hammer(folder: Path, number: int) -> bool:
    cache = Cache(folder, limit=5000)
    right = True
    for turn in range(50):
        cache.store("shared", bytes([number]) * 1000)
        found = cache.load("shared")
        right &= found is None or (len(found) == 1000 and len(set(found)) == 1)
        cache.store(f"{number}{turn}", bytes(500))
        cache.prune()
    return right


def test_many_processes_share_it(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert all(pool.starmap(_hammer, [(tmp_path, 1), (tmp_path, 2)]))
    assert not [path for path in tmp_path.iterdir() if path.suffix != ".entry"]
