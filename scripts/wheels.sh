#!/usr/bin/env bash
# Builds a wheel for Linux on x86-64 and any Python from 3.11 on into dist/, and tests it.
#
#   scripts/wheels.sh build                builds it
#   scripts/wheels.sh test [PYTHON...]     installs the wheel for this machine in fresh environments of each Python that
#                                          there is, with the oldest and the newest ONNX Runtime and no compiler, and optimizes
#                                          and runs a model there
#
# Needs Python 3.11 or later and g++.  The linker is Zig's, from PyPI, for the symbols of an older C library; Clang's kernels
# took twice the time of g++'s in convolutions of PP-OCR.  The same commit gives the
# same bytes: times in the wheel are the commit's, unless SOURCE_DATE_EPOCH is set.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"

here="$root/build/wheels"
tools="$here/tools"
tool_packages=(ziglang==0.17.1 auditwheel wheel)
oldest_runtime=1.20.1
glibc=2.28

make_tools() {
    make_venv "$tools"
    pip_install "$tools" "" "${tool_packages[@]}"
    export ZIG_GLOBAL_CACHE_DIR="$here/zig-cache" ZIG_LOCAL_CACHE_DIR="$here/zig-cache"
}

# `write_gnu_compiler FILE TARGET`: g++, but with Zig's linker, which has the symbols of an older C library, and with the C++
# library inside.  That asks a newer C library whether there is but one thread: no, for all it is told here.
write_gnu_compiler() {
    local gnu folder
    gnu="$(command -v "${CXX:-g++}")" || die "g++ is needed (or CXX)"
    folder="$(dirname "$1")"
    mkdir -p "$folder"
    echo '__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;' >"$folder/threads.c"
    "$gnu" -x c -O2 -fPIC -c "$folder/threads.c" -o "$folder/threads.o"
    cat >"$1" <<END
#!/bin/bash
for argument; do
    case "\$argument" in -c | -E | -S | --version | -print-*) exec "$gnu" "\$@" ;; esac
done
exec "$tools/bin/python" -I -m ziglang cc -target $2 "\$@" -Wl,--allow-shlib-undefined "$folder/threads.o" \\
    "$("$gnu" -print-file-name=libstdc++.a)" "$("$gnu" -print-file-name=libgcc_s.so.1)"
END
    chmod +x "$1"
}

build() {
    local processor=x86_64 folder="$here/linux-x86_64" tag wheel
    [ "$(uname -sm)" = "Linux $processor" ] || die "wheels are built on Linux on $processor alone"
    write_gnu_compiler "$folder/c++" "$processor-linux-gnu.$glibc"
    echo "Compiling for linux-$processor: minutes"
    rm -rf "$folder/wheel"
    CXX="$folder/c++" CXXFLAGS="-ffile-prefix-map=$root=." LDFLAGS=-s \
        CMAKE_ARGS="-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=$processor" \
        "$tools/bin/python" -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$folder/wheel" \
        --config-settings build-dir="$folder/native" --config-settings install.strip=false "$root"
    wheel="$(echo "$folder"/wheel/*.whl)"
    [ "$wheel" = "${wheel%-*}-linux_$processor.whl" ] || mv "$wheel" "${wheel%-*}-linux_$processor.whl"
    wheel="${wheel%-*}-linux_$processor.whl"
    tag="$(glibc_tag "$wheel" "$processor")"
    "$tools/bin/python" -m wheel tags --remove --platform-tag "$tag" "$wheel" >/dev/null
    mkdir -p "$root/dist"
    mv "$folder"/wheel/*.whl "$root/dist/"
    (cd "$root/dist" && ls -s --block-size=1K ./*"$tag".whl)
}

# The platform of a wheel for Linux and a processor as auditwheel finds it, which must need no later C library than $glibc.
glibc_tag() {
    local tag
    tag="$("$tools/bin/auditwheel" show "$1" 2>/dev/null | grep -o "manylinux_[0-9]*_[0-9]*_$2" | head -n 1)"
    printf '%s\n' "${tag:-none}" "manylinux_${glibc/./_}_$2" | sort --version-sort --check 2>/dev/null ||
        die "the wheel for linux-$2 needs more than glibc $glibc: ${tag:-of no manylinux}"
    echo "$tag"
}

# One environment: a Python, a version of ONNX Runtime.
test_in() {
    local python="$1" runtime="$2" environment="$here/test" started
    rm -rf "$environment"
    "$python" -m venv "$environment"
    started="$(date +%s%N)"
    env -i PATH="$environment/bin" HOME="$here" "$environment/bin/python" -m pip install --quiet --disable-pip-version-check \
        --only-binary=:all: "$wheel" "$runtime"
    (cd "$environment" && env -i PATH="$environment/bin" HOME="$here" "$environment/bin/python" "$root/tools/wheel_check.py")
    echo "$("$python" --version), $runtime: right, $((($(date +%s%N) - started) / 1000000)) ms from pip install to the end"
}

test_wheels() {
    local python tested=""
    wheel="$(ls -t "$root"/dist/*"$(uname -m)".whl 2>/dev/null | head -n 1)"
    [ -n "$wheel" ] || die "there is no wheel for this machine in dist/: run scripts/wheels.sh build"
    [ "$#" -gt 0 ] || set -- python3.11 python3.12 python3.13 python3.14
    for python; do
        if ! "$python" -c "" 2>/dev/null; then
            echo "$python: not here, not tested"
            continue
        fi
        tested=1
        for runtime in "onnxruntime==$oldest_runtime" onnxruntime; do test_in "$python" "$runtime"; done
    done
    [ -n "$tested" ] || die "none of these Pythons is here"
}

command="${1:-}"
[ "$#" -gt 0 ] && shift
: "${SOURCE_DATE_EPOCH:=$(git -C "$root" log -1 --format=%ct 2>/dev/null || date +%s)}"
export SOURCE_DATE_EPOCH
case "$command" in
build)
    make_tools
    build
    ;;
test) test_wheels "$@" ;;
*) die "build or test is wanted" ;;
esac
