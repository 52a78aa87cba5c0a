"""The tuning file: which convolutions were measured on which GPU, and what was faster.

It is JSON, made to be shipped with a model and merged with others::

    {"format": "onnxfuse convolution tuning 1",
     "entries": [
      {"gpu": "NVIDIA H100 80GB HBM3", "architecture": "sm_90", "onnxruntime": "1.31.1",
       "convolution": "Conv f32 64 to 64 channels in 64 groups, kernel 3x3, …",
       "input": [null, 64, null, null],
       "programs": "5f3a…",
       "math": "exact",
       "winner": "onnxfuse",
       "tilings": [{"family": "depthwise", "tile": [1, 8, 32], "thread": [4, 4], "vector": 4, "split": 1,
                    "tensor_cores": false}, …],
       "times": [{"input": [1, 64, 56, 56], "onnxruntime": 2.1e-05, "onnxfuse": 0.9e-05}, …]}]}

An entry is known by its architecture, ``convolution``, ``input`` (null is a size that is not known), ``programs`` (the
sha256 of the Programs around the convolution, and of how they read their operands) and ``math``.  ``winner`` is
"onnxfuse" or "onnxruntime"; ``tilings`` are those of the best of onnxfuse's kernels in either case, perhaps none.
``times`` are seconds, for information.
"""

import json
import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from onnxfuse.cuda.arch import parse_architectures
from onnxfuse.cuda.compile.cache import default_folder
from onnxfuse.cuda.conv.candidates import candidates
from onnxfuse.cuda.conv.case import ConvCase
from onnxfuse.cuda.conv.kernel import FAMILIES
from onnxfuse.cuda.conv.recipe import VECTORS
from onnxfuse.cuda.conv.spec import Convolution
from onnxfuse.cuda.conv.tiling import Tiling
from onnxfuse.errors import OnnxfuseError
from onnxfuse.program.figures import MAX_CONV_SPLIT, MAX_CONV_TILE

FORMAT = "onnxfuse convolution tuning 1"
OURS, THEIRS = "onnxfuse", "onnxruntime"
MATHS = ("exact", "fast", "exact, tf32", "fast, tf32")
MAX_BYTES = 64 << 20
_PRODUCT = "MatMul"
"""What the descriptions of products begin with."""
_MAX_TEXT = 1000
_MAX_TIMES = 64
_MAX_RANK = 5
_MAX_TILINGS = 15
_MAX_SIZE = 1 << 40
_MOST_SECONDS = 1e6
_HEX = 64


@dataclass(frozen=True)
class Times:
    """Seconds that ONNX Runtime and onnxfuse take for an X of this shape; None where one of them cannot compute it."""

    input: tuple[int, ...]
    onnxruntime: float
    onnxfuse: float | None


@dataclass(frozen=True)
class TuningKey:
    """What an entry is known by."""

    architecture: str
    convolution: str
    input: tuple[int | None, ...]
    programs: str
    math: str


@dataclass(frozen=True)
class TuningEntry:
    """One entry of the file."""

    key: TuningKey
    gpu: str
    onnxruntime: str
    winner: str
    tilings: tuple[Tiling, ...]
    times: tuple[Times, ...]

    def to_json(self) -> dict[str, Any]:
        """The entry as the file has it."""
        return {
            "gpu": self.gpu,
            "architecture": self.key.architecture,
            "onnxruntime": self.onnxruntime,
            "convolution": self.key.convolution,
            "input": list(self.key.input),
            "programs": self.key.programs,
            "math": self.key.math,
            "winner": self.winner,
            "tilings": [asdict(tiling) for tiling in self.tilings],
            "times": [asdict(time) for time in self.times],
        }

    def ratio(self) -> float | None:
        """ONNX Runtime's time over onnxfuse's, the geometric mean over the shapes; None if there is none."""
        ratios = [time.onnxruntime / time.onnxfuse for time in self.times if time.onnxfuse]
        return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None


def key_of(case: ConvCase, architecture: str, fast_math: bool) -> TuningKey:
    """What the entry of a fused convolution on an architecture is known by."""
    programs = "\n".join((str(case.prologue or ""), str(case.epilogue), str(case.access)))
    return TuningKey(
        architecture,
        describe(case.conv),
        known_dims(case),
        sha256(programs.encode()).hexdigest(),
        MATHS[fast_math + 2 * case.tf32],
    )


