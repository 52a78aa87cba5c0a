#!/usr/bin/env bash
# Sets up .venv and runs every check: ruff, mypy, pytest (parts of it under the oldest ONNX Runtime too), with the versions
# of tests/constraints.txt.  The first argument may be
#   --quick   for a smoke test of some three minutes from nothing on two cores, which says at the end what it leaves out; or
#   --newest  for the newest versions that there are, in .venv-newest, made anew each time: what ruff, mypy and the documents
#             have against them is a warning then.
# Other arguments go to pytest.  --exhaustive runs all cases, where a part of them stands for all.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"
export ONNXFUSE_ORT_OLDEST="$root/.venv-oldest/bin/python"
unset PYTHONDONTWRITEBYTECODE # many processes import the same tests, whose assertions pytest writes anew

check_sources() {
    "$venv/bin/ruff" check . && "$venv/bin/ruff" format --check . && "$venv/bin/mypy" && "$venv/bin/mypy" scripts tools &&
        "$venv/bin/python" scripts/operator_table.py --check
}

cd "$root"
case "${1:-}" in
--quick)
    unset ONNXFUSE_ORT_OLDEST # which takes an environment of its own
    set_up cpu,dev,nvrtc "$constraints"
    "$venv/bin/ruff" check .
    ;;
--newest)
    shift
    venv="$root/.venv-newest"
    rm -rf "$venv"
    set_up_oldest
    set_up cpu,dev,docs,nvrtc
    check_sources || echo "warning: that is with versions other than those of $constraints" >&2
    ;;
*)
    set_up_oldest &
    set_up cpu,dev,docs,nvrtc "$constraints"
    wait $!
    check_sources
    ;;
esac
exec "$venv/bin/pytest" -n 2 "$@"
