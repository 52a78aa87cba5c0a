#!/usr/bin/env bash
# Sets up .venv and runs every check: ruff, mypy, pytest (parts of it under the oldest ONNX Runtime too).  Arguments
# go to pytest.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"

set_up cpu,dev,nvrtc
set_up_oldest
cd "$root"
"$venv/bin/ruff" check .
"$venv/bin/ruff" format --check .
"$venv/bin/mypy"
"$venv/bin/mypy" scripts
exec "$venv/bin/pytest" -n 2 "$@"