def describe(conv: Convolution) -> str:
    """A convolution in words, all of it."""
    if conv.channels_last:
        by = "[K, N]" if conv.transposed else "[N, K]"
        return f"{_PRODUCT} {conv.dtype}, {conv.in_channels} to {conv.out_channels} columns, the matrix {by}"
    pads = conv.auto_pad if conv.pads is None else _by(conv.pads)
    text = (
        f"{'ConvTranspose' if conv.transposed else 'Conv'} {conv.dtype}, {conv.in_channels} to {conv.out_channels} "
        f"channels in {conv.group} groups, kernel {_by(conv.kernel)}, strides {_by(conv.strides)}, "
        f"dilations {_by(conv.dilations)}, pads {pads}"
    )
    return text + (f", output padding {_by(conv.output_padding)}" if conv.transposed else "")


def _by(numbers: Sequence[int]) -> str:
    return "x".join(map(str, numbers))


def known_dims(case: ConvCase) -> tuple[int | None, ...]:
    """The shape of X as far as it is numbers."""
    return tuple(dim if isinstance(dim, int) else None for dim in case.x_shape)


class Tunings:
    """Entries by what they are known by; of several the one that was added last."""

    def __init__(self, entries: Iterable[TuningEntry] = ()) -> None:
        self._entries: dict[TuningKey, TuningEntry] = {}
        for entry in entries:
            self.add(entry)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[TuningEntry]:
        return iter(self._entries.values())

    def add(self, entry: TuningEntry) -> None:
        """Take in an entry, in place of one known by the same."""
        self._entries[entry.key] = entry

    def find(self, case: ConvCase, architecture: str, fast_math: bool) -> TuningEntry | None:
        """The entry of a fused convolution, if there is one, and this version of onnxfuse still has its tilings."""
        entry = self._entries.get(key_of(case, architecture, fast_math))
        if entry is None or (entry.tilings and entry.tilings not in candidates(case.conv, known_dims(case), case.tf32)):
            return None
        return entry

    def mentions(self, conv: Convolution) -> bool:
        """Whether onnxfuse was faster at a convolution, with whatever around it."""
        text = describe(conv)
        return any(entry.winner == OURS and key.convolution == text for key, entry in self._entries.items())

    def merged(self, other: "Tunings") -> "Tunings":
        """These entries, and those of the ``other``, which win."""
        return Tunings([*self._entries.values(), *other._entries.values()])

    def __str__(self) -> str:
        entries = ",\n".join(json.dumps(entry.to_json()) for entry in self._entries.values())
        return f'{{"format": {json.dumps(FORMAT)}, "entries": [\n{entries}\n]}}\n'

    @classmethod
    def parse(cls, content: bytes, name: str) -> "Tunings":
        """Read the file's content.  Raises OnnxfuseError, which begins with ``name``, for what does not validate."""
        try:
            data = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise OnnxfuseError(f"{name} is no tuning file: it is not JSON ({' '.join(str(error).split())})") from error
        if not isinstance(data, dict) or data.get("format") != FORMAT or not isinstance(data.get("entries"), list):
            raise OnnxfuseError(f"{name} is no tuning file: it does not say {FORMAT!r}, or has no list of entries")
        entries = []
        for number, item in enumerate(data["entries"], 1):
            try:
                entries.append(_entry(item))
            except (ValueError, OnnxfuseError) as error:
                raise OnnxfuseError(f"{name}: entry {number}: {error}") from error
        return cls(entries)


def read_tunings(path: Path) -> Tunings:
    """A tuning file.  Raises OnnxfuseError for one that cannot be read or does not validate."""
    try:
        if path.exists() and not path.is_file():  # a FIFO may never end, or never begin
            raise OnnxfuseError(f"the tuning file {path} is not a regular file")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise OnnxfuseError(f"the tuning file {path} cannot be read: {error.strerror or error}") from error
    if len(content) > MAX_BYTES:
        raise OnnxfuseError(f"the tuning file {path} is larger than {MAX_BYTES >> 20} MB")
    return Tunings.parse(content, str(path))


