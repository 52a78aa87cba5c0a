# Sourced by the other scripts: `set_up EXTRAS` makes $root/.venv with the project and its extras installed.
# Does nothing if the installed package is that of the current sources.

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
venv="$root/.venv"

# The package itself is what was installed, never the source tree that a script is started from.
export PYTHONSAFEPATH=1

set_up() {
    local stamp="$venv/onnxfuse-installed" sources extras="$1" last_sources="" last_extras=""
    if [ ! -x "$venv/bin/python" ]; then
        "$(find_python)" -m venv "$venv" || die "cannot create $venv (on Debian and Ubuntu: install python3-venv)"
    fi
    sources="$(sources_checksum)"
    [ -f "$stamp" ] && read -r last_sources last_extras <"$stamp"
    [[ ",$last_extras," == *",$extras,"* ]] && extras="$last_extras" # a second script must not undo the first
    if [ "$sources $extras" != "$last_sources $last_extras" ]; then
        rm -f "$stamp"
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$root[$extras]"
        echo "$sources $extras" >"$stamp"
    fi
}

# The first Python of version 3.11 or later; the environment variable PYTHON overrules the search.
find_python() {
    local candidate
    for candidate in "${PYTHON:-python3.11}" python3 python3.12 python3.13 python3.14; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            echo "$candidate"
            return
        fi
    done
    die "Python 3.11 or later is needed (set PYTHON to where it is)"
}

sources_checksum() {
    (
        cd "$root"
        find pyproject.toml CMakeLists.txt README.md onnxfuse custom_ops models -type f ! -name '*.pyc' -print0 |
            LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -d ' ' -f 1
    )
}

die() {
    echo "error: $*" >&2
    exit 1
}

# A second environment with the oldest ONNX Runtime that the library supports, for the tests that run under both.
set_up_oldest() {
    local oldest="$root/.venv-oldest"
    if [ ! -e "$oldest/ready" ]; then
        "$(find_python)" -m venv "$oldest"
        "$oldest/bin/python" -m pip install --quiet --disable-pip-version-check \
            onnxruntime==1.20.1 onnx numpy ml_dtypes pytest hypothesis
        touch "$oldest/ready"
    fi
    export ONNXFUSE_ORT_OLDEST="$oldest/bin/python"
}
