"""Run by scripts/wheels.sh, with LIEF at hand: what the library in a wheel exports and needs."""

import re
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]

_LINUX = r"lib(c|m|dl|pthread|gcc_s|rt)\.so\.\d+|ld-linux[-\w]*\.so\.\d"
SYSTEM = {
    ".so": re.compile(_LINUX),
    ".dll": re.compile(r"(kernel32|ntdll|ucrtbase|api-ms-win-crt-[-\w]+)\.dll", re.IGNORECASE),
    ".dylib": re.compile(r"/usr/lib/libSystem\.B\.dylib"),
}
"""Of each kind of library, by the end of its name: those that every system has, and that it may need."""
MACHO_OWN = re.compile(r"_Z(n[wa]|d[la])\w*|_mh_dylib_header|__dso_handle")
"""What Zig's linker exports of every library for macOS, whatever it is told: where the library lies, and C++'s
functions that allocate, as weak definitions, of which a process takes the same for all its libraries."""


def exported() -> set[str]:
    """The functions that the sources export."""
    sources = sorted(path for suffix in ("cc", "h") for path in (ROOT / "custom_ops").rglob(f"*.{suffix}"))
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources if "tests" not in path.parts)
    return set(re.findall(r"ONNXFUSE_EXPORT[^;({]*?\b(RegisterCustomOps|onnxfuse_\w+)\(", text))


def foreign(suffix: str, needed: list[str]) -> list[str]:
    """Those of the libraries that are needed which not every system has."""
    return [name for name in needed if not SYSTEM[suffix].fullmatch(name)]


def main(wheel: Path) -> None:
    """Print what the library of ``wheel`` is and needs.  Raises SystemExit where it is not what it should be."""
    import lief

    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if re.search(r"onnxfuse_ops\.(so|dll|dylib)$", name))
        data = archive.read(name)
    binary = lief.parse(list(data))
    if isinstance(binary, lief.MachO.FatBinary):
        binary = binary.at(0)
    suffix = Path(name).suffix
    needed = [getattr(library, "name", library) for library in binary.libraries]
    if suffix == ".dylib":
        needed = [
            library.name for library in binary.libraries if library.command != lief.MachO.LoadCommand.TYPE.ID_DYLIB
        ]
    functions = {function.name for function in binary.exported_functions}
    if suffix == ".dylib":
        plain = (name.removeprefix("_") for name in functions)
        functions = {name for name in plain if not MACHO_OWN.fullmatch(name)}
    problems = [f"needs {library}" for library in foreign(suffix, needed)]
    problems += [f"does not export {function}" for function in sorted(exported() - functions)]
    problems += [f"exports {function}" for function in sorted(functions - exported())]
    if problems:
        sys.exit(f"error: {name} {'; '.join(problems[:20])}")
    print(f"{Path(name).name}: {len(data) >> 10} KiB, exports {len(functions)} functions, needs {', '.join(needed)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