def write_tunings(path: Path, tunings: Tunings) -> None:
    """Write a tuning file, whole or not at all.  Raises OnnxfuseError if that is not possible."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".tuning-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(str(tunings))
            Path(name).replace(path)
        except BaseException:
            with suppress(OSError):
                Path(name).unlink()
            raise
    except OSError as error:
        raise OnnxfuseError(f"the tuning file {path} cannot be written: {error.strerror or error}") from error


def own_file() -> Path:
    """Where what was tuned on this machine is kept, beside the cache."""
    return default_folder().with_name("convolutions.json")


def own_tunings() -> Tunings:
    """What was tuned on this machine; a file that is missing or damaged counts as empty."""
    try:
        return read_tunings(own_file())
    except OnnxfuseError:
        return Tunings()


def all_tunings(files: Sequence[Path], may_be_new: bool) -> Tunings:
    """What was tuned on this machine and what is in these files, of which later ones win.

    The last file need not exist if it ``may_be_new``.  Raises OnnxfuseError for files that cannot be read.
    """
    found = own_tunings()
    for number, path in enumerate(files, 1):
        if not (may_be_new and number == len(files) and not path.exists()):
            found = found.merged(read_tunings(path))
    return found


def add_to_file(path: Path, tunings: Tunings) -> None:
    """Merge ``tunings`` into a file, which is made if need be.  Raises OnnxfuseError if that is not possible."""
    known = read_tunings(path) if path.exists() else Tunings()
    write_tunings(path, known.merged(tunings))


# ------------------------------------------------------------------------------------------------------- validation


def _entry(item: object) -> TuningEntry:
    fields = _fields(
        item,
        "gpu architecture onnxruntime convolution input programs math winner tilings times",
    )
    (architecture,) = parse_architectures([_text(fields, "architecture")])
    dims = _list(fields, "input", _MAX_RANK)
    least = 2 if _text(fields, "convolution").startswith(_PRODUCT) else 3
    if len(dims) < least or not all(dim is None or _is_size(dim) for dim in dims):
        raise ValueError(f"input {str(dims)[:60]} is no shape")
    programs = _text(fields, "programs")
    if len(programs) != _HEX or set(programs) - set("0123456789abcdef"):
        raise ValueError("programs is not a sha256 in hexadecimal")
    key = TuningKey(architecture, _text(fields, "convolution"), tuple(dims), programs, _one_of(fields, "math", MATHS))
    winner = _one_of(fields, "winner", (OURS, THEIRS))
    tilings = tuple(map(_tiling, _list(fields, "tilings", _MAX_TILINGS)))
    if winner == OURS and not tilings:
        raise ValueError("onnxfuse is the winner and has no tilings")
    times = tuple(map(_times, _list(fields, "times", _MAX_TIMES)))
    return TuningEntry(key, _text(fields, "gpu"), _text(fields, "onnxruntime"), winner, tilings, times)


def _tiling(item: object) -> Tiling:
    fields = _fields(item, "family tile thread vector split tensor_cores")
    family = _one_of(fields, "family", FAMILIES)
    tile, thread = _list(fields, "tile", 3), _list(fields, "thread", 2)
    sizes = [*tile, *thread]
    if (len(tile), len(thread)) != (3, 2) or not all(_is_size(size) and 1 <= size <= MAX_CONV_TILE for size in sizes):
        raise ValueError("a tile that is none")
    vector, split, cores = fields["vector"], fields["split"], fields["tensor_cores"]
    if not _is_size(vector) or vector not in VECTORS or not _is_size(split) or not 1 <= split <= MAX_CONV_SPLIT:
        raise ValueError("a tiling with a vector or a split that is none")
    if not isinstance(cores, bool):
        raise ValueError("tensor_cores is true or false")
    return Tiling(family, tuple(tile), tuple(thread), vector, split, cores)


def _times(item: object) -> Times:
    fields = _fields(item, "input onnxruntime onnxfuse")
    shape = _list(fields, "input", _MAX_RANK)
    if not all(map(_is_size, shape)):
        raise ValueError("times for what is no shape")
    theirs, ours = fields["onnxruntime"], fields["onnxfuse"]
    if not _is_time(theirs) or not (ours is None or _is_time(ours)):
        raise ValueError("a time that is none")
    return Times(tuple(shape), float(theirs), None if ours is None else float(ours))


def _fields(item: object, names: str) -> dict[str, Any]:
    """An object with exactly these fields."""
    if not isinstance(item, dict) or set(item) != set(names.split()):
        raise ValueError(f"not an object with the fields {', '.join(names.split())}")
    return item


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields[name]
    if not isinstance(value, str) or len(value) > _MAX_TEXT or not value.isprintable():
        raise ValueError(f"{name} is no line of text")
    return value


def _one_of(fields: dict[str, Any], name: str, choices: Sequence[str]) -> Any:
    value = fields[name]
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} is none of {', '.join(choices)}")
    return value


def _list(fields: dict[str, Any], name: str, most: int) -> list[Any]:
    value = fields[name]
    if not isinstance(value, list) or len(value) > most:
        raise ValueError(f"{name} is no list of up to {most}")
    return value


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_SIZE


def _is_time(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < _MOST_SECONDS
