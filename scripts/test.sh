#!/usr/bin/env bash
# Sets up .venv and runs every check: ruff, mypy, pytest (parts of it under the oldest ONNX Runtime too), with the versions
# of tests/constraints.txt.  With --newest as the first argument, with the newest versions that there are, in .venv-newest,
# made anew each time: what ruff, mypy and the documents have against them is a warning then.  Other arguments go to pytest.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"
export ONNXFUSE_ORT_OLDEST="$root/.venv-oldest/bin/python"

check_sources() {
    "$venv/bin/ruff" check . && "$venv/bin/ruff" format --check . && "$venv/bin/mypy" && "$venv/bin/mypy" scripts &&
        "$venv/bin/python" scripts/operator_table.py --check
}

cd "$root"
set_up_oldest &
oldest=$!
if [ "${1:-}" = --newest ]; then
    shift
    venv="$root/.venv-newest"
    rm -rf "$venv"
    set_up cpu,dev,nvrtc
    check_sources || echo "warning: that is with versions other than those of $constraints" >&2
else
    set_up cpu,dev,nvrtc "$constraints"
    check_sources
fi
wait "$oldest"
exec "$venv/bin/pytest" -n 2 "$@"
