# Sourced by the other scripts: `set_up EXTRAS [CONSTRAINTS]` makes $venv with the project and its extras installed, in the
# versions of the file CONSTRAINTS if there is one.  Does nothing if the installed package is that of the current sources.

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
venv="$root/.venv"
constraints="tests/constraints.txt" # as everything that pip is told, from the root: it splits names at spaces

# The package itself is what was installed, never the source tree that a script is started from.
export PYTHONSAFEPATH=1

set_up() {
    local stamp="$venv/onnxfuse-installed" sources extras="$1" versions last_sources="" last_extras="" last_versions=""
    make_venv "$venv"
    sources="$(sources_checksum)"
    [ -f "$stamp" ] && read -r last_sources last_extras last_versions <"$stamp"
    # A second script must not undo the first.
    [[ ",$last_extras," == *",$extras,"* ]] && extras="$last_extras"
    versions="${2:-$last_versions}"
    if [ "$sources $extras $versions" != "$last_sources $last_extras $last_versions" ]; then
        rm -f "$stamp"
        pip_install "$venv" "$versions" ".[$extras]"
        echo "$sources $extras $versions" >"$stamp"
    fi
}

make_venv() {
    [ -x "$1/bin/python" ] || "$(find_python)" -m venv "$1" ||
        die "cannot create $1 (on Debian and Ubuntu: install python3-venv)"
}

# `pip_install VENV CONSTRAINTS REQUIREMENT...`; CONSTRAINTS is a file or nothing.  For what a package's build needs, pip before
# 25.3 goes by PIP_CONSTRAINT, and later by PIP_BUILD_CONSTRAINT.
pip_install() {
    local versions=()
    [ -n "$2" ] && versions=("PIP_CONSTRAINT=$2" "PIP_BUILD_CONSTRAINT=$2")
    (cd "$root" && env "${versions[@]}" "$1/bin/python" -m pip install --quiet --disable-pip-version-check "${@:3}")
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

# `write_program FILE`, from standard input.  One that is there stays: a cache of compilations goes by the compiler's time.
write_program() {
    cat >"$1.new"
    chmod +x "$1.new"
    cmp --silent "$1.new" "$1" && rm "$1.new" || mv "$1.new" "$1"
}

sources_checksum() {
    (
        cd "$root"
        find pyproject.toml CMakeLists.txt README.md "$constraints" onnxfuse custom_ops models -type f ! -name '*.pyc' -print0 |
            LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -d ' ' -f 1
    )
}

die() {
    echo "error: $*" >&2
    exit 1
}

# A second environment with the oldest ONNX Runtime that the library supports, for the tests that run under both.
set_up_oldest() {
    local oldest="$root/.venv-oldest" wanted
    make_venv "$oldest"
    wanted="$(sed 's/^onnxruntime==.*/onnxruntime==1.20.1/' "$root/$constraints")"
    if [ "$wanted" != "$(cat "$oldest/installed.txt" 2>/dev/null)" ]; then
        echo "$wanted" >"$oldest/constraints.txt"
        pip_install "$oldest" .venv-oldest/constraints.txt onnxruntime onnx numpy ml_dtypes pytest hypothesis
        mv "$oldest/constraints.txt" "$oldest/installed.txt"
    fi
}
